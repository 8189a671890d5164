//! The definition of concurrency: at each instant at most `limit` units are in flight. A unit is in flight from its charge
//! until it is returned or expires.

use super::trace::{Admission, Trace};
use super::{Oracle, Wide};

/// Every permit with its expiry.
#[derive(Clone, Debug)]
pub(crate) struct Permits {
    limit: Wide,
    ttl: Wide,
    /// Permits by the instants at which they expire.
    held: Trace,
}

impl Permits {
    /// At most `limit` units in flight, for `ttl` ticks each.
    #[must_use]
    pub(crate) fn new(limit: u64, ttl: u64) -> Self {
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

    /// No permit expires later than two lifetimes from now.
    fn clamp_future(&mut self, now: Wide) {
        for permit in self.held.iter_mut() {
            permit.at = (now + 2 * self.ttl).min(permit.at);
        }
    }

    /// A permit that has expired at an admission stays expired, even if the clock steps back.
    fn admit(&mut self, now: Wide, units: Wide) {
        self.held.retain(|permit| now < permit.at);
        self.held.admit(now + self.ttl, units);
    }

    fn refund(&mut self, admission: usize, units: Wide) {
        self.held.refund(admission, units);
    }
}
