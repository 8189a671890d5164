//! Counters on disk, so that a restart gives no key a fresh monthly quota: read at the start, written periodically and
//! at the end. The decision path writes nothing. A disk that is full, slow or gone is reported, and costs no decision.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tollgate::engine::{RestoreReport, SnapshotReport};
use tollgate::time::WallOffset;
use tollgate::{Clock, Engine, Snapshot, Ticks, Timestamp};

use crate::log_throttle::LogThrottle;
use crate::service::Service;
use crate::service::throttle_counters::CounterTable;
use crate::store::Stores;
use directory::{Directory, FoundSnapshot, WriteError};

mod directory;

/// How long the last snapshot may take before the server ends without it.
const LAST_TIMEOUT: Duration = Duration::from_secs(30);
/// How many times a snapshot is taken again because a policy became active or the wall clock was set meanwhile.
const ATTEMPTS: usize = 3;

/// How often counters are written to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotInterval {
    /// Only at the end.
    Off,
    /// This often, and at the end.
    Every(Duration),
}

/// The results of snapshots so far, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SnapshotStatus {
    /// Counts of the snapshot restored at the start.
    pub(crate) restored: Option<RestoreReport>,
    /// Whether the start found a damaged snapshot and set it aside.
    pub(crate) was_damaged: bool,
    /// When the last good one was started.
    pub(crate) last_good_at: Option<Timestamp>,
    /// The number of counters in it.
    pub(crate) keys: u64,
    /// Its size.
    pub(crate) bytes: u64,
    /// How long it took.
    pub(crate) duration: Ticks,
    /// How many were written, and how many failed.
    pub(crate) written: u64,
    pub(crate) failures: u64,
}

/// The status, shared by the writer of snapshots and the metrics.
#[derive(Debug, Default)]
pub(crate) struct SharedStatus(Mutex<SnapshotStatus>);

impl SharedStatus {
    /// The results of snapshots so far.
    pub(crate) fn status(&self) -> SnapshotStatus {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, change: impl FnOnce(&mut SnapshotStatus)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Memory for counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CounterCapacity {
    /// Bytes for the engine's counters.
    pub(crate) bytes: u64,
    /// Bytes for counters of limits that come with the call. 0 if no protocol accepts such calls.
    pub(crate) throttle_bytes: u64,
}

/// The content of a snapshot: the engine's counters, and those of limits that come with the call.
#[derive(Clone, Copy)]
struct SnapshotCounters<'a> {
    engine: &'a Engine<Stores>,
    throttled: &'a CounterTable,
}

impl<'a> From<&'a Service> for SnapshotCounters<'a> {
    fn from(service: &'a Service) -> Self {
        Self { engine: &service.engine, throttled: &service.throttle_counters.table }
    }
}

/// The location of snapshots, and how often they are written.
pub(crate) struct Snapshots {
    directory: Mutex<Directory>,
    every: SnapshotInterval,
    clock: Clock,
    failing: LogThrottle,
    pub(crate) status: Arc<SharedStatus>,
}

/// The directory of a server whose counters are elsewhere, locked against other servers while this exists.
pub(crate) struct HeldDirectory {
    _directory: Directory,
}

/// The wall-clock offset of the snapshot in a directory, which the clock of the next process continues. An unreadable
/// snapshot gives no offset, and its error is reported when it is restored.
pub(crate) fn wall(path: Option<&Path>) -> WallOffset {
    path.and_then(directory::wall).unwrap_or(WallOffset::NONE)
}

/// Locks a directory without reading or writing counters there.
///
/// # Errors
/// As [`Snapshots::open`].
pub(crate) fn hold(path: &Path) -> Result<HeldDirectory, String> {
    Ok(HeldDirectory { _directory: Directory::open(path)? })
}

/// The result of a start: the snapshot, and a line about it.
pub(crate) struct SnapshotStart {
    pub(crate) snapshot: Option<Snapshot>,
    pub(crate) throttled: CounterTable,
    pub(crate) line: String,
    pub(crate) snapshots: Snapshots,
}

