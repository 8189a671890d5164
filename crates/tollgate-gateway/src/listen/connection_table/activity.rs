//! The activity of one connection, by which the connection limit chooses one to evict.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

/// A connection. Its atomics are relaxed: they are read to choose one of many. A request that begins at that moment
/// meets what any request meets whose connection is just being closed.
#[derive(Debug)]
pub struct ConnectionActivity {
    start: Instant,
    /// Requests and tunnels in flight.
    busy: AtomicU32,
    /// When it was opened, or its last request ended, in milliseconds from the start.
    since: AtomicU64,
    has_asked: AtomicBool,
    is_evicted: AtomicBool,
    /// Its index in the list of all connections; written under the lock of that list.
    index: AtomicUsize,
    task: OnceLock<AbortHandle>,
}

/// The priority of an eviction: connections that never sent a request come first, then the longest idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EvictionPriority {
    has_never_asked: bool,
    idle: u64,
}

impl ConnectionActivity {
    pub(super) fn taken(start: Instant, index: usize) -> Self {
        Self {
            start,
            busy: AtomicU32::new(0),
            since: AtomicU64::new(millis(start)),
            has_asked: AtomicBool::new(false),
            is_evicted: AtomicBool::new(false),
            index: AtomicUsize::new(index),
            task: OnceLock::new(),
        }
    }

    /// A request was read, or a tunnel begins.
    pub fn begin(&self) {
        self.busy.fetch_add(1, Ordering::Relaxed);
    }

    /// A request or tunnel is over.
    pub fn end(&self) {
        self.since.store(millis(self.start), Ordering::Relaxed);
        self.has_asked.store(true, Ordering::Relaxed);
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }

    /// Stores the task that serves the connection. Aborting it ends the connection.
    pub fn is_served_by(&self, task: AbortHandle) {
        let _ = self.task.set(task); // There is one.
    }

    /// The priority of its eviction; `None` if it must not be evicted.
    pub(super) fn eviction_priority(&self, grace: Duration) -> Option<EvictionPriority> {
        let idle = millis(self.start).saturating_sub(self.since.load(Ordering::Relaxed));
        let may_stay = self.busy.load(Ordering::Relaxed) > 0
            || Duration::from_millis(idle) < grace
            || self.task.get().is_none()
            || self.is_evicted();
        let has_never_asked = !self.has_asked.load(Ordering::Relaxed);
        (!may_stay).then_some(EvictionPriority { has_never_asked, idle })
    }

    pub(super) fn evict(&self) {
        self.is_evicted.store(true, Ordering::Relaxed);
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    pub(super) fn is_evicted(&self) -> bool {
        self.is_evicted.load(Ordering::Relaxed)
    }

    pub(super) fn index(&self) -> usize {
        self.index.load(Ordering::Relaxed)
    }

    pub(super) fn moved_to(&self, index: usize) {
        self.index.store(index, Ordering::Relaxed);
    }
}

fn millis(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}
