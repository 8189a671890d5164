//! What operators said over the policy (blocks, kill switches, shadow, percent) and over controllers of overload, kept on disk for the next start. One task writes it, a
//! whole file at a time, and an operator is answered when it is there. A disk that fails is told, and tried again; what was said is in
//! force all the same.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tollgate::store::Store;
use tollgate::{Clock, Engine, Timestamp};

use crate::disk::{self, DiskError};
use crate::failure::Failure;
use crate::service::Service;
use file::OperatorState;
use tollgate_tower::shed::Shedder;

mod file;

const NAME: &str = "operator.orders";
/// Largest file that is read; as many blocks as may be, each as long as it may be, are less.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// How long an operator waits for the disk.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long after a failure it is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// How far the writing has come.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// The last change that an attempt was made for.
    through: u64,
    /// Why the last attempt failed, or what the start found damaged.
    error: Option<Failure>,
}

/// Where it is kept.
pub(crate) struct Orders {
    directory: PathBuf,
    /// How many changes were to be kept.
    asked: watch::Sender<u64>,
    progress: watch::Sender<Progress>,
}

/// What a start found.
pub(crate) struct OperatorStateStart {
    pub(crate) orders: Arc<Orders>,
    /// What to tell about it, if it is anything.
    pub(crate) line: Option<String>,
    said: OperatorState,
}

impl OperatorStateStart {
    /// Says again what was said before.
    pub(crate) fn resume<S: Store>(
        self,
        engine: &Engine<S>,
        shedder: Option<&Shedder>,
        now: Timestamp,
    ) -> Arc<Orders> {
        for error in self.said.tell(engine, shedder, now) {
            tracing::error!(error, "what an operator said before the restart is not in force");
        }
        self.orders
    }
}

impl Orders {
    /// Reads what is kept in a directory that nobody else uses. What is damaged is set aside, and told.
    pub(crate) fn open(directory: &Path, clock: &Clock) -> OperatorStateStart {
        let now = clock.now();
        let wall = clock.wall_offset(now);
        let (said, damage) = match read(&directory.join(NAME)) {
            Ok(None) => (OperatorState::default(), None),
            Ok(Some(bytes)) => match OperatorState::read(&bytes, now.on_wall(wall)) {
                Ok(said) => (said.off_wall(wall), None),
                Err(error) => (OperatorState::default(), Some(error)),
            },
            Err(error) => (OperatorState::default(), Some(error.to_string())),
        };
        let damage = damage.map(|error| set_aside(directory, &error));
        let line = damage.clone().map(|damage| format!("warning: {damage}"));
        let error = damage.map(|damage| Failure::new(damage, now));
        let orders = Self {
            directory: directory.to_owned(),
            asked: watch::Sender::new(0),
            progress: watch::Sender::new(Progress { through: 0, error }),
        };
        OperatorStateStart { orders: Arc::new(orders), line: line.or_else(|| told(&said)), said }
    }

    /// Why what operators said is not on disk, or was not at the start, if that is so.
    pub(crate) fn error(&self) -> Option<Failure> {
        self.progress.borrow().error.clone()
    }

    /// Has what is in force now written down, and waits until it is.
    ///
    /// # Errors
    /// When it is not, so that it would not survive a restart; the message says why.
    pub(crate) async fn keep(&self) -> Result<(), String> {
        let mut change = 0;
        self.asked.send_modify(|asked| {
            *asked += 1;
            change = *asked;
        });
        let mut progress = self.progress.subscribe();
        let kept = tokio::time::timeout(PATIENCE, progress.wait_for(|progress| progress.through >= change));
        match kept.await {
            Ok(Ok(progress)) => progress.error.as_ref().map_or(Ok(()), |error| Err(error.text.clone())),
            Ok(Err(_)) => Err("the server is stopping".to_owned()),
            Err(_) => Err("the disk of --state-dir does not answer".to_owned()),
        }
    }

    /// Writes whenever something was said, as long as it is polled, and again after a failure.
    pub(crate) async fn run(self: Arc<Self>, service: Arc<Service>) {
        let mut asked = self.asked.subscribe();
        loop {
            let Progress { through, error } = self.progress.borrow().clone();
            let next = asked.wait_for(|asked| *asked > through);
            // It fails only without a sender, which lives as long as this.
            if through > 0 && error.is_some() {
                let _ = tokio::time::timeout(RETRY_AFTER, next).await;
            } else {
                let _ = next.await;
            }
            // Read before what is in force is: whoever asked up to here said it before.
            let through = *asked.borrow();
            let now = service.now();
            let said = OperatorState::of(&service.engine, service.overload.as_deref(), now);
            let said = said.on_wall(service.clock().wall_offset(now));
            let orders = Arc::clone(&self);
            let written = tokio::task::spawn_blocking(move || orders.write(&said)).await;
            let written = written.unwrap_or_else(|_| Err("the thread that writes has ended".to_owned()));
            self.note(through, written, now);
        }
    }

    fn note(&self, through: u64, written: Result<(), String>, now: Timestamp) {
        let error = written.err().map(|error| {
            format!("{NAME}: {error}; what operators said is in force, and would not survive a restart")
        });
        match &error {
            Some(error) => tracing::warn!(error, "what operators said could not be written"),
            None if self.error().is_some() => tracing::info!("what operators said is on disk again"),
            None => {}
        }
        let error = error.map(|error| Failure::new(error, now));
        self.progress.send_replace(Progress { through, error });
    }

    fn write(&self, said: &OperatorState) -> Result<(), String> {
        let bytes = said.write().map_err(|error| error.to_string())?;
        let replaced = disk::replace(&self.directory, NAME, |file| {
            file.write_all(&bytes).map_err(DiskError::at("writing"))
        });
        replaced.map_err(|error: DiskError| error.to_string())
    }
}

fn read(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    let file = match disk::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Puts a damaged file out of the way, and says so in a sentence.
fn set_aside(directory: &Path, error: &str) -> String {
    let where_to = match disk::set_aside(directory, NAME) {
        Ok(aside) => {
            let name = aside.file_name().unwrap_or_default().to_string_lossy().into_owned();
            format!("it was set aside as {name}")
        }
        Err(error) => format!("it could not be set aside: {error}"),
    };
    tracing::error!(error, "what operators said cannot be read; none of it is in force");
    format!(
        "{NAME}: {error}; {where_to}, and NO block, kill switch or other ruling is in force; say them again"
    )
}

/// What the banner says about a start.
fn told(said: &OperatorState) -> Option<String> {
    let several = |count: usize, what: &str| match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        _ => Some(format!("{count} {what}s")),
    };
    let (blocks, rulings) = said.counts();
    let parts: Vec<String> =
        [several(blocks, "block"), several(rulings, "ruling")].into_iter().flatten().collect();
    let tail = "of operators in force again; `tollgate limits` lists them";
    (!parts.is_empty()).then(|| format!("{} {tail}", parts.join(" and ")))
}
