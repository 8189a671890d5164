//! Judges a record: was any key admitted more than its quota and the recorded faults allow, was anything denied that no reading of the
//! record explains?
//!
//! A client does not know at which instant its question was decided, only that it was between sending and reply. So an admission counts
//! for an interval only if it lies inside as a whole, and a denial is wrong only if no placing of the charges explains it: an alarm is
//! never false. Everything is counted in units times ticks of the quota's period, in integers.

#[cfg(test)]
mod tests;
mod tree;

use std::collections::BinaryHeap;

use crate::record::{Mode, Seen};
use tree::Tree;

/// A quota that refills steadily: up to `burst` at once, and `limit` in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) burst: u64,
    pub(crate) limit: u64,
    /// Microseconds.
    pub(crate) period: u64,
}

/// A quota of at most `limit` in any interval shorter than the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) limit: u64,
    /// Microseconds.
    pub(crate) window: u64,
}

/// Something that allows more than the quota does, once, at some instant of a span: a state that was lost, a clock that stepped, a node
/// that went over to its own bucket. An interval that meets the span may have that many units more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) units: u64,
}

/// The worst interval of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    /// Whole units admitted above what was allowed, rounded up; negative if the worst interval stayed below.
    pub(crate) units: i64,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Bucket {
    fn scaled(&self, units: u64) -> i128 {
        i128::from(units) * i128::from(self.period)
    }

    /// What refills in this many microseconds.
    fn refill(&self, micros: u64) -> i128 {
        i128::from(micros) * i128::from(self.limit)
    }

    /// The worst interval of one key's admissions: the most that was admitted inside an interval above burst and refill, and above the
    /// allowances inside it. `None` if nothing was admitted.
    pub(crate) fn excess<'a>(
        &self,
        seen: impl IntoIterator<Item = &'a Seen>,
        allowances: &[Allowance],
    ) -> Option<Excess> {
        let admitted: Vec<&Seen> = seen.into_iter().filter(|seen| seen.admitted).collect();
        let mut starts: Vec<u64> = admitted.iter().map(|seen| seen.sent).collect();
        starts.sort_unstable();
        starts.dedup();
        // Place a of the tree: what counts for intervals that start at starts[a], plus the refill that they do not get.
        let mut tree = Tree::new(starts.iter().map(|&start| self.refill(start)).collect());
        let mut ends: Vec<(u64, u64, i128)> =
            admitted.iter().map(|seen| (seen.replied, seen.sent, self.scaled(seen.cost))).collect();
        // From its first instant on it counts for every interval that begins before its last.
        ends.extend(allowances.iter().map(|each| (each.from, each.to, -self.scaled(each.units))));
        // At one instant the allowances come first: the interval that ends there holds them.
        ends.sort_unstable_by_key(|&(end, _, scaled)| (end, scaled));
        let mut worst: Option<(i128, u64, u64)> = None;
        for (end, start, scaled) in ends {
            let place = starts.partition_point(|&known| known <= start);
            tree.add(place, scaled);
            if scaled < 0 {
                continue;
            }
            let begun = starts.partition_point(|&known| known <= end);
            let Some((most, at)) = tree.max_of(begun) else { continue };
            let excess = most - self.refill(end) - self.scaled(self.burst);
            if worst.is_none_or(|(known, ..)| excess > known) {
                worst = Some((excess, starts[at], end));
            }
        }
        worst.map(|(scaled, from, to)| {
            let units = -(-scaled).div_euclid(i128::from(self.period));
            Excess { units: i64::try_from(units).unwrap(), from, to }
        })
    }

    /// Denials of the store that nothing explains, although every charge that may have been made was made, as late as possible.
    ///
    /// A decision that the store did not answer may have been charged there all the same, at any time after it was sent, and once more
    /// when its debt was replayed.
    ///
    /// Each of `taken` is so many units that may have vanished at an instant, or any time after: a clock that steps back takes some.
    pub(crate) fn wrong_denials(&self, seen: &[Seen], taken: &[(u64, u64)]) -> Vec<Seen> {
        let mut charges = self.possible_charges(seen);
        charges.extend(taken.iter().map(|&(from, units)| (from, u64::MAX, self.scaled(units))));
        charges.sort_unstable();
        let mut ends: Vec<u64> = charges.iter().map(|&(_, end, _)| end).collect();
        ends.sort_unstable();
        ends.dedup();
        // Place u of the tree: what may have been taken at ends[u] or later, plus the refill until then.
        let mut tree = Tree::new(ends.iter().map(|&end| self.refill(end.min(i64::MAX as u64))).collect());
        let mut denials: Vec<&Seen> =
            seen.iter().filter(|seen| !seen.admitted && seen.mode == Mode::Exact).collect();
        denials.sort_unstable_by_key(|seen| seen.replied);
        let (mut next, mut wrong) = (0, Vec::new());
        for denial in denials {
            while let Some(&(_, end, scaled)) = charges.get(next).filter(|charge| charge.0 <= denial.replied)
            {
                tree.add(ends.partition_point(|&known| known <= end), scaled);
                next += 1;
            }
            let before = ends.partition_point(|&end| end < denial.sent);
            let earlier = tree.max_of(before).map(|(most, _)| most - self.refill(denial.sent));
            // What overlaps the denial itself may have come right before it.
            let overlapping =
                tree.at(before).map(|most| most - self.refill(ends[before].min(i64::MAX as u64)));
            let taken = earlier.into_iter().chain(overlapping).max().unwrap_or_default().max(0);
            if self.scaled(self.burst) - taken >= self.scaled(denial.cost) {
                wrong.push(*denial);
            }
        }
        wrong
    }

    /// The fewest units that must have vanished at those instants, so many at each, to explain every denial. At most the burst: a
    /// bucket has no more.
    pub(crate) fn vanished(&self, seen: &[Seen], instants: &[u64]) -> Option<u64> {
        let explains = |units: u64| {
            let taken: Vec<(u64, u64)> = instants.iter().map(|&at| (at, units)).collect();
            self.wrong_denials(seen, &taken).is_empty()
        };
        let (mut low, mut high) = (0, self.burst);
        if !explains(high) {
            return None;
        }
        while low < high {
            let middle = low.midpoint(high);
            if explains(middle) { high = middle } else { low = middle + 1 }
        }
        Some(low)
    }

    /// Charges that may have been made: from when, until when, and how much.
    fn possible_charges(&self, seen: &[Seen]) -> Vec<(u64, u64, i128)> {
        seen.iter()
            .filter(|seen| seen.admitted || seen.mode != Mode::Exact)
            .map(|seen| match seen.mode {
                Mode::Exact => (seen.sent, seen.replied, self.scaled(seen.cost)),
                // Executed late by a server that woke up, and replayed as a debt if it was admitted.
                _ => (seen.sent, u64::MAX, self.scaled(seen.cost) * if seen.admitted { 2 } else { 1 }),
            })
            .collect()
    }
}

