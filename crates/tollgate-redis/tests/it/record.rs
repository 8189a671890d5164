//! What clients saw, written down: each question with the interval of one monotonic clock in which it was decided, and the faults beside.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// Who answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Mode {
    /// The counter in the store.
    Exact,
    /// The node's own bucket.
    Local,
    /// Nobody, and the limit lets pass.
    Open,
    /// Nobody, and the limit lets nobody pass.
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
pub(crate) struct Seen {
    pub(crate) key: u32,
    pub(crate) cost: u64,
    /// Microseconds since the record began, rounded down.
    pub(crate) sent: u64,
    /// The same, rounded up: the decision was made between the two.
    pub(crate) replied: u64,
    pub(crate) admitted: bool,
    pub(crate) mode: Mode,
    pub(crate) node: u8,
    /// Still without an answer long after its deadline, although the runtime gave it its turns.
    pub(crate) late: bool,
}

impl Seen {
    /// How long the client waited.
    pub(crate) fn took(&self) -> u64 {
        self.replied - self.sent
    }
}

/// A record that many tasks write.
#[derive(Debug)]
pub(crate) struct Recorder {
    start: Instant,
    seen: Mutex<Vec<Seen>>,
}

impl Recorder {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), seen: Mutex::default() }
    }

    /// Microseconds since the start, rounded down.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap()
    }

    /// When a microsecond of the record is.
    pub(crate) fn instant(&self, micros: u64) -> Instant {
        self.start + std::time::Duration::from_micros(micros)
    }

    pub(crate) fn add(&self, seen: Seen) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
    }

    /// How many decisions were written down so far.
    pub(crate) fn len(&self) -> usize {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The decisions so far, from `first` on.
    pub(crate) fn since(&self, first: usize) -> Vec<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)[first..].to_vec()
    }
}
