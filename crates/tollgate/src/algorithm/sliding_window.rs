//! Sliding window: counters of sub-windows that slide.

use crate::time::Ticks;

/// The numbers of a sliding window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    limit: u64,
    period: Ticks,
}

impl SlidingWindow {
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
