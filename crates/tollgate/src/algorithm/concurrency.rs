//! Concurrency: permits in flight, each with an expiry.

use crate::quota::QuotaError;
use crate::time::Ticks;

/// The numbers of a concurrency limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concurrency {
    limit: u64,
    ttl: Ticks,
}

impl Concurrency {
    /// `limit` permits at once, each for at most `ttl`.
    ///
    /// # Errors
    /// When a number is out of range.
    pub fn new(limit: u64, ttl: Ticks) -> Result<Self, QuotaError> {
        if limit == 0 || limit > 1_000_000 {
            return Err(QuotaError::Range {
                field: "concurrency",
                value: limit,
                accepted: "1 to 1,000,000".to_owned(),
            });
        }
        Ok(Self { limit, ttl })
    }

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
