//! The definition of the sliding window: units count by their sub-window. Sub-windows inside of the window count whole;
//! the oldest, which the window is leaving, counts whole or by the share that is still inside.

use super::trace::Trace;
use super::{Oracle, Wide};

/// How the oldest sub-window counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Oldest {
    /// By the share that is still inside, rounded up.
    Share,
    /// Whole.
    Whole,
}

/// Every admitted unit with its sub-window.
#[derive(Clone, Debug)]
pub(crate) struct SubWindows {
    limit: Wide,
    length: Wide,
    precision: Wide,
    oldest: Oldest,
    /// Admissions by the numbers of their sub-windows.
    kept: Trace,
}

impl SubWindows {
    /// At most `limit` units in `precision` sub-windows of `length` ticks.
    #[must_use]
    pub(crate) fn new(limit: u64, length: u64, precision: u32, oldest: Oldest) -> Self {
        Self {
            limit: limit.into(),
            length: length.into(),
            precision: precision.into(),
            oldest,
            kept: Trace::default(),
        }
    }

    fn used(&self, at: Wide) -> Wide {
        // The clock never goes back before the start of the newest sub-window with an admission.
        let at = at.max(self.kept.latest() * self.length);
        let (index, into) = (at / self.length, at % self.length);
        let units_in = |is_in: &dyn Fn(Wide) -> bool| {
            let inside = self.kept.iter().filter(|admission| is_in(admission.at));
            inside.map(|admission| admission.units).sum::<Wide>()
        };
        let whole = units_in(&|sub| index - self.precision < sub);
        let oldest = units_in(&|sub| sub == index - self.precision);
        whole
            + match self.oldest {
                Oldest::Whole => oldest,
                Oldest::Share => (oldest * (self.length - into) + self.length - 1) / self.length,
            }
    }
}

impl Oracle for SubWindows {
    fn limit(&self) -> Wide {
        self.limit
    }

    fn free(&self, at: Wide) -> Wide {
        self.limit - self.used(at)
    }

    fn is_fresh(&self, at: Wide) -> bool {
        self.used(at) == 0
    }

    /// No admission lies more than a window ahead of the clock: otherwise the whole history moves back.
    fn clamp_future(&mut self, now: Wide) {
        let ahead = self.kept.latest() - (now / self.length + self.precision);
        if ahead > 0 {
            self.kept.iter_mut().for_each(|admission| admission.at -= ahead);
        }
    }

    fn admit(&mut self, now: Wide, units: Wide) {
        self.kept.admit((now / self.length).max(self.kept.latest()), units);
    }

    fn refund(&mut self, admission: usize, units: Wide) {
        self.kept.refund(admission, units);
    }
}