impl Log {
    /// The most that was admitted inside an interval shorter than the window, above the limit and the allowances inside it.
    pub(crate) fn excess<'a>(
        &self,
        seen: impl IntoIterator<Item = &'a Seen>,
        allowances: &[Allowance],
    ) -> Option<Excess> {
        let admitted = seen.into_iter().filter(|seen| seen.admitted);
        let mut events: Vec<(u64, u64, i64)> =
            admitted.map(|seen| (seen.sent, seen.replied, i64::try_from(seen.cost).unwrap())).collect();
        // It counts for every interval that begins before its last instant and reaches its first.
        events
            .extend(allowances.iter().map(|each| (each.to, each.from, -i64::try_from(each.units).unwrap())));
        // From the last start to the first; at one instant the allowances first.
        events.sort_unstable_by_key(|&(sent, _, units)| (std::cmp::Reverse(sent), units));
        let (mut inside, mut sum, mut worst) = (BinaryHeap::new(), 0, None::<Excess>);
        for (sent, replied, units) in events {
            inside.push((replied, units));
            sum += units;
            while inside.peek().is_some_and(|&(end, _)| end.saturating_sub(sent) >= self.window) {
                sum -= inside.pop().map_or(0, |(_, units)| units);
            }
            let excess = sum - i64::try_from(self.limit).unwrap();
            if units > 0 && worst.is_none_or(|known| excess > known.units) {
                let to = inside.peek().map_or(sent, |&(end, _)| end);
                worst = Some(Excess { units: excess, from: sent, to });
            }
        }
        worst
    }
}
