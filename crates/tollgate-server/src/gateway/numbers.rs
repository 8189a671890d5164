//! What is counted about requests that are sent on. Names of routes and upstreams come from the config, all else from closed lists.

use std::sync::atomic::{AtomicU64, Ordering};

use super::upstream::Failure;

/// Classes of status, as a label.
pub(super) const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
/// Why there was no answer, as a label; the order is that of [`failure_index`].
pub(super) const FAILURES: [&str; 5] = ["connect", "busy", "refused", "lost", "late"];

const fn failure_index(failure: &Failure) -> usize {
    match failure {
        Failure::Connect(_) => 0,
        Failure::Busy => 1,
        Failure::Refused => 2,
        Failure::Stale | Failure::Lost(_) => 3,
        Failure::Late => 4,
    }
}

/// The numbers of one upstream. They guard nothing, so relaxed orderings are enough.
#[derive(Debug, Default)]
pub(super) struct UpstreamNumbers {
    answers: [AtomicU64; CLASSES.len()],
    failures: [AtomicU64; FAILURES.len()],
    retries: AtomicU64,
    tunnels: std::sync::Arc<AtomicU64>,
}

impl UpstreamNumbers {
    pub(super) fn answered(&self, status: http::StatusCode) {
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES.len()) - 1;
        self.answers[class].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn failed(&self, failure: &Failure) {
        self.failures[failure_index(failure)].fetch_add(1, Ordering::Relaxed);
    }

    /// A request was sent here after another upstream, or this one, had failed.
    pub(super) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// A tunnel was opened; it is counted until this is dropped.
    pub(super) fn tunnel(&self) -> Tunnelled {
        self.tunnels.fetch_add(1, Ordering::Relaxed);
        Tunnelled(std::sync::Arc::clone(&self.tunnels))
    }

    pub(super) fn answers(&self) -> [u64; CLASSES.len()] {
        self.answers.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    pub(super) fn failures(&self) -> [u64; FAILURES.len()] {
        self.failures.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    pub(super) fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    pub(super) fn tunnels(&self) -> u64 {
        self.tunnels.load(Ordering::Relaxed)
    }
}

/// One open tunnel.
#[derive(Debug)]
pub(super) struct Tunnelled(std::sync::Arc<AtomicU64>);

impl Drop for Tunnelled {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
