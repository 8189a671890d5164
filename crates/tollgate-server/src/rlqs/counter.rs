//! One counter of the engine's as assignments see it: what is left of it, what was consumed that it did not have, and how much of it may
//! be given out.

use std::collections::{BTreeSet, VecDeque};

use tollgate::time::TICKS_PER_SECOND;
use tollgate::{Quota, Ticks, Timestamp};

use super::grant::{NANO, Nano, Share};
use super::level::Level;
use super::shares::SeatId;

/// The part of a second's rate that may be given out as tokens though the counter has none left: without it a steady stream would lose
/// what it does not use at once.
const SMOOTHING: u64 = 10;
/// In how many steps a rate and a burst are given out, so that small changes of what is left are no new assignments.
const RATE_STEPS: u64 = 64;
const TOKEN_STEPS: u64 = 8;
/// How much is owed at most, in seconds of the rate, beside a burst. An Envoy can hardly owe more, and one that reports nonsense does not
/// close a limit for ever.
const DEBT_SECONDS_MAX: u64 = 60;
/// How long to wait at least, and at most, before what is due is taken.
pub(super) const DRAW_MIN: Ticks = Ticks::from_millis(100);
const DRAW_MAX: Ticks = Ticks::from_secs(5);
/// How long, and how often, it is remembered that a counter was full: somewhat longer than the usual time between two reports.
const SPARE_FOR: Ticks = Ticks::from_secs(20);
const SPARE_MAX: usize = 200;

/// The numbers of a quota that assignments are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// The whole rate, over its period.
    pub(crate) rate: Nano,
    pub(crate) period: Ticks,
    /// Units at once.
    pub(crate) capacity: u64,
    /// Units come back one by one.
    pub(crate) is_steady: bool,
}

impl Numbers {
    /// Those of a quota; none of one that has no rate.
    pub(crate) fn of(quota: &Quota) -> Option<Self> {
        let rate = quota.rate()?;
        let (units, period) = (u128::from(rate.units()), u128::from(rate.period().as_micros().max(1)));
        let per_second = units * u128::from(NANO) * u128::from(TICKS_PER_SECOND) / period;
        Some(Self {
            rate: u64::try_from(per_second).unwrap_or(u64::MAX),
            period: rate.period(),
            capacity: quota.capacity(),
            is_steady: quota.is_reservoir(),
        })
    }

    /// What surely comes back within this time. A window that is longer gives nothing back before it ends, and then it is looked at again.
    pub(super) fn refill(&self, horizon: Ticks) -> Nano {
        if self.is_steady || self.period <= horizon { self.rate } else { 0 }
    }
}

/// A counter that Envoys have parts of.
///
/// Envoys report every few seconds, and a counter that is full loses what comes back meanwhile. So what they are expected to use, from
/// what they last did, is taken from it as time goes by, and a report only corrects that.
#[derive(Debug)]
pub(super) struct Counter {
    pub(super) numbers: Numbers,
    /// What was left when it was last asked, and when that was.
    left: u64,
    settled_at: Timestamp,
    /// Billionths of units that were used and not taken yet; less than none where more was taken than was used.
    due: i128,
    /// Billionths of units that came back while the counter was full, and when. Nobody else had them, so they pay for what turns out to
    /// have been used at that time.
    spare: VecDeque<(Timestamp, u64)>,
    /// What is expected to be used, up to which instant it is in `due`.
    pace: Nano,
    paced_at: Timestamp,
    /// Somebody who reported before this was denied something.
    pressed_until: Timestamp,
    horizon: Ticks,
    /// Who shares it.
    pub(super) seats: BTreeSet<SeatId>,
    /// All that may be followed, of seats that are gone, too.
    pub(super) out: Share,
    /// How it is divided, and since when that is so.
    pub(super) level: Option<(Timestamp, Level)>,
}

impl Counter {
    pub(super) fn new(numbers: Numbers, left: u64, now: Timestamp) -> Self {
        Self {
            numbers,
            left,
            settled_at: now,
            due: 0,
            spare: VecDeque::new(),
            pace: 0,
            paced_at: now,
            pressed_until: now,
            horizon: Ticks::ZERO,
            seats: BTreeSet::new(),
            out: Share::default(),
            level: None,
        }
    }

    /// Whether what is used is expected ahead: a window that gives nothing back loses nothing, and is told what was really used.
    pub(super) fn is_paced(&self) -> bool {
        self.numbers.refill(self.horizon) > 0
    }

    /// The time that is planned for.
    pub(super) const fn horizon(&self) -> Ticks {
        self.horizon
    }

    fn advance(&mut self, now: Timestamp) {
        self.due += i128::from(self.pace) * i128::from(now.since(self.paced_at).as_micros()) / 1_000_000;
        self.paced_at = self.paced_at.max(now);
    }

    /// From now on so much more is expected to be used, and so much less.
    pub(super) fn change_pace(&mut self, more: Nano, less: Nano, now: Timestamp) {
        self.advance(now);
        self.pace = self.pace.saturating_add(more).saturating_sub(less);
    }

    /// What was expected at this pace is expected for so long, and then no more.
    pub(super) fn expect_rest(&mut self, pace: Nano, rest: Ticks, now: Timestamp) {
        self.change_pace(0, pace, now);
        let used = i128::from(pace) * i128::from(rest.as_micros()) / 1_000_000;
        let most = i128::from(self.debt_max()) * i128::from(NANO);
        self.due = self.due.saturating_add(used).clamp(-most, most);
    }

