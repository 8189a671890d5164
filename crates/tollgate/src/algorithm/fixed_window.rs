//! Fixed window: one counter that starts anew with each window. In the worst case a sliding window contains twice the
//! limit: a full one at the end of a window, another at the start of the next.

use crate::algorithm::Charged;
#[cfg(feature = "calendar")]
use crate::algorithm::calendar::Calendar;
use crate::outcome::{Outcome, Verdict};
use crate::rate::{EXACT_MAX, QuotaError, Rate};
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
    /// At a key's first admitted request, and after a window's end at the next admitted request.
    FirstHit,
    /// With the calendar's minutes, hours, days, weeks, months or years. Needs the feature `calendar`.
    #[cfg(feature = "calendar")]
    Calendar(Calendar),
}

impl Align {
    /// Whether windows follow the calendar, so that their length varies.
    pub(crate) const fn is_calendar(&self) -> bool {
        match self {
            Align::Epoch | Align::FirstHit => false,
            #[cfg(feature = "calendar")]
            Align::Calendar(_) => true,
        }
    }
}

/// The window that a key counts in, and the units it has admitted there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    ends_at: Timestamp,
    count: u64,
}

impl FixedWindow {
    /// The rate's units in each window. The rate's period is the window's length, except for calendar windows. A burst
    /// has no meaning here.
    ///
    /// # Errors
    /// When the rate is out of range.
    pub fn new(rate: Rate, align: Align) -> Result<Self, QuotaError> {
        let rate = rate.checked()?;
        Ok(Self { limit: rate.units(), period: rate.period(), align })
    }

    /// A window that counts without a limit, for callers that compare the count with a limit of their own.
    ///
    /// # Errors
    /// When the period is out of range.
    pub fn counting(period: Ticks, align: Align) -> Result<Self, QuotaError> {
        let rate = Rate::per_ticks(1, period).checked()?;
        Ok(Self { limit: EXACT_MAX, period: rate.period(), align })
    }

    /// Units per window.
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
            #[cfg(feature = "calendar")]
            Align::Calendar(calendar) => calendar.window(now).1,
        }
    }

    /// The latest end of a window that is believed at `now`: that of the window after the one a new key would get. The
    /// clock may have stepped back. Then the newer window stays active, so that a clock that jitters never grants a
    /// window twice.
    #[must_use]
    pub fn latest_end(&self, now: Timestamp) -> Timestamp {
        match &self.align {
            Align::Epoch | Align::FirstHit => self.window_end(now) + self.period,
            #[cfg(feature = "calendar")]
            Align::Calendar(calendar) => calendar.window(calendar.window(now).1).1,
        }
    }

    /// Whether an instant lies in the window that ends at `ends_at` and counts at `now`. Of a calendar only the window
    /// around `now` is known: another window, which stayed active when the clock stepped back, contains no instants.
    #[cfg_attr(
        not(feature = "calendar"),
        expect(unused_variables, reason = "only a calendar depends on `now`")
    )]
    fn is_within(&self, at: Timestamp, ends_at: Timestamp, now: Timestamp) -> bool {
        let starts_at = match &self.align {
            Align::Epoch | Align::FirstHit => ends_at - self.period,
            #[cfg(feature = "calendar")]
            Align::Calendar(calendar) => match calendar.window(now) {
                (start, end) if end == ends_at => start,
                _ => return false,
            },
        };
        at >= starts_at && at < ends_at
    }

    /// Whether its windows equal those of the other, so that a count means the same in both.
    pub(crate) fn is_counted_like(&self, other: &FixedWindow) -> bool {
        self.align == other.align && (self.period == other.period || self.align.is_calendar())
    }

    #[inline]
    fn outcome(&self, current: State, now: Timestamp, verdict: Verdict) -> Outcome {
        let until_end = if current.count == 0 { Ticks::ZERO } else { current.ends_at.since(now) };
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

    /// The same state, pulled back if it lies further ahead of `now` than any step back of the clock is believed.
    #[inline]
    fn clamped(self, quota: &FixedWindow, now: Timestamp) -> Self {
        if self.ends_at.since(now) <= quota.period {
            return self; // Nearly always, and cheaper than to compute the windows.
        }
        Self { ends_at: self.ends_at.min(quota.latest_end(now)), count: self.count }
    }

    /// The window that counts at `now`: this one until it ends, then a new one.
    #[inline]
    fn current(self, quota: &FixedWindow, now: Timestamp) -> Self {
        if self.ends_at > now && self.count > 0 { self } else { Self::new(quota.window_end(now), 0) }
    }
}

