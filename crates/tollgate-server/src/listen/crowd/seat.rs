//! What one connection is doing, as far as it matters to those for whom there is no place.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

/// A connection. Its numbers are relaxed: they are looked at to choose one of many, and a request that begins in the moment of that look
/// meets what any does whose connection was just about to be closed.
#[derive(Debug)]
pub(crate) struct Seat {
    start: Instant,
    /// Requests and tunnels that are under way.
    busy: AtomicU32,
    /// When it was taken, or the last request ended, in milliseconds from the start.
    since: AtomicU64,
    has_asked: AtomicBool,
    is_leaving: AtomicBool,
    /// Where it is in the list of all; written under the lock of that list.
    index: AtomicUsize,
    task: OnceLock<AbortHandle>,
}

/// How much it is to be wished that a connection goes: one that has never asked before another, and then for how long it has asked
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wish {
    has_never_asked: bool,
    idle: u64,
}

impl Seat {
    pub(super) fn taken(start: Instant, index: usize) -> Self {
        Self {
            start,
            busy: AtomicU32::new(0),
            since: AtomicU64::new(millis(start)),
            has_asked: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            index: AtomicUsize::new(index),
            task: OnceLock::new(),
        }
    }

    /// A request was read, or a tunnel begins.
    pub(crate) fn begin(&self) {
        self.busy.fetch_add(1, Ordering::Relaxed);
    }

    /// One that has begun is over.
    pub(crate) fn end(&self) {
        self.since.store(millis(self.start), Ordering::Relaxed);
        self.has_asked.store(true, Ordering::Relaxed);
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }

    /// Who serves the connection: ended, it ends.
    pub(crate) fn is_served_by(&self, task: AbortHandle) {
        let _ = self.task.set(task); // There is one.
    }

    /// How much it is to be wished that it goes; nothing if it may stay in any case.
    pub(super) fn wish(&self, grace: Duration) -> Option<Wish> {
        let idle = millis(self.start).saturating_sub(self.since.load(Ordering::Relaxed));
        let may_stay = self.busy.load(Ordering::Relaxed) > 0
            || Duration::from_millis(idle) < grace
            || self.task.get().is_none()
            || self.is_leaving();
        let has_never_asked = !self.has_asked.load(Ordering::Relaxed);
        (!may_stay).then_some(Wish { has_never_asked, idle })
    }

    pub(super) fn send_away(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
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
