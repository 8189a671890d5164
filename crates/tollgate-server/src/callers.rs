//! The callers file of a running server: read at the start, watched like the policy, and replaced only by a valid
//! version. While the file is wrong the previous callers stay known, and `/readyz`, the log and the metrics show it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tollgate::Timestamp;
use tollgate_tower::attributes::Reader;
use tollgate_tower::attributes::callers::{ActiveCallers, CALLERS_BYTES_MAX, Callers};

use crate::disk;
use crate::failure::Failure;
use crate::file_watch::{DISK_TIMEOUT, Debounce, FileReload, FileWatcher, ReloadMode, Seen, Version, hangs};

/// The state of the callers.
#[derive(Clone, Debug)]
pub(crate) struct CallersStatus {
    /// The number of known callers.
    pub(crate) known: usize,
    /// The version of the file, its SHA-256.
    pub(crate) version: Option<Version>,
    pub(crate) loaded_at: Timestamp,
    /// Why the file on disk is not in use, while that is so.
    pub(crate) error: Option<Failure>,
    /// Since when the disk has not answered, while that is so.
    late: Option<Failure>,
}

impl CallersStatus {
    fn new(known: usize, seen: &Seen, now: Timestamp) -> Self {
        Self { known, version: seen.version(), loaded_at: now, error: None, late: None }
    }

    /// The problem that an operator should know.
    pub(crate) fn trouble(&self) -> Option<&Failure> {
        self.late.as_ref().or(self.error.as_ref())
    }
}

/// A callers file, and its known callers.
pub(crate) struct CallersFile {
    path: PathBuf,
    /// Attributes that the config reads from requests. A caller cannot define them as well.
    mapped: Vec<String>,
    active: ActiveCallers,
    status: ArcSwap<CallersStatus>,
    watch: Mutex<(FileWatcher, Debounce)>,
}

impl CallersFile {
    /// Reads the file, for a server that reads requests with `reader`.
    ///
    /// # Errors
    /// When it cannot be read. The message says what would be accepted.
    pub(crate) fn open(path: &Path, reader: &Reader, now: Timestamp) -> Result<Arc<Self>, String> {
        let mapped: Vec<String> = reader.mapped.iter().map(|mapped| mapped.name.clone()).collect();
        let (mut watcher, mut watch) = (FileWatcher::new(vec![path.to_owned()]), Debounce::default());
        let seen = watcher.scan();
        let callers = load(path, &mapped)?;
        let status = CallersStatus::new(callers.len(), &seen, now);
        watch.acted(seen);
        Ok(Arc::new(Self {
            path: path.to_owned(),
            mapped,
            active: ActiveCallers::new(callers),
            status: ArcSwap::from_pointee(status),
            watch: Mutex::new((watcher, watch)),
        }))
    }

    /// The known callers, now and after every reload.
    pub(crate) fn active(&self) -> ActiveCallers {
        self.active.clone()
    }

    /// The state of the callers.
    pub(crate) fn status(&self) -> Arc<CallersStatus> {
        self.status.load_full()
    }

    /// Records that the disk answers again.
    pub(crate) fn answers(&self) {
        let status = self.status.load_full();
        if status.late.is_some() {
            self.status.store(Arc::new(CallersStatus { late: None, ..(*status).clone() }));
        }
    }

    /// Records that the disk has not answered in time. The known callers stay. Returns the text.
    pub(crate) fn late(&self, now: Timestamp) -> String {
        let status = self.status.load_full();
        if let Some(late) = &status.late {
            return late.text.clone();
        }
        let text = hangs(&self.path.display().to_string(), DISK_TIMEOUT);
        tracing::error!(error = text, "the callers file cannot be looked at: those before stay known");
        let late = Some(Failure::new(text.clone(), now));
        self.status.store(Arc::new(CallersStatus { late, ..(*status).clone() }));
        text
    }

    /// Reloads the file if it changed.
    ///
    /// # Errors
    /// Why the file on disk is not in use.
    pub(crate) fn run_cycle(&self, mode: ReloadMode, now: Timestamp) -> Result<FileReload, String> {
        // Cycles run one after the other. The lock only satisfies the compiler.
        let (watcher, watch) = &mut *self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = watcher.scan();
        if !watch.saw(&seen) && mode == ReloadMode::OnChange {
            return Ok(FileReload::Nothing);
        }
        watch.acted(seen.clone());
        let before = self.status.load_full();
        let loaded = match &seen {
            Seen::Version(_) => load(&self.path, &self.mapped),
            // A pipe, or another file that cannot be watched: reading it would wait.
            Seen::Unreadable(error) => Err(error.clone()),
        };
        match loaded {
            Ok(callers) => {
                let known = callers.len();
                let is_same = before.error.is_none() && before.version == seen.version();
                self.active.replace(callers);
                self.status.store(Arc::new(CallersStatus::new(known, &seen, now)));
                if is_same {
                    return Ok(FileReload::Nothing);
                }
                tracing::info!(known, before = before.known, "the callers file was reloaded");
                Ok(FileReload::Read(format!("the callers file was reloaded, {known} known")))
            }
            Err(error) => {
                let failure = Some(Failure::new(error.clone(), now));
                self.status.store(Arc::new(CallersStatus { error: failure, ..(*before).clone() }));
                tracing::error!(error, "the callers file was not reloaded: those before stay known");
                Err(format!("the callers file was not reloaded, and those before stay known: {error}"))
            }
        }
    }
}

/// The callers of a file.
fn load(path: &Path, mapped: &[String]) -> Result<Callers, String> {
    let callers =
        Callers::read(&path.display().to_string(), &read(path)?).map_err(|findings| findings.to_string())?;
    if let Some(name) = mapped.iter().find(|name| callers.gives(name)) {
        return Err(format!(
            "{}: callers have the attribute {name}, and `attributes` of the config reads it from requests; accepted: one of the two",
            path.display()
        ));
    }
    Ok(callers)
}

/// The bytes of a callers file, up to one byte more than its maximum size.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let most = u64::try_from(CALLERS_BYTES_MAX).unwrap_or(u64::MAX);
    disk::read(path, most).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("{}: no such file; `tollgate callers add` makes one", path.display())
        }
        _ => disk::unreadable(path, &error),
    })
}
