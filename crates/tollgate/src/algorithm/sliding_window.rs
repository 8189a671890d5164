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
            cure: "accepted: fewer units, a rounder period, or `algorithm: fixed-window`".to_owned(),
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
            "accepted: up to {} units,{finer} a shorter period, or `algorithm: fixed-window`",
            EXACT_MAX / sub
        ),
    }
}

#[cfg(test)]
mod tests;
