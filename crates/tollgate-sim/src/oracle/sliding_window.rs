//! The definition of the sliding window: units by the sub-window they came in; the sub-windows of the window that ends now
//! count whole, the one it leaves by its share or whole.

use super::{Oracle, Wide};

/// How the sub-window counts that the window is leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oldest {
    /// By the share that is still inside, rounded up.
    Share,
    /// Whole.
    Whole,
}

/// Every admitted unit with its sub-window.
#[derive(Clone, Debug)]
pub struct SubWindows {
    limit: Wide,
    length: Wide,
    precision: Wide,
    oldest: Oldest,
    admitted: Vec<(Wide, Wide)>,
}

impl SubWindows {
    /// At most `limit` units in `precision` sub-windows of `length` ticks.
    #[must_use]
    pub fn new(limit: u64, length: u64, precision: u32, oldest: Oldest) -> Self {
        Self {
            limit: limit.into(),
            length: length.into(),
            precision: precision.into(),
            oldest,
            admitted: Vec::new(),
        }
    }

    /// The newest sub-window that has admitted anything: behind its start, time stands still.
    fn newest(&self) -> Wide {
        self.admitted.last().map_or(0, |&(index, _)| index)
    }

    fn used(&self, at: Wide) -> Wide {
        let at = at.max(self.newest() * self.length);
        let (index, into) = (at / self.length, at % self.length);
        let units_at = |index| {
            let inside = self.admitted.iter().filter(move |&&(i, _)| i == index);
            inside.map(|&(_, units)| units).sum::<Wide>()
        };
        let whole: Wide =
            self.admitted.iter().filter(|&&(i, _)| index - self.precision < i).map(|&(_, units)| units).sum();
        let oldest: Wide = units_at(index - self.precision);
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

    /// More than a window ahead of the clock is not believed: the whole history moves back.
    fn forgive(&mut self, now: Wide) {
        let ahead = self.newest() - (now / self.length + self.precision);
        if ahead > 0 {
            self.admitted.iter_mut().for_each(|(index, _)| *index -= ahead);
        }
    }

    fn admit(&mut self, now: Wide, units: Wide) {
        let index = (now / self.length).max(self.newest());
        self.admitted.push((index, units));
    }

    /// Units of the instant's sub-window are taken back, then older ones, which stop counting sooner.
    fn refund(&mut self, now: Wide, units: Wide, charged_at: Option<Wide>) {
        self.forgive(now);
        let mut left = units;
        let mut take = |units: &mut Wide| {
            let taken = left.min(*units);
            *units -= taken;
            left -= taken;
        };
        let oldest = (now / self.length).max(self.newest()) - self.precision;
        match charged_at {
            Some(at) => {
                let own = self.admitted.iter_mut().rev().filter(|(index, _)| *index <= at / self.length);
                own.for_each(|(_, units)| take(units));
            }
            None => {
                let counting = self.admitted.iter_mut().filter(|(index, _)| *index >= oldest);
                counting.for_each(|(_, units)| take(units));
            }
        }
        if self.is_fresh(now) {
            self.admitted.clear();
        }
    }
}
