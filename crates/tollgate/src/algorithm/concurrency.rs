//! Concurrency: permits in flight, each with an expiry.

use crate::time::Ticks;

/// The numbers of a concurrency limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concurrency {
    limit: u64,
    ttl: Ticks,
}

impl Concurrency {
    /// Permits at once.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// How long a permit lives when nobody gives it back.
    #[must_use]
    pub const fn ttl(&self) -> Ticks {
        self.ttl
    }
}

#[cfg(test)]
impl Concurrency {
    pub(crate) fn new(limit: u64, ttl: Ticks) -> Result<Self, crate::QuotaError> {
        Ok(Self { limit, ttl })
    }
}
