//! Counters on disk, so that a restart does not gift anybody a month's quota: read at the start, written now and then and at the
//! end. The decision path writes nothing; a disk that is full, slow or gone is told, and costs no decision.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tollgate::engine::{RestoreReport, SnapshotReport};
use tollgate::time::WallOffset;
use tollgate::{Clock, Engine, Snapshot, Ticks, Timestamp};

use crate::seldom::Seldom;
use crate::service::Service;
use crate::service::cells::Table;
use crate::store::Stores;
use directory::{Directory, FoundSnapshot, WriteError};

mod directory;

/// How long the snapshot at the end may take before the server goes without it.
const LAST_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a snapshot is taken anew because a policy was put in force or the wall clock set meanwhile.
const ATTEMPTS: usize = 3;

/// How often counters are written to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotInterval {
    /// Only at the end.
    Off,
    /// This often, and at the end.
    Every(Duration),
}

/// What became of the snapshots so far, for whoever shows numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SnapshotStatus {
    /// What the start found.
    pub(crate) restored: Option<RestoreReport>,
    /// Whether the start found one that was damaged, and set it aside.
    pub(crate) was_damaged: bool,
    /// When the last good one was begun.
    pub(crate) last_good_at: Option<Timestamp>,
    /// Counters in it.
    pub(crate) keys: u64,
    /// Its size.
    pub(crate) bytes: u64,
    /// How long it took.
    pub(crate) duration: Ticks,
    /// How many were written, and how many could not be.
    pub(crate) written: u64,
    pub(crate) failures: u64,
}

/// The status, shared by whoever writes snapshots and whoever shows it.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<SnapshotStatus>);

impl Board {
    /// What became of the snapshots so far.
    pub(crate) fn status(&self) -> SnapshotStatus {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, change: impl FnOnce(&mut SnapshotStatus)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Room for counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CounterCapacity {
    /// Bytes for those of the engine.
    pub(crate) bytes: u64,
    /// Bytes for those of limits that come with the call; 0 where no wire takes such calls.
    pub(crate) throttle_bytes: u64,
}

/// What is written: the engine's counters, and those of limits that come with the call.
#[derive(Clone, Copy)]
struct SnapshotCounters<'a> {
    engine: &'a Engine<Stores>,
    throttled: &'a Table,
}

impl<'a> From<&'a Service> for SnapshotCounters<'a> {
    fn from(service: &'a Service) -> Self {
        Self { engine: &service.engine, throttled: &service.cells.table }
    }
}

/// Where snapshots are kept, and how often they are written.
pub(crate) struct Snapshots {
    directory: Mutex<Directory>,
    every: SnapshotInterval,
    clock: Clock,
    failing: Seldom,
    pub(crate) board: Arc<Board>,
}

/// The directory of a server whose counters are elsewhere, kept from other servers as long as this lives.
pub(crate) struct HeldDirectory {
    _directory: Directory,
}

/// How far the wall clock was ahead when the snapshot in a directory was taken: the clock of the next process goes on from there. A
/// snapshot that cannot be read says nothing about it, and what is wrong with it is reported when it is read.
pub(crate) fn wall(path: Option<&Path>) -> WallOffset {
    path.and_then(directory::wall).unwrap_or(WallOffset::NONE)
}

/// Takes hold of a directory without reading or writing counters there.
///
/// # Errors
/// As [`Snapshots::open`].
pub(crate) fn hold(path: &Path) -> Result<HeldDirectory, String> {
    Ok(HeldDirectory { _directory: Directory::open(path)? })
}

/// What a start found: the snapshot, and what to tell about it.
pub(crate) struct SnapshotStart {
    pub(crate) snapshot: Option<Snapshot>,
    pub(crate) throttled: Table,
    pub(crate) line: String,
    pub(crate) snapshots: Snapshots,
}

impl Snapshots {
    /// Takes hold of the directory and reads the snapshot in it. A damaged one is set aside.
    ///
    /// # Errors
    /// When the directory or the snapshot cannot be read, or another server uses it.
    pub(crate) fn open(
        path: &Path,
        every: SnapshotInterval,
        capacity: CounterCapacity,
        clock: &Clock,
    ) -> Result<SnapshotStart, String> {
        let directory = Directory::open(path)?;
        let now = clock.now();
        let found = directory.read(capacity, now)?;
        let board = Arc::new(Board::default());
        board.note(|status| {
            status.restored = found.report();
            status.was_damaged = matches!(found, FoundSnapshot::Damaged { .. });
        });
        let line = told(&found, path, now);
        let directory = Mutex::new(directory);
        let snapshots = Self { directory, every, clock: clock.clone(), failing: Seldom::default(), board };
        let (snapshot, throttled) = found.into_parts(capacity);
        Ok(SnapshotStart { snapshot, throttled, line, snapshots })
    }

    /// Writes a snapshot now and then, as long as it is polled.
    pub(crate) async fn run(self: Arc<Self>, service: Arc<Service>) {
        let SnapshotInterval::Every(interval) = self.every else { return std::future::pending().await };
        loop {
            tokio::time::sleep(interval).await;
            let (snapshots, service) = (Arc::clone(&self), Arc::clone(&service));
            // A disk may take its time: decisions do not wait for it. If the thread panics the next round tries again.
            let _ = tokio::task::spawn_blocking(move || snapshots.write_for(&service)).await;
        }
    }

