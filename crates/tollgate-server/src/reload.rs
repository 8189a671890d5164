//! Live reload. A policy file or directory is checked about twice a second, and immediately on SIGHUP. A stable change
//! is compiled, guarded against accidents, and swapped in. On any error the last good policy stays active, and the
//! status shows it.
//!
//! `file_watch` (the files on disk) → `reload` (one cycle: read, guard, swap) → `status`. `guard` finds suspicious
//! changes, and `last_good` saves a copy for the next start. Certificates are reloaded in the same cycle. Each looks at
//! the disk on its own thread and within a deadline (`file_watch::DiskTask`), so that a hanging file system is reported
//! and delays nothing else.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use tollgate::credential::CredentialAttributes;
use tollgate::policy::Findings;
use tollgate::store::Store;
use tollgate::{SwapReport, Timestamp};

use crate::callers::CallersFile;
use crate::failure::Failure;
use crate::file_watch::{self, Capture, DiskTask, DiskTaskOutcome, FileReload, ReloadMode, reload_files};
use crate::policy_file::{self, Loaded};
use crate::service::Service;
use crate::tls::Tls;
use cycle::PolicyReload;
use guard::PolicySummary;
use last_good::LastGood;

mod cycle;
mod doubts;
mod guard;
mod last_good;
mod status;

pub(crate) use doubts::ServedRequests;
pub(crate) use status::{Origin, PolicyStatus};

/// How often the disk is checked. A change is seen within one interval, must be stable for another, and is active
/// within a second.
const BEAT: Duration = Duration::from_millis(400);
/// The cause of a reload that no operator asked for.
const FILE_CHANGED: &str = "a change of the file";
/// Maximum number of queued reload requests.
const REQUESTS_MAX: usize = 16;
/// How many times a file that changes during a read is read again, at the start.
const START_ATTEMPTS: u32 = 10;

/// The result of a cycle for the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PolicyOutcome {
    /// The file on disk is active already, or not stable yet.
    Nothing,
    /// Another policy became active.
    Reloaded(SwapReport),
}

/// The result of a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReloadOutcome {
    /// The result for the policy.
    pub(crate) policy: PolicyOutcome,
    /// The results for the other files that changed, in words for the operator.
    pub(crate) also: Vec<String>,
}

impl ReloadOutcome {
    /// Combines all results.
    ///
    /// # Errors
    /// Why a file on disk is not in use, and what became active in spite of that.
    fn of(
        policy: Result<PolicyOutcome, String>,
        files: [Result<FileReload, String>; 2],
    ) -> Result<Self, String> {
        let (mut also, mut errors) = (Vec::new(), Vec::new());
        let policy = policy.unwrap_or_else(|error| {
            errors.push(error);
            PolicyOutcome::Nothing
        });
        for certificates_result in files {
            match certificates_result {
                Ok(FileReload::Nothing) => {}
                Ok(FileReload::Read(what)) => also.push(what),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() {
            return Ok(Self { policy, also });
        }
        let is_reloaded = matches!(policy, PolicyOutcome::Reloaded(_));
        let done = is_reloaded.then(|| "the policy was reloaded".to_owned()).into_iter().chain(also);
        let done = done.collect::<Vec<_>>().join(", ");
        let but = if done.is_empty() { String::new() } else { format!("{done}; but ") };
        Err(format!("{but}{}", errors.join("\n")))
    }
}

struct Request {
    mode: ReloadMode,
    /// The operator who asks.
    by: String,
    reply: oneshot::Sender<Result<ReloadOutcome, String>>,
}

/// Requests reloads, and has the status of the last ones. Cheap to clone.
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

    /// Reloads the policy, the callers file and the certificates now.
    ///
    /// # Errors
    /// Why a file on disk is not in use, in words for the operator.
    pub(crate) async fn now(&self, by: String) -> Result<ReloadOutcome, String> {
        self.ask(ReloadMode::Now, by).await
    }

    /// Reloads now, even a policy that the guard refuses. A policy that does not compile is still refused.
    ///
    /// # Errors
    /// As [`Reloader::now`].
    pub(crate) async fn force(&self, by: String) -> Result<ReloadOutcome, String> {
        self.ask(ReloadMode::Force, by).await
    }

    async fn ask(&self, mode: ReloadMode, by: String) -> Result<ReloadOutcome, String> {
        let (reply, answer) = oneshot::channel();
        let gone = || "the server is about to stop; nothing was reloaded".to_owned();
        self.requests.send(Request { mode, by, reply }).await.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// The policy that a server starts with.
pub(crate) struct Start {
    pub(crate) loaded: Loaded,
    origin: Origin,
    capture: Option<Capture>,
    /// Why the last good policy is used instead of the file.
    pub(crate) error: Option<String>,
}

/// Loads the policy to start with: that of the file, or else the last good one.
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
    let mut read = cycle::read(path, credentials);
    for _ in 1..START_ATTEMPTS {
        if !matches!(read, cycle::PolicyRead::Moving) {
            break;
        }
        read = cycle::read(path, credentials);
    }
    let error = match read {
        cycle::PolicyRead::Good(loaded, capture) => {
            return Ok(Start { loaded: *loaded, origin: Origin::File, capture: Some(capture), error: None });
        }
        cycle::PolicyRead::Wrong(error) => error,
        cycle::PolicyRead::Moving => format!("{}: changes faster than it can be read", path.display()),
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
    match cycle::read(&copy, credentials) {
        cycle::PolicyRead::Good(mut loaded, capture) => {
            loaded.name = format!("the last good copy of {}", path.display());
            Ok(Start { loaded: *loaded, origin: Origin::LastGood, capture: Some(capture), error: None })
        }
        cycle::PolicyRead::Wrong(error) => Err(error),
        cycle::PolicyRead::Moving => Err(format!("{} changes while it is read", copy.display())),
    }
}

/// The settings of reloads.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReloadSettings {
    /// The directory for the last good policy.
    pub(crate) state_dir: Option<PathBuf>,
    /// Whether every policy that compiles is accepted, regardless of the guard.
    pub(crate) is_forced: bool,
}

/// The other files that are reloaded in the same cycle as the policy.
pub(crate) struct WatchedFiles {
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) callers: Option<Arc<CallersFile>>,
}

/// Watches the disk while the server runs.
pub(crate) struct Watcher {
    requests: mpsc::Receiver<Request>,
    status: Arc<ArcSwap<PolicyStatus>>,
    path: Option<PathBuf>,
    summary: PolicySummary,
    capture: Option<Capture>,
    error: Option<String>,
    last_good: Option<LastGood>,
    force: bool,
    served: ServedRequests,
}

impl Watcher {
    /// Creates the watcher of the policy that a server starts with, and the handle that requests reloads. Logs what may
    /// be a mistake in that policy.
    pub(crate) fn new(
        start: &mut Start,
        path: Option<&PathBuf>,
        settings: &ReloadSettings,
        served: ServedRequests,
        now: Timestamp,
    ) -> (Reloader, Self) {
        let version = start.capture.as_ref().map(|capture| capture.version);
        let mut status = PolicyStatus::new(start.loaded.name.clone(), version, start.origin, now);
        status.warnings = all_warnings(&start.loaded.warnings, served.warned(&start.loaded));
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
            served,
        };
        (Reloader { requests: sender, status }, watcher)
    }

