//! Live reload. A policy file or directory is looked at about twice a second, and at once on SIGHUP; a change that holds still is
//! compiled, guarded against accidents, and swapped in. Whatever goes wrong, the last good policy stays in force, and says so.
//!
//! `file_watch` (what is on disk) → `desk` (one turn: read, guard, swap) → `status` (what others may know); `guard` says what is
//! suspicious, `last_good` keeps a copy for the next start. Certificates are reloaded by the same beat. Each looks at the disk on a
//! thread of its own and within a deadline (`file_watch::Looks`), so that a file system that hangs shows, and holds up nothing else.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use tollgate::credential::CredentialAttributes;
use tollgate::store::Store;
use tollgate::{SwapReport, Timestamp};

use crate::callers::CallersFile;
use crate::failure::Failure;
use crate::file_watch::{self, Capture, FileReload, Looked, Looks, Wish};
use crate::policy_file::{self, Loaded};
use crate::service::Service;
use crate::tls::Tls;
use desk::PolicyReload;
use guard::PolicySummary;
use last_good::LastGood;

mod desk;
mod guard;
mod last_good;
mod status;

pub(crate) use status::{Origin, PolicyStatus};

/// How often the disk is looked at. A change is seen within one beat, must hold still for another, and is in force within a second.
const BEAT: Duration = Duration::from_millis(400);
/// Most requests to reload that wait for their turn.
const REQUESTS_MAX: usize = 16;
/// How often a file that changes while it is read is read again, at the start.
const START_ATTEMPTS: u32 = 10;

/// What a turn did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// What is on disk is in force already, or not yet still.
    Nothing,
    /// Another policy is in force.
    Reloaded(SwapReport),
}

/// What a reload did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReloadOutcome {
    /// To the policy.
    pub(crate) policy: Done,
    /// To the files beside it, as far as they changed; in words for the operator.
    pub(crate) also: Vec<String>,
}

impl ReloadOutcome {
    /// All of it together.
    ///
    /// # Errors
    /// Why something on disk is not in use, and what is in spite of that.
    fn of(policy: Result<Done, String>, beside: [Result<FileReload, String>; 2]) -> Result<Self, String> {
        let (mut also, mut errors) = (Vec::new(), Vec::new());
        let policy = policy.unwrap_or_else(|error| {
            errors.push(error);
            Done::Nothing
        });
        for renewed in beside {
            match renewed {
                Ok(FileReload::Nothing) => {}
                Ok(FileReload::Read(what)) => also.push(what),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() {
            return Ok(Self { policy, also });
        }
        let is_reloaded = matches!(policy, Done::Reloaded(_));
        let done = is_reloaded.then(|| "the policy was reloaded".to_owned()).into_iter().chain(also);
        let done = done.collect::<Vec<_>>().join(", ");
        let but = if done.is_empty() { String::new() } else { format!("{done}; but ") };
        Err(format!("{but}{}", errors.join("; ")))
    }
}

struct Request {
    wish: Wish,
    reply: oneshot::Sender<Result<ReloadOutcome, String>>,
}

/// Asks for reloads, and knows how the last ones went. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Reloader {
    requests: mpsc::Sender<Request>,
    status: Arc<ArcSwap<PolicyStatus>>,
}

impl Reloader {
    /// The state of the policy.
    pub(crate) fn status(&self) -> Arc<PolicyStatus> {
        self.status.load_full()
    }

    /// Reloads now: the policy, the callers file and the certificates.
    ///
    /// # Errors
    /// Why something on disk is not in use, in words for the operator.
    pub(crate) async fn now(&self) -> Result<ReloadOutcome, String> {
        self.ask(Wish::Now).await
    }

    /// Reloads now, even what the guard refuses. What does not compile is still refused.
    ///
    /// # Errors
    /// As [`Reloader::now`].
    pub(crate) async fn force(&self) -> Result<ReloadOutcome, String> {
        self.ask(Wish::Force).await
    }

