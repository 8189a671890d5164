//! Sliding log: every timestamp of the window.

use crate::quota::{QuotaError, Rate};
use crate::time::Ticks;

/// The numbers of a sliding log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    limit: u64,
    period: Ticks,
}

impl SlidingLog {
    /// A log of `rate`.
    ///
    /// # Errors
    /// When a number is out of range.
    pub fn new(rate: Rate) -> Result<Self, QuotaError> {
        let rate = rate.checked()?;
        Ok(Self {
            limit: rate.units(),
            period: rate.period(),
        })
    }

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
