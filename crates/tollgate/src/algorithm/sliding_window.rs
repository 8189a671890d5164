//! Sliding window: counters of sub-windows that slide over time, in constant memory. The oldest sub-window is only
//! partly covered by the window that ends now; how it counts is the [`Estimate`].

use smallvec::SmallVec;

use crate::algorithm::Charged;
use crate::outcome::{Outcome, Verdict};
use crate::rate::{EXACT_MAX, QuotaError, Rate};
use crate::time::{Ticks, Timestamp};

/// Maximum number of sub-windows of a window.
pub(crate) const PRECISION_MAX: u32 = 60;
/// A window may exceed its period by at most the period divided by this: the guarantee is a millionth.
const EXCESS_DIVISOR: u64 = 1_000_000;

/// The numbers of a sliding window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    limit: u64,
    period: Ticks,
    precision: u32,
    sub: u64,
    estimate: Estimate,
}

/// How the oldest sub-window counts, which the window covers only in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimate {
    /// By the share of it that is covered, rounded up, as if its units had come evenly. With a precision of 1 this is
    /// the usual pair of counters.
    Interpolate,
    /// In full, so that no window of the period's length ever admits more than the limit.
    Strict,
}

/// The newest sub-window's number since the Unix epoch, and the units of it and of those before it, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    newest: u64,
    counts: SmallVec<[u64; 2]>,
}

/// The position of an instant: its sub-window, and the ticks since the start of that.
#[derive(Clone, Copy)]
struct WindowPosition {
    index: u64,
    offset: u64,
}

impl SlidingWindow {
    /// Whether its sub-windows equal those of the other, so that counts mean the same in both.
    pub(crate) fn is_counted_like(&self, other: &SlidingWindow) -> bool {
        (self.sub, self.precision) == (other.sub, other.precision)
    }

    /// The rate's units in any period, counted in `precision` sub-windows. A burst has no meaning here.
    ///
    /// # Errors
    /// When the numbers are out of range, or cannot be counted exactly.
    pub fn new(rate: Rate, precision: u32, estimate: Estimate) -> Result<Self, QuotaError> {
        let rate = rate.checked()?;
        if precision == 0 || precision > PRECISION_MAX {
            return Err(QuotaError::Range {
                field: "precision",
                value: u64::from(precision),
                accepted: format!("1 to {PRECISION_MAX}"),
            });
        }
        let period = rate.period().as_micros();
        if !divides_evenly(period, precision) {
            return Err(uneven(rate, precision));
        }
        if !is_exact(rate, precision) {
            return Err(too_large(rate, precision));
        }
        let sub = sub_window(period, precision);
        Ok(Self { limit: rate.units(), period: rate.period(), precision, sub, estimate })
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

    /// Sub-windows per window.
    #[must_use]
    pub const fn precision(&self) -> u32 {
        self.precision
    }

    /// A sub-window's length.
    #[must_use]
    pub const fn sub_window(&self) -> Ticks {
        Ticks::from_micros(self.sub)
    }

    /// How the oldest sub-window counts.
    #[must_use]
    pub const fn estimate(&self) -> Estimate {
        self.estimate
    }

    /// The index of the oldest sub-window in a state's counters.
    const fn oldest(&self) -> usize {
        self.precision as usize
    }

    fn start_of(&self, index: u64) -> Timestamp {
        Timestamp::from_unix_micros(index.saturating_mul(self.sub))
    }

    /// How many of the oldest sub-window's `units` count when the window has left it by `offset` ticks.
    #[inline]
    fn covered(&self, units: u64, offset: u64) -> u64 {
        match self.estimate {
            Estimate::Strict => units,
            Estimate::Interpolate => match units.checked_mul(self.sub - offset) {
                Some(share) => share.div_ceil(self.sub),
                None => units, // More than this quota can have counted, so nothing is known of when they came.
            },
        }
    }

    /// The first offset at which at most `most` of the oldest sub-window's `units` count, if that comes before its end.
    fn offset_of(&self, units: u64, most: u64) -> Option<u64> {
        if units <= most {
            return Some(0);
        }
        match self.estimate {
            Estimate::Strict => None,
            Estimate::Interpolate => {
                Some(self.sub - most * self.sub / units).filter(|&offset| offset < self.sub)
            }
        }
    }
}

impl State {
    /// The number of counters, for memory accounting.
    pub(crate) fn len(&self) -> usize {
        self.counts.len()
    }