    async fn ask(&self, wish: Wish) -> Result<ReloadOutcome, String> {
        let (reply, answer) = oneshot::channel();
        let gone = || "the server is about to stop; nothing was reloaded".to_owned();
        self.requests.send(Request { wish, reply }).await.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// What a server starts with.
pub(crate) struct Start {
    pub(crate) loaded: Loaded,
    origin: Origin,
    capture: Option<Capture>,
    /// Why the last good policy is used instead of the file.
    pub(crate) error: Option<String>,
}

/// The policy to start with: the file's, else the last good one's.
///
/// # Errors
/// When there is neither.
pub(crate) fn start(
    path: Option<&PathBuf>,
    state_dir: Option<&Path>,
    credentials: &CredentialAttributes,
) -> Result<Start, String> {
    let Some(path) = path.filter(|path| file_watch::is_watchable(path)) else {
        let loaded = policy_file::load_for(path, credentials).map_err(|error| error.to_string())?;
        return Ok(Start { loaded, origin: Origin::Fixed, capture: None, error: None });
    };
    let mut read = desk::read(path, credentials);
    for _ in 1..START_ATTEMPTS {
        if !matches!(read, desk::PolicyRead::Moving) {
            break;
        }
        read = desk::read(path, credentials);
    }
    let error = match read {
        desk::PolicyRead::Good(loaded, capture) => {
            return Ok(Start { loaded: *loaded, origin: Origin::File, capture: Some(capture), error: None });
        }
        desk::PolicyRead::Wrong(error) => error,
        desk::PolicyRead::Moving => format!("{}: changes faster than it can be read", path.display()),
    };
    let Some(state_dir) = state_dir else { return Err(error) };
    match from_last_good(path, state_dir, credentials) {
        Ok(mut start) => {
            start.error = Some(error);
            Ok(start)
        }
        Err(why) => Err(format!("{error}\nand there is no last good policy to start with: {why}")),
    }
}

fn from_last_good(
    path: &Path,
    state_dir: &Path,
    credentials: &CredentialAttributes,
) -> Result<Start, String> {
    let copy = LastGood::new(state_dir).find(path)?;
    match desk::read(&copy, credentials) {
        desk::PolicyRead::Good(mut loaded, capture) => {
            loaded.name = format!("the last good copy of {}", path.display());
            Ok(Start { loaded: *loaded, origin: Origin::LastGood, capture: Some(capture), error: None })
        }
        desk::PolicyRead::Wrong(error) => Err(error),
        desk::PolicyRead::Moving => Err(format!("{} changes while it is read", copy.display())),
    }
}

/// How changes of the policy are taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReloadSettings {
    /// Where the last good policy is kept.
    pub(crate) state_dir: Option<PathBuf>,
    /// Whether every policy that compiles is taken, whatever the guard thinks.
    pub(crate) is_forced: bool,
}

/// What is reloaded by the same beat as the policy.
pub(crate) struct WatchedFiles {
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) callers: Option<Arc<CallersFile>>,
}

/// Watches the disk, once the server runs.
pub(crate) struct Watcher {
    requests: mpsc::Receiver<Request>,
    status: Arc<ArcSwap<PolicyStatus>>,
    path: Option<PathBuf>,
    summary: PolicySummary,
    capture: Option<Capture>,
    error: Option<String>,
    last_good: Option<LastGood>,
    force: bool,
}

impl Watcher {
    /// What watches the policy that a server starts with, and what asks it for reloads.
    pub(crate) fn new(
        start: &mut Start,
        path: Option<&PathBuf>,
        settings: &ReloadSettings,
        now: Timestamp,
    ) -> (Reloader, Self) {
        let version = start.capture.as_ref().map(|capture| capture.version);
        let mut status = PolicyStatus::new(start.loaded.name.clone(), version, start.origin, now);
        status.error = start.error.clone().map(|text| Failure::new(text, now));
        let status = Arc::new(ArcSwap::from_pointee(status));
        let (sender, requests) = mpsc::channel(REQUESTS_MAX);
        let watcher = Self {
            requests,
            status: Arc::clone(&status),
            path: path.filter(|_| start.origin != Origin::Fixed).cloned(),
            summary: PolicySummary::of(&start.loaded.rules),
            capture: start.capture.take(),
            error: start.error.clone(),
            last_good: settings.state_dir.as_deref().map(LastGood::new),
            force: settings.is_forced,
        };
        (Reloader { requests: sender, status }, watcher)
    }

