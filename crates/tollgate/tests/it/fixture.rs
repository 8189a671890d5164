//! Fixtures of the tests: quotas, policies, requests, and the output of a future that never waits.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tollgate::algorithm::concurrency::Concurrency;
use tollgate::algorithm::fixed_window::{Align, FixedWindow};
use tollgate::algorithm::leaky_bucket::LeakyBucket;
use tollgate::algorithm::sliding_log::SlidingLog;
use tollgate::algorithm::sliding_window::{Estimate, SlidingWindow};
use tollgate::policy::{Cost, Limit, LimitBuilder};
use tollgate::{CheckRequest, Policy, Quota, Rate, Ticks, Timestamp};

/// An instant well inside its hour, so that no window ends while a test stands still.
pub(crate) const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
pub(crate) const HOUR: Ticks = Ticks::from_secs(3_600);

/// How to make a quota of so many units an hour.
pub(crate) type MakeQuota = fn(u64) -> Quota;

/// Every algorithm with so many units an hour.
pub(crate) const ALGORITHMS: [(&str, MakeQuota); 9] = [
    ("token-bucket", per_hour),
    ("token-bucket, wide", |n| Quota::token_bucket(Rate::per_second(9_999_991).burst(n)).expect("valid")),
    ("gcra", |n| Quota::gcra(Rate::per_hour(n)).expect("valid")),
    ("fixed-window", |n| {
        Quota::FixedWindow(FixedWindow::new(Rate::per_hour(n), Align::Epoch).expect("valid"))
    }),
    ("sliding-window, strict", |n| {
        Quota::SlidingWindow(SlidingWindow::new(Rate::per_hour(n), 10, Estimate::Strict).expect("valid"))
    }),
    ("sliding-window, interpolated", |n| {
        Quota::SlidingWindow(SlidingWindow::new(Rate::per_hour(n), 1, Estimate::Interpolate).expect("valid"))
    }),
    ("sliding-log", |n| Quota::SlidingLog(SlidingLog::new(Rate::per_hour(n)).expect("valid"))),
    ("leaky-bucket", |n| Quota::LeakyBucket(LeakyBucket::new(Rate::per_hour(n), n - 1).expect("valid"))),
    ("concurrency", |n| Quota::Concurrency(Concurrency::new(n, HOUR).expect("valid"))),
];

pub(crate) fn per_hour(units: u64) -> Quota {
    Quota::token_bucket(Rate::per_hour(units)).expect("valid")
}

/// A limit for each `key`, charged by the cost that the request asks for.
pub(crate) fn limit(name: &str, quota: Quota) -> LimitBuilder {
    Limit::new(name, quota).by(["key"]).cost(Cost::Asked)
}

/// A token bucket of so many units an hour for each `key`.
pub(crate) fn bucket(name: &str, units: u64) -> LimitBuilder {
    limit(name, per_hour(units))
}

/// So many permits for each `key`.
pub(crate) fn permits(name: &str, places: u64) -> LimitBuilder {
    limit(name, Quota::Concurrency(Concurrency::new(places, HOUR).expect("valid"))).cost(Cost::Units(1))
}

pub(crate) fn policy(limits: Vec<LimitBuilder>) -> Policy {
    Policy::new(limits).expect("valid")
}

pub(crate) fn asking(key: &str, cost: u64) -> CheckRequest<'_> {
    CheckRequest::new().with("key", key).and_then(|request| request.cost(cost)).expect("valid")
}

/// The answer of a future that never waits.
pub(crate) fn now_or_never<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("it waits"),
    }
}
