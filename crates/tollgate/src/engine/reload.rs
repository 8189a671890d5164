//! Follows the policy file of an engine: a thread looks at the file once a second, and
//! [`Engine::now`](super::Engine::now) makes a changed policy active. A file that is still being written is left alone:
//! its size and its time must be the same in two looks. A file that is not a policy changes nothing and is reported.

use std::error::Error;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use super::{SwapError, SwapReport};
use crate::policy::{Policy, PolicyError, read_file};

/// How often the thread looks at the file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The result of reading a changed policy file.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reload<'r> {
    /// The new policy is active.
    Active(&'r SwapReport),
    /// The file is not a policy, or cannot follow the active one, which stays.
    Refused(&'r (dyn Error + Send + Sync + 'static)),
}

type Listener = Box<dyn Fn(&Reload<'_>) + Send + Sync>;

/// The file that a policy was read from, and its content then.
pub(super) struct PolicyFile {
    pub(super) path: PathBuf,
    pub(super) content: Vec<u8>,
    pub(super) listener: Option<Listener>,
}

/// The policy that was read and is not active yet, and the last refusal. Dropping it ends the thread.
pub(super) struct FileWatch(Arc<Watched>);

struct Watched {
    /// Release and Acquire: who reads `true` finds the policy. It spares decisions the lock.
    is_changed: AtomicBool,
    next: Mutex<Option<Policy>>,
    refusal: Mutex<Option<String>>,
    listener: Option<Listener>,
}

impl FileWatch {
    /// Starts the thread. If it cannot be started, that is reported as a refusal.
    pub(super) fn start(file: PolicyFile) -> Self {
        let PolicyFile { path, content, listener } = file;
        let (next, refusal) = (Mutex::default(), Mutex::default());
        let watched = Arc::new(Watched { is_changed: AtomicBool::new(false), next, refusal, listener });
        let (seen_by, mut reader) = (Arc::downgrade(&watched), FileReader::new(path, content));
        let started = thread::Builder::new().name("tollgate-policy".to_owned()).spawn(move || {
            loop {
                thread::park_timeout(LOOK_EVERY);
                let Some(watched) = seen_by.upgrade() else { return };
                if let Some(read) = reader.poll() {
                    watched.offer(read);
                }
            }
        });
        if let Err(error) = started {
            watched.refuse(&error);
        }
        Self(watched)
    }

    /// The policy that must become active, once.
    #[inline]
    pub(super) fn take(&self) -> Option<Policy> {
        if !self.0.is_changed.load(Ordering::Acquire) {
            return None;
        }
        let mut next = self.0.next.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.is_changed.store(false, Ordering::Relaxed);
        next.take()
    }

    /// Reports what became of the policy that was taken.
    pub(super) fn report_swap(&self, swapped: &Result<SwapReport, SwapError>) {
        match swapped {
            Ok(report) => self.0.report(&Reload::Active(report)),
            Err(error) => self.0.refuse(error),
        }
    }

    /// Why the file as it is now is not active.
    pub(super) fn refusal(&self) -> Option<String> {
        self.0.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Watched {
    fn offer(&self, read: Result<Policy, PolicyError>) {
        match read {
            Ok(policy) => {
                *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = None;
                *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(policy);
                self.is_changed.store(true, Ordering::Release);
            }
            Err(error) => self.refuse(&error),
        }
    }

    fn refuse(&self, error: &(dyn Error + Send + Sync + 'static)) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        self.report(&Reload::Refused(error));
    }

    fn report(&self, reload: &Reload<'_>) {
        if let Some(listener) = &self.listener {
            listener(reload);
        }
    }
}

/// Size and time of a file; `None` if it is not there.
type Stamp = Option<(u64, SystemTime)>;

fn stamp(path: &Path) -> Stamp {
    let found = fs::metadata(path).ok()?;
    Some((found.len(), found.modified().ok()?))
}

/// Looks at a file and returns what changed.
struct FileReader {
    path: PathBuf,
    /// The stamp of the last look. A file that is still being written has another one each time.
    stamp: Stamp,
    /// The content when it was last read; `None` if that failed, which is reported once.
    content: Option<Vec<u8>>,
}

impl FileReader {
    fn new(path: PathBuf, content: Vec<u8>) -> Self {
        Self { stamp: stamp(&path), path, content: Some(content) }
    }

    /// The new policy, or why there is none, once for each change.
    fn poll(&mut self) -> Option<Result<Policy, PolicyError>> {
        let now = stamp(&self.path);
        if std::mem::replace(&mut self.stamp, now) != now {
            return None;
        }
        let read = read_file(&self.path);
        if stamp(&self.path) != now {
            return None;
        }
        match read {
            Ok(content) if self.content.as_ref() == Some(&content) => None,
            Ok(content) => {
                let compiled = compile(&self.path, &content);
                self.content = Some(content);
                Some(compiled)
            }
            Err(error) => self.content.take().map(|_| Err(error)),
        }
    }
}

fn compile(path: &Path, content: &[u8]) -> Result<Policy, PolicyError> {
    Ok(Policy::compile(&path.display().to_string(), content)?)
}

impl fmt::Debug for PolicyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyFile").field("path", &self.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reader reports each change once: a new policy, a broken file, a missing file, and the repair.
    #[test]
    fn each_change_of_the_file_is_reported_once() {
        let path = std::env::temp_dir().join(format!("tollgate-reload-{}.yaml", std::process::id()));
        let good = "limits: [{name: all, rate: 1/s}]";
        let mut reader = FileReader::new(path.clone(), good.as_bytes().to_vec());
        let mut step = |content: Option<&str>| {
            match content {
                Some(content) => fs::write(&path, content).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            // The first look may see that the file has changed, the second that it no longer does.
            let found = reader.poll().or_else(|| reader.poll());
            assert!(reader.poll().is_none(), "reported twice");
            found.map(|read| read.map_or_else(|error| error.to_string(), |_| "policy".to_owned()))
        };
        assert_eq!(step(Some(good)), None);
        assert_eq!(step(Some("limits: [{name: all, rate: 2/s}]")).as_deref(), Some("policy"));
        assert!(step(Some("limits: [{name: all, rate: s/2}]")).unwrap().contains("upside down"));
        assert!(step(None).unwrap().contains("tollgate-reload"));
        assert_eq!(step(Some(good)).as_deref(), Some("policy"));
        fs::remove_file(&path).unwrap();
    }

    /// The story: a file was taken while its writer was at it. The first half was a policy too, and without the limits of
    /// the second half.
    #[test]
    fn a_file_that_still_grows_is_not_taken() {
        let path = std::env::temp_dir().join(format!("tollgate-half-{}.yaml", std::process::id()));
        let old = "limits: [{name: all, rate: 1/s}]";
        fs::write(&path, old).unwrap();
        let mut reader = FileReader::new(path.clone(), old.as_bytes().to_vec());
        fs::write(&path, "limits:\n- {name: a, rate: 1/s}\n").unwrap();
        assert!(reader.poll().is_none(), "it may still be written");
        fs::write(&path, "limits:\n- {name: a, rate: 1/s}\n- {name: b, rate: 1/s}\n").unwrap();
        assert!(reader.poll().is_none(), "it was still written");
        let policy = reader.poll().unwrap().unwrap();
        assert_eq!(policy.limits().len(), 2);
        fs::remove_file(&path).unwrap();
    }
}
