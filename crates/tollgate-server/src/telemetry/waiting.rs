//! Requests that wait in the queue of a leaky bucket.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::Ticks;

use super::exposition::Page;
use super::histogram::{Histogram, RETRY_BOUNDS};
use super::names::{self, Metric};

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

    /// Writes the numbers of one metric, if it belongs here.
    pub(super) fn show(&self, metric: &Metric, page: &mut Page) {
        if *metric == names::WAITING {
            page.number(metric, &[], self.now.load(Ordering::Relaxed));
        } else if *metric == names::WAITS {
            page.histogram(metric, &[], &self.waits.read());
        }
    }
}
