//! Metrics of the requests that are sent on. Route and upstream names come from the config, all other labels from
//! closed lists.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::failure::UpstreamFailure;

/// Status classes, as label values.
pub const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
/// Why an upstream did not answer, as label values.
pub const FAILURES: [&str; 6] = ["connect", "busy", "refused", "lost", "late", "share"];

/// One upstream of one route.
#[derive(Clone, Debug, Default)]
pub struct UpstreamSeries {
    /// The route's name.
    pub route: String,
    /// The upstream's name.
    pub upstream: String,
    /// By status class, in the order of [`CLASSES`].
    pub answers: [u64; CLASSES.len()],
    /// By kind, in the order of [`FAILURES`].
    pub failures: [u64; FAILURES.len()],
    /// Requests that were sent here after a failure.
    pub retries: u64,
    /// Open tunnels.
    pub tunnels: u64,
    /// 1 while its health checks pass.
    pub up: u64,
}

/// The index in [`FAILURES`].
const fn failure_index(failure: &UpstreamFailure) -> usize {
    match failure {
        UpstreamFailure::Connect(..) => 0,
        UpstreamFailure::Busy(_) => 1,
        UpstreamFailure::Refused | UpstreamFailure::Left => 2,
        UpstreamFailure::Unsent | UpstreamFailure::Stale | UpstreamFailure::Lost(..) => 3,
        UpstreamFailure::Late => 4,
        UpstreamFailure::Share(_) => 5,
    }
}

/// The counters of one upstream. They guard nothing, so relaxed orderings are enough.
#[derive(Debug, Default)]
pub(crate) struct UpstreamMetrics {
    answers: [AtomicU64; CLASSES.len()],
    failures: [AtomicU64; FAILURES.len()],
    retries: AtomicU64,
    tunnels: Arc<AtomicU64>,
}

impl UpstreamMetrics {
    pub(crate) fn answered(&self, status: http::StatusCode) {
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES.len()) - 1;
        self.answers[class].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self, failure: &UpstreamFailure) {
        self.failures[failure_index(failure)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that was sent here after another upstream, or this one, had failed.
    pub(crate) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// The numbers now, without the names.
    pub(crate) fn series(&self) -> UpstreamSeries {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        UpstreamSeries {
            answers: self.answers.each_ref().map(read),
            failures: self.failures.each_ref().map(read),
            retries: read(&self.retries),
            tunnels: read(&self.tunnels),
            ..UpstreamSeries::default()
        }
    }

    /// Counts an open tunnel until the result is dropped.
    pub(crate) fn tunnel(&self) -> Tunnelled {
        self.tunnels.fetch_add(1, Ordering::Relaxed);
        Tunnelled(Arc::clone(&self.tunnels))
    }
}

/// Counts clients that were disconnected because they were too slow. Relaxed: the numbers guard nothing.
#[derive(Debug, Default)]
pub(crate) struct Slow {
    uploads: AtomicU64,
    readers: AtomicU64,
}

impl Slow {
    /// A client sent its body too slowly.
    pub(crate) fn upload(&self) {
        self.uploads.fetch_add(1, Ordering::Relaxed);
    }

    /// A client read its answer too slowly.
    pub(crate) fn reader(&self) {
        self.readers.fetch_add(1, Ordering::Relaxed);
    }

    /// Disconnected clients, by reason.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 2] {
        [("upload", &self.uploads), ("answer", &self.readers)]
            .map(|(reason, count)| (reason, count.load(Ordering::Relaxed)))
    }
}

/// One open tunnel.
#[derive(Debug)]
pub(crate) struct Tunnelled(Arc<AtomicU64>);

impl Drop for Tunnelled {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
