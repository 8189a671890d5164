//! The limits in front of the server: Tollgate's, none at all, and two published ones, small but with their published numbers, so that a test
//! in which they do well would be no test.

#![allow(
    clippy::float_arithmetic,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the published algorithms are written in floats; nothing of Tollgate's is decided here"
)]

use tollgate::overload::{AdaptiveLimit, Ending, LimitSettings, Ticket};
use tollgate::{Ticks, Timestamp};

use crate::random::Random;

/// Which limit stands in front of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Tollgate's.
    Ours,
    /// None.
    Open,
    /// Netflix's `VegasLimit`.
    Vegas,
    /// Netflix's `Gradient2Limit`.
    Gradient2,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 4] = [Way::Ours, Way::Vegas, Way::Gradient2, Way::Open];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Way::Ours => "Tollgate",
            Way::Open => "no limit",
            Way::Vegas => "Vegas",
            Way::Gradient2 => "Gradient2",
        }
    }
}

/// A limit at work.
#[derive(Debug)]
pub(super) enum Limiter {
    Ours(Box<AdaptiveLimit>),
    Published(Published),
}

/// A place that was taken.
#[derive(Debug)]
pub(super) enum Held {
    Ours(Ticket),
    Published(Timestamp, u32),
}

#[derive(Debug)]
pub(super) struct Published {
    way: Way,
    limit: f64,
    in_flight: u32,
    /// The lowest that Vegas knows; Gradient2's long average.
    baseline: f64,
    samples: u64,
    probe_at: u64,
    random: Random,
}

impl Limiter {
    pub(super) fn new(way: Way, settings: LimitSettings, seed: u64) -> Self {
        match way {
            Way::Ours => Limiter::Ours(Box::new(AdaptiveLimit::new(settings))),
            _ => Limiter::Published(Published {
                way,
                limit: 20.0,
                in_flight: 0,
                baseline: 0.0,
                samples: 0,
                probe_at: 500,
                random: Random::new(seed ^ 0x5eed),
            }),
        }
    }

    pub(super) fn begin(&mut self, now: Timestamp) -> Option<Held> {
        match self {
            Limiter::Ours(limit) => limit.begin(now).map(Held::Ours),
            Limiter::Published(published) => {
                if f64::from(published.in_flight) >= published.limit.floor() && published.way != Way::Open {
                    return None;
                }
                published.in_flight += 1;
                Some(Held::Published(now, published.in_flight))
            }
        }
    }

    pub(super) fn end(&mut self, held: Held, now: Timestamp, ending: Ending) {
        match (self, held) {
            (Limiter::Ours(limit), Held::Ours(ticket)) => limit.end(ticket, now, ending),
            (Limiter::Published(published), Held::Published(started, in_flight)) => {
                published.in_flight -= 1;
                published.sample(now.since(started), in_flight, ending);
            }
            _ => {}
        }
    }

    pub(super) fn limit(&self) -> u64 {
        match self {
            Limiter::Ours(limit) => u64::from(limit.limit()),
            Limiter::Published(published) if published.way == Way::Open => u64::MAX,
            Limiter::Published(published) => published.limit as u64,
        }
    }

    pub(super) fn in_flight(&self) -> u64 {
        match self {
            Limiter::Ours(limit) => u64::from(limit.in_flight()),
            Limiter::Published(published) => u64::from(published.in_flight),
        }
    }
}

impl Published {
    fn sample(&mut self, latency: Ticks, in_flight: u32, ending: Ending) {
        let rtt = latency.as_micros().max(1) as f64;
        match (self.way, ending) {
            (_, Ending::Ignored) => {}
            (Way::Vegas, _) => self.vegas(rtt, f64::from(in_flight), ending == Ending::Dropped),
            // It does not look at drops: `_update(.., didDrop)` never reads `didDrop`.
            (Way::Gradient2, _) => self.gradient2(rtt, f64::from(in_flight)),
            _ => {}
        }
    }

    fn vegas(&mut self, rtt: f64, in_flight: f64, dropped: bool) {
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
        if dropped {
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
