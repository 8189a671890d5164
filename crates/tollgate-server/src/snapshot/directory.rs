//! The directory of snapshots: one file, replaced as a whole or not at all, readable by its owner only, and used by one server at
//! a time.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufReader};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tollgate::{Engine, RestoreError, Snapshot, SnapshotError, SnapshotReport, Timestamp};

use crate::disk::{self, DiskError, FILE_MODE};

const NAME: &str = "counters.snapshot";
const LOCK_NAME: &str = "counters.lock";
const DIRECTORY_MODE: u32 = 0o700;
const BUFFER_BYTES: usize = 1 << 18;

/// The directory, held until this is dropped.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    _lock: File,
}

/// What was in it.
#[derive(Debug)]
pub(super) enum Found {
    Nothing,
    Whole(Snapshot),
    Damaged { error: RestoreError, aside: PathBuf },
}

impl Found {
    pub(super) const fn snapshot(&self) -> Option<&Snapshot> {
        match self {
            Found::Whole(snapshot) => Some(snapshot),
            Found::Nothing | Found::Damaged { .. } => None,
        }
    }

    pub(super) fn into_snapshot(self) -> Option<Snapshot> {
        match self {
            Found::Whole(snapshot) => Some(snapshot),
            Found::Nothing | Found::Damaged { .. } => None,
        }
    }
}

/// Why no snapshot was written. The one before is still there.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// The disk did not take it.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Another one has to be taken.
    #[error("a policy was put in force meanwhile")]
    PolicyChanged,
}

impl Directory {
    /// Takes hold of a directory, and makes it if it is not there.
    ///
    /// # Errors
    /// When it cannot be had; the message says what to do.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let unusable = |error: io::Error| {
            format!("--state-dir {shown}: {error}; name a directory that this user can write to")
        };
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path).map_err(unusable)?;
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(FILE_MODE);
        let lock = options.open(path.join(LOCK_NAME)).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(format!(
                "--state-dir {shown} is used by another Tollgate; stop that one, or give each its own directory"
            )),
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }

    /// Reads the snapshot, if there is one; sets a damaged one aside.
    ///
    /// # Errors
    /// When the disk does not give it: it may be whole, so nothing is overwritten.
    pub(super) fn read(&self, capacity_bytes: u64, now: Timestamp) -> Result<Found, String> {
        let path = self.path.join(NAME);
        let unreadable = |error: &dyn std::fmt::Display| {
            format!(
                "{}: {error}; make it readable, or move it away to start with empty counters",
                path.display()
            )
        };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
            Err(error) => return Err(unreadable(&error)),
        };
        match Snapshot::read(capacity_bytes, now, &mut BufReader::with_capacity(BUFFER_BYTES, file)) {
            Ok(snapshot) => Ok(Found::Whole(snapshot)),
            Err(RestoreError::Io(error)) => Err(unreadable(&error)),
            Err(error) => {
                let aside = disk::set_aside(&self.path, NAME).map_err(|error| unreadable(&error))?;
                tracing::error!(%error, aside = %aside.display(), "the snapshot is damaged; counters start empty");
                Ok(Found::Damaged { error, aside })
            }
        }
    }

    /// Writes a snapshot in the place of the one that is there.
    ///
    /// # Errors
    /// When the disk does not take it, or a policy was put in force meanwhile.
    pub(super) fn write(&self, engine: &Engine, now: Timestamp) -> Result<SnapshotReport, WriteError> {
        disk::replace(&self.path, NAME, |file| {
            engine.snapshot(now, file).map_err(|error| match error {
                SnapshotError::Io(error) => DiskError::at("writing")(error).into(),
                SnapshotError::PolicyChanged => WriteError::PolicyChanged,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use tollgate::{CheckRequest, Policy};

    use super::*;
    use crate::disk::ASIDE_MAX;

    const TEMPORARY_NAME: &str = "counters.snapshot.tmp";

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
    const CAPACITY: u64 = 1 << 20;

    /// A directory of the test's own, removed when it is over.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tollgate-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn engine() -> Engine {
        let policy = Policy::compile("test", b"limits: [{name: all, rate: 5/month}]").unwrap().0;
        let engine = Engine::new(policy, NOW);
        assert!(engine.check_now(&CheckRequest::new(), NOW).is_allowed());
        engine
    }

    /// What was written is read; only its owner may; one server at a time has the directory.
    #[test]
    fn a_snapshot_is_written_and_read() {
        let scratch = Scratch::new("written");
        let directory = Directory::open(&scratch.0).unwrap();
        assert!(matches!(directory.read(CAPACITY, NOW), Ok(Found::Nothing)));
        let report = directory.write(&engine(), NOW).unwrap();
        assert_eq!(directory.read(CAPACITY, NOW).unwrap().snapshot().unwrap().report().keys, 1);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&scratch.0), mode(&scratch.0.join(NAME))), (0o700, 0o600));
        assert_eq!(fs::metadata(scratch.0.join(NAME)).unwrap().len(), report.bytes);
        assert!(Directory::open(&scratch.0).unwrap_err().contains("used by another Tollgate"));
        drop(directory);
        assert!(Directory::open(&scratch.0).is_ok());
    }

    /// A write that fails leaves the snapshot that was there, and works again once the cause is gone.
    #[test]
    fn a_failed_write_leaves_the_last_one() {
        let scratch = Scratch::new("failed");
        let directory = Directory::open(&scratch.0).unwrap();
        directory.write(&engine(), NOW).unwrap();
        let before = fs::read(scratch.0.join(NAME)).unwrap();
        fs::create_dir(scratch.0.join(TEMPORARY_NAME)).unwrap();
        assert!(directory.write(&engine(), NOW).is_err());
        assert_eq!(fs::read(scratch.0.join(NAME)).unwrap(), before);
        fs::remove_dir(scratch.0.join(TEMPORARY_NAME)).unwrap();
        // What a crash left behind is no obstacle.
        fs::write(scratch.0.join(TEMPORARY_NAME), b"half").unwrap();
        assert!(directory.write(&engine(), NOW).is_ok());
        assert!(!scratch.0.join(TEMPORARY_NAME).exists());
    }

    /// Damaged snapshots are kept for whoever wants to know why, a few of them.
    #[test]
    fn damaged_snapshots_are_set_aside() {
        let scratch = Scratch::new("damaged");
        let directory = Directory::open(&scratch.0).unwrap();
        for round in 1..=ASIDE_MAX + 3 {
            fs::write(scratch.0.join(NAME), format!("tollgate of round {round}")).unwrap();
            let found = directory.read(CAPACITY, NOW).unwrap();
            assert!(matches!(found, Found::Damaged { .. }), "{found:?}");
            assert!(matches!(directory.read(CAPACITY, NOW), Ok(Found::Nothing)));
        }
        let names: Vec<_> =
            fs::read_dir(&scratch.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let kept = names.iter().filter(|name| name.to_string_lossy().contains(".bad-")).count();
        assert_eq!(kept, ASIDE_MAX as usize);
    }

    /// A directory that cannot be is refused with what to do.
    #[test]
    fn a_directory_that_cannot_be() {
        let scratch = Scratch::new("file");
        fs::write(&scratch.0, b"a file").unwrap();
        let error = Directory::open(&scratch.0).unwrap_err();
        assert!(error.contains("name a directory"), "{error}");
        fs::remove_file(&scratch.0).unwrap();
    }
}
