//! The definition of the fixed window: at most the limit in each window, and where windows lie.

use super::{Oracle, Wide};

const DAY: Wide = 86_400 * 1_000_000;

/// Where windows lie.
#[derive(Clone, Copy, Debug)]
pub enum Windows {
    /// At multiples of so many ticks.
    Multiples(Wide),
    /// From a hit on for so many ticks.
    FromHit(Wide),
    /// With the civil calendar, at a fixed offset from UTC in ticks.
    Civil(CivilUnit, Wide),
}

/// A unit of the civil calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CivilUnit {
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
    /// The window around an instant, for a key that has none.
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

    /// When the window began that ends at `end` and counts now. Nobody tells of a calendar's, unless it is the one around now.
    fn start_of(self, end: Wide, now: Wide) -> Option<Wide> {
        match self {
            Windows::Multiples(period) | Windows::FromHit(period) => Some(end - period),
            Windows::Civil(..) => {
                Some(self.around(now)).filter(|around| around.1 == end).map(|around| around.0)
            }
        }
    }

    /// The latest window that is believed: while a clock is set back, the one that had begun stays.
    fn latest_end(self, now: Wide) -> Wide {
        self.around(self.around(now).1).1
    }
}

impl CivilUnit {
    /// The unit's first day around a day, and that of the next; days are counted from 1970-01-01, a Thursday.
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

/// Counts whole months or years, so many a year, from 1970-01-01 on until one holds the day.
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

/// A counter for each window. Only the newest can still be charged.
#[derive(Clone, Debug)]
pub struct WindowCount {
    limit: Wide,
    windows: Windows,
    newest: Option<(Wide, Vec<Wide>)>,
}

impl WindowCount {
    /// At most `limit` units in each window.
    #[must_use]
    pub fn new(limit: u64, windows: Windows) -> Self {
        Self { limit: limit.into(), windows, newest: None }
    }

    fn used(&self, at: Wide) -> Wide {
        match &self.newest {
            Some((end, admitted)) if at < *end => admitted.iter().sum(),
            _ => 0,
        }
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

    fn forgive(&mut self, now: Wide) {
        let latest = self.windows.latest_end(now);
        if let Some((end, _)) = &mut self.newest {
            *end = latest.min(*end);
        }
    }

    fn admit(&mut self, now: Wide, units: Wide) {
        match &mut self.newest {
            Some((end, admitted)) if now < *end => admitted.push(units),
            newest => *newest = Some((self.windows.around(now).1, vec![units])),
        }
    }

    /// Units of another window than the one that counts are dropped.
    fn refund(&mut self, now: Wide, units: Wide, charged_at: Option<Wide>) {
        let mut current = self.clone();
        current.forgive(now);
        let end = match &current.newest {
            Some((end, _)) if current.used(now) > 0 => *end,
            _ => self.windows.around(now).1,
        };
        let is_within =
            |at: &Wide| self.windows.start_of(end, now).is_some_and(|start| start <= *at && *at < end);
        if charged_at.is_some_and(|at| !is_within(&at)) {
            return;
        }
        *self = current;
        let left = self.used(now) - units;
        if left <= 0 {
            self.newest = None;
        } else if let Some((_, admitted)) = &mut self.newest {
            *admitted = vec![left];
        }
    }
}
