//! The limiters in front of the server: Tollgate's, none at all, and two published ones with their published constants.
//! Tests demand that the published ones fail where they are known to, so each test of Tollgate's limiter can fail.

#![allow(
    clippy::float_arithmetic,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the published algorithms are written in floats; nothing of Tollgate's is decided here"
)]

use tollgate::{Ticks, Timestamp};
use tollgate_overload::{AdaptiveLimit, Ending, LimitSettings, Ticket};

use tollgate_sim::random::Random;

/// Which limiter stands in front of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimiterKind {
    /// Tollgate's.
    Tollgate,
    /// None.
    Unlimited,
    /// Netflix's `VegasLimit`.
    Vegas,
    /// Netflix's `Gradient2Limit`.
    Gradient2,
}

impl LimiterKind {
    /// Every kind, in the order of the tables.
    pub(crate) const ALL: [LimiterKind; 4] =
        [LimiterKind::Tollgate, LimiterKind::Vegas, LimiterKind::Gradient2, LimiterKind::Unlimited];

    /// The name in the tables.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            LimiterKind::Tollgate => "Tollgate",
            LimiterKind::Unlimited => "no limit",
            LimiterKind::Vegas => "Vegas",
            LimiterKind::Gradient2 => "Gradient2",
        }
    }
}

/// A limiter with its state.
#[derive(Debug)]
pub(super) enum FrontLimiter {
    Tollgate(Box<AdaptiveLimit>),
    Published(Published),
}

/// The permit of a request in flight.
#[derive(Debug)]
pub(super) enum InFlightPermit {
    Tollgate(Ticket),
    Published(Timestamp, u32),
}

/// A published limiter, or none.
#[derive(Debug)]
pub(super) struct Published {
    kind: LimiterKind,
    limit: f64,
    in_flight: u32,
    /// For Vegas the lowest latency, for Gradient2 its long-term average.
    baseline: f64,
    samples: u64,
    probe_at: u64,
    random: Random,
}

impl FrontLimiter {
    pub(super) fn new(kind: LimiterKind, settings: LimitSettings, seed: u64) -> Self {
        match kind {
            LimiterKind::Tollgate => FrontLimiter::Tollgate(Box::new(AdaptiveLimit::new(settings))),
            _ => FrontLimiter::Published(Published {
                kind,
                limit: 20.0,
                in_flight: 0,
                baseline: 0.0,
                samples: 0,
                probe_at: 500,
                random: Random::new(seed ^ 0x5eed),
            }),
        }
    }

    pub(super) fn begin(&mut self, now: Timestamp) -> Option<InFlightPermit> {
        match self {
            FrontLimiter::Tollgate(limit) => limit.begin(now).map(InFlightPermit::Tollgate),
            FrontLimiter::Published(published) => {
                if f64::from(published.in_flight) >= published.limit.floor()
                    && published.kind != LimiterKind::Unlimited
                {
                    return None;
                }
                published.in_flight += 1;
                Some(InFlightPermit::Published(now, published.in_flight))
            }
        }
    }

    pub(super) fn end(&mut self, permit: InFlightPermit, now: Timestamp, ending: Ending) {
        match (self, permit) {
            (FrontLimiter::Tollgate(limit), InFlightPermit::Tollgate(ticket)) => {
                limit.end(ticket, now, ending)
            }
            (FrontLimiter::Published(published), InFlightPermit::Published(started, in_flight)) => {
                published.in_flight -= 1;
                published.sample(now.since(started), in_flight, ending);
            }
            _ => {}
        }
    }

    pub(super) fn limit(&self) -> u64 {
        match self {
            FrontLimiter::Tollgate(limit) => u64::from(limit.limit()),
            FrontLimiter::Published(published) if published.kind == LimiterKind::Unlimited => u64::MAX,
            FrontLimiter::Published(published) => published.limit as u64,
        }
    }

    pub(super) fn in_flight(&self) -> u64 {
        match self {
            FrontLimiter::Tollgate(limit) => u64::from(limit.in_flight()),
            FrontLimiter::Published(published) => u64::from(published.in_flight),
        }
    }
}

impl Published {
    fn sample(&mut self, latency: Ticks, in_flight: u32, ending: Ending) {
        let rtt = latency.as_micros().max(1) as f64;
        match (self.kind, ending) {
            (_, Ending::Ignored) => {}
            (LimiterKind::Vegas, _) => self.vegas(rtt, f64::from(in_flight), ending),
            // Gradient2 ignores drops: its `_update(.., didDrop)` never reads `didDrop`.
            (LimiterKind::Gradient2, _) => self.gradient2(rtt, f64::from(in_flight)),
            _ => {}
        }
    }

    fn vegas(&mut self, rtt: f64, in_flight: f64, ending: Ending) {
        self.samples += 1;
        let step = self.limit.log10().max(1.0);
        if self.samples >= self.probe_at {
            self.samples = 0;
            let jitter = 0.5 + self.random.below(1_000) as f64 / 2_000.0;
            self.probe_at = (jitter * 30.0 * self.limit) as u64;
            self.baseline = rtt;
            return;
        }
        if self.baseline == 0.0 || rtt < self.baseline {
            self.baseline = rtt;
            return;
        }
        let queue = (self.limit * (1.0 - self.baseline / rtt)).ceil();
        if ending == Ending::Dropped {
            self.limit -= step;
        } else if in_flight * 2.0 < self.limit {
            return;
        } else if queue <= step {
            self.limit += 6.0 * step;
        } else if queue < 3.0 * step {
            self.limit += step;
        } else if queue > 6.0 * step {
            self.limit -= step;
        }
        self.limit = self.limit.clamp(1.0, 1_000.0);
    }

    fn gradient2(&mut self, rtt: f64, in_flight: f64) {
        self.samples += 1;
        let warm_up = 10;
        if self.samples <= warm_up {
            self.baseline += (rtt - self.baseline) / self.samples as f64;
        } else {
            self.baseline += (rtt - self.baseline) * 2.0 / 601.0;
        }
        if self.baseline / rtt > 2.0 {
            self.baseline *= 0.95;
        }
        if in_flight < self.limit / 2.0 {
            return;
        }
        let gradient = (1.5 * self.baseline / rtt).clamp(0.5, 1.0);
        self.limit = 0.8 * self.limit + 0.2 * (self.limit * gradient + 4.0);
        self.limit = self.limit.clamp(20.0, 200.0);
    }
}
