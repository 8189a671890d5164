//! The deny cache of one key: the denials that a node remembers, for a few costs at a time. Writers hold the
//! lock of the key's cell; readers take no lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::time::Timestamp;

/// The number of costs per key whose denials are remembered.
const COSTS: usize = 4;

/// The remembered denials of one key.
#[derive(Default)]
pub(super) struct DenyCache([RememberedDenial; COSTS]);

/// A denial of requests with one cost. A reader that sees `until` change during its read discards what it
/// read.
#[derive(Default)]
struct RememberedDenial {
    until: AtomicU64,
    cost: AtomicU64,
    retry_at: AtomicU64,
}

impl DenyCache {
    fn of(&self, cost: u64) -> Option<&RememberedDenial> {
        self.0.iter().find(|denial| denial.cost.load(Ordering::Acquire) == cost)
    }

    /// Whether requests of this cost are denied.
    pub(super) fn denies(&self, cost: u64, now: Timestamp) -> bool {
        self.of(cost).is_some_and(|denial| denial.until.load(Ordering::Acquire) > now.unix_micros())
    }

    /// When requests of this cost may retry, if they are denied. Cheaper requests may pass, and costlier ones
    /// have another retry time, so each cost has its own entry.
    pub(super) fn retry_at(&self, cost: u64, now: Timestamp) -> Option<Timestamp> {
        let denial = self.of(cost)?;
        let until = denial.until.load(Ordering::Acquire);
        if until <= now.unix_micros() {
            return None;
        }
        let retry_at = denial.retry_at.load(Ordering::Acquire);
        let is_same =
            denial.until.load(Ordering::Acquire) == until && denial.cost.load(Ordering::Acquire) == cost;
        is_same.then_some(Timestamp::from_unix_micros(retry_at))
    }

    /// The retry time of the last denial of this cost, even if it has expired, unless it was cleared.
    pub(super) fn last_retry_at(&self, cost: u64) -> Option<Timestamp> {
        let denial = self.of(cost).filter(|denial| denial.until.load(Ordering::Relaxed) > 0)?;
        Some(Timestamp::from_unix_micros(denial.retry_at.load(Ordering::Acquire)))
    }

    /// Remembers that requests of this cost are denied. It replaces the entry of that cost, else the one that
    /// expires first. Called under the lock.
    pub(super) fn remember(&self, cost: u64, retry_at: Timestamp, until: Timestamp) {
        let expiry = |denial: &&RememberedDenial| denial.until.load(Ordering::Relaxed);
        let Some(denial) = self.of(cost).or_else(|| self.0.iter().min_by_key(expiry)) else {
            return;
        };
        denial.until.store(0, Ordering::Release);
        denial.cost.store(cost, Ordering::Release);
        denial.retry_at.store(retry_at.unix_micros(), Ordering::Release);
        denial.until.store(until.unix_micros(), Ordering::Release);
    }

    /// Forgets the denials of requests that cost at most this. Called under the lock.
    pub(super) fn forget_up_to(&self, cost: u64) {
        let covered = self.0.iter().filter(|denial| denial.cost.load(Ordering::Relaxed) <= cost.max(1));
        covered.for_each(|denial| denial.until.store(0, Ordering::Release));
    }

    /// Forgets every denial. Called under the lock.
    pub(super) fn forget(&self) {
        self.0.iter().for_each(|denial| denial.until.store(0, Ordering::Release));
    }

    /// When the last denial expires.
    pub(super) fn until(&self) -> Timestamp {
        let until = self.0.iter().map(|denial| denial.until.load(Ordering::Relaxed)).max();
        Timestamp::from_unix_micros(until.unwrap_or(0))
    }
}