    /// Watches for as long as the server runs. A turn that breaks, breaks alone: the next one comes.
    pub(crate) async fn run<S: Store + 'static>(
        self,
        service: Arc<Service<S>>,
        beside: WatchedFiles,
        mut hangups: Signal,
    ) {
        let (desk, mut requests) = PolicyReload::new(self, service);
        let desk = Arc::new(desk);
        let (mut policy, mut certificates) = (Looks::new("tollgate-policy"), Looks::new("tollgate-tls"));
        let mut callers = Looks::new("tollgate-callers");
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let (wish, reply) = tokio::select! {
                _ = beat.tick() => (Wish::Look, None),
                Some(()) = hangups.recv() => (Wish::Now, None),
                Some(request) = requests.recv() => (request.wish, Some(request.reply)),
            };
            let at_desk = Arc::clone(&desk);
            let (turned, renewed, recalled) = tokio::join!(
                policy.look(move || at_desk.turn(wish)),
                renew(beside.tls.as_ref(), &mut certificates, wish, &desk),
                recall(beside.callers.as_ref(), &mut callers, wish, &desk)
            );
            if !matches!(turned, Looked::Late) {
                desk.answers();
            }
            let done = match turned {
                Looked::Done(done) => done,
                Looked::Broken(how) => Err(told(&desk, how)),
                Looked::Late => Err(desk.late()),
            };
            if let Some(reply) = reply {
                let has_files = beside.tls.is_some() || beside.callers.is_some();
                let done = if desk.is_fixed() && has_files { Ok(Done::Nothing) } else { done };
                let _ = reply.send(ReloadOutcome::of(done, [recalled, renewed])); // Whoever asked may have gone.
            }
        }
    }
}

/// Looks whether the certificates changed, if there are any.
async fn renew<S: Store>(
    tls: Option<&Arc<Tls>>,
    looks: &mut Looks<Result<FileReload, String>>,
    wish: Wish,
    desk: &PolicyReload<S>,
) -> Result<FileReload, String> {
    let Some(tls) = tls else { return Ok(FileReload::Nothing) };
    let (looking, now) = (Arc::clone(tls), desk.now());
    match looks.look(move || looking.turn(wish, now)).await {
        Looked::Done(renewed) => {
            tls.answers();
            renewed
        }
        Looked::Broken(how) => {
            tracing::error!(how, "the certificates were not looked at; please report this");
            Err(format!("the certificates were not looked at: {how}"))
        }
        Looked::Late => Err(tls.late(desk.now())),
    }
}

/// Looks whether the callers file changed, if there is one.
async fn recall<S: Store>(
    callers: Option<&Arc<CallersFile>>,
    looks: &mut Looks<Result<FileReload, String>>,
    wish: Wish,
    desk: &PolicyReload<S>,
) -> Result<FileReload, String> {
    let Some(callers) = callers else { return Ok(FileReload::Nothing) };
    let (looking, now) = (Arc::clone(callers), desk.now());
    match looks.look(move || looking.turn(wish, now)).await {
        Looked::Done(renewed) => {
            callers.answers();
            renewed
        }
        Looked::Broken(how) => {
            tracing::error!(how, "the callers file was not looked at; please report this");
            Err(format!("the callers file was not looked at: {how}"))
        }
        Looked::Late => Err(callers.late(desk.now())),
    }
}

/// Tells that a turn broke off. Even if that breaks, too, the next turn comes.
fn told<S: Store>(desk: &PolicyReload<S>, how: &str) -> String {
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| desk.broken(how)));
    told.unwrap_or_else(|_| how.to_owned())
}
