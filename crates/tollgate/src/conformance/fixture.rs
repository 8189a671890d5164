//! Fixtures of the suite: one quota of each algorithm, an engine with a clock that stands still, and short
//! requests.

use crate::algorithm::concurrency::Concurrency;
use crate::algorithm::fixed_window::{Align, FixedWindow};
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::{Estimate, SlidingWindow};
use crate::decision::Decision;
use crate::engine::SwapReport;
use crate::outcome::{Outcome, Source};
use crate::policy::{Cost, Limit, LimitBuilder, Policy};
use crate::quota::Quota;
use crate::rate::{QuotaError, Rate};
use crate::request::CheckRequest;
use crate::store::Store;
use crate::time::{Ticks, Timestamp};

use super::Engine;

/// An instant well inside its hour, so that no window ends while a test stands still.
pub(super) const START: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
/// The period of every quota here, and the life of every permit.
pub(super) const HOUR: Ticks = Ticks::from_secs(3_600);

/// The count that a counter keeps when its quota is raised or lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptUnits {
    /// The available units: a bucket does not fill up because it grew.
    Available,
    /// The used units: a window that grew has the difference available.
    Used,
}

/// One algorithm under test.
#[derive(Clone, Copy)]
pub(super) struct Algorithm {
    pub(super) name: &'static str,
    pub(super) keeps: KeptUnits,
    make: fn(u64) -> Result<Quota, QuotaError>,
}

impl Algorithm {
    /// The quota that has this many units.
    pub(super) fn quota(&self, units: u64) -> Quota {
        (self.make)(units).expect("the suite's numbers are valid")
    }

    /// A limit of this many units for each `key`.
    pub(super) fn limit(&self, name: &str, units: u64) -> LimitBuilder {
        Limit::new(name, self.quota(units)).by(["key"]).cost(Cost::Asked)
    }
}

/// Every algorithm, and every variant of it that a store keeps differently.
pub(super) const ALGORITHMS: [Algorithm; 10] = [
    Algorithm {
        name: "token-bucket",
        keeps: KeptUnits::Available,
        make: |n| Quota::token_bucket(Rate::per_hour(n)),
    },
    // A rate just below a whole number of units per tick: its fractions do not fit sixteen bits.
    Algorithm {
        name: "token-bucket, wide",
        keeps: KeptUnits::Available,
        make: |n| Quota::token_bucket(Rate::per_second(9_999_991).burst(n)),
    },
    Algorithm { name: "gcra", keeps: KeptUnits::Available, make: |n| Quota::gcra(Rate::per_hour(n)) },
    Algorithm { name: "fixed-window, epoch", keeps: KeptUnits::Used, make: |n| fixed(n, Align::Epoch) },
    Algorithm {
        name: "fixed-window, first hit",
        keeps: KeptUnits::Used,
        make: |n| fixed(n, Align::FirstHit),
    },
    Algorithm {
        name: "sliding-window, strict",
        keeps: KeptUnits::Used,
        make: |n| sliding(n, 10, Estimate::Strict),
    },
    Algorithm {
        name: "sliding-window, interpolated",
        keeps: KeptUnits::Used,
        make: |n| sliding(n, 1, Estimate::Interpolate),
    },
    Algorithm {
        name: "sliding-log",
        keeps: KeptUnits::Used,
        make: |n| SlidingLog::new(Rate::per_hour(n)).map(Quota::SlidingLog),
    },
    Algorithm {
        name: "leaky-bucket",
        keeps: KeptUnits::Available,
        make: |n| LeakyBucket::new(Rate::per_hour(n), n - 1).map(Quota::LeakyBucket),
    },
    Algorithm {
        name: "concurrency",
        keeps: KeptUnits::Used,
        make: |n| Concurrency::new(n, HOUR).map(Quota::Concurrency),
    },
];

/// The token bucket, where any algorithm will do.
pub(super) const BUCKET: Algorithm = ALGORITHMS[0];
/// The leaky bucket, which queues.
pub(super) const LINE: Algorithm = ALGORITHMS[8];
/// The concurrency limit, which grants permits.
pub(super) const PERMITS: Algorithm = ALGORITHMS[9];

fn fixed(units: u64, align: Align) -> Result<Quota, QuotaError> {
    FixedWindow::new(Rate::per_hour(units), align).map(Quota::FixedWindow)
}

fn sliding(units: u64, precision: u32, estimate: Estimate) -> Result<Quota, QuotaError> {
    SlidingWindow::new(Rate::per_hour(units), precision, estimate).map(Quota::SlidingWindow)
}

/// A policy of these limits.
pub(super) fn policy(limits: Vec<LimitBuilder>) -> Policy {
    Policy::new(limits).expect("the suite's policies are valid")
}

/// A request for one key.
pub(super) fn asking(key: &str, cost: u64) -> CheckRequest<'_> {
    let request = CheckRequest::new().with("key", key).and_then(|request| request.cost(cost));
    request.expect("the suite's requests are valid")
}

/// A request for one key of a plan.
pub(super) fn on_plan<'a>(key: &'a str, plan: &'a str, cost: u64) -> CheckRequest<'a> {
    asking(key, cost).with("plan", plan).expect("the suite's requests are valid")
}

/// Names and outcomes of a decision's limits.
pub(super) fn answers(decision: &Decision) -> Vec<(String, Outcome)> {
    decision.limits().map(|status| (status.limit.name().to_owned(), status.outcome)).collect()
}

/// The name of the limit that caused a denial.
pub(super) fn cause(decision: &Decision) -> String {
    decision.cause().map(|status| status.limit.name().to_owned()).unwrap_or_default()
}

/// An engine on the store under test, at an instant.
pub(super) struct Rig<S> {
    pub(super) engine: Engine<S>,
    pub(super) now: Timestamp,
}

impl<S: Store> Rig<S> {
    pub(super) fn new(make: &impl Fn(Timestamp) -> S, limits: Vec<LimitBuilder>) -> Self {
        let engine = Engine::builder().policy(policy(limits)).store(make(START)).build();
        Self { engine, now: START }
    }

    /// Checks a request, and asserts that the counters themselves answered.
    pub(super) async fn check(&self, request: &CheckRequest<'_>) -> Decision {
        let decision = self.engine.check(request, self.now).await;
        for status in decision.limits() {
            assert_eq!(
                status.source,
                Source::Exact,
                "{} was not answered by its counter",
                status.limit.name()
            );
        }
        decision
    }

    /// Whether a request of this cost passes.
    pub(super) async fn admits(&self, key: &str, cost: u64) -> bool {
        self.check(&asking(key, cost)).await.is_allowed()
    }

    /// The outcome of every counter of a key, without a charge.
    pub(super) async fn peek(&self, key: &str) -> Vec<(String, Outcome)> {
        answers(&self.engine.operator().peek(&asking(key, 1), self.now).await)
    }

    /// The units left in the counter of one limit.
    pub(super) async fn left(&self, key: &str, limit: &str) -> u64 {
        let all = self.peek(key).await;
        let found = all.iter().find(|(name, _)| name == limit);
        found.unwrap_or_else(|| panic!("limit {limit} did not answer")).1.remaining
    }

    /// How many single units pass before the first denial.
    pub(super) async fn drain(&self, key: &str) -> u64 {
        let mut admitted = 0;
        while self.admits(key, 1).await {
            admitted += 1;
        }
        admitted
    }

    pub(super) fn swap(&self, limits: Vec<LimitBuilder>) -> SwapReport {
        self.engine.swap(policy(limits), self.now).expect("few quotas are in use")
    }
}
