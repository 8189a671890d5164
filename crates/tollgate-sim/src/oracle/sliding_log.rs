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

    fn refund(&mut self, now: Wide, units: Wide) {
        self.forgive(now);
        let reached = now.max(self.newest());
        let mut left = units;
        while let Some((_, newest)) = self.admitted.last_mut() {
            let taken = left.min(*newest);
            *newest -= taken;
            left -= taken;
            if *newest > 0 {
                break;
            }
            self.admitted.pop();
        }
        if self.is_fresh(reached) {
            self.admitted.clear();
        }
    }
}
