//! The definition of concurrency: at most so many units in flight, each from its charge until it is given back or expires.

use super::{Oracle, Wide};

/// Every permit with its expiry.
#[derive(Clone, Debug)]
pub struct Permits {
    limit: Wide,
    ttl: Wide,
    held: Vec<(Wide, Wide)>,
}

impl Permits {
    /// At most `limit` units in flight, for `ttl` ticks each.
    #[must_use]
    pub fn new(limit: u64, ttl: u64) -> Self {
        Self { limit: limit.into(), ttl: ttl.into(), held: Vec::new() }
    }

    fn used(&self, at: Wide) -> Wide {
        let live = self.held.iter().filter(|&&(expires_at, _)| at < expires_at);
        live.map(|&(_, units)| units).sum()
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
        for (expires_at, _) in &mut self.held {
            *expires_at = (now + 2 * self.ttl).min(*expires_at);
        }
    }

    /// Permits that have expired at an admission do not come back.
    fn admit(&mut self, now: Wide, units: Wide) {
        self.held.retain(|&(expires_at, _)| now < expires_at);
        self.held.push((now + self.ttl, units));
    }

    /// Gives back units of the latest permit, while it is in flight.
    fn refund(&mut self, now: Wide, units: Wide, _charged_at: Option<Wide>) {
        if let Some((expires_at, held)) = self.held.last_mut()
            && now < *expires_at
        {
            *held = (*held - units).max(0);
        }
    }
}
