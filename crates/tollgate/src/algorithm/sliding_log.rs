//! Sliding log: every admitted unit with its instant. No window of the period's length ever admits more than the limit,
//! and none admits less: the exact reference, for limits small enough to remember.

use std::collections::VecDeque;

use crate::algorithm::Charged;
use crate::algorithm::sliding_window::{PRECISION_MAX, suits};
use crate::outcome::{Outcome, Verdict};
use crate::rate::{EXACT_MAX, QuotaError, Rate};
use crate::time::{Ticks, Timestamp};

/// Largest limit of a log: each unit may need an entry of its own.
pub(crate) const LOG_MAX: u64 = 65_536;

/// The numbers of a sliding log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    limit: u64,
    period: Ticks,
}

/// The admitted units, oldest first. Entries hold running totals, so that any range is summed by a subtraction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    entries: VecDeque<LogEntry>,
    forgotten: u64,
}

/// Units that were admitted at one instant, stored as the total of all units up to and including them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogEntry {
    at: Timestamp,
    total: u64,
}

impl SlidingLog {
    /// The rate's units in any period. A burst has no meaning here.
    ///
    /// # Errors
    /// When the numbers are out of range.
    pub fn new(rate: Rate) -> Result<Self, QuotaError> {
        let rate = rate.checked()?;
        if rate.units() > LOG_MAX {
            return Err(too_many(rate));
        }
        Ok(Self { limit: rate.units(), period: rate.period() })
    }

    /// Units per window.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The window's length.
    #[must_use]
    pub const fn period(&self) -> Ticks {
        self.period
    }
}

fn too_many(rate: Rate) -> QuotaError {
    let instead = match [10, PRECISION_MAX].into_iter().find(|&precision| suits(rate, precision)) {
        Some(precision) => format!(
            "`sliding-window` with `estimate: strict` and `precision: {precision}` never admits more either"
        ),
        None => "`fixed-window`".to_owned(),
    };
    QuotaError::Range {
        field: "rate",
        value: rate.units(),
        accepted: format!("1 to {LOG_MAX} units a period for `algorithm: sliding-log`; above, {instead}"),
    }
}