    /// Watches while the server runs. A cycle that panics does not stop the next one.
    pub(crate) async fn run<S: Store + 'static>(
        self,
        service: Arc<Service<S>>,
        files: WatchedFiles,
        mut hangups: Signal,
    ) {
        let (reload, mut requests) = PolicyReload::new(self, service);
        let reload = Arc::new(reload);
        let (mut policy, mut certificates) =
            (DiskTask::new("tollgate-policy"), DiskTask::new("tollgate-tls"));
        let mut callers = DiskTask::new("tollgate-callers");
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let (mode, by, reply) = tokio::select! {
                _ = beat.tick() => (ReloadMode::OnChange, FILE_CHANGED.to_owned(), None),
                Some(()) = hangups.recv() => (ReloadMode::Now, "SIGHUP".to_owned(), None),
                Some(Request { mode, by, reply }) = requests.recv() => (mode, by, Some(reply)),
            };
            let cycled = Arc::clone(&reload);
            let (cycled_policy, certificates_result, callers_result) = tokio::join!(
                policy.run(move || cycled.run_cycle(mode, &by)),
                reload_files(files.tls.as_ref(), &mut certificates, mode, || reload.now()),
                reload_files(files.callers.as_ref(), &mut callers, mode, || reload.now())
            );
            if !matches!(cycled_policy, DiskTaskOutcome::TimedOut) {
                reload.answers();
            }
            let done = match cycled_policy {
                DiskTaskOutcome::Done(done) => done,
                DiskTaskOutcome::Failed(how) => Err(report_panic(&reload, how)),
                DiskTaskOutcome::TimedOut => Err(reload.late()),
            };
            if let Some(reply) = reply {
                let has_files = files.tls.is_some() || files.callers.is_some();
                let done = if reload.is_fixed() && has_files { Ok(PolicyOutcome::Nothing) } else { done };
                let _ = reply.send(ReloadOutcome::of(done, [callers_result, certificates_result])); // The caller may have gone.
            }
        }
    }
}

/// The warnings of the compiler, and the doubts beside them.
fn all_warnings(compiled: &Findings, doubts: Vec<String>) -> Vec<String> {
    compiled.iter().map(ToString::to_string).chain(doubts).collect()
}

/// Reports that a cycle panicked. Even if the report panics as well, the next cycle runs.
fn report_panic<S: Store>(reload: &PolicyReload<S>, how: &str) -> String {
    let reported = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reload.broken(how)));
    reported.unwrap_or_else(|_| how.to_owned())
}
