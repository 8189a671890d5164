//! The denials of one key that a node remembers, for a few costs at a time. They are written under the lock of the key's cell, and read
//! without one.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::time::Timestamp;

/// For how many costs at a time a key's denials are remembered.
const COSTS: usize = 4;

/// What is remembered of one key.
#[derive(Default)]
pub(super) struct Denials([Denial; COSTS]);

/// That requests of a cost were denied, and for how long. A reader who sees `until` change looks again.
#[derive(Default)]
struct Denial {
    until: AtomicU64,
    cost: AtomicU64,
    retry_at: AtomicU64,
}

impl Denials {
    fn of(&self, cost: u64) -> Option<&Denial> {
        self.0.iter().find(|denial| denial.cost.load(Ordering::Acquire) == cost)
    }

    /// Whether requests of this cost are denied.
    pub(super) fn denies(&self, cost: u64, now: Timestamp) -> bool {
        self.of(cost).is_some_and(|denial| denial.until.load(Ordering::Acquire) > now.unix_micros())
    }

    /// When requests of this cost may come back, if they are denied. One that costs less may pass, and one that costs more has another
    /// time to come back, or none.
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

    /// The same of a denial that may be over, and was not taken back.
    pub(super) fn last_retry_at(&self, cost: u64) -> Option<Timestamp> {
        let denial = self.of(cost).filter(|denial| denial.until.load(Ordering::Relaxed) > 0)?;
        Some(Timestamp::from_unix_micros(denial.retry_at.load(Ordering::Acquire)))
    }

    /// Remembers that requests of this cost are denied: in the place of that cost, else of the one that is over first. Called under the
    /// lock.
    pub(super) fn remember(&self, cost: u64, retry_at: Timestamp, until: Timestamp) {
        let over = |denial: &&Denial| denial.until.load(Ordering::Relaxed);
        let Some(denial) = self.of(cost).or_else(|| self.0.iter().min_by_key(over)) else {
            return;
        };
        denial.until.store(0, Ordering::Release);
        denial.cost.store(cost, Ordering::Release);
        denial.retry_at.store(retry_at.unix_micros(), Ordering::Release);
        denial.until.store(until.unix_micros(), Ordering::Release);
    }

    /// Forgets the denials of requests that cost no more than this. Called under the lock.
    pub(super) fn forget_up_to(&self, cost: u64) {
        let covered = self.0.iter().filter(|denial| denial.cost.load(Ordering::Relaxed) <= cost.max(1));
        covered.for_each(|denial| denial.until.store(0, Ordering::Release));
    }

    /// Forgets every denial. Called under the lock.
    pub(super) fn forget(&self) {
        self.0.iter().for_each(|denial| denial.until.store(0, Ordering::Release));
    }

    /// Until when anybody is denied.
    pub(super) fn until(&self) -> Timestamp {
        let until = self.0.iter().map(|denial| denial.until.load(Ordering::Relaxed)).max();
        Timestamp::from_unix_micros(until.unwrap_or(0))
    }
}
