//! How much all nodes together are asked for of a key: the sum of what each reports when it draws. Demand is additive, so that one small
//! value for a key is enough, whoever the nodes are.

use crate::time::{Ticks, Timestamp};

/// The parts of a whole in which shares are told.
pub const PARTS: u64 = 1 << 16;
/// The time of which the sum is.
pub(super) const HORIZON: Ticks = Ticks::from_secs(1);
/// How old a sum must be to say something.
const YOUNG: Ticks = Ticks::from_millis(250);
/// The most that is counted. Larger sums would not be exact in a double.
const COUNT_MAX: u64 = u32::MAX as u64;

/// The most that is due to a node of what comes back, in [`PARTS`].
pub(super) const DUE_MAX: u64 = 1 << 40;

/// What a node wants of a counter beyond what it charges, and what it tells of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// The units that it takes at most.
    pub units: u64,
    /// What is due to it whatever is there, in [`PARTS`] of a unit.
    pub due: u64,
    /// What is due to it of what is there, in [`PARTS`].
    pub part: u64,
    /// The units that it was asked for since it last told.
    pub report: u64,
}

impl Want {
    /// Up to so many units, of what is there divided among so many nodes.
    #[must_use]
    pub fn among(nodes: u32, units: u64) -> Self {
        Self { units, due: 0, part: PARTS.div_ceil(u64::from(nodes.max(1))), report: 0 }
    }

    /// Whether there is nothing to take, and nothing to tell.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.units == 0 && self.report == 0
    }

    /// The units to take where so many are there.
    #[must_use]
    pub fn of(&self, remaining: u64) -> u64 {
        // In two steps, which are exact in a double, too.
        let (many, few) = (remaining / PARTS, remaining % PARTS);
        let due = (many * self.part).saturating_add((few * self.part + self.due.min(DUE_MAX)) / PARTS);
        due.min(remaining).min(self.units)
    }
}

/// The sum: of this second, and of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Crowd {
    since: Timestamp,
    second: u64,
    current: u64,
    previous: u64,
}

impl Crowd {
    /// The sum with a report more. Where there is none, or one that nobody told anything for long, one begins if the counter is more than
    /// half used: then it may soon be scarce.
    pub(super) fn with(known: Option<Self>, report: u64, is_tight: bool, now: Timestamp) -> Option<Self> {
        let second = now.unix_micros() / HORIZON.as_micros();
        match known.filter(|known| second < known.second + 2) {
            Some(known) if second > known.second => {
                Some(Self { second, current: report.min(COUNT_MAX), previous: known.current, ..known })
            }
            Some(known) => Some(Self { current: (known.current + report).min(COUNT_MAX), ..known }),
            // What is reported first was asked for before.
            None => is_tight.then_some(Self { since: now, second, current: 0, previous: 0 }),
        }
    }

    /// What all were asked for within a second, if that is known yet.
    pub(super) fn demand(&self, now: Timestamp) -> Option<u64> {
        let (age, whole) = (now.since(self.since), HORIZON.as_micros());
        let demand = if age < YOUNG {
            0
        } else if age < HORIZON {
            (self.current + self.previous) * whole / age.as_micros()
        } else {
            let begun = self.second * whole;
            let passed = now.unix_micros().saturating_sub(begun).min(whole);
            // The second before may not have been counted from its beginning.
            let counted = begun.saturating_sub(self.since.unix_micros()).clamp(1, whole);
            self.previous * (whole - passed) / counted + self.current
        };
        (demand > 0).then_some(demand)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_unix_seconds(1_000);

    /// A steady demand is known within a quarter of a second, and forgotten when nobody tells any more.
    #[test]
    fn the_sum_follows_what_is_told() {
        assert_eq!(Crowd::with(None, 5, false, START), None);
        let mut now = START + Ticks::from_millis(730);
        let mut crowd = Crowd::with(None, 50, true, now);
        for step in 1..=500 {
            now = now + Ticks::from_millis(10);
            crowd = Crowd::with(crowd, 7, false, now);
            let demand = crowd.unwrap().demand(now);
            if step < 25 {
                assert_eq!(demand, None);
            } else {
                assert!((665..=735).contains(&demand.unwrap()), "{demand:?} after {step} steps");
            }
        }
        let later = now + Ticks::from_secs(2);
        assert_eq!(Crowd::with(crowd, 7, false, later), None);
    }

    /// Of what is there a part is due, and something beside; never more than is there, nor than is wanted.
    #[test]
    fn what_is_due_is_bounded() {
        let want = Want { units: 10, due: PARTS * 3 / 2, part: PARTS / 4, report: 0 };
        assert_eq!([0, 1, 2, 8, 100].map(|remaining| want.of(remaining)), [0, 1, 2, 3, 10]);
        assert_eq!(Want::among(3, 1_000).of(300), 100);
        assert_eq!(Want { units: u64::MAX, part: PARTS, ..Want::default() }.of(1 << 53), 1 << 53);
    }
}
