//! The policy: limits compiled from a file, and which of them a request meets.
//!
//! The way of a policy: text → [`document`] (a tree with positions) → `compile` (pure, reports every problem at once) →
//! [`Policy`], immutable. `policy check`, start-up and live reload all call the same `compile`.

pub mod expression;
pub mod glob;
pub mod limit;

pub use limit::{
    BY_MAX, Condition, Consistency, Cost, Limit, MATCHED_MAX, Mode, OnStoreFailure, QuotaIndex, Quotas,
};

/// The limits of one domain, compiled and indexed.
#[derive(Debug)]
pub struct Policy {
    limits: Vec<Limit>,
}

impl Policy {
    /// Its limits, in the file's order.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }
}

#[cfg(test)]
impl Policy {
    /// A policy of these limits, for tests that need no file.
    pub(crate) fn of_limits(limits: Vec<Limit>) -> Self {
        Self { limits }
    }
}
