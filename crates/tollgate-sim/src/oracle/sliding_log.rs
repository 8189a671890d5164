//! The definition of the sliding log: at most the limit is admitted and kept in `(now - period, now]`.

use super::trace::Trace;
use super::{Oracle, Wide};

/// Every admitted unit with its instant.
#[derive(Clone, Debug)]
pub struct Log {
    limit: Wide,
    period: Wide,
    kept: Trace,
}

impl Log {
    /// At most `limit` units in any `period` ticks.
    #[must_use]
    pub fn new(limit: u64, period: u64) -> Self {
        Self { limit: limit.into(), period: period.into(), kept: Trace::default() }
    }

    fn used(&self, at: Wide) -> Wide {
        // Behind the newest admission time stands still.
        let at = at.max(self.kept.latest());
        let inside = self.kept.iter().filter(|admission| at - self.period < admission.at);
        inside.map(|admission| admission.units).sum()
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
        for admission in self.kept.iter_mut() {
            admission.at = (now + self.period).min(admission.at);
        }
    }

    /// What is out of the window at an admission is out of it for ever.
    fn admit(&mut self, now: Wide, units: Wide) {
        let now = now.max(self.kept.latest());
        self.kept.retain(|admission| now - self.period < admission.at);
        self.kept.admit(now, units);
    }

    fn take_back(&mut self, admission: usize, units: Wide) {
        self.kept.take_back(admission, units);
    }
}
