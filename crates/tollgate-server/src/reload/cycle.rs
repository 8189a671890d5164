//! One cycle of the reload: reads the files on disk, applies the guard, and activates the policy. Only this module
//! changes the [`PolicyStatus`].

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::mpsc;
use tollgate::Timestamp;
use tollgate::credential::CredentialAttributes;
use tollgate::store::Store;

use super::guard::{self, PolicySummary, Suspicions};
use super::last_good::LastGood;
use super::{Origin, PolicyOutcome, PolicyStatus, Request, ServedRequests, Watcher, all_warnings};
use crate::failure::Failure;
use crate::file_watch::{self, Capture, DISK_TIMEOUT, Debounce, FileWatcher, ReloadMode, Seen, hangs};
use crate::policy_file::{self, Loaded};
use crate::service::Service;

/// After this many looks, about half a minute, a failed action is retried: a full quota table or disk may have room
/// now.
const RETRY_EVERY: u32 = 75;
/// After this many looks, about ten minutes, a lasting failure is logged again.
const REMIND_EVERY: u32 = 1_500;

/// The result of reading a policy.
pub(super) enum PolicyRead {
    /// A policy, and its bytes.
    Good(Box<Loaded>, Capture),
    /// An error instead of a policy.
    Wrong(String),
    /// It changed while it was read.
    Moving,
}

/// Reads a policy and its bytes, which must be the same before and after.
pub(super) fn read(path: &Path, credentials: &CredentialAttributes) -> PolicyRead {
    if let Err(error) = file_watch::is_file_or_directory(path) {
        return PolicyRead::Wrong(error);
    }
    let before = file_watch::capture(path);
    let loaded = policy_file::load_for(Some(&path.to_owned()), credentials);
    let after = file_watch::capture(path).map(|after| after.version);
    match (before, loaded, after) {
        (Ok(before), Ok(loaded), Ok(after)) if before.version == after => {
            PolicyRead::Good(Box::new(loaded), before)
        }
        (Ok(before), Err(error), Ok(after)) if before.version == after => {
            PolicyRead::Wrong(error.to_string())
        }
        // The compiler's message about an unreadable file is better than the system's.
        (Err(_), Err(error), Err(_)) => PolicyRead::Wrong(error.to_string()),
        (Err(before), Ok(_), Err(after)) if before == after => PolicyRead::Wrong(before),
        _ => PolicyRead::Moving,
    }
}

/// State between cycles.
struct Memory {
    files: FileWatcher,
    watch: Debounce,
    /// A summary of the active policy, for the guard.
    summary: PolicySummary,
    /// A policy that still has to be saved for the next start.
    to_keep: Option<Capture>,
    looks: u32,
}

/// Performs reload cycles.
pub(super) struct PolicyReload<S> {
    service: Arc<Service<S>>,
    status: Arc<ArcSwap<PolicyStatus>>,
    path: Option<PathBuf>,
    last_good: Option<LastGood>,
    force: bool,
    served: ServedRequests,
    memory: Mutex<Memory>,
    /// Whether a cycle is writing to the state directory, and not reading the policy. Relaxed: it is only shown.
    is_keeping: AtomicBool,
}

impl<S: Store> PolicyReload<S> {
    pub(super) fn new(watcher: Watcher, service: Arc<Service<S>>) -> (Self, mpsc::Receiver<Request>) {
        let mut files = FileWatcher::new(watcher.path.iter().cloned().collect());
        let mut watch = Debounce::default();
        match (&watcher.capture, &watcher.error) {
            // A file that was refused at the start is not read again until it changes.
            (_, Some(error)) => {
                watch.acted(files.scan());
                tracing::error!(%error, "the policy file cannot be used: the last good policy is active");
            }
            (Some(capture), None) => watch.acted(Seen::Version(capture.version)),
            (None, None) => {}
        }
        let to_keep = watcher.capture.filter(|_| watcher.error.is_none());
        let memory = Memory { files, watch, summary: watcher.summary, to_keep, looks: 0 };
        let reload = Self {
            service,
            status: watcher.status,
            path: watcher.path,
            last_good: watcher.last_good,
            force: watcher.force,
            served: watcher.served,
            memory: Mutex::new(memory),
            is_keeping: AtomicBool::new(false),
        };
        (reload, watcher.requests)
    }

