//! The record of the clients: each request with the interval of a monotonic clock in which it was decided, and the faults.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// The source of the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Mode {
    /// The counter in the store.
    Exact,
    /// The node's own bucket.
    Local,
    /// The fallback of a limit that allows without the store.
    Open,
    /// The fallback of a limit that denies without the store.
    Closed,
}

impl Mode {
    /// Its name in a report.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Mode::Exact => "exact",
            Mode::Local => "local",
            Mode::Open => "open",
            Mode::Closed => "closed",
        }
    }
}

/// One decision, as its client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedDecision {
    pub(crate) key: u32,
    pub(crate) cost: u64,
    /// Microseconds since the record began, rounded down.
    pub(crate) sent: u64,
    /// Microseconds since the record began, rounded up: the decision was made between the two.
    pub(crate) replied: u64,
    pub(crate) admitted: bool,
    pub(crate) mode: Mode,
    pub(crate) node: u8,
    /// Still unanswered long after its deadline, although the runtime polled it.
    pub(crate) late: bool,
}

impl RecordedDecision {
    /// How long the client waited.
    pub(crate) fn took(&self) -> u64 {
        self.replied - self.sent
    }
}

/// A record that many tasks write.
#[derive(Debug)]
pub(crate) struct Recorder {
    start: Instant,
    seen: Mutex<Vec<RecordedDecision>>,
}

impl Recorder {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), seen: Mutex::default() }
    }

    /// Microseconds since the start, rounded down.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap()
    }

    /// The instant of a microsecond of the record.
    pub(crate) fn instant(&self, micros: u64) -> Instant {
        self.start + std::time::Duration::from_micros(micros)
    }

    pub(crate) fn add(&self, seen: RecordedDecision) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
    }

    /// The number of decisions so far.
    pub(crate) fn len(&self) -> usize {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The decisions so far, from `first` on.
    pub(crate) fn since(&self, first: usize) -> Vec<RecordedDecision> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)[first..].to_vec()
    }
}