impl State {
    /// The number of entries, for memory accounting.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The remembered units as pairs of instant and units, oldest first.
    pub fn units(&self) -> impl Iterator<Item = (Timestamp, u64)> + '_ {
        let totals = std::iter::once(self.forgotten).chain(self.entries.iter().map(|entry| entry.total));
        self.entries.iter().zip(totals).map(|(entry, before)| (entry.at, entry.total - before))
    }

    /// The log of such pairs; `None` if they are not valid for a log.
    pub(crate) fn from_units(units: impl IntoIterator<Item = (Timestamp, u64)>) -> Option<Self> {
        let mut entries: VecDeque<LogEntry> = VecDeque::new();
        let mut total = 0u64;
        for (at, units) in units {
            total = total.checked_add(units).filter(|&total| total <= EXACT_MAX)?;
            if entries.back().is_some_and(|last| last.at > at) {
                return None;
            }
            entries.push_back(LogEntry { at, total });
        }
        Some(Self { entries, forgotten: 0 })
    }

    fn total(&self) -> u64 {
        self.entries.back().map_or(self.forgotten, |entry| entry.total)
    }

    /// Pulls back units that lie more than a window ahead of `now`: a larger step back of the clock is not believed.
    fn clamp(&mut self, quota: &SlidingLog, now: Timestamp) {
        let furthest = now + quota.period;
        for entry in self.entries.iter_mut().rev() {
            if entry.at <= furthest {
                break;
            }
            entry.at = furthest;
        }
    }

    /// The instant to decide at. While the clock is behind the newest unit, time stands still there.
    fn reached(&self, now: Timestamp) -> Timestamp {
        self.entries.back().map_or(now, |entry| entry.at.max(now))
    }

    /// How many entries no longer count at an instant: a unit stops counting exactly one period after it was admitted.
    fn expired(&self, quota: &SlidingLog, at: Timestamp) -> usize {
        self.entries.partition_point(|entry| entry.at + quota.period <= at)
    }

    /// The units that count at an instant.
    fn used(&self, quota: &SlidingLog, at: Timestamp) -> u64 {
        let expired = self.expired(quota, at);
        let before = match expired.checked_sub(1) {
            None => self.forgotten,
            Some(last) => self.entries.get(last).map_or(self.forgotten, |entry| entry.total),
        };
        self.total() - before
    }

    /// The first instant at which at most `most` units count, given that more count now: when the last of the surplus
    /// units expires.
    fn falls_to(&self, quota: &SlidingLog, most: u64) -> Timestamp {
        let surplus = self.total().saturating_sub(most);
        let last = self.entries.partition_point(|entry| entry.total < surplus);
        self.entries.get(last).map_or(Timestamp::default(), |entry| entry.at + quota.period)
    }

    /// Forgets units that no longer count at an instant.
    fn forget(&mut self, quota: &SlidingLog, at: Timestamp) {
        let expired = self.expired(quota, at);
        if let Some(last) = self.entries.drain(..expired).next_back() {
            self.forgotten = last.total;
        }
    }

    /// Adds units at an instant and forgets those that no longer count. Only an admission forgets: it records its own
    /// instant, and no later decision is made before that, so a forgotten unit could not count again.
    fn add(&mut self, quota: &SlidingLog, at: Timestamp, units: u64) {
        self.forget(quota, at);
        let total = self.total() + units;
        match self.entries.back_mut() {
            Some(newest) if newest.at == at => newest.total = total,
            _ => self.entries.push_back(LogEntry { at, total }),
        }
    }

    /// The units before an entry.
    fn before(&self, index: usize) -> u64 {
        let last = index.checked_sub(1).and_then(|last| self.entries.get(last));
        last.map_or(self.forgotten, |entry| entry.total)
    }

    /// Removes units from the entries between two indexes, the latest of them first.
    fn take_latest(&mut self, from: usize, until: usize, units: u64) {
        if until <= from {
            return;
        }
        let (least, total) = (self.before(from), self.before(until));
        let most = total.saturating_sub(units).max(least);
        for entry in self.entries.range_mut(from..until) {
            entry.total = entry.total.min(most);
        }
        for entry in self.entries.range_mut(until..) {
            entry.total -= total - most;
        }
        self.drop_empty();
    }

    /// Removes units from the entries from an index on, the oldest of them first.
    fn take_oldest(&mut self, from: usize, units: u64) {
        let least = self.before(from);
        for entry in self.entries.range_mut(from..) {
            entry.total = entry.total.saturating_sub(units).max(least);
        }
        self.drop_empty();
    }

    /// Removes entries without units.
    fn drop_empty(&mut self) {
        let mut before = self.forgotten;
        self.entries.retain(|entry| entry.total > std::mem::replace(&mut before, entry.total));
    }

    fn outcome(&self, quota: &SlidingLog, now: Timestamp, verdict: Verdict) -> Outcome {
        let used = self.used(quota, self.reached(now));
        let remaining = quota.limit.saturating_sub(used);
        let until = |most| self.falls_to(quota, most).since(now);
        let (next_unit_after, reset_after) = if used == 0 {
            (Ticks::ZERO, Ticks::ZERO)
        } else {
            (until(quota.limit - remaining - 1), until(0))
        };
        Outcome { verdict, limit: quota.limit, remaining, next_unit_after, reset_after }
    }
}

/// Charges `cost` units.
#[must_use]
pub fn charge(quota: &SlidingLog, mut state: State, now: Timestamp, cost: u64) -> (State, Outcome) {
    let now = now.decidable();
    state.clamp(quota, now);
    let at = state.reached(now);
    let verdict = if cost > quota.limit {
        Verdict::Never
    } else if cost == 0 {
        Verdict::Allow
    } else if state.used(quota, at) + cost <= quota.limit {
        state.add(quota, at, cost);
        Verdict::Allow
    } else {
        let retry_at = state.falls_to(quota, quota.limit - cost);
        Verdict::Deny { retry_after: retry_at.since(now) }
    };
    let outcome = state.outcome(quota, now, verdict);
    (state, outcome)
}

/// Refunds `units` that were charged at an instant: those of that instant, then those before it, and never a later one,
/// which counts for longer. Where only the earliest instant is known, it refunds the oldest units that count, if that
/// instant counts.
#[must_use]
pub fn refund(quota: &SlidingLog, mut state: State, now: Timestamp, units: u64, charged: Charged) -> State {
    let now = now.decidable();
    state.clamp(quota, now);
    let at = state.reached(now);
    let expired = state.expired(quota, at);
    match charged {
        Charged::At(charged_at) => {
            let until = state.entries.partition_point(|entry| entry.at <= charged_at);
            state.take_latest(expired, until, units);
        }
        Charged::Within(age) if now - age + quota.period > at => state.take_oldest(expired, units),
        Charged::Within(_) => {}
    }
    if state.used(quota, at) == 0 {
        return State::default();
    }
    state
}

