//! The limits of a fleet of processes: every algorithm that can be leased, with a quota that refills each second and is
//! overloaded, and with one without a refill during the test, whose every unit is accounted for.

use tollgate::algorithm::fixed_window::Align;
use tollgate::algorithm::sliding_window::Estimate;
use tollgate::policy::{Consistency, Limit, Policy};
use tollgate::{Quota, Rate, Ticks};

/// Units per second.
pub(super) const SECONDLY: u64 = 200;
/// Units without a refill.
pub(super) const ONCE: u64 = 2_500;
/// The share of a limit that one process may lease, in millionths, and for how long.
const SHARE: u32 = 50_000;
pub(super) const TTL: Ticks = Ticks::from_millis(250);

/// How a key is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    TokenBucket,
    Gcra,
    FixedWindow,
    SlidingWindow,
}

/// One kind of key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) algorithm: Algorithm,
    /// Whether its units are refilled during a test.
    pub(super) comes_back: bool,
}

const fn kind(name: &'static str, algorithm: Algorithm, comes_back: bool) -> Kind {
    Kind { name, algorithm, comes_back }
}

pub(super) const KINDS: [Kind; 8] = [
    kind("token-bucket", Algorithm::TokenBucket, true),
    kind("gcra", Algorithm::Gcra, true),
    kind("fixed-window", Algorithm::FixedWindow, true),
    kind("sliding-window", Algorithm::SlidingWindow, true),
    kind("token-bucket once", Algorithm::TokenBucket, false),
    kind("gcra once", Algorithm::Gcra, false),
    kind("fixed-window once", Algorithm::FixedWindow, false),
    kind("sliding-window once", Algorithm::SlidingWindow, false),
];

impl Kind {
    pub(super) fn quota(&self) -> Quota {
        let window = if self.comes_back { Rate::per_second(SECONDLY) } else { Rate::per_day(ONCE) };
        let bucket = if self.comes_back { window } else { Rate::per_day(50).burst(ONCE) };
        let align = if self.comes_back { Align::Epoch } else { Align::FirstHit };
        match self.algorithm {
            Algorithm::TokenBucket => Quota::token_bucket(bucket).unwrap(),
            Algorithm::Gcra => Quota::gcra(bucket).unwrap(),
            Algorithm::FixedWindow => Quota::fixed_window(window, align).unwrap(),
            Algorithm::SlidingWindow => Quota::sliding_window(window, 10, Estimate::Strict).unwrap(),
        }
    }

    /// The units that one process may hold, however small it believes the fleet to be.
    pub(super) fn most(&self) -> u64 {
        policy().limits()[0].lease().unwrap().most(&self.quota(), 1)
    }
}

/// The policy of every process.
pub(super) fn policy() -> Policy {
    let limit = |kind: &Kind| {
        let limit = Limit::new(kind.name, kind.quota()).by(["key"]).when_one_of("kind", [kind.name]);
        limit.consistency(Consistency::Leased).lease(SHARE, TTL)
    };
    Policy::new(KINDS.iter().map(limit).collect()).unwrap()
}
