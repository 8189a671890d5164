//! The definition of the fixed window: where windows lie, and at most the limit in each of them.

use super::trace::Trace;
use super::{Oracle, Wide};

const DAY: Wide = 86_400 * 1_000_000;

/// Where windows lie.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Windows {
    /// At multiples of this number of ticks.
    Multiples(Wide),
    /// From a hit on, for this number of ticks.
    FromHit(Wide),
    /// By the civil calendar, at a fixed offset from UTC in ticks.
    Civil(CivilUnit, Wide),
}

/// A unit of the civil calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CivilUnit {
    /// From midnight.
    Day,
    /// From Monday.
    Week,
    /// From the first.
    Month,
    /// From the first of January.
    Year,
}

impl Windows {
    /// The window around an instant, for a key without a window.
    fn around(self, at: Wide) -> (Wide, Wide) {
        match self {
            Windows::Multiples(period) => {
                let start = at - at.rem_euclid(period);
                (start, start + period)
            }
            Windows::FromHit(period) => (at, at + period),
            Windows::Civil(unit, offset) => {
                let today = (at + offset).div_euclid(DAY);
                let (first, next) = unit.days_around(today);
                (first * DAY - offset, next * DAY - offset)
            }
        }
    }

    /// The end of the latest accepted window. A window that had begun stays while the clock is set back.
    fn latest_end(self, now: Wide) -> Wide {
        self.around(self.around(now).1).1
    }
}

impl CivilUnit {
    /// The first day of the unit around a day, and of the next unit. Days are counted from 1970-01-01, a Thursday.
    fn days_around(self, day: Wide) -> (Wide, Wide) {
        match self {
            CivilUnit::Day => (day, day + 1),
            CivilUnit::Week => {
                let monday = day - (day + 3).rem_euclid(7);
                (monday, monday + 7)
            }
            CivilUnit::Month => walk(day, 12),
            CivilUnit::Year => walk(day, 1),
        }
    }
}

/// Walks over months (12 a year) or years (1 a year) from 1970-01-01 on, until one contains the day.
fn walk(day: Wide, in_a_year: Wide) -> (Wide, Wide) {
    let months = 12 / in_a_year;
    let (mut first, mut month) = (0, 0);
    loop {
        let lengths = (month..month + months).map(|month| days_of_month(1970 + month / 12, month % 12));
        let next = first + lengths.sum::<Wide>();
        if day < next {
            return (first, next);
        }
        (first, month) = (next, month + months);
    }
}

/// The days of a month, January being 0.
fn days_of_month(year: Wide, month: Wide) -> Wide {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        1 if leap => 29,
        1 => 28,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

/// A counter for each window. Only the newest accepts charges.
#[derive(Clone, Debug)]
pub(crate) struct WindowCount {
    limit: Wide,
    windows: Windows,
    /// Admissions by the ends of their windows.
    kept: Trace,
}

impl WindowCount {
    /// At most `limit` units in each window.
    #[must_use]
    pub(crate) fn new(limit: u64, windows: Windows) -> Self {
        Self { limit: limit.into(), windows, kept: Trace::default() }
    }

    /// The end of the window at an instant. A window whose units were all refunded never began.
    fn window(&self, at: Wide) -> Option<Wide> {
        let mut ends = self.kept.iter().filter(|admission| admission.units > 0).map(|admission| admission.at);
        ends.next_back().filter(|&end| at < end)
    }

    fn used(&self, at: Wide) -> Wide {
        let Some(end) = self.window(at) else { return 0 };
        let inside = self.kept.iter().filter(|admission| admission.at == end);
        inside.map(|admission| admission.units).sum()
    }
}

impl Oracle for WindowCount {
    fn limit(&self) -> Wide {
        self.limit
    }

    fn free(&self, at: Wide) -> Wide {
        self.limit - self.used(at)
    }

    fn is_fresh(&self, at: Wide) -> bool {
        self.used(at) == 0
    }

    fn clamp_future(&mut self, now: Wide) {
        let latest = self.windows.latest_end(now);
        for admission in self.kept.iter_mut() {
            admission.at = latest.min(admission.at);
        }
    }

    /// Admissions of other windows never count again, even if the clock steps back.
    fn admit(&mut self, now: Wide, units: Wide) {
        let end = self.window(now).unwrap_or_else(|| self.windows.around(now).1);
        self.kept.retain(|admission| admission.at == end);
        self.kept.admit(end, units);
    }

    fn refund(&mut self, admission: usize, units: Wide) {
        self.kept.refund(admission, units);
    }
}
