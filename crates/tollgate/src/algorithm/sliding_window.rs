//! Sliding window: counters of sub-windows that slide.

use crate::quota::{QuotaError, Rate};
use crate::time::Ticks;

/// How the oldest sub-window counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimate {
    /// By its share.
    Interpolate,
    /// Whole.
    Strict,
}

/// The numbers of a sliding window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    limit: u64,
    period: Ticks,
    precision: u32,
    estimate: Estimate,
}

impl SlidingWindow {
    /// A window of `rate` in `precision` sub-windows.
    ///
    /// # Errors
    /// When a number is out of range.
    pub fn new(rate: Rate, precision: u32, estimate: Estimate) -> Result<Self, QuotaError> {
        let rate = rate.checked()?;
        if precision == 0 || precision > 100 {
            return Err(QuotaError::Range {
                field: "precision",
                value: u64::from(precision),
                accepted: "1 to 100".to_owned(),
            });
        }
        Ok(Self {
            limit: rate.units(),
            period: rate.period(),
            precision,
            estimate,
        })
    }

    /// Sub-windows.
    #[must_use]
    pub const fn precision(&self) -> u32 {
        self.precision
    }

    /// How the oldest sub-window counts.
    #[must_use]
    pub const fn estimate(&self) -> Estimate {
        self.estimate
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