    /// The state from its parts: the newest sub-window's number, and the units of it and of those before it, newest
    /// first.
    #[must_use]
    pub fn new(newest: u64, counts: &[u64]) -> Self {
        Self { newest, counts: SmallVec::from_slice(counts) }
    }

    /// The newest sub-window's number since the Unix epoch.
    #[must_use]
    pub const fn newest(&self) -> u64 {
        self.newest
    }

    /// The units of the newest sub-window and of those before it.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Pulls back a state that lies more than a window ahead of `now`: a larger step back of the clock is not believed.
    #[inline]
    fn clamp(&mut self, quota: &SlidingWindow, now: Timestamp) {
        let furthest = now.unix_micros() / quota.sub + u64::from(quota.precision);
        self.newest = self.newest.min(furthest);
    }

    /// The position of `now`. While the clock is behind the newest sub-window, time stands still at its start: a clock
    /// that jitters at a boundary then ages no counter.
    #[inline]
    fn place(&self, quota: &SlidingWindow, now: Timestamp) -> WindowPosition {
        let index = now.unix_micros() / quota.sub;
        if index < self.newest {
            return WindowPosition { index: self.newest, offset: 0 };
        }
        let offset = now.unix_micros() - index * quota.sub;
        WindowPosition { index, offset }
    }

    /// How many sub-windows a position is ahead of the newest.
    #[inline]
    fn behind(&self, place: WindowPosition) -> usize {
        usize::try_from(place.index.saturating_sub(self.newest)).unwrap_or(usize::MAX)
    }

    /// The units that count at a position: the younger sub-windows in full, the oldest by the estimate.
    #[inline]
    fn used(&self, quota: &SlidingWindow, place: WindowPosition) -> u64 {
        let Some(oldest) = quota.oldest().checked_sub(self.behind(place)) else {
            return 0; // Even the newest has left the window.
        };
        let recent: u64 = self.counts.iter().take(oldest).sum();
        let units = self.counts.get(oldest).copied().unwrap_or(0);
        recent + quota.covered(units, place.offset)
    }

    /// The first instant at which at most `most` units count, given that more count at the position: the window slides
    /// on, and one sub-window after the other becomes its oldest.
    fn falls_to(&self, quota: &SlidingWindow, from: WindowPosition, most: u64) -> Timestamp {
        let mut younger: u64 = self.counts.iter().sum();
        for (position, &units) in self.counts.iter().enumerate().rev() {
            younger -= units;
            let oldest_at = self.newest + quota.oldest().saturating_sub(position) as u64;
            if oldest_at < from.index || younger > most {
                continue;
            }
            if let Some(offset) = quota.offset_of(units, most - younger) {
                return quota.start_of(oldest_at) + Ticks::from_micros(offset);
            }
        }
        quota.start_of(self.newest + u64::from(quota.precision) + 1)
    }

    /// Adds units at a position, which becomes the newest sub-window.
    fn add(&mut self, quota: &SlidingWindow, place: WindowPosition, units: u64) {
        let behind = self.behind(place);
        match (quota.oldest() + 1).checked_sub(behind) {
            Some(kept) if !self.counts.is_empty() => {
                self.counts.truncate(kept);
                self.counts.insert_many(0, std::iter::repeat_n(0, behind));
            }
            _ => self.counts.clear(),
        }
        match self.counts.first_mut() {
            Some(newest) => *newest += units,
            None => self.counts.push(units),
        }
        self.newest = place.index;
    }

