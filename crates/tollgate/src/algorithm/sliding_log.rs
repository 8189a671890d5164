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

#[cfg(test)]
impl SlidingLog {
    pub(crate) fn new(rate: crate::Rate) -> Result<Self, crate::QuotaError> {
        rate.checked().map(|rate| Self {
            limit: rate.units(),
            period: rate.period(),
        })
    }
}
