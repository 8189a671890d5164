//! Which policy is in force, since when, and how attempts to replace it went.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tollgate::Timestamp;
use tollgate::time::TICKS_PER_SECOND;

use super::Sample;
use super::names::{POLICY_LIMITS, POLICY_SINCE, RELOAD_OK, RELOADS, label};

/// The numbers. Each stands for itself, so relaxed orderings are enough.
#[derive(Default)]
pub(super) struct PolicyStatus {
    limits: AtomicU64,
    since: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    last_failed: AtomicBool,
}

impl PolicyStatus {
    /// A policy with this many limits is in force from now on.
    pub(super) fn in_force(&self, limits: usize, now: Timestamp) {
        self.limits.store(limits as u64, Ordering::Relaxed);
        self.since.store(now.unix_micros() / TICKS_PER_SECOND, Ordering::Relaxed);
    }

    pub(super) fn reloaded(&self) {
        self.succeeded.fetch_add(1, Ordering::Relaxed);
        self.last_failed.store(false, Ordering::Relaxed);
    }

    pub(super) fn reload_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.last_failed.store(true, Ordering::Relaxed);
    }

    pub(super) fn samples(&self) -> [Sample; 5] {
        let reloads = |result, count: &AtomicU64| Sample {
            metric: &RELOADS,
            label: Some((label::RESULT, result)),
            value: count.load(Ordering::Relaxed),
        };
        [
            Sample::new(&POLICY_LIMITS, self.limits.load(Ordering::Relaxed)),
            Sample::new(&POLICY_SINCE, self.since.load(Ordering::Relaxed)),
            reloads("ok", &self.succeeded),
            reloads("failed", &self.failed),
            Sample::new(&RELOAD_OK, u64::from(!self.last_failed.load(Ordering::Relaxed))),
        ]
    }
}
