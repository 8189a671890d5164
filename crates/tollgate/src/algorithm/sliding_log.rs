//! Sliding log: every admitted unit with its instant. No window of the period's length ever admits more than the limit,
//! and none admits less: the exact reference, for limits small enough to remember.

use std::collections::VecDeque;

use crate::outcome::{Outcome, Verdict};
use crate::quota::{QuotaError, Rate};
use crate::time::{Ticks, Timestamp};

/// Largest limit of a log: each unit may need an entry of its own.
pub const LOG_MAX: u64 = 65_536;

/// The numbers of a sliding log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    limit: u64,
    period: Ticks,
}

/// The admitted units, oldest first. Entries hold running totals, so that any stretch is summed by a subtraction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    entries: VecDeque<Entry>,
    forgotten: u64,
}

/// Units that were admitted at one instant, as the total of all units up to and with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
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
            return Err(QuotaError::Range {
                field: "rate",
                value: rate.units(),
                accepted: format!(
                    "1 to {LOG_MAX} units a period for `algorithm: sliding-log`; above, `sliding-window` with \
                     `estimate: strict` never admits more either"
                ),
            });
        }
        Ok(Self {
            limit: rate.units(),
            period: rate.period(),
        })
    }

    /// Units a window.
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

impl State {
    /// The remembered units as pairs of instant and units, oldest first.
    pub fn units(&self) -> impl Iterator<Item = (Timestamp, u64)> + '_ {
        let totals = std::iter::once(self.forgotten).chain(self.entries.iter().map(|entry| entry.total));
        self.entries
            .iter()
            .zip(totals)
            .map(|(entry, before)| (entry.at, entry.total - before))
    }

    fn total(&self) -> u64 {
        self.entries.back().map_or(self.forgotten, |entry| entry.total)
    }

    /// Draws back units that lie more than a window ahead of `now`: further, no step back of the clock is believed.
    fn clamp(&mut self, quota: &SlidingLog, now: Timestamp) {
        let furthest = now + quota.period;
        for entry in self.entries.iter_mut().rev() {
            if entry.at <= furthest {
                break;
            }
            entry.at = furthest;
        }
    }

    /// The instant to judge at. While the clock is behind the newest unit, time stands still there.
    fn reached(&self, now: Timestamp) -> Timestamp {
        self.entries.back().map_or(now, |entry| entry.at.max(now))
    }

    /// How many entries no longer count at an instant: a unit stops counting exactly one period after it was admitted.
    fn expired(&self, quota: &SlidingLog, at: Timestamp) -> usize {
        self.entries
            .partition_point(|entry| entry.at + quota.period <= at)
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

    /// The first instant at which at most `most` units count, given that more do now: when the last of those expires that
    /// are one too many.
    fn falls_to(&self, quota: &SlidingLog, most: u64) -> Timestamp {
        let surplus = self.total().saturating_sub(most);
        let last = self.entries.partition_point(|entry| entry.total < surplus);
        self.entries
            .get(last)
            .map_or(Timestamp::default(), |entry| entry.at + quota.period)
    }

    /// Adds units at an instant and forgets what no longer counts. Only an admission forgets: it leaves the instant it was
    /// made at, before which no later one is judged, so nothing forgotten could count again.
    fn add(&mut self, quota: &SlidingLog, at: Timestamp, units: u64) {
        let expired = self.expired(quota, at);
        if let Some(last) = self.entries.drain(..expired).last() {
            self.forgotten = last.total;
        }
        let total = self.total() + units;
        match self.entries.back_mut() {
            Some(newest) if newest.at == at => newest.total = total,
            _ => self.entries.push_back(Entry { at, total }),
        }
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
        Outcome {
            verdict,
            limit: quota.limit,
            remaining,
            next_unit_after,
            reset_after,
        }
    }
}

/// Charges `cost` units.
#[must_use]
pub fn charge(quota: &SlidingLog, mut state: State, now: Timestamp, cost: u64) -> (State, Outcome) {
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
        Verdict::Deny {
            retry_after: retry_at.since(now),
        }
    };
    let outcome = state.outcome(quota, now, verdict);
    (state, outcome)
}

/// Gives back `units`, the latest first: exact when it undoes a charge just made, as a refund nearly always does.
#[must_use]
pub fn refund(quota: &SlidingLog, mut state: State, now: Timestamp, units: u64) -> State {
    state.clamp(quota, now);
    let at = state.reached(now);
    let total = state.total().saturating_sub(units).max(state.forgotten);
    let kept = state.entries.partition_point(|entry| entry.total < total);
    if let Some(newest) = state.entries.get_mut(kept) {
        newest.total = total;
    }
    state
        .entries
        .truncate(kept + usize::from(total > state.forgotten));
    if state.used(quota, at) == 0 {
        return State::default();
    }
    state
}

/// From when on the state equals that of a key never seen.
#[must_use]
pub fn idle_at(quota: &SlidingLog, state: &State) -> Timestamp {
    state
        .entries
        .back()
        .map_or(Timestamp::default(), |entry| entry.at + quota.period)
}

/// The state under `quota` of a key that was counted under `previous` until `at`: the log itself, since its instants are
/// true under any period, and a limit lowered and raised again must not forget. What the previous period had already
/// dropped does not come back, and what it still held at `at` is not dropped by a step of the clock.
#[must_use]
pub fn inherit(_quota: &SlidingLog, previous: &SlidingLog, mut state: State, at: Timestamp) -> State {
    state.clamp(previous, at);
    if state.used(previous, state.reached(at)) == 0 {
        return State::default();
    }
    state
}