    /// Whether the source of the policy cannot change.
    pub(super) const fn is_fixed(&self) -> bool {
        self.path.is_none()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.service.now()
    }

    /// Performs one cycle, which `by` is the cause of.
    ///
    /// # Errors
    /// Why the files on disk are not active.
    pub(super) fn run_cycle(&self, mode: ReloadMode, by: &str) -> Result<PolicyOutcome, String> {
        let Some(path) = &self.path else {
            return match mode {
                ReloadMode::OnChange => Ok(PolicyOutcome::Nothing),
                ReloadMode::Now | ReloadMode::Force => Err(nothing_to_reload()),
            };
        };
        // Cycles run one after the other. The lock only satisfies the compiler.
        let memory = &mut *self.memory();
        memory.looks = memory.looks.wrapping_add(1);
        let seen = memory.files.scan();
        let again = memory.looks.is_multiple_of(RETRY_EVERY);
        let failed = self.status.load().error.is_some();
        let is_due = memory.watch.saw(&seen) || (failed && again);
        let done = if is_due || mode != ReloadMode::OnChange {
            self.reload(path, (mode, by), memory)
        } else {
            Ok(PolicyOutcome::Nothing)
        };
        if again || self.status.load().keep_error.is_none() {
            self.is_keeping.store(true, Ordering::Relaxed);
            self.keep(path, memory);
            self.is_keeping.store(false, Ordering::Relaxed);
        }
        if memory.looks.is_multiple_of(REMIND_EVERY) {
            self.remind();
        }
        done
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reload(
        &self,
        path: &Path,
        (mode, by): (ReloadMode, &str),
        memory: &mut Memory,
    ) -> Result<PolicyOutcome, String> {
        let (loaded, capture) = match read(path, self.service.identity.credentials()) {
            PolicyRead::Good(loaded, capture) => (loaded, capture),
            PolicyRead::Wrong(error) => return Err(self.failed(error, mode)),
            PolicyRead::Moving => {
                memory.watch = Debounce::default(); // It is looked at again when it holds still.
                return Err(format!("{}: it is being written just now; try again", path.display()));
            }
        };
        memory.watch.acted(Seen::Version(capture.version));
        let status = self.status.load_full();
        if status.version == Some(capture.version) {
            self.recovered(path, &status);
            memory.to_keep = Some(capture);
            return Ok(PolicyOutcome::Nothing);
        }
        let summary = PolicySummary::of(&loaded.rules);
        let Suspicions { accidents, warnings: shown } = guard::suspicions(&memory.summary, &summary);
        if !accidents.is_empty() && !self.force && mode != ReloadMode::Force {
            return Err(self.failed(suspicious(path, &accidents), mode));
        }
        let shown: Vec<String> =
            shown.into_iter().map(|warning| format!("{}: warning: {warning}", path.display())).collect();
        for warning in &shown {
            tracing::warn!(warning, "the policy is accepted, and perhaps not what is meant");
        }
        for warning in loaded.warnings.iter() {
            tracing::warn!(%warning, "the policy is accepted, and perhaps not what is meant");
        }
        let mut warnings = all_warnings(&loaded.warnings, self.served.warned(&loaded));
        warnings.extend(shown);
        let now = self.now();
        let report =
            self.service.replace(loaded.rules, now).map_err(|error| self.failed(error.to_string(), mode))?;
        let next = PolicyStatus::new(loaded.name, Some(capture.version), Origin::File, now);
        let (good, bad, keep_error) = (status.good + 1, status.bad, status.keep_error.clone());
        let loaded_by = by.to_owned();
        self.status.store(Arc::new(PolicyStatus { good, bad, keep_error, loaded_by, warnings, ..next }));
        let fields: Vec<&str> = report.fields.iter().map(|change| change.field).collect();
        tracing::info!(
            version = capture.version.short(),
            policy = (!report.fields.is_empty()).then(|| fields.join(", ")),
            changed = report.changed.len(),
            added = report.added.len(),
            removed = report.removed.len(),
            restarted = report.restarted.len(),
            resumed = report.resumed.len(),
            suspicions = accidents.len(),
            "the policy was reloaded"
        );
        memory.summary = summary;
        memory.to_keep = Some(capture);
        Ok(PolicyOutcome::Reloaded(report))
    }

    /// Records that the file on disk equals the active policy again.
    fn recovered(&self, path: &Path, status: &PolicyStatus) {
        if status.error.is_some() || status.origin == Origin::LastGood {
            tracing::info!("the policy file is active again");
            let name = path.display().to_string();
            self.status.store(Arc::new(PolicyStatus {
                error: None,
                origin: Origin::File,
                name,
                ..status.clone()
            }));
        }
    }

    /// Records and logs a failure: once while it lasts, and again for an explicit request. Returns its text.
    fn failed(&self, text: String, mode: ReloadMode) -> String {
        let status = self.status.load_full();
        let failure = Failure::new(text.clone(), self.now());
        let is_known = status.error.as_ref().is_some_and(|before| before.text == failure.text);
        if is_known && mode == ReloadMode::OnChange {
            return text;
        }
        let bad = status.bad + 1;
        self.status.store(Arc::new(PolicyStatus { error: Some(failure), bad, ..(*status).clone() }));
        tracing::error!(error = text, "the policy was not reloaded: the one before stays active");
        text
    }

    /// Records that a cycle panicked. That is a bug of Tollgate, and no reason to stop watching.
    pub(super) fn broken(&self, how: &str) -> String {
        self.failed(format!("the reload broke off: {how}; please report this"), ReloadMode::OnChange)
    }

    /// Records and logs that a cycle has not ended in time, once while that lasts. Returns the text.
    pub(super) fn late(&self) -> String {
        if let Some(stuck) = &self.status.load().stuck {
            return stuck.text.clone();
        }
        let at = match &self.last_good {
            Some(last_good) if self.is_keeping.load(Ordering::Relaxed) => Some(last_good.directory()),
            _ => self.path.as_deref(),
        };
        let text = hangs(&at.unwrap_or(Path::new("the policy")).display().to_string(), DISK_TIMEOUT);
        let stuck = Some(Failure::new(text.clone(), self.now()));
        self.status.rcu(|status| PolicyStatus { stuck: stuck.clone(), ..(**status).clone() });
        tracing::error!(error = text, "the policy on disk cannot be read: the one before stays active");
        text
    }

    /// Records that a cycle has ended: if the disk did not answer before, it does now.
    pub(super) fn answers(&self) {
        if self.status.load().stuck.is_some() {
            self.status.rcu(|status| PolicyStatus { stuck: None, ..(**status).clone() });
            tracing::info!("the policy on disk can be read again");
        }
    }

    /// Saves the active policy for the next start. If that fails, the failure is reported and everything else
    /// continues.
    fn keep(&self, path: &Path, memory: &mut Memory) {
        let (Some(last_good), Some(capture)) = (&self.last_good, &memory.to_keep) else {
            return;
        };
        let status = self.status.load_full();
        match last_good.keep(path, capture) {
            Ok(()) => {
                memory.to_keep = None;
                self.status.store(Arc::new(PolicyStatus { keep_error: None, ..(*status).clone() }));
            }
            Err(error) => {
                let failure = Failure::new(error.to_string(), self.now());
                let is_new = status.keep_error.as_ref().is_none_or(|before| before.text != failure.text);
                self.status.store(Arc::new(PolicyStatus { keep_error: Some(failure), ..(*status).clone() }));
                if is_new {
                    tracing::error!(
                        %error,
                        "the active policy cannot be kept in the state directory for the next start"
                    );
                }
            }
        }
    }

    fn remind(&self) {
        let status = self.status.load();
        for failure in [&status.stuck, &status.error, &status.keep_error].into_iter().flatten() {
            tracing::warn!(error = failure.text, "the policy's trouble lasts");
        }
    }
}

fn nothing_to_reload() -> String {
    "the policy does not come from a file that could change; start with --policy FILE to reload it".to_owned()
}

fn suspicious(path: &Path, accidents: &[String]) -> String {
    format!(
        "{}: refused, because it looks like an accident: {}. If it is meant, force it with `tollgate reload --force`, \
         or start the server with --force-reload",
        path.display(),
        accidents.join("; ")
    )
}

#[cfg(test)]
mod tests;
