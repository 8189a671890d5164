//! Sliding log: every timestamp of the window.

use crate::time::Ticks;

/// The numbers of a sliding log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    limit: u64,
    period: Ticks,
}

impl SlidingLog {
    /// Units a window.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The window's length.
    #[must_use]
    pub const fn period(&self) -> Ticks {
        self.period
    }
}
