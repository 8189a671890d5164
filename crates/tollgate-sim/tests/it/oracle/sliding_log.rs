//! The definition of the sliding log: every interval `(now - period, now]` admits and keeps at most the limit.

use super::trace::Trace;
use super::{Oracle, Wide};

/// Every admitted unit with its instant.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    limit: Wide,
    period: Wide,
    kept: Trace,
}

impl Log {
    /// At most `limit` units in any `period` ticks.
    #[must_use]
    pub(crate) fn new(limit: u64, period: u64) -> Self {
        Self { limit: limit.into(), period: period.into(), kept: Trace::default() }
    }

    fn used(&self, at: Wide) -> Wide {
        // The log's clock never goes back before its newest admission.
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

    /// No admission lies more than a period ahead of the clock.
    fn clamp_future(&mut self, now: Wide) {
        for admission in self.kept.iter_mut() {
            admission.at = (now + self.period).min(admission.at);
        }
    }

    /// Admissions outside of the window never count again, even if the clock steps back.
    fn admit(&mut self, now: Wide, units: Wide) {
        let now = now.max(self.kept.latest());
        self.kept.retain(|admission| now - self.period < admission.at);
        self.kept.admit(now, units);
    }

    fn refund(&mut self, admission: usize, units: Wide) {
        self.kept.refund(admission, units);
    }
}
