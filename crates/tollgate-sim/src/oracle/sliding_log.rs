//! The definition of the sliding log: at most the limit in `(now - period, now]`.

use super::{Oracle, Wide};

/// Every admitted unit with its instant.
#[derive(Clone, Debug)]
pub struct Log {
    limit: Wide,
    period: Wide,
    admitted: Vec<(Wide, Wide)>,
}

impl Log {
    /// At most `limit` units in any `period` ticks.
    #[must_use]
    pub fn new(limit: u64, period: u64) -> Self {
        Self { limit: limit.into(), period: period.into(), admitted: Vec::new() }
    }

    /// The newest admission: behind it, time stands still.
    fn newest(&self) -> Wide {
        self.admitted.last().map_or(0, |&(at, _)| at)
    }

    fn used(&self, at: Wide) -> Wide {
        let at = at.max(self.newest());
        let inside = self.admitted.iter().filter(|&&(hit, _)| at - self.period < hit);
        inside.map(|&(_, units)| units).sum()
    }
}

impl Oracle for Log {
    fn limit(&self) -> Wide {
        self.limit
    }

    fn free(&self, at: Wide) -> Wide {
        self.limit - self.used(at)
    }

    fn is_fresh(&self, at: Wide) -> bool {
        self.used(at) == 0
    }

    /// More than a window ahead of the clock is not believed.
    fn forgive(&mut self, now: Wide) {
        for (at, _) in &mut self.admitted {
            *at = (now + self.period).min(*at);
        }
    }

    /// What is out of the window at an admission is out of it for ever.
    fn admit(&mut self, now: Wide, units: Wide) {
        let now = now.max(self.newest());
        self.admitted.retain(|&(at, _)| now - self.period < at);
        self.admitted.push((now, units));
    }

    /// Units of that instant are taken back, then older ones, which stop counting sooner. What no longer counts is not.
    fn refund(&mut self, now: Wide, units: Wide, charged_at: Option<Wide>) {
        self.forgive(now);
        let reached = now.max(self.newest());
        let mut left = units;
        let mut take = |units: &mut Wide| {
            let taken = left.min(*units);
            *units -= taken;
            left -= taken;
        };
        let counts = |at: Wide| reached - self.period < at;
        let counting = self.admitted.iter_mut().filter(|(at, _)| counts(*at));
        match charged_at {
            Some(charged_at) => {
                let own = counting.rev().filter(|(at, _)| *at <= charged_at);
                own.for_each(|(_, units)| take(units));
            }
            None => counting.for_each(|(_, units)| take(units)),
        }
        self.admitted.retain(|&(_, units)| units > 0);
        if self.is_fresh(reached) {
            self.admitted.clear();
        }
    }
}
