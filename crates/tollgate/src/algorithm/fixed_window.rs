//! Fixed window: one counter that starts anew with each window.

use crate::time::Ticks;

/// The numbers of a fixed window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    limit: u64,
    period: Ticks,
}

impl FixedWindow {
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

/// Where windows begin.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub enum Align {
    /// At multiples of the period since the Unix epoch.
    Epoch,
}

#[cfg(test)]
impl FixedWindow {
    pub(crate) fn new(rate: crate::Rate, _align: Align) -> Result<Self, crate::QuotaError> {
        rate.checked().map(|rate| Self {
            limit: rate.units(),
            period: rate.period(),
        })
    }
}