    /// So many billionths were used more, or less, than expected since then.
    pub(super) fn correct(&mut self, mut difference: i128, since: Timestamp) {
        for (at, spare) in self.spare.iter_mut().rev() {
            if *at <= since || difference <= 0 {
                break;
            }
            let paid = u64::try_from(difference).unwrap_or(u64::MAX).min(*spare);
            *spare -= paid;
            difference -= i128::from(paid);
        }
        let most = i128::from(self.debt_max()) * i128::from(NANO);
        self.due = self.due.saturating_add(difference).clamp(-most, most);
    }

    /// So many billionths came back and were lost.
    fn lose(&mut self, lost: u64, now: Timestamp) {
        let paid = u64::try_from(self.due).unwrap_or(0).min(lost);
        self.due -= i128::from(paid);
        while self.spare.front().is_some_and(|(at, _)| now.since(*at) > SPARE_FOR)
            || self.spare.len() >= SPARE_MAX
        {
            self.spare.pop_front();
        }
        if lost > paid {
            self.spare.push_back((now, lost - paid));
        }
    }

    fn debt_max(&self) -> u64 {
        let seconds = u128::from(self.numbers.rate) * u128::from(DEBT_SECONDS_MAX) / u128::from(NANO);
        self.numbers.capacity.saturating_add(u64::try_from(seconds).unwrap_or(u64::MAX))
    }

    /// How long after it was drawn from it could be half full, if nobody used it.
    fn rest(&self) -> Ticks {
        let fill = u128::from(self.numbers.capacity) * u128::from(NANO) * 500_000;
        let fill = fill / u128::from(self.numbers.rate.max(1));
        Ticks::from_micros(u64::try_from(fill).unwrap_or(u64::MAX)).max(DRAW_MIN).min(DRAW_MAX)
    }

    /// Whether it is time to take what is due: before the counter, if nobody else used it, could be full.
    pub(super) fn is_draw_due(&self, now: Timestamp) -> bool {
        let is_due = self.due > 0 || self.pace > 0;
        self.is_paced() && is_due && now.since(self.settled_at) >= self.rest()
    }

    /// How much to take from the engine's counter now, which has so much left. What is not there stays due, but for what the counter lost
    /// while it was full. That pays last, since others may have used some of it; only what was lost while nobody drew pays first.
    pub(super) fn draw(&mut self, left: u64, now: Timestamp) -> u64 {
        self.advance(now);
        let refill = |time: Ticks| {
            let refill =
                u128::from(self.numbers.refill(self.horizon)) * u128::from(time.as_micros()) / 1_000_000;
            u64::try_from(refill).unwrap_or(u64::MAX)
        };
        let (capacity, elapsed) = (self.numbers.capacity, now.since(self.settled_at));
        let room = capacity.saturating_sub(self.left).saturating_mul(NANO);
        let is_full = left >= capacity - capacity / 64;
        let lost = if is_full { refill(elapsed).saturating_sub(room) } else { 0 };
        let first = lost.saturating_sub(refill(self.rest()));
        self.lose(first, now);
        let taken = self.debt().min(left);
        self.due -= i128::from(taken) * i128::from(NANO);
        self.lose(lost - first, now);
        (self.left, self.settled_at) = (left - taken, now);
        taken
    }

    /// Whether it was drawn from so lately that somebody may be about to sit down at it.
    pub(super) fn was_drawn_since(&self, now: Timestamp, time: Ticks) -> bool {
        now.since(self.settled_at) < time
    }

    /// Units that were used and that the counter did not have.
    pub(super) fn debt(&self) -> u64 {
        u64::try_from(self.due.max(0) / i128::from(NANO)).unwrap_or(u64::MAX)
    }

    /// Somebody was denied, and this much time is planned for.
    pub(super) fn observe(&mut self, is_pressed: bool, horizon: Ticks, now: Timestamp) {
        self.horizon = horizon;
        if is_pressed {
            self.pressed_until = now + horizon;
        }
    }

    /// What may be given out in all. Followed until the horizon, it is at most what is left and what comes back until then: as tokens
    /// where those can be used, and where somebody is denied, whose bucket then is empty, half of it as a faster rate. What is owed is
    /// paid back over half of that time.
    pub(super) fn budget(&self, now: Timestamp) -> Share {
        let seconds = self.horizon.ceil_seconds().max(1);
        let refill = self.numbers.refill(self.horizon);
        let smoothing = refill / SMOOTHING / NANO + u64::from(refill > 0);
        let over = |units: u64| u64::try_from(u128::from(units) * u128::from(NANO) / u128::from(seconds));
        let owed = self.debt().saturating_sub(smoothing);
        if owed > 0 {
            let rate = refill.saturating_sub(over(owed.saturating_mul(2)).unwrap_or(u64::MAX));
            let tokens = if rate > 0 { smoothing.min(self.numbers.capacity) } else { 0 };
            return self.in_steps(Share { rate, tokens });
        }
        let good = self.left.saturating_sub(self.debt());
        let faster = if self.pressed_until > now { good / 2 } else { 0 };
        let tokens = (good - faster).max(smoothing).min(self.numbers.capacity);
        self.in_steps(Share { rate: refill.saturating_add(over(faster).unwrap_or(0)), tokens })
    }

    fn in_steps(&self, share: Share) -> Share {
        let down =
            |number: u64, step: u64| if step > 1 && number > step { number - number % step } else { number };
        Share {
            rate: down(share.rate, self.numbers.rate / RATE_STEPS),
            tokens: down(share.tokens, self.numbers.capacity / TOKEN_STEPS),
        }
    }

    /// What shares are parts of: the rate that is given out, and of a window that gives out none its usual one.
    pub(super) fn whole(&self, budget: Share) -> Nano {
        if budget.rate > 0 { budget.rate } else { self.numbers.rate.max(1) }
    }
}
