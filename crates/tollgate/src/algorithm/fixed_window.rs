//! Fixed window: one counter that starts anew with each window.

use crate::algorithm::calendar::Calendar;
use crate::quota::{QuotaError, Rate};
use crate::time::Ticks;

/// Where windows begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Align {
    /// At multiples of the period since the Unix epoch.
    Epoch,
    /// With a key's first request.
    FirstHit,
    /// With the calendar.
    Calendar(Calendar),
}

/// The numbers of a fixed window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    limit: u64,
    period: Ticks,
    align: Align,
}

impl FixedWindow {
    /// A window of `rate`.
    ///
    /// # Errors
    /// When a number is out of range.
    pub fn new(rate: Rate, align: Align) -> Result<Self, QuotaError> {
        let rate = rate.checked()?;
        Ok(Self {
            limit: rate.units(),
            period: rate.period(),
            align,
        })
    }

    /// Where windows begin.
    #[must_use]
    pub const fn align(&self) -> &Align {
        &self.align
    }

    /// Units a window.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The window's length; for a calendar window its usual length.
    #[must_use]
    pub const fn period(&self) -> Ticks {
        self.period
    }
}
