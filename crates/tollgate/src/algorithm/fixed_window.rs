//! Fixed window: one counter that starts anew with each window. Admits in the worst sliding window twice its limit: a full
//! one at the end of a window, another at the start of the next.

use crate::algorithm::calendar::Calendar;
use crate::outcome::{Outcome, Verdict};
use crate::quota::{QuotaError, Rate};
use crate::time::{Ticks, Timestamp};

/// The numbers of a fixed window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    limit: u64,
    period: Ticks,
    align: Align,
}

/// Where windows begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Align {
    /// At multiples of the period since the Unix epoch.
    Epoch,
    /// At a key's first admitted request, and after a window's end at the next.
    FirstHit,
    /// With the calendar's minutes, hours, days, weeks, months or years.
    Calendar(Calendar),
}

/// The window that a key counts in, and the units it has admitted there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    ends_at: Timestamp,
    count: u64,
}

impl FixedWindow {
    /// The rate's units in each window; its period is the window's length, unless the calendar tells it. A burst has no
    /// meaning here.
    ///
    /// # Errors
    /// When the rate is out of range.
    pub fn new(rate: Rate, align: Align) -> Result<Self, QuotaError> {
        let rate = rate.checked()?;
        Ok(Self {
            limit: rate.units(),
            period: rate.period(),
            align,
        })
    }

    /// Units a window.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The window's length; for a calendar window its usual length.
    #[must_use]
    pub const fn period(&self) -> Ticks {
        self.period
    }

    /// Where windows begin.
    #[must_use]
    pub const fn align(&self) -> &Align {
        &self.align
    }

    /// When the window ends that a key never seen counts in at `now`.
    #[must_use]
    pub fn window_end(&self, now: Timestamp) -> Timestamp {
        match &self.align {
            Align::Epoch => {
                now - Ticks::from_micros(now.unix_micros() % self.period.as_micros()) + self.period
            }
            Align::FirstHit => now + self.period,
            Align::Calendar(calendar) => calendar.window(now).1,
        }
    }

    /// The latest end of a window that is believed at `now`: the next window's. The clock may have stepped back over a
    /// boundary, and then the newer window stays in force, so that a clock that trembles there gives no window twice.
    #[must_use]
    pub fn latest_end(&self, now: Timestamp) -> Timestamp {
        match &self.align {
            Align::Epoch => self.window_end(now) + self.period,
            Align::FirstHit => now + self.period,
            Align::Calendar(calendar) => calendar.window(calendar.window(now).1).1,
        }
    }

    fn is_counted_like(&self, other: &FixedWindow) -> bool {
        self.align == other.align && (self.period == other.period || matches!(self.align, Align::Calendar(_)))
    }

    #[inline]
    fn outcome(&self, current: State, now: Timestamp, verdict: Verdict) -> Outcome {
        let until_end = if current.count == 0 {
            Ticks::ZERO
        } else {
            current.ends_at.since(now)
        };
        Outcome {
            verdict,
            limit: self.limit,
            remaining: self.limit.saturating_sub(current.count),
            next_unit_after: until_end,
            reset_after: until_end,
        }
    }
}

impl State {
    /// `count` units in the window that ends at `ends_at`.
    #[must_use]
    #[inline]
    pub const fn new(ends_at: Timestamp, count: u64) -> Self {
        Self { ends_at, count }
    }

    /// When its window ends.
    #[must_use]
    #[inline]
    pub const fn ends_at(self) -> Timestamp {
        self.ends_at
    }

    /// The units admitted in its window.
    #[must_use]
    #[inline]
    pub const fn count(self) -> u64 {
        self.count
    }

    /// The same state, unless it lies further ahead of `now` than any step back of the clock is believed.
    #[inline]
    fn clamped(self, quota: &FixedWindow, now: Timestamp) -> Self {
        if self.ends_at.since(now) <= quota.period {
            return self; // Nearly always, and cheaper to tell than where windows lie.
        }
        Self {
            ends_at: self.ends_at.min(quota.latest_end(now)),
            count: self.count,
        }
    }

    /// The window that counts at `now`: this one until it ends, then a new one.
    #[inline]
    fn current(self, quota: &FixedWindow, now: Timestamp) -> Self {
        if self.ends_at > now && self.count > 0 {
            self
        } else {
            Self::new(quota.window_end(now), 0)
        }
    }
}

/// Charges `cost` units.
#[must_use]
#[inline]
pub fn charge(quota: &FixedWindow, state: State, now: Timestamp, cost: u64) -> (State, Outcome) {
    let state = state.clamped(quota, now);
    let current = state.current(quota, now);
    if cost > quota.limit {
        return (state, quota.outcome(current, now, Verdict::Never));
    }
    let wanted = State::new(current.ends_at, current.count + cost);
    if cost > 0 && wanted.count > quota.limit {
        let retry_after = current.ends_at.since(now);
        return (state, quota.outcome(current, now, Verdict::Deny { retry_after }));
    }
    let next = if cost > 0 { wanted } else { state };
    (next, quota.outcome(wanted, now, Verdict::Allow))
}

/// Gives back `units` of the current window.
#[must_use]
pub fn refund(quota: &FixedWindow, state: State, now: Timestamp, units: u64) -> State {
    let current = state.clamped(quota, now).current(quota, now);
    match current.count.saturating_sub(units) {
        0 => State::default(),
        count => State::new(current.ends_at, count),
    }
}

/// From when on the state equals that of a key never seen.
#[must_use]
pub fn idle_at(_quota: &FixedWindow, state: &State) -> Timestamp {
    state.ends_at
}

/// The state under `quota` of a key that was counted under `previous` until `at`. Where windows stay the same so does the
/// count, even above a lowered limit: a limit lowered and raised again must not forget. Other windows start full of it.
#[must_use]
pub fn inherit(quota: &FixedWindow, previous: &FixedWindow, state: State, at: Timestamp) -> State {
    if quota.is_counted_like(previous) {
        return state;
    }
    match state.clamped(previous, at).current(previous, at).count {
        0 => State::default(),
        count => State::new(quota.window_end(at), count),
    }
}
