//! The definition of token bucket and GCRA: in every interval that ends now, at most `burst + rate × t` units. And that of
//! the leaky bucket, which admits by the larger bucket and lets go by the smaller.

use super::{Oracle, Wide};

/// A bucket that refills by `units` in `period` ticks.
#[derive(Clone, Debug)]
pub struct Bucket {
    units: Wide,
    period: Wide,
    /// What it holds, the queue included.
    capacity: Wide,
    /// What leaves without waiting.
    at_once: Wide,
    /// Every admission in its order, in units × period, refunds as negative ones.
    admitted: Vec<(Wide, Wide)>,
}

impl Bucket {
    /// A token bucket or GCRA: `units` in `period` ticks, `burst` at once.
    #[must_use]
    pub fn new(units: u64, period: u64, burst: u64) -> Self {
        Self::shaping(units, period, burst, 0)
    }

    /// A leaky bucket: `burst` leave at once, `queue` may wait.
    #[must_use]
    pub fn shaping(units: u64, period: u64, burst: u64, queue: u64) -> Self {
        Self {
            units: units.into(),
            period: period.into(),
            capacity: Wide::from(burst) + Wide::from(queue),
            at_once: burst.into(),
            admitted: Vec::new(),
        }
    }

    /// The most by which any interval up to `at` exceeds what the rate alone gives, in units × period: zero for an empty one.
    fn debt(&self, at: Wide) -> Wide {
        let (mut sum, mut worst) = (0, 0);
        for &(since, scaled) in self.admitted.iter().rev() {
            sum += scaled;
            worst = worst.max(sum - self.units * (at - since));
        }
        worst
    }
}

impl Oracle for Bucket {
    fn limit(&self) -> Wide {
        self.capacity
    }

    fn free(&self, at: Wide) -> Wide {
        (self.capacity * self.period - self.debt(at)).div_euclid(self.period)
    }

    fn is_fresh(&self, at: Wide) -> bool {
        self.debt(at) == 0
    }

    /// A clock that stepped back makes intervals look shorter; no more than a whole bucket is held against the caller.
    fn forgive(&mut self, now: Wide) {
        if self.debt(now) > self.capacity * self.period {
            self.admitted = vec![(now, self.capacity * self.period)];
        }
    }

    fn admit(&mut self, now: Wide, units: Wide) {
        self.admitted.push((now, units * self.period));
    }

    /// A refund cancels units, less what the rate has given back since they were charged; beyond those that were owed it gives
    /// nothing, which the empty admission says.
    fn refund(&mut self, now: Wide, units: Wide, charged_at: Option<Wide>) {
        self.forgive(now);
        let elapsed = charged_at.map_or(0, |at| (now - at).max(0));
        let scaled = units.min(self.capacity) * self.period - self.units * elapsed;
        self.admitted.push((now, -scaled.max(0)));
        self.admitted.push((now, 0));
    }

    fn wait(&self, now: Wide) -> Wide {
        let allowed = self.at_once * self.period;
        super::first_instant(now, |later| self.debt(later) <= allowed) - now
    }
}