/// Charges `cost` units.
#[must_use]
#[inline]
pub fn charge(quota: &FixedWindow, state: State, now: Timestamp, cost: u64) -> (State, Outcome) {
    let now = now.decidable();
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

/// Refunds `units` that were charged in the current window; units of another window, or possibly of another, are
/// dropped.
#[must_use]
pub fn refund(quota: &FixedWindow, state: State, now: Timestamp, units: u64, charged: Charged) -> State {
    let now = now.decidable();
    let current = state.clamped(quota, now).current(quota, now);
    if !quota.is_within(charged.earliest(now), current.ends_at, now) {
        return state;
    }
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

/// The state under `quota` of a key that was counted under `previous` until `at`. Where windows stay the same so does
/// the count, even above a lowered limit: a limit lowered and raised again must not forget. Different windows start
/// with that count.
#[must_use]
pub fn inherit(quota: &FixedWindow, previous: &FixedWindow, state: State, at: Timestamp) -> State {
    if quota.is_counted_like(previous) {
        return state;
    }
    let at = at.decidable();
    match state.clamped(previous, at).current(previous, at).count {
        0 => State::default(),
        count => State::new(quota.window_end(at), count),
    }
}

#[cfg(test)]
#[cfg(feature = "calendar")]
mod tests {
    use super::*;
    use crate::algorithm::calendar::CalendarUnit;

    const MINUTE: Ticks = Ticks::from_secs(60);
    /// A whole minute since the epoch.
    const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_040);

    fn per_minute(limit: u64, align: Align) -> FixedWindow {
        FixedWindow::new(Rate::per_minute(limit), align).unwrap()
    }

    fn monthly(limit: u64) -> FixedWindow {
        let calendar = Calendar::new(CalendarUnit::Month, "Europe/Rome").unwrap();
        FixedWindow::new(Rate::per_month(limit), Align::Calendar(calendar)).unwrap()
    }

    fn aligns() -> [Align; 3] {
        let calendar = Calendar::new(CalendarUnit::Minute, "Asia/Kolkata").unwrap();
        [Align::Epoch, Align::FirstHit, Align::Calendar(calendar)]
    }

    fn after(seconds: u64) -> Timestamp {
        T0 + Ticks::from_secs(seconds)
    }

    /// Retry advice is exact: one tick early is denied, on the tick is admitted.
    #[test]
    fn retry_after_is_the_first_admitted_instant() {
        for align in aligns() {
            let quota = per_minute(10, align);
            let (state, outcome) = charge(&quota, State::default(), after(7), 10);
            assert_eq!((outcome.verdict, outcome.remaining), (Verdict::Allow, 0));
            let (state, denied) = charge(&quota, state, after(20), 1);
            let retry_at = after(20) + denied.verdict.retry_after().unwrap();
            assert!(!charge(&quota, state, retry_at - Ticks::ONE, 1).1.is_allowed());
            let (_, admitted) = charge(&quota, state, retry_at, 1);
            assert_eq!((admitted.verdict, admitted.remaining), (Verdict::Allow, 9));
            assert_eq!(denied.next_unit_after, retry_at.since(after(20)));
            assert_eq!(denied.reset_after, retry_at.since(after(20)));
            assert_eq!(idle_at(&quota, &state), retry_at);
        }
    }

    /// The worst case of a fixed window: a full limit on each side of a boundary, and not one more.
    #[test]
    fn twice_the_limit_around_a_boundary() {
        let quota = per_minute(10, Align::Epoch);
        let (state, last) = charge(&quota, State::default(), after(60) - Ticks::ONE, 10);
        let (state, first) = charge(&quota, state, after(60), 10);
        assert!(last.is_allowed() && first.is_allowed());
        assert!(!charge(&quota, state, after(119), 1).1.is_allowed());
    }

    /// A window that is aligned to the first hit starts with it, and the next window not before the next hit.
    #[test]
    fn first_hit_windows_start_with_a_hit() {
        let quota = per_minute(10, Align::FirstHit);
        let (state, _) = charge(&quota, State::default(), after(7), 1);
        assert_eq!(state.ends_at(), after(67));
        let (state, _) = charge(&quota, state, after(1_000), 1);
        assert_eq!(state, State::new(after(1_060), 1));
    }

    /// A calendar month lasts until its local midnight, the clock change inside it included.
    #[test]
    fn calendar_months_end_at_local_midnight() {
        let quota = monthly(100);
        let march_2024 = Timestamp::from_unix_seconds(1_710_000_000);
        let (state, _) = charge(&quota, State::default(), march_2024, 100);
        let (_, denied) = charge(&quota, state, march_2024, 1);
        let april_in_rome = Timestamp::from_unix_seconds(1_711_922_400); // 2024-03-31 22:00 UTC, as summer time has begun.
        assert_eq!(denied.verdict.retry_after(), Some(april_in_rome.since(march_2024)));
    }

    /// An unused window has nothing to wait for, a look changes nothing, and a cost above the limit never passes.
    #[test]
    fn looks_and_impossible_costs_change_nothing() {
        for align in aligns() {
            let quota = per_minute(10, align);
            let (state, look) = charge(&quota, State::default(), T0, 0);
            assert_eq!((state, look.remaining), (State::default(), 10));
            assert_eq!((look.next_unit_after, look.reset_after), (Ticks::ZERO, Ticks::ZERO));
            let (state, never) = charge(&quota, State::default(), T0, 11);
            assert_eq!((state, never.verdict), (State::default(), Verdict::Never));
        }
    }

    /// A refund makes room in the current window only, and an empty window is as if never seen.
    #[test]
    fn refunds_make_room() {
        let quota = per_minute(10, Align::FirstHit);
        let (state, _) = charge(&quota, State::default(), T0, 10);
        let state = refund(&quota, state, after(1), 3, Charged::At(T0));
        assert_eq!(charge(&quota, state, after(1), 0).1.remaining, 3);
        let within = |seconds| Charged::Within(Ticks::from_secs(seconds));
        assert_eq!(refund(&quota, state, after(1), 70, within(1)), State::default());
        assert_eq!(refund(&quota, state, after(1), 70, within(2)), state, "it may be of the window before");
        assert_eq!(refund(&quota, state, after(1), 70, Charged::UNKNOWN), state);
        assert_eq!(refund(&quota, state, after(60), 1, Charged::At(T0)), state, "its window has ended");
    }

    /// Units charged in one window are not refunded to the next, where they took no room.
    #[test]
    fn refund_after_window_rollover_is_dropped() {
        for align in aligns() {
            let quota = per_minute(10, align);
            let (state, _) = charge(&quota, State::default(), after(7), 4);
            let (state, _) = charge(&quota, state, after(67), 5);
            for charged_at in [after(7), after(67) - Ticks::from_secs(8)] {
                assert_eq!(refund(&quota, state, after(68), 4, Charged::At(charged_at)), state);
            }
            let refunded = refund(&quota, state, after(68), 4, Charged::At(after(67)));
            assert_eq!(charge(&quota, refunded, after(68), 0).1.remaining, 9);
        }
    }

    /// A clock that jitters at a boundary grants no window twice; one that steps back far denies for two windows at
    /// most.
    #[test]
    fn steps_back_admit_nothing_more() {
        for align in aligns() {
            let quota = per_minute(10, align);
            let (state, _) = charge(&quota, State::default(), after(60) - Ticks::ONE, 10);
            let mut state = charge(&quota, state, after(120), 10).0;
            for _ in 0..5 {
                for now in [after(120) - Ticks::ONE, after(120), after(75)] {
                    let (next, outcome) = charge(&quota, state, now, 1);
                    assert!(!outcome.is_allowed());
                    state = next;
                }
            }
            let long_ago = T0 - Ticks::from_secs(86_400 * 365);
            let (state, denied) = charge(&quota, state, long_ago, 1);
            let retry_after = denied.verdict.retry_after().unwrap();
            assert!(retry_after <= MINUTE + MINUTE);
            assert!(charge(&quota, state, long_ago + retry_after, 1).1.is_allowed());
        }
    }

    /// A live change keeps the count: raising applies at once, lowering leaves nothing, and after raising again nothing
    /// was forgotten.
    #[test]
    fn changed_limits_keep_the_count() {
        let quota = |limit| per_minute(limit, Align::Epoch);
        let (state, _) = charge(&quota(10), State::default(), T0, 8);
        let remaining = |limit, state| charge(&quota(limit), state, after(1), 0).1.remaining;
        let raised = inherit(&quota(20), &quota(10), state, after(1));
        assert_eq!(remaining(20, raised), 12);
        let lowered = inherit(&quota(5), &quota(20), raised, after(1));
        assert_eq!(remaining(5, lowered), 0);
        let back = inherit(&quota(10), &quota(5), lowered, after(1));
        assert_eq!(remaining(10, back), 2);
    }

    /// Different windows start with the units that still counted; units that no longer did are gone.
    #[test]
    fn changed_windows_carry_the_count() {
        let minute = per_minute(10, Align::Epoch);
        let (state, _) = charge(&minute, State::default(), T0, 8);
        let carried = inherit(&monthly(100), &minute, state, after(59));
        assert_eq!(carried, State::new(monthly(100).window_end(T0), 8));
        assert_eq!(inherit(&monthly(100), &minute, state, after(60)), State::default());
        let first_hit = per_minute(10, Align::FirstHit);
        assert_eq!(inherit(&first_hit, &minute, state, after(9)), State::new(after(69), 8));
    }
}
