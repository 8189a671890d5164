//! Operator state: the overrides (off, shadow, percent) and blocks over the policy, and the overrides of overload
//! controllers, kept on disk for the next start. One task writes it, a whole file at a time, and an operator gets an
//! answer once it is on disk. A disk failure is reported and retried. The change is active in any case. In a fleet the
//! nodes share the state as items (`items`, `shared`).

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
use items::FleetItems;
pub(crate) use shared::SharedState;
use tollgate_tower::shed::Shedder;

mod items;
mod file;
mod shared;

const NAME: &str = "operator.state";
/// Maximum size of the file. The maximum number of blocks, each of the maximum length, is smaller.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// How long an operator waits for the disk.
const DISK_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before a retry after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The progress of the writer.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// The last change for which a write was attempted.
    through: u64,
    /// Why the last write failed, or what the start found damaged.
    error: Option<Failure>,
}

/// The operator state on disk.
pub(crate) struct OperatorStateFile {
    directory: PathBuf,
    /// The number of changes to be saved.
    asked: watch::Sender<u64>,
    progress: watch::Sender<Progress>,
}

/// The result of reading the file at the start.
pub(crate) struct OperatorStateStart {
    pub(crate) file: Arc<OperatorStateFile>,
    /// A line for the banner, if there is anything to report.
    pub(crate) line: Option<String>,
    /// The items of the fleet that were known, and those that only this node held.
    known: FleetItems,
    state: OperatorState,
}

impl OperatorStateStart {
    /// Applies the saved state again. Returns the file, and what was known of the fleet's items.
    pub(crate) fn resume<S: Store>(
        self,
        engine: &Engine<S>,
        shedder: Option<&Shedder>,
        now: Timestamp,
    ) -> (Arc<OperatorStateFile>, FleetItems) {
        for error in self.state.apply(engine, shedder, now) {
            tracing::error!(error, "an override or block from before the restart is not active");
        }
        (self.file, self.known)
    }
}

impl OperatorStateFile {
    /// Reads the file in a directory that no other server uses. A damaged file is set aside and reported.
    pub(crate) fn open(directory: &Path, clock: &Clock) -> OperatorStateStart {
        let now = clock.now();
        let wall = clock.wall_offset(now);
        let (mut state, damage) = match read(&directory.join(NAME)) {
            Ok(None) => (OperatorState::default(), None),
            Ok(Some(bytes)) => match OperatorState::read(&bytes, now.on_wall(wall)) {
                Ok(state) => (state, None),
                Err(error) => (OperatorState::default(), Some(error)),
            },
            Err(error) => (OperatorState::default(), Some(error.to_string())),
        };
        let damage = damage.map(|error| set_aside(directory, &error));
        let line = damage.clone().map(|damage| format!("warning: {damage}"));
        let error = damage.map(|damage| Failure::new(damage, now));
        let file = Self {
            directory: directory.to_owned(),
            asked: watch::Sender::new(0),
            progress: watch::Sender::new(Progress { through: 0, error }),
        };
        let known = FleetItems::resumed(std::mem::take(&mut state.shared), &state.items());
        let line = line.or_else(|| banner_line(&state));
        OperatorStateStart { file: Arc::new(file), line, known, state: state.off_wall(wall) }
    }

    /// Why the operator state is not on disk, or was damaged at the start, if that is so.
    pub(crate) fn error(&self) -> Option<Failure> {
        self.progress.borrow().error.clone()
    }

    /// Saves the current state, without waiting for it.
    pub(crate) fn request(&self) -> u64 {
        let mut change = 0;
        self.asked.send_modify(|asked| {
            *asked += 1;
            change = *asked;
        });
        change
    }

    /// Saves the current state, and waits until it is on disk.
    ///
    /// # Errors
    /// When it is not on disk, so that it would not survive a restart. The message says why.
    pub(crate) async fn keep(&self) -> Result<(), String> {
        let change = self.request();
        let mut progress = self.progress.subscribe();
        let kept =
            tokio::time::timeout(DISK_TIMEOUT, progress.wait_for(|progress| progress.through >= change));
        match kept.await {
            Ok(Ok(progress)) => progress.error.as_ref().map_or(Ok(()), |error| Err(error.text.clone())),
            Ok(Err(_)) => Err("the server is stopping".to_owned()),
            Err(_) => Err("the disk of --state-dir does not answer".to_owned()),
        }
    }

    /// Writes after every change, while it is polled, and again after a failure.
    pub(crate) async fn run(self: Arc<Self>, service: Arc<Service>, shared: Option<Arc<SharedState>>) {
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
            // Read before the state is: every change counted up to here is in the state already.
            let through = *asked.borrow();
            let now = service.now();
            let state = OperatorState::of(&service.engine, service.shedder(), now);
            let mut state = state.on_wall(service.clock().wall_offset(now));
            state.shared = shared.as_ref().map(|shared| shared.entries()).unwrap_or_default();
            let this = Arc::clone(&self);
            let written = tokio::task::spawn_blocking(move || this.write(&state)).await;
            let written = written.unwrap_or_else(|_| Err("the thread that writes has ended".to_owned()));
            self.note(through, written, now);
        }
    }

    fn note(&self, through: u64, written: Result<(), String>, now: Timestamp) {
        let error = written.err().map(|error| {
            format!("{NAME}: {error}; the operator state is active, and would not survive a restart")
        });
        match &error {
            Some(error) => tracing::warn!(error, "the operator state could not be written"),
            None if self.error().is_some() => tracing::info!("the operator state is on disk again"),
            None => {}
        }
        let error = error.map(|error| Failure::new(error, now));
        self.progress.send_replace(Progress { through, error });
    }

    fn write(&self, state: &OperatorState) -> Result<(), String> {
        let bytes = state.write().map_err(|error| error.to_string())?;
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

/// Sets a damaged file aside, and returns a sentence about it.
fn set_aside(directory: &Path, error: &str) -> String {
    let where_to = match disk::set_aside(directory, NAME) {
        Ok(aside) => {
            let name = aside.file_name().unwrap_or_default().to_string_lossy().into_owned();
            format!("it was set aside as {name}")
        }
        Err(error) => format!("it could not be set aside: {}", disk::plain_cause(&error)),
    };
    tracing::error!(error, "the operator state cannot be read; none of it is active");
    format!(
        "{NAME}: {error}; {where_to}, and NO block, kill switch or other override is active; set them again"
    )
}

/// The line of the banner about a start.
fn banner_line(state: &OperatorState) -> Option<String> {
    let several = |count: usize, what: &str| match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        _ => Some(format!("{count} {what}s")),
    };
    let (blocks, overrides) = state.counts();
    let parts: Vec<String> =
        [several(blocks, "block"), several(overrides, "override")].into_iter().flatten().collect();
    let tail = "of operators active again; `tollgate limits` lists them";
    (!parts.is_empty()).then(|| format!("{} {tail}", parts.join(" and ")))
}
