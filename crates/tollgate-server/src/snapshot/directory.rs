//! The snapshot directory: one file, replaced as a whole or not at all, readable by its owner only, and used by one
//! server at a time.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufReader};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tollgate::engine::{RestoreError, RestoreReport, SnapshotError, SnapshotReport};
use tollgate::time::WallOffset;
use tollgate::{Snapshot, Timestamp};

use super::{CounterCapacity, SnapshotCounters};
use crate::disk::{self, DIRECTORY_MODE, DiskError, FILE_MODE};
use crate::service::throttle::nanoseconds;
use crate::service::throttle_counters::CounterTable;
use crate::store::Stores;

const NAME: &str = "counters.snapshot";
const LOCK_NAME: &str = "counters.lock";
const BUFFER_BYTES: usize = 1 << 18;

/// The directory, locked until this is dropped.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    _lock: File,
}

/// The content of the directory.
#[derive(Debug)]
pub(super) enum FoundSnapshot {
    Nothing,
    Whole(Box<Restored>),
    Damaged { error: RestoreError, aside: PathBuf },
}

impl FoundSnapshot {
    pub(super) fn report(&self) -> Option<RestoreReport> {
        match self {
            FoundSnapshot::Whole(restored) => Some(restored.report),
            FoundSnapshot::Nothing | FoundSnapshot::Damaged { .. } => None,
        }
    }

    /// The state for the start. If nothing was found, it is only an empty table.
    pub(super) fn into_parts(self, capacity: CounterCapacity) -> (Option<Snapshot>, CounterTable) {
        match self {
            FoundSnapshot::Whole(restored) => (Some(restored.snapshot), restored.table),
            FoundSnapshot::Nothing | FoundSnapshot::Damaged { .. } => {
                (None, CounterTable::new(capacity.throttle_bytes))
            }
        }
    }
}

/// A restored snapshot: the engine's counters, and those of limits that come with the call.
pub(super) struct Restored {
    snapshot: Snapshot,
    table: CounterTable,
    pub(super) report: RestoreReport,
}

impl Restored {
    fn read(
        capacity: CounterCapacity,
        now: Timestamp,
        from: &mut impl io::Read,
    ) -> Result<Self, RestoreError> {
        let table = CounterTable::new(capacity.throttle_bytes);
        let (mut kept, mut dropped) = (0, 0);
        let restored = |taken_at, piece: &[u8]| {
            let restored = table.restore(piece, nanoseconds(taken_at), nanoseconds(now))?;
            kept += restored.kept;
            dropped += restored.dropped;
            Ok(())
        };
        let snapshot = Snapshot::read_with(capacity.bytes, now, restored, from)?;
        // If no protocol accepts such calls, no key loses its count.
        let dropped = if capacity.throttle_bytes > 0 { dropped } else { 0 };
        let report = snapshot.report();
        let report = RestoreReport { keys: report.keys + kept, dropped: report.dropped + dropped, ..report };
        Ok(Self { snapshot, table, report })
    }
}

impl fmt::Debug for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Restored").field(&self.report).finish()
    }
}

/// Why no snapshot was written. The previous one is still there.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// Writing to the disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A policy became active or the wall clock was set meanwhile, so another snapshot has to be taken.
    #[error("a policy became active or the wall clock was set meanwhile")]
    Changed,
    /// The counters are not in memory.
    #[error("the counters are not in memory")]
    NotInMemory,
}

/// The wall-clock offset in the snapshot of a directory, if it can be read.
pub(super) fn wall(path: &Path) -> Option<WallOffset> {
    let file = disk::open(&path.join(NAME)).ok()?;
    Snapshot::wall(&mut BufReader::new(file)).ok()
}

impl Directory {
    /// Locks a directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// When the directory cannot be used. The message says what to do.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let unusable = |error: io::Error| {
            format!(
                "--state-dir {shown}: {}; name a directory that this user can write to",
                disk::plain_cause(&error)
            )
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

