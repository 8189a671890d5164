//! The definition of concurrency: at most so many units in flight at each instant, each from its charge until it is given back
//! or expires.

use super::trace::{Admission, Trace};
use super::{Oracle, Wide};

/// Every permit with its expiry.
#[derive(Clone, Debug)]
pub struct Permits {
    limit: Wide,
    ttl: Wide,
    /// By the instants at which they expire.
    held: Trace,
}

impl Permits {
    /// At most `limit` units in flight, for `ttl` ticks each.
    #[must_use]
    pub fn new(limit: u64, ttl: u64) -> Self {
        Self { limit: limit.into(), ttl: ttl.into(), held: Trace::default() }
    }

    fn used(&self, at: Wide) -> Wide {
        let live = self.held.iter().filter(|permit: &&Admission| at < permit.at);
        live.map(|permit| permit.units).sum()
    }
}

impl Oracle for Permits {
    fn limit(&self) -> Wide {
        self.limit
    }

    fn free(&self, at: Wide) -> Wide {
        self.limit - self.used(at)
    }

    fn is_fresh(&self, at: Wide) -> bool {
        self.used(at) == 0
    }

    /// No permit lives longer from now on than two lives.
    fn forgive(&mut self, now: Wide) {
        for permit in self.held.iter_mut() {
            permit.at = (now + 2 * self.ttl).min(permit.at);
        }
    }

    /// Permits that have expired at an admission do not come back.
    fn admit(&mut self, now: Wide, units: Wide) {
        self.held.retain(|permit| now < permit.at);
        self.held.admit(now + self.ttl, units);
    }

    fn take_back(&mut self, admission: usize, units: Wide) {
        self.held.take_back(admission, units);
    }
}