/// From when on the state equals that of a key never seen.
#[must_use]
pub fn idle_at(quota: &SlidingLog, state: &State) -> Timestamp {
    state.entries.back().map_or(Timestamp::default(), |entry| entry.at + quota.period)
}

/// The state under `quota` of a key that was counted under `previous` until `at`: the log itself, because its instants
/// are valid under any period, and a limit lowered and raised again must not forget. Units that no longer counted under
/// the previous period are dropped first. Under a longer period they would count again, and only if no admission had
/// happened to drop them.
#[must_use]
pub fn inherit(_quota: &SlidingLog, previous: &SlidingLog, mut state: State, at: Timestamp) -> State {
    let at = at.decidable();
    state.clamp(previous, at);
    state.forget(previous, state.reached(at));
    if state.entries.is_empty() {
        return State::default();
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

    fn per_minute(limit: u64) -> SlidingLog {
        SlidingLog::new(Rate::per_minute(limit)).unwrap()
    }

    fn after(seconds: u64) -> Timestamp {
        T0 + Ticks::from_secs(seconds)
    }

    fn charged(quota: &SlidingLog, hits: &[(u64, u64)]) -> State {
        hits.iter().fold(State::default(), |state, &(seconds, cost)| {
            let (next, outcome) = charge(quota, state, after(seconds), cost);
            assert!(outcome.is_allowed());
            next
        })
    }

    fn remaining(quota: &SlidingLog, state: &State, now: Timestamp) -> u64 {
        charge(quota, state.clone(), now, 0).1.remaining
    }

    /// Retry advice is exact for every cost: one tick early is denied, on the tick is admitted. So are the other two
    /// times.
    #[test]
    fn every_returned_time_is_exact_to_the_tick() {
        let quota = per_minute(10);
        let state = charged(&quota, &[(0, 2), (17, 3), (17, 1), (34, 3), (59, 1)]);
        for cost in 1..=10 {
            let (state, denied) = charge(&quota, state.clone(), after(59), cost);
            let retry_at = after(59) + denied.verdict.retry_after().unwrap();
            assert!(!charge(&quota, state.clone(), retry_at - Ticks::ONE, cost).1.is_allowed());
            assert!(charge(&quota, state, retry_at, cost).1.is_allowed());
        }
        let look = charge(&quota, state.clone(), after(59), 0).1;
        assert_eq!((look.remaining, look.next_unit_after), (0, Ticks::from_secs(1)));
        assert_eq!(remaining(&quota, &state, after(60)), 2);
        assert_eq!(look.reset_after, Ticks::from_secs(60));
        assert_eq!(remaining(&quota, &state, after(119) - Ticks::ONE), 9);
        assert_eq!(remaining(&quota, &state, after(119)), 10);
        assert_eq!(idle_at(&quota, &state), after(119));
    }

    /// A unit counts up to, and not at, one period after it was admitted.
    #[test]
    fn a_unit_counts_for_exactly_one_period() {
        let quota = per_minute(1);
        let state = charged(&quota, &[(0, 1)]);
        assert!(!charge(&quota, state.clone(), after(60) - Ticks::ONE, 1).1.is_allowed());
        assert!(charge(&quota, state, after(60), 1).1.is_allowed());
    }

    /// Units that no longer count are forgotten: a log never holds more entries than its limit.
    #[test]
    fn the_log_is_bounded() {
        let quota = per_minute(5);
        let mut state = State::default();
        for second in 0..10_000 {
            state = charge(&quota, state, after(second), 1).0;
            assert!(state.units().count() <= 5);
        }
        let units: Vec<_> = state.units().collect();
        let expected: Vec<_> = (9_960..=9_964).map(|second| (after(second), 1)).collect();
        assert_eq!(units, expected);
    }

    /// Neither a denial nor a look changes anything; a cost above the limit never passes.
    #[test]
    fn denials_and_looks_change_nothing() {
        let quota = per_minute(10);
        let state = charged(&quota, &[(3, 6), (50, 4)]);
        for (cost, now) in [(1, after(50)), (7, after(70)), (0, after(100)), (11, after(300))] {
            assert_eq!(charge(&quota, state.clone(), now, cost).0, state);
        }
        assert_eq!(charge(&quota, state, after(300), 11).1.verdict, Verdict::Never);
    }

    /// A refund undoes its charge, and refunding all charges leaves a key as if never seen.
    #[test]
    fn refunds_undo_their_charge() {
        let quota = per_minute(10);
        let before = charged(&quota, &[(3, 6), (50, 2)]);
        let (charged, _) = charge(&quota, before.clone(), after(51), 2);
        let refunded =
            |now, units, at: u64| refund(&quota, charged.clone(), after(now), units, Charged::At(after(at)));
        assert_eq!(refunded(51, 2, 51), before);
        assert_eq!(refunded(51, 5, 51).units().collect::<Vec<_>>(), [(after(3), 5)]);
        assert_eq!(refunded(51, 10, 51), State::default());
        assert_eq!(refunded(500, 1, 51), State::default());
    }

    /// A late refund returns units of its own instant or older ones, never later ones. Where only the earliest instant
    /// is known, it refunds the oldest units that count, and nothing if that instant may no longer count.
    #[test]
    fn a_late_refund_gives_back_its_own_instant() {
        let quota = per_minute(10);
        let state = charged(&quota, &[(3, 5), (20, 2), (50, 3)]);
        let left = |units, charged: Charged, now| {
            let state = refund(&quota, state.clone(), after(now), units, charged);
            state.units().map(|(at, units)| (at.since(T0).as_micros() / 1_000_000, units)).collect::<Vec<_>>()
        };
        let at = |seconds| Charged::At(after(seconds));
        let within = |seconds| Charged::Within(Ticks::from_secs(seconds));
        assert_eq!(left(5, at(3), 50), [(20, 2), (50, 3)]);
        assert_eq!(left(4, at(3), 50), [(3, 1), (20, 2), (50, 3)]);
        assert_eq!(left(4, at(20), 50), [(3, 3), (50, 3)]);
        assert_eq!(left(9, at(20), 50), [(50, 3)]);
        assert_eq!(left(9, at(2), 50), [(3, 5), (20, 2), (50, 3)]);
        assert_eq!(left(5, at(3), 70), [(3, 5), (20, 2), (50, 3)], "they no longer count");
        assert_eq!(left(6, within(47), 50), [(20, 1), (50, 3)]);
        assert_eq!(
            left(1, within(59), 70),
            [(3, 5), (20, 1), (50, 3)],
            "what no longer counts is not given back"
        );
        assert_eq!(
            left(1, within(60), 70),
            [(3, 5), (20, 2), (50, 3)],
            "what may no longer count is not either"
        );
    }

    /// A clock that jitters ages no unit; one that steps back far denies for two windows at most.
    #[test]
    fn steps_back_admit_nothing_more() {
        let quota = per_minute(10);
        let mut state = charged(&quota, &[(0, 5), (59, 5)]);
        for _ in 0..5 {
            for now in [after(59), after(30), after(59), after(0)] {
                let (next, outcome) = charge(&quota, state, now, 1);
                assert!(!outcome.is_allowed());
                state = next;
            }
        }
        let long_ago = T0 - Ticks::from_secs(86_400);
        let (state, denied) = charge(&quota, state, long_ago, 1);
        let retry_after = denied.verdict.retry_after().unwrap();
        assert!(retry_after <= Ticks::from_secs(120));
        assert!(charge(&quota, state, long_ago + retry_after, 1).1.is_allowed());
    }

    /// A live change keeps the log, whose instants are valid under any period.
    #[test]
    fn changed_quotas_keep_the_log() {
        let state = charged(&per_minute(10), &[(3, 4), (50, 4)]);
        let raised = inherit(&per_minute(20), &per_minute(10), state.clone(), after(50));
        assert_eq!(remaining(&per_minute(20), &raised, after(50)), 12);
        let lowered = inherit(&per_minute(5), &per_minute(20), raised, after(50));
        assert_eq!(remaining(&per_minute(5), &lowered, after(50)), 0);
        assert_eq!(remaining(&per_minute(5), &lowered, after(63)), 1);
        let hourly = SlidingLog::new(Rate::per_hour(100)).unwrap();
        let longer = inherit(&hourly, &per_minute(5), lowered, after(50));
        assert_eq!(remaining(&hourly, &longer, after(3_602)), 92);
        assert_eq!(remaining(&hourly, &longer, after(3_603)), 96);
        assert_eq!(inherit(&hourly, &per_minute(10), state.clone(), after(500)), State::default());
        let partly = inherit(&hourly, &per_minute(10), state, after(70)); // The first four had stopped counting at 63.
        assert_eq!(remaining(&hourly, &partly, after(70)), 96);
    }

    /// A limit too large to remember is rejected, and the error says what is accepted.
    #[test]
    fn large_limits_are_refused_with_a_cure() {
        assert!(SlidingLog::new(Rate::per_minute(LOG_MAX)).is_ok());
        let error = SlidingLog::new(Rate::per_minute(LOG_MAX + 1)).unwrap_err();
        assert!(error.to_string().contains("estimate: strict"), "{error}");
    }
}