    /// Reads the snapshot, if there is one. A damaged one is set aside.
    ///
    /// # Errors
    /// When it cannot be read: it may be intact, so nothing is overwritten.
    pub(super) fn read(&self, capacity: CounterCapacity, now: Timestamp) -> Result<FoundSnapshot, String> {
        let path = self.path.join(NAME);
        let unreadable = |error: &dyn std::fmt::Display| {
            format!(
                "{}: {}; make it readable, or move it away to start with empty counters",
                path.display(),
                disk::plain_cause(error)
            )
        };
        let file = match disk::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(FoundSnapshot::Nothing),
            Err(error) => return Err(unreadable(&error)),
        };
        match Restored::read(capacity, now, &mut BufReader::with_capacity(BUFFER_BYTES, file)) {
            Ok(restored) => Ok(FoundSnapshot::Whole(Box::new(restored))),
            Err(RestoreError::Io(error)) => Err(unreadable(&error)),
            Err(error) => {
                let aside = disk::set_aside(&self.path, NAME).map_err(|error| unreadable(&error))?;
                tracing::error!(%error, aside = %aside.display(), "the snapshot is damaged; counters start empty");
                Ok(FoundSnapshot::Damaged { error, aside })
            }
        }
    }

    /// Writes a snapshot, which replaces the existing one.
    ///
    /// # Errors
    /// When writing fails, or a policy became active meanwhile.
    pub(super) fn write(
        &self,
        counters: SnapshotCounters<'_>,
        now: Timestamp,
    ) -> Result<SnapshotReport, WriteError> {
        let mut throttled = 0;
        let pieces = counters.throttled.pieces(nanoseconds(now));
        let pieces = pieces.inspect(|piece| throttled += CounterTable::entries_in(piece));
        let report = disk::replace(&self.path, NAME, |file| {
            counters.engine.maintenance().snapshots().write_with(Stores::memory, now, pieces, file).map_err(
                |error| match error {
                    SnapshotError::Io(error) => DiskError::at("writing")(error).into(),
                    SnapshotError::PolicyChanged | SnapshotError::WallSet => WriteError::Changed,
                    SnapshotError::NotInMemory => WriteError::NotInMemory,
                    error => DiskError::at("writing")(io::Error::other(error)).into(),
                },
            )
        })?;
        Ok(SnapshotReport { keys: report.keys + throttled, ..report })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use tollgate::{CheckRequest, Engine, MemoryStore, Policy};
    use tollgate_testkit::Scratch;

    use super::*;
    use crate::disk::ASIDE_MAX;

    const TEMPORARY_NAME: &str = "counters.snapshot.tmp";

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
    const CAPACITY: CounterCapacity = CounterCapacity { bytes: 1 << 20, throttle_bytes: 1 << 20 };

    fn engine() -> Engine<Stores> {
        let policy = Policy::compile("test", b"limits: [{name: all, rate: 5/month}]").unwrap();
        let store = Stores::Memory(MemoryStore::new(1 << 20, NOW));
        let engine = Engine::builder().policy(policy).store(store).build();
        assert!(engine.try_check(&CheckRequest::new(), NOW).unwrap().is_allowed());
        engine
    }

    fn write(directory: &Directory) -> Result<SnapshotReport, WriteError> {
        directory.write(SnapshotCounters { engine: &engine(), throttled: &CounterTable::new(0) }, NOW)
    }

    /// A written snapshot can be read, only by its owner, and one server at a time has the directory.
    #[test]
    fn a_snapshot_is_written_and_read() {
        let scratch = Scratch::new();
        let directory = Directory::open(&scratch.path("state")).unwrap();
        assert!(matches!(directory.read(CAPACITY, NOW), Ok(FoundSnapshot::Nothing)));
        let report = write(&directory).unwrap();
        assert_eq!(directory.read(CAPACITY, NOW).unwrap().report().unwrap().keys, 1);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&scratch.path("state")), mode(&scratch.path("state").join(NAME))), (0o700, 0o600));
        assert_eq!(fs::metadata(scratch.path("state").join(NAME)).unwrap().len(), report.bytes);
        assert!(Directory::open(&scratch.path("state")).unwrap_err().contains("used by another Tollgate"));
        drop(directory);
        assert!(Directory::open(&scratch.path("state")).is_ok());
    }

    /// A snapshot of an older version, which has only the engine's counters, can be read.
    #[test]
    fn an_older_snapshot_is_read() {
        let older = include_bytes!("../../../tollgate/tests/it/snapshot/format-1.snapshot");
        let scratch = Scratch::new();
        let directory = Directory::open(&scratch.path("state")).unwrap();
        fs::write(scratch.path("state").join(NAME), older).unwrap();
        let found = directory.read(CAPACITY, NOW).unwrap();
        assert!(found.report().is_some_and(|report| report.keys > 0 && report.dropped == 0), "{found:?}");
        assert_eq!(found.into_parts(CAPACITY).1.pieces(nanoseconds(NOW)).count(), 0);
    }

    /// A failed write leaves the existing snapshot, and works again once the cause is gone.
    #[test]
    fn a_failed_write_leaves_the_last_one() {
        let scratch = Scratch::new();
        let directory = Directory::open(&scratch.path("state")).unwrap();
        write(&directory).unwrap();
        let before = fs::read(scratch.path("state").join(NAME)).unwrap();
        fs::create_dir(scratch.path("state").join(TEMPORARY_NAME)).unwrap();
        assert!(write(&directory).is_err());
        assert_eq!(fs::read(scratch.path("state").join(NAME)).unwrap(), before);
        fs::remove_dir(scratch.path("state").join(TEMPORARY_NAME)).unwrap();
        // The rest of a crashed write is no obstacle.
        fs::write(scratch.path("state").join(TEMPORARY_NAME), b"half").unwrap();
        assert!(write(&directory).is_ok());
        assert!(!scratch.path("state").join(TEMPORARY_NAME).exists());
    }

    /// A few damaged snapshots are kept for inspection.
    #[test]
    fn damaged_snapshots_are_set_aside() {
        let scratch = Scratch::new();
        let directory = Directory::open(&scratch.path("state")).unwrap();
        for round in 1..=ASIDE_MAX + 3 {
            fs::write(scratch.path("state").join(NAME), format!("tollgate of round {round}")).unwrap();
            let found = directory.read(CAPACITY, NOW).unwrap();
            assert!(matches!(found, FoundSnapshot::Damaged { .. }), "{found:?}");
            assert!(matches!(directory.read(CAPACITY, NOW), Ok(FoundSnapshot::Nothing)));
        }
        let names: Vec<_> =
            fs::read_dir(scratch.path("state")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let kept = names.iter().filter(|name| name.to_string_lossy().contains(".bad-")).count();
        assert_eq!(kept, ASIDE_MAX as usize);
    }

    /// An unusable directory is refused with an error that says what to do.
    #[test]
    fn a_directory_that_cannot_be() {
        let scratch = Scratch::new();
        fs::write(scratch.path("state"), b"a file").unwrap();
        let error = Directory::open(&scratch.path("state")).unwrap_err();
        assert!(error.contains("name a directory"), "{error}");
        fs::remove_file(scratch.path("state")).unwrap();
    }
}
