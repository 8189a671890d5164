//! The definition of token bucket and GCRA: in every interval, at most `burst + rate × t` units are admitted and kept. And that
//! of the leaky bucket, which admits by the larger bucket and lets go by the smaller.

use super::trace::Trace;
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
    kept: Trace,
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
            kept: Trace::default(),
        }
    }

    /// The most by which any interval up to `at` exceeds what the rate alone gives, in units × period: zero for an empty one.
    /// Every interval that begins with an admission is examined; one that begins between two has no more in a longer time.
    fn debt(&self, at: Wide) -> Wide {
        let (mut sum, mut worst) = (0, 0);
        for admission in self.kept.iter().rev() {
            sum += admission.units * self.period;
            worst = worst.max(sum - self.units * (at - admission.at));
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
            self.kept.replace(now, self.capacity);
        }
    }

    fn admit(&mut self, now: Wide, units: Wide) {
        self.kept.admit(now, units);
    }

    fn take_back(&mut self, admission: usize, units: Wide) {
        self.kept.take_back(admission, units);
    }

    fn wait(&self, now: Wide) -> Wide {
        let allowed = self.at_once * self.period;
        super::first_instant(now, |later| self.debt(later) <= allowed) - now
    }
}