    /// Writes the last one, when nothing is decided any more.
    pub(crate) async fn last(self: Arc<Self>, service: Arc<Service>) {
        let writing = tokio::task::spawn_blocking(move || self.write_for(&service));
        match tokio::time::timeout(LAST_TIMEOUT, writing).await {
            Ok(Ok(Some(written))) => tracing::info!(counters = written.keys, "counters are on disk"),
            Ok(_) => {} // It was told why not.
            Err(_) => {
                tracing::error!("the disk is too slow: what was counted since the last snapshot is lost")
            }
        }
    }

    /// Writes one of a service, by the wall clock as it is now: the next process computes its age by that.
    fn write_for(&self, service: &Service) -> Option<SnapshotReport> {
        service.follow_wall();
        self.write(service.into())
    }

    /// Writes one, and notes what became of it.
    fn write(&self, counters: SnapshotCounters<'_>) -> Option<SnapshotReport> {
        let directory = self.directory.lock().unwrap_or_else(PoisonError::into_inner);
        let begun_at = self.clock.now();
        let mut written = directory.write(counters, begun_at);
        for _ in 1..ATTEMPTS {
            if !matches!(written, Err(WriteError::Changed)) {
                break;
            }
            written = directory.write(counters, self.clock.now());
        }
        let now = self.clock.now();
        match written {
            Ok(report) => {
                self.board.note(|status| {
                    status.last_good_at = Some(begun_at);
                    (status.keys, status.bytes) = (report.keys, report.bytes);
                    status.duration = now.since(begun_at);
                    status.written += 1;
                });
                Some(report)
            }
            Err(error) => {
                self.board.note(|status| status.failures += 1);
                if let Some(skipped) = self.failing.due(now) {
                    tracing::warn!(%error, skipped, "a snapshot could not be written; decisions go on");
                }
                None
            }
        }
    }
}

/// What the banner says about a start.
fn told(found: &FoundSnapshot, path: &Path, now: Timestamp) -> String {
    match found {
        FoundSnapshot::Nothing => format!("no snapshot in {} yet; counters start empty", path.display()),
        FoundSnapshot::Whole(restored) => {
            let report = restored.report;
            let age = if report.taken_at > now {
                "from the future: the clock was set back".to_owned()
            } else {
                format!("{} s old", now.since(report.taken_at).ceil_seconds())
            };
            let lost = match report.no_room {
                0 => String::new(),
                lost => format!("; warning: {lost} had no room, so their keys start anew: raise --memory"),
            };
            format!("counters restored: {} ({age}){lost}", report.keys + report.overflow_keys)
        }
        FoundSnapshot::Damaged { error, aside } => {
            format!("warning: {error}; it was set aside as {}, and counters start EMPTY", shown(aside))
        }
    }
}

fn shown(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tollgate::{CheckRequest, ManualClock, MemoryStore, Policy, Secret};

    use super::*;

    const CAPACITY: CounterCapacity = CounterCapacity { bytes: 1 << 20, throttle_bytes: 1 << 20 };

    /// The board tells what became of each snapshot: good ones with their size, failures by number, and what a start found.
    #[test]
    fn the_board_tells_what_became_of_snapshots() {
        let path = tollgate_testkit::folder("board");
        let time = ManualClock::new();
        let (policy, _) = Policy::compile("test", b"limits: [{name: all, rate: 5/month}]").unwrap();
        let engine = Engine::with_store(policy, MemoryStore::new(1 << 20, time.now()), Secret::random());
        assert!(engine.check_now(&CheckRequest::new(), time.now()).is_allowed());
        let (engine, throttled) = (engine.map_store(Stores::Memory), Table::new(0));
        let counters = SnapshotCounters { engine: &engine, throttled: &throttled };
        let open = || Snapshots::open(&path, SnapshotInterval::Off, CAPACITY, &time.clock()).unwrap();

        let start = open();
        assert_eq!(
            (start.snapshot.is_none(), start.snapshots.board.status()),
            (true, SnapshotStatus::default())
        );
        let written = start.snapshots.write(counters).unwrap();
        let expected = SnapshotStatus {
            last_good_at: Some(time.now()),
            keys: 1,
            bytes: written.bytes,
            written: 1,
            ..SnapshotStatus::default()
        };
        assert_eq!(start.snapshots.board.status(), expected);
        fs::create_dir(path.join("counters.snapshot.tmp")).unwrap();
        assert!(start.snapshots.write(counters).is_none());
        assert_eq!(start.snapshots.board.status(), SnapshotStatus { failures: 1, ..expected });
        drop(start);

        time.advance(Duration::from_secs(7));
        let start = open();
        assert_eq!(start.line, "counters restored: 1 (7 s old)");
        let restored = start.snapshots.board.status().restored.unwrap();
        assert_eq!((restored.keys, restored.no_room), (1, 0));
        drop(start);
        let _ = fs::remove_dir_all(&path);
    }
}