    fn outcome(
        &self,
        quota: &SlidingWindow,
        now: Timestamp,
        place: WindowPosition,
        verdict: Verdict,
    ) -> Outcome {
        let used = self.used(quota, place);
        let remaining = quota.limit.saturating_sub(used);
        let until = |most| self.falls_to(quota, place, most).since(now);
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
pub fn charge(quota: &SlidingWindow, mut state: State, now: Timestamp, cost: u64) -> (State, Outcome) {
    let now = now.decidable();
    state.clamp(quota, now);
    let place = state.place(quota, now);
    let verdict = if cost > quota.limit {
        Verdict::Never
    } else if cost == 0 {
        Verdict::Allow
    } else if state.used(quota, place) + cost <= quota.limit {
        state.add(quota, place, cost);
        Verdict::Allow
    } else {
        let retry_at = state.falls_to(quota, place, quota.limit - cost);
        Verdict::Deny { retry_after: retry_at.since(now) }
    };
    let outcome = state.outcome(quota, now, place, verdict);
    (state, outcome)
}

/// Refunds `units` that were charged at an instant: to its sub-window, then to those before it, and never to a later
/// one, whose units count for longer. Where only the earliest instant is known, it refunds the oldest units that count,
/// if that instant counts.
#[must_use]
pub fn refund(
    quota: &SlidingWindow,
    mut state: State,
    now: Timestamp,
    units: u64,
    charged: Charged,
) -> State {
    let now = now.decidable();
    state.clamp(quota, now);
    let mut left = units;
    let mut take = |count: &mut u64| {
        let taken = left.min(*count);
        *count -= taken;
        left -= taken;
    };
    match charged {
        Charged::At(at) => {
            let behind = state.newest.saturating_sub(at.unix_micros() / quota.sub);
            let behind = usize::try_from(behind).unwrap_or(usize::MAX);
            state.counts.iter_mut().skip(behind).for_each(&mut take);
        }
        Charged::Within(age) => {
            let place = state.place(quota, now);
            let earliest = (now - age).unix_micros() / quota.sub;
            if earliest + u64::from(quota.precision) >= place.index {
                let counting = (quota.oldest() + 1).saturating_sub(state.behind(place));
                state.counts.iter_mut().take(counting).rev().for_each(&mut take);
            }
        }
    }
    if state.used(quota, state.place(quota, now)) == 0 {
        return State::default();
    }
    state
}

/// From when on the state equals that of a key never seen.
#[must_use]
pub fn idle_at(quota: &SlidingWindow, state: &State) -> Timestamp {
    match state.counts.iter().position(|&units| units > 0) {
        None => Timestamp::default(),
        Some(position) => {
            let left_at = state.newest + u64::from(quota.precision) + 1;
            quota.start_of(left_at.saturating_sub(position as u64))
        }
    }
}

/// The state under `quota` of a key that was counted under `previous` until `at`. Where sub-windows stay the same so do
/// the counts, even above a lowered limit: a limit lowered and raised again must not forget. Different sub-windows
/// start with the units that still count, all in the newest one, which is against the caller. That sum, too, may be
/// above a lowered limit.
#[must_use]
pub fn inherit(quota: &SlidingWindow, previous: &SlidingWindow, mut state: State, at: Timestamp) -> State {
    if quota.is_counted_like(previous) {
        return state;
    }
    let at = at.decidable();
    state.clamp(previous, at);
    match state.used(previous, state.place(previous, at)) {
        0 => State::default(),
        used => State::new(at.unix_micros() / quota.sub, &[used]),
    }
}

/// A sub-window's length in ticks.
const fn sub_window(period: u64, precision: u32) -> u64 {
    period.div_ceil(precision as u64)
}

/// Whether this many sub-windows of whole ticks make up the period, or a window that is hardly longer.
fn divides_evenly(period: u64, precision: u32) -> bool {
    let excess = sub_window(period, precision) * u64::from(precision) - period;
    excess * EXCESS_DIVISOR <= period
}

/// Whether the share of a sub-window that holds all units can be computed exactly.
const fn is_exact(rate: Rate, precision: u32) -> bool {
    rate.units() <= EXACT_MAX / sub_window(rate.period().as_micros(), precision)
}

/// Whether a rate can be counted in this many sub-windows.
pub(crate) fn suits(rate: Rate, precision: u32) -> bool {
    divides_evenly(rate.period().as_micros(), precision) && is_exact(rate, precision)
}

fn uneven(rate: Rate, precision: u32) -> QuotaError {
    let period = rate.period().as_micros();
    let others = (1..precision).rev().chain(precision + 1..=PRECISION_MAX);
    match others.into_iter().find(|&other| suits(rate, other)) {
        Some(other) => QuotaError::Range {
            field: "precision",
            value: u64::from(precision),
            accepted: format!("those that divide the period of {period} microseconds, such as {other}"),
        },
        None => QuotaError::Inexact {
            what: format!("{} units in {period} microseconds cannot be counted exactly", rate.units()),
            cure: "accepted are fewer units, a rounder period, or `algorithm: fixed-window`".to_owned(),
        },
    }
}

fn too_large(rate: Rate, precision: u32) -> QuotaError {
    let sub = sub_window(rate.period().as_micros(), precision);
    let finer = (precision..=PRECISION_MAX).find(|&finer| suits(rate, finer));
    let finer = finer.map_or(String::new(), |finer| format!(" a precision of {finer},"));
    QuotaError::Inexact {
        what: format!(
            "{} units in sub-windows of {sub} microseconds cannot be counted exactly",
            rate.units()
        ),
        cure: format!(
            "accepted are up to {} units,{finer} a shorter period, or `algorithm: fixed-window`",
            EXACT_MAX / sub
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A whole minute since the epoch.
    const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_040);

    fn per_minute(limit: u64, precision: u32, estimate: Estimate) -> SlidingWindow {
        SlidingWindow::new(Rate::per_minute(limit), precision, estimate).unwrap()
    }

    fn quotas(limit: u64) -> Vec<SlidingWindow> {
        let shapes = [1, 2, 7, 10, 60].map(|precision| {
            [Estimate::Interpolate, Estimate::Strict].map(|estimate| per_minute(limit, precision, estimate))
        });
        shapes.into_iter().flatten().collect()
    }

    fn after(seconds: u64) -> Timestamp {
        T0 + Ticks::from_secs(seconds)
    }

    fn charged(quota: &SlidingWindow, hits: &[(u64, u64)]) -> State {
        hits.iter().fold(State::default(), |state, &(seconds, cost)| {
            let (next, outcome) = charge(quota, state, after(seconds), cost);
            assert!(outcome.is_allowed());
            next
        })
    }

    fn remaining(quota: &SlidingWindow, state: &State, now: Timestamp) -> u64 {
        charge(quota, state.clone(), now, 0).1.remaining
    }

    /// Retry advice is exact for every cost: one tick early is denied, on the tick is admitted. So are the other two
    /// times.
    #[test]
    fn every_time_told_is_exact_to_the_tick() {
        for quota in quotas(10) {
            let state = charged(&quota, &[(3, 2), (17, 3), (34, 4), (59, 1)]);
            for seconds in [59, 60, 71, 95] {
                let now = after(seconds);
                for cost in 1..=10 {
                    let (state, outcome) = charge(&quota, state.clone(), now, cost);
                    if let Some(retry_after) = outcome.verdict.retry_after() {
                        let retry_at = now + retry_after;
                        assert!(!charge(&quota, state.clone(), retry_at - Ticks::ONE, cost).1.is_allowed());
                        assert!(charge(&quota, state, retry_at, cost).1.is_allowed());
                    }
                }
                let look = charge(&quota, state.clone(), now, 0).1;
                let more_at = now + look.next_unit_after;
                assert_eq!(remaining(&quota, &state, more_at - Ticks::ONE), look.remaining);
                assert!(remaining(&quota, &state, more_at) > look.remaining);
                let reset_at = now + look.reset_after;
                assert!(remaining(&quota, &state, reset_at - Ticks::ONE) < 10);
                assert_eq!(remaining(&quota, &state, reset_at), 10);
                assert_eq!(idle_at(&quota, &state), reset_at);
            }
        }
    }

    /// A precision of 1 is the usual pair of counters: the previous minute by the share that is left of it, rounded up.
    #[test]
    fn one_sub_window_is_the_classic_pair() {
        let quota = per_minute(100, 1, Estimate::Interpolate);
        let state = charged(&quota, &[(30, 42)]);
        assert_eq!(remaining(&quota, &state, after(60)), 58);
        assert_eq!(remaining(&quota, &state, after(75)), 100 - 32); // 42 × 45 s / 60 s is 31.5.
        assert_eq!(remaining(&quota, &state, after(120) - Ticks::ONE), 99);
        assert_eq!(remaining(&quota, &state, after(120)), 100);
    }

    /// Strict counts the oldest sub-window in full: the burst that straddles a boundary stops at the limit.
    #[test]
    fn strict_never_admits_more_in_any_window() {
        let quota = per_minute(10, 6, Estimate::Strict);
        let state = charged(&quota, &[(9, 10)]);
        assert!(!charge(&quota, state.clone(), after(69), 1).1.is_allowed());
        assert!(charge(&quota, state, after(70), 10).1.is_allowed());
    }

    /// Neither a denial nor a look changes anything; a cost above the limit never passes.
    #[test]
    fn denials_and_looks_change_nothing() {
        for quota in quotas(10) {
            let state = charged(&quota, &[(3, 6), (50, 4)]);
            for (cost, now) in [(1, after(50)), (7, after(60)), (0, after(100)), (11, after(300))] {
                let (next, outcome) = charge(&quota, state.clone(), now, cost);
                assert_eq!(next, state, "{:?}", outcome.verdict);
            }
            assert_eq!(charge(&quota, state, after(300), 11).1.verdict, Verdict::Never);
        }
    }

    /// A refund undoes its charge, and refunding all charges leaves a key as if never seen.
    #[test]
    fn refunds_undo_their_charge() {
        for quota in quotas(10) {
            let before = charged(&quota, &[(3, 6), (50, 2)]);
            let (after_charge, _) = charge(&quota, before.clone(), after(50), 2);
            let refunded = |now, units, charged_at| {
                refund(&quota, after_charge.clone(), after(now), units, Charged::At(after(charged_at)))
            };
            assert_eq!(refunded(50, 2, 50), before);
            assert_eq!(refunded(50, 10, 50), State::default());
            assert_eq!(refunded(500, 1, 50), State::default());
        }
    }

    /// A late refund returns the units of its own sub-window, and never later ones.
    #[test]
    fn a_late_refund_gives_back_its_own_sub_window() {
        let quota = per_minute(10, 10, Estimate::Strict);
        let state = charged(&quota, &[(3, 5), (15, 1), (50, 4)]);
        let own = refund(&quota, state.clone(), after(51), 5, Charged::At(after(3)));
        assert_eq!(own.counts(), [4, 0, 0, 0, 0, 0, 1, 0, 0]);
        let long_ago = Charged::At(after(2) - Ticks::from_secs(60));
        let gone = refund(&quota, state.clone(), after(51), 9, long_ago);
        assert_eq!(gone, state, "nothing is left of that long ago");
        let too_old = Charged::Within(Ticks::from_secs(72));
        assert_eq!(refund(&quota, state.clone(), after(51), 6, too_old), state, "it may no longer count");
        let unknown = refund(&quota, state, after(51), 6, Charged::Within(Ticks::from_secs(48)));
        assert_eq!(remaining(&quota, &unknown, after(51)), 6);
        assert_eq!(remaining(&quota, &unknown, after(113)), 6, "the oldest were given back");
    }

    /// A clock that jitters at a boundary ages no counter; one that steps back far denies for two windows at most.
    #[test]
    fn steps_back_admit_nothing_more() {
        for quota in quotas(10) {
            let mut state = charged(&quota, &[(59, 5), (60, 5)]);
            for _ in 0..100 {
                for now in [after(59), after(60), after(31)] {
                    let (next, outcome) = charge(&quota, state, now, 1);
                    assert!(!outcome.is_allowed());
                    state = next;
                }
            }
            let long_ago = T0 - Ticks::from_secs(86_400 * 365);
            let (state, denied) = charge(&quota, state, long_ago, 1);
            let retry_after = denied.verdict.retry_after().unwrap();
            assert!(retry_after <= Ticks::from_secs(180));
            assert!(!charge(&quota, state.clone(), long_ago + retry_after - Ticks::ONE, 1).1.is_allowed());
            assert!(charge(&quota, state, long_ago + retry_after, 1).1.is_allowed());
        }
    }

    /// A live change keeps the counts: raising applies at once, lowering leaves nothing, different sub-windows carry
    /// the units that count.
    #[test]
    fn changed_quotas_keep_the_count() {
        let quota = |limit| per_minute(limit, 10, Estimate::Strict);
        let state = charged(&quota(10), &[(3, 4), (50, 4)]);
        let raised = inherit(&quota(20), &quota(10), state.clone(), after(50));
        assert_eq!(remaining(&quota(20), &raised, after(50)), 12);
        let lowered = inherit(&quota(5), &quota(20), raised, after(50));
        assert_eq!(remaining(&quota(5), &lowered, after(50)), 0);
        assert_eq!(remaining(&quota(5), &lowered, after(66)), 1);
        let back = inherit(&quota(10), &quota(5), lowered, after(50));
        assert_eq!(back, state);
        let finer = per_minute(10, 60, Estimate::Interpolate);
        let carried = inherit(&finer, &quota(10), state.clone(), after(50));
        assert_eq!(carried, State::new(after(50).unix_micros() / 1_000_000, &[8]));
        assert_eq!(inherit(&finer, &quota(10), state, after(500)), State::default());
    }

    /// The story: a window of ten an hour that was reloaded as one in six minutes and back forgot nine of its units
    /// each time, because the initial count of the different sub-windows was cut down to their limit.
    #[test]
    fn a_change_there_and_back_forgets_nothing() {
        let hourly = SlidingWindow::new(Rate::per_hour(10), 10, Estimate::Strict).unwrap();
        let full = charged(&hourly, &[(0, 10)]);
        let others = [
            SlidingWindow::new(Rate::per_ticks(1, Ticks::from_secs(360)), 10, Estimate::Strict).unwrap(),
            SlidingWindow::new(Rate::per_hour(2), 8, Estimate::Interpolate).unwrap(),
            SlidingWindow::new(Rate::per_ticks(2, Ticks::from_secs(7_200)), 10, Estimate::Strict).unwrap(),
        ];
        for other in others {
            let there = inherit(&other, &hourly, full.clone(), after(1));
            assert_eq!(remaining(&other, &there, after(1)), 0);
            let back = inherit(&hourly, &other, there, after(2));
            assert_eq!(remaining(&hourly, &back, after(2)), 0, "{other:?}");
        }
    }

    /// Numbers that could not be counted exactly are rejected, and the error names numbers that are accepted.
    #[test]
    fn inexact_numbers_are_refused_with_a_cure() {
        let million_a_year = Rate::per_ticks(1_000_000, Ticks::from_secs(365 * 86_400));
        let error = SlidingWindow::new(million_a_year, 1, Estimate::Strict).unwrap_err();
        assert!(error.to_string().contains("up to 285"), "{error}");
        let error = SlidingWindow::new(Rate::per_second(10), 60, Estimate::Strict).unwrap_err();
        assert!(error.to_string().contains("such as 50"), "{error}");
        assert!(SlidingWindow::new(Rate::per_second(10), 50, Estimate::Strict).is_ok());
        for precision in [0, 61] {
            let error = SlidingWindow::new(Rate::per_second(10), precision, Estimate::Strict).unwrap_err();
            assert!(error.to_string().contains("1 to 60"), "{error}");
        }
    }
}
