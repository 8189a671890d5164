//! Checks a record: was a key admitted more than its quota and the recorded faults allow, and was a request denied that
//! no reading of the record explains?
//!
//! A client knows only that its request was decided between sending and reply. So an admission counts for an interval
//! only if it lies fully inside, and a denial is wrong only if no placement of the charges explains it: there are no
//! false alarms. All counts are integers, in units times ticks of the quota's period.

#[cfg(test)]
mod tests;
mod tree;

use std::collections::BinaryHeap;

use crate::record::{Mode, RecordedDecision};
use tree::Tree;

/// A quota that refills steadily: up to `burst` immediately, and `limit` in each period.
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

/// Allows more than the quota, once, at some instant of a span: a lost state, a clock step, a node that used its own
/// bucket. An interval that overlaps the span may admit this many units more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) units: u64,
}

/// The worst interval of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    /// Whole units admitted above the allowed number, rounded up; negative if the worst interval stayed below it.
    pub(crate) units: i64,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Bucket {
    fn scaled(&self, units: u64) -> i128 {
        i128::from(units) * i128::from(self.period)
    }

    /// The units that refill in this many microseconds.
    fn refill(&self, micros: u64) -> i128 {
        i128::from(micros) * i128::from(self.limit)
    }

    /// The worst interval of one key's admissions: the maximum admitted above burst, refill and the allowances inside
    /// it. `None` without admissions.
    pub(crate) fn excess<'a>(
        &self,
        seen: impl IntoIterator<Item = &'a RecordedDecision>,
        allowances: &[Allowance],
    ) -> Option<Excess> {
        let admitted: Vec<&RecordedDecision> = seen.into_iter().filter(|seen| seen.admitted).collect();
        let mut starts: Vec<u64> = admitted.iter().map(|seen| seen.sent).collect();
        starts.sort_unstable();
        starts.dedup();
        // Leaf a of the tree: what counts for intervals that start at starts[a], plus the refill that they do not get.
        let mut tree = Tree::new(starts.iter().map(|&start| self.refill(start)).collect());
        let mut ends: Vec<(u64, u64, i128)> =
            admitted.iter().map(|seen| (seen.replied, seen.sent, self.scaled(seen.cost))).collect();
        // From its first instant on it counts for every interval that begins before its last.
        ends.extend(allowances.iter().map(|each| (each.from, each.to, -self.scaled(each.units))));
        // At one instant the allowances come first, because the interval that ends there contains them.
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

    /// Denials of the store that remain unexplained even if every possible charge was executed, as late as possible.
    ///
    /// A decision without an answer may still have been charged, at any time after it was sent, and once more when its
    /// deferred charge was reconciled.
    ///
    /// Each of `taken` is a number of units that may have vanished at an instant or later, for example when a clock
    /// stepped back.
    pub(crate) fn wrong_denials(
        &self,
        seen: &[RecordedDecision],
        taken: &[(u64, u64)],
    ) -> Vec<RecordedDecision> {
        let mut charges = self.possible_charges(seen);
        charges.extend(taken.iter().map(|&(from, units)| (from, u64::MAX, self.scaled(units))));
        charges.sort_unstable();
        let mut ends: Vec<u64> = charges.iter().map(|&(_, end, _)| end).collect();
        ends.sort_unstable();
        ends.dedup();
        // Leaf u of the tree: what may have been charged at ends[u] or later, plus the refill until then.
        let mut tree = Tree::new(ends.iter().map(|&end| self.refill(end.min(i64::MAX as u64))).collect());
        let mut denials: Vec<&RecordedDecision> =
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
            // A charge that overlaps the denial may have come right before it.
            let overlapping =
                tree.at(before).map(|most| most - self.refill(ends[before].min(i64::MAX as u64)));
            let taken = earlier.into_iter().chain(overlapping).max().unwrap_or_default().max(0);
            if self.scaled(self.burst) - taken >= self.scaled(denial.cost) {
                wrong.push(*denial);
            }
        }
        wrong
    }

    /// The minimum number of units that must have vanished at each of those instants to explain every denial. At most
    /// the burst, because a bucket holds no more.
    pub(crate) fn vanished(&self, seen: &[RecordedDecision], instants: &[u64]) -> Option<u64> {
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

    /// Possible charges: from when, until when, and how much.
    fn possible_charges(&self, seen: &[RecordedDecision]) -> Vec<(u64, u64, i128)> {
        seen.iter()
            .filter(|seen| seen.admitted || seen.mode != Mode::Exact)
            .map(|seen| match seen.mode {
                Mode::Exact => (seen.sent, seen.replied, self.scaled(seen.cost)),
                // Executed late by a server that was stopped, and reconciled as a deferred charge if it was admitted.
                _ => (seen.sent, u64::MAX, self.scaled(seen.cost) * if seen.admitted { 2 } else { 1 }),
            })
            .collect()
    }
}

impl Log {
    /// The maximum admitted inside an interval shorter than the window, above the limit and the allowances inside it.
    pub(crate) fn excess<'a>(
        &self,
        seen: impl IntoIterator<Item = &'a RecordedDecision>,
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
