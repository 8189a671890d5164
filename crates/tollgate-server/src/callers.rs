//! The callers file of a running server: read at the start, watched as the policy is, and replaced only by one that is right. What was known
//! before stays known while the file is wrong, and `/readyz`, the log and the metrics say so.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tollgate::Timestamp;
use tollgate_tower::attributes::Reader;
use tollgate_tower::attributes::callers::{ActiveCallers, CALLERS_BYTES_MAX, Callers};

use crate::disk;
use crate::failure::Failure;
use crate::file_watch::{Debounce, Eye, FileReload, LOOK_TIMEOUT, Seen, Version, Wish, hangs};

/// How the callers are.
#[derive(Clone, Debug)]
pub(crate) struct CallersStatus {
    /// How many are known.
    pub(crate) known: usize,
    /// What they were read from, by the SHA-256 of the file.
    pub(crate) version: Option<Version>,
    pub(crate) loaded_at: Timestamp,
    /// Why what is on disk is not known, as long as it is not.
    pub(crate) error: Option<Failure>,
    /// The disk does not answer, since when.
    late: Option<Failure>,
}

impl CallersStatus {
    fn new(known: usize, seen: &Seen, now: Timestamp) -> Self {
        Self { known, version: seen.version(), loaded_at: now, error: None, late: None }
    }

    /// What an operator should know.
    pub(crate) fn trouble(&self) -> Option<&Failure> {
        self.late.as_ref().or(self.error.as_ref())
    }
}

/// A file of callers, and who is known by it.
pub(crate) struct CallersFile {
    path: PathBuf,
    /// Attributes that the config reads from requests: a caller cannot have them, too.
    mapped: Vec<String>,
    live: ActiveCallers,
    status: ArcSwap<CallersStatus>,
    watch: Mutex<(Eye, Debounce)>,
}

impl CallersFile {
    /// Reads the file. The callers are given to whoever reads requests like this.
    ///
    /// # Errors
    /// When it cannot be read; the message says what would be accepted.
    pub(crate) fn open(path: &Path, reader: &Reader, now: Timestamp) -> Result<Arc<Self>, String> {
        let mapped: Vec<String> = reader.mapped.iter().map(|mapped| mapped.name.clone()).collect();
        let (mut eye, mut watch) = (Eye::new(vec![path.to_owned()]), Debounce::default());
        let seen = eye.look();
        let callers = load(path, &mapped)?;
        let status = CallersStatus::new(callers.len(), &seen, now);
        watch.acted(seen);
        Ok(Arc::new(Self {
            path: path.to_owned(),
            mapped,
            live: ActiveCallers::new(callers),
            status: ArcSwap::from_pointee(status),
            watch: Mutex::new((eye, watch)),
        }))
    }

    /// Who is known, now and after every reload.
    pub(crate) fn live(&self) -> ActiveCallers {
        self.live.clone()
    }

    /// How the callers are.
    pub(crate) fn status(&self) -> Arc<CallersStatus> {
        self.status.load_full()
    }

    /// The disk answers again.
    pub(crate) fn answers(&self) {
        let status = self.status.load_full();
        if status.late.is_some() {
            self.status.store(Arc::new(CallersStatus { late: None, ..(*status).clone() }));
        }
    }

    /// The disk has not answered in time; those who are known stay so. Gives the text of it back.
    pub(crate) fn late(&self, now: Timestamp) -> String {
        let status = self.status.load_full();
        if let Some(late) = &status.late {
            return late.text.clone();
        }
        let text = hangs(&self.path.display().to_string(), LOOK_TIMEOUT);
        tracing::error!(error = text, "the callers file cannot be looked at: those before stay known");
        let late = Some(Failure::new(text.clone(), now));
        self.status.store(Arc::new(CallersStatus { late, ..(*status).clone() }));
        text
    }

    /// Reloads the file if it changed.
    ///
    /// # Errors
    /// Why what is on disk is not known.
    pub(crate) fn turn(&self, wish: Wish, now: Timestamp) -> Result<FileReload, String> {
        // Turns come one after the other; the lock only says so to the compiler.
        let (eye, watch) = &mut *self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = eye.look();
        if !watch.saw(&seen) && wish == Wish::Look {
            return Ok(FileReload::Nothing);
        }
        watch.acted(seen.clone());
        let before = self.status.load_full();
        let loaded = match &seen {
            Seen::Version(_) => load(&self.path, &self.mapped),
            // A pipe, or what else cannot be watched: it would be waited for.
            Seen::Unreadable(error) => Err(error.clone()),
        };
        match loaded {
            Ok(callers) => {
                let known = callers.len();
                let is_same = before.error.is_none() && before.version == seen.version();
                self.live.replace(callers);
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

/// The bytes of a callers file, one more than it may have at most.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let most = u64::try_from(CALLERS_BYTES_MAX).unwrap_or(u64::MAX);
    disk::read(path, most).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("{}: no such file; `tollgate callers add` makes one", path.display())
        }
        _ => format!("{}: {error}; name a file that can be read", path.display()),
    })
}
