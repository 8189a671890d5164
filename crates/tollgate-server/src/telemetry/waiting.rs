//! Requests that wait in the queue of a leaky bucket.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::Ticks;

use super::exposition::Page;
use super::histogram::{Histogram, RETRY_BOUNDS};
use super::names;

/// The number of waiters, and their waiting times. Relaxed: the number is only shown.
pub(super) struct Waiting {
    now: AtomicU64,
    waits: Histogram,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { now: AtomicU64::new(0), waits: Histogram::new(&RETRY_BOUNDS) }
    }
}

impl Waiting {
    pub(super) fn began(&self, wait: Ticks) {
        self.now.fetch_add(1, Ordering::Relaxed);
        self.waits.observe(wait.as_micros().saturating_mul(1_000));
    }

    pub(super) fn ended(&self) {
        self.now.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn show(&self, page: &mut Page) {
        page.number(&names::WAITING, &[], self.now.load(Ordering::Relaxed));
        page.histogram(&names::WAITS, &[], &self.waits.read());
    }
}
