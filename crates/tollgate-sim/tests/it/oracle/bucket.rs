//! The definition of token bucket and GCRA: every interval of length `t` admits and keeps at most `burst + rate × t` units.
//! The leaky bucket admits by a larger bucket and releases by a smaller one.

use super::trace::Trace;
use super::{Oracle, Wide};

/// A bucket that refills by `units` in `period` ticks.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    units: Wide,
    period: Wide,
    /// Units of the full bucket, the queue included.
    capacity: Wide,
    /// Units that leave without waiting.
    immediate: Wide,
    kept: Trace,
}

impl Bucket {
    /// A token bucket or GCRA: `units` in `period` ticks, with a burst.
    #[must_use]
    pub(crate) fn new(units: u64, period: u64, burst: u64) -> Self {
        Self::shaping(units, period, burst, 0)
    }

    /// A leaky bucket: `burst` units leave without waiting, `queue` units may wait.
    #[must_use]
    pub(crate) fn shaping(units: u64, period: u64, burst: u64, queue: u64) -> Self {
        Self {
            units: units.into(),
            period: period.into(),
            capacity: Wide::from(burst) + Wide::from(queue),
            immediate: burst.into(),
            kept: Trace::default(),
        }
    }

    /// The most by which any interval up to `at` exceeds what the rate alone gives, in units × period, and at least 0.
    /// It examines every interval that begins with an admission. One that begins between two admissions holds the same
    /// units as the next shorter one.
    fn excess(&self, at: Wide) -> Wide {
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
        (self.capacity * self.period - self.excess(at)).div_euclid(self.period)
    }

    fn is_fresh(&self, at: Wide) -> bool {
        self.excess(at) == 0
    }

    /// A clock that steps back makes intervals look shorter. At most one full bucket counts against the caller.
    fn clamp_future(&mut self, now: Wide) {
        if self.excess(now) > self.capacity * self.period {
            self.kept.replace(now, self.capacity);
        }
    }

    fn admit(&mut self, now: Wide, units: Wide) {
        self.kept.admit(now, units);
    }

    fn refund(&mut self, admission: usize, units: Wide) {
        self.kept.refund(admission, units);
    }

    fn wait(&self, now: Wide) -> Wide {
        let allowed = self.immediate * self.period;
        super::first_instant(now, |later| self.excess(later) <= allowed) - now
    }
}