impl Snapshots {
    /// Locks the directory and reads its snapshot. A damaged one is set aside.
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
        let shared_status = Arc::new(SharedStatus::default());
        shared_status.note(|status| {
            status.restored = found.report();
            status.was_damaged = matches!(found, FoundSnapshot::Damaged { .. });
        });
        let line = banner_line(&found, path, now);
        let directory = Mutex::new(directory);
        let snapshots = Self {
            directory,
            every,
            clock: clock.clone(),
            failing: LogThrottle::default(),
            status: shared_status,
        };
        let (snapshot, throttled) = found.into_parts(capacity);
        Ok(SnapshotStart { snapshot, throttled, line, snapshots })
    }

    /// Writes snapshots periodically, while it is polled.
    pub(crate) async fn run(self: Arc<Self>, service: Arc<Service>) {
        let SnapshotInterval::Every(interval) = self.every else { return std::future::pending().await };
        loop {
            tokio::time::sleep(interval).await;
            let (snapshots, service) = (Arc::clone(&self), Arc::clone(&service));
            // A disk may be slow, and decisions do not wait for it. If the thread panics the next interval tries again.
            let _ = tokio::task::spawn_blocking(move || snapshots.write_for(&service)).await;
        }
    }

    /// Writes the last snapshot, when no more decisions are made.
    pub(crate) async fn last(self: Arc<Self>, service: Arc<Service>) {
        let writing = tokio::task::spawn_blocking(move || self.write_for(&service));
        match tokio::time::timeout(LAST_TIMEOUT, writing).await {
            Ok(Ok(Some(written))) => tracing::info!(counters = written.keys, "counters are on disk"),
            Ok(_) => {} // The failure was logged.
            Err(_) => {
                tracing::error!("the disk is too slow: what was counted since the last snapshot is lost")
            }
        }
    }

    /// Writes a snapshot of a service, with the current wall clock: the next process computes its age by that.
    fn write_for(&self, service: &Service) -> Option<SnapshotReport> {
        service.follow_wall();
        self.write(service.into())
    }

    /// Writes a snapshot, and records the result.
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
                self.status.note(|status| {
                    status.last_good_at = Some(begun_at);
                    (status.keys, status.bytes) = (report.keys, report.bytes);
                    status.duration = now.since(begun_at);
                    status.written += 1;
                });
                Some(report)
            }
            Err(error) => {
                self.status.note(|status| status.failures += 1);
                if let Some(skipped) = self.failing.due(now) {
                    tracing::warn!(%error, skipped, "a snapshot could not be written; decisions go on");
                }
                None
            }
        }
    }
}

/// The line of the banner about a start.
fn banner_line(found: &FoundSnapshot, path: &Path, now: Timestamp) -> String {
    match found {
        FoundSnapshot::Nothing => format!("no snapshot in {} yet; counters start empty", path.display()),
        FoundSnapshot::Whole(restored) => {
            let report = restored.report;
            let age = if report.taken_at > now {
                "from the future: the clock was set back".to_owned()
            } else {
                format!("{} old", Ticks::from_secs(now.since(report.taken_at).ceil_seconds()).readable())
            };
            let lost = match report.dropped {
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

    use tollgate::{CheckRequest, ManualClock, MemoryStore, Policy};

    use super::*;

    const CAPACITY: CounterCapacity = CounterCapacity { bytes: 1 << 20, throttle_bytes: 1 << 20 };

    /// The status shows the result of each snapshot: the size of good ones, the number of failures, and what a start
    /// restored.
    #[test]
    fn the_status_shows_the_result_of_each_snapshot() {
        let path = tollgate_testkit::folder("snapshot-status");
        let time = ManualClock::new();
        let policy = Policy::compile("test", b"limits: [{name: all, rate: 5/month}]").unwrap();
        let store = Stores::Memory(MemoryStore::new(1 << 20, time.now()));
        let engine = Engine::builder().policy(policy).store(store).build();
        assert!(engine.try_check(&CheckRequest::new(), time.now()).unwrap().is_allowed());
        let throttled = CounterTable::new(0);
        let counters = SnapshotCounters { engine: &engine, throttled: &throttled };
        let open = || Snapshots::open(&path, SnapshotInterval::Off, CAPACITY, &time.clock()).unwrap();

        let start = open();
        assert_eq!(
            (start.snapshot.is_none(), start.snapshots.status.status()),
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
        assert_eq!(start.snapshots.status.status(), expected);
        fs::create_dir(path.join("counters.snapshot.tmp")).unwrap();
        assert!(start.snapshots.write(counters).is_none());
        assert_eq!(start.snapshots.status.status(), SnapshotStatus { failures: 1, ..expected });
        drop(start);

        time.advance(Duration::from_secs(7));
        let start = open();
        assert_eq!(start.line, "counters restored: 1 (7 s old)");
        let restored = start.snapshots.status.status().restored.unwrap();
        assert_eq!((restored.keys, restored.dropped), (1, 0));
        drop(start);
        let _ = fs::remove_dir_all(&path);
    }
}
