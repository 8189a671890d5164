//! One counter of the engine as assignments see it: the units left, the usage it could not cover, and how much of it
//! may be assigned.

use std::collections::{BTreeSet, VecDeque};

use tollgate::time::TICKS_PER_SECOND;
use tollgate::{Quota, Ticks, Timestamp};

use super::grant::{NANO, Nano, Share};
use super::level::Level;
use super::shares::SubscriptionId;

/// The fraction of one second's rate that may be assigned as tokens when the counter is empty. Without it, a steady
/// stream would lose the units that it does not use immediately.
const SMOOTHING: u64 = 10;
/// The number of steps in which a rate and a burst are assigned, so that small changes of the units left cause no new
/// assignment.
const RATE_STEPS: u64 = 64;
const TOKEN_STEPS: u64 = 8;
/// The maximum number of owed units beyond a burst, in seconds of the rate. An Envoy can hardly owe more, and the bound keeps an Envoy
/// that reports nonsense from closing a limit for ever.
const OWED_SECONDS_MAX: u64 = 60;
/// The minimum and maximum wait before due units are taken.
pub(super) const DRAW_MIN: Ticks = Ticks::from_millis(100);
const DRAW_MAX: Ticks = Ticks::from_secs(5);
/// How long, and how many times, the counter remembers that it was full: somewhat longer than the usual time between
/// two reports.
const LOST_FOR: Ticks = Ticks::from_secs(20);
const LOST_MAX: usize = 200;

/// The numbers of a quota from which assignments are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaParameters {
    /// The whole rate, and its period.
    pub(crate) rate: Nano,
    pub(crate) period: Ticks,
    /// The maximum number of units at one instant.
    pub(crate) capacity: u64,
    /// Whether units come back one by one.
    pub(crate) is_steady: bool,
}

impl QuotaParameters {
    /// The numbers of a quota, or `None` if the quota has no rate.
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

    /// The rate that is certain to come back within `horizon`. A longer window gives nothing back before it ends, and
    /// its counter is read again then.
    pub(super) fn refill(&self, horizon: Ticks) -> Nano {
        if self.is_steady || self.period <= horizon { self.rate } else { 0 }
    }
}

/// Whether an Envoy needs more than its token bucket gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pressure {
    /// It denied requests because its token bucket was empty.
    Denied,
    /// It did not.
    None,
}

/// A counter shared by Envoys.
///
/// Envoys report every few seconds, and a full counter loses the units that come back meanwhile. The server therefore
/// estimates each Envoy's usage from its last report and takes it from the counter as time passes. A report only
/// corrects the estimate.
#[derive(Debug)]
pub(super) struct Counter {
    pub(super) parameters: QuotaParameters,
    /// The units left at the last read of the counter, and the time of that read.
    left: u64,
    settled_at: Timestamp,
    /// Usage not yet taken from the counter, in billionths of a unit. Negative if more was taken than was used.
    due: i128,
    /// Billionths of units that came back while the counter was full, with the time. No other caller received them, so
    /// they cover usage of that time that is reported later.
    lost: VecDeque<(Timestamp, u64)>,
    /// The expected usage per second, and the instant up to which `due` includes it.
    pace: Nano,
    paced_at: Timestamp,
    /// Until this instant a recent denial counts as pressure: some Envoy reported that it denied requests.
    pressed_until: Timestamp,
    horizon: Ticks,
    /// The buckets that share the counter.
    pub(super) subscriptions: BTreeSet<SubscriptionId>,
    /// The sum of all grants that may still be followed, including those of departed buckets.
    pub(super) out: Share,
    /// How the counter is divided, and since when.
    pub(super) level: Option<(Timestamp, Level)>,
}

impl Counter {
    pub(super) fn new(parameters: QuotaParameters, left: u64, now: Timestamp) -> Self {
        Self {
            parameters,
            left,
            settled_at: now,
            due: 0,
            lost: VecDeque::new(),
            pace: 0,
            paced_at: now,
            pressed_until: now,
            horizon: Ticks::ZERO,
            subscriptions: BTreeSet::new(),
            out: Share::default(),
            level: None,
        }
    }

    /// Whether usage is taken ahead of reports. A window that gives nothing back loses nothing, so it is charged only
    /// with reported usage.
    pub(super) fn is_paced(&self) -> bool {
        self.parameters.refill(self.horizon) > 0
    }

    /// The time for which the counter is planned ahead.
    pub(super) const fn horizon(&self) -> Ticks {
        self.horizon
    }

    fn advance(&mut self, now: Timestamp) {
        self.due += i128::from(self.pace) * i128::from(now.since(self.paced_at).as_micros()) / 1_000_000;
        self.paced_at = self.paced_at.max(now);
    }

    /// Raises the expected usage by `more` and lowers it by `less` from now on.
    pub(super) fn change_pace(&mut self, more: Nano, less: Nano, now: Timestamp) {
        self.advance(now);
        self.pace = self.pace.saturating_add(more).saturating_sub(less);
    }

    /// Expects the usage of `pace` for another `rest`, and none after that.
    pub(super) fn expect_rest(&mut self, pace: Nano, rest: Ticks, now: Timestamp) {
        self.change_pace(0, pace, now);
        let used = i128::from(pace) * i128::from(rest.as_micros()) / 1_000_000;
        let most = i128::from(self.owed_max()) * i128::from(NANO);
        self.due = self.due.saturating_add(used).clamp(-most, most);
    }

    /// Corrects the usage since `since` by `difference` billionths, which is negative if less was used than expected.
    pub(super) fn correct(&mut self, mut difference: i128, since: Timestamp) {
        for (at, lost) in self.lost.iter_mut().rev() {
            if *at <= since || difference <= 0 {
                break;
            }
            let paid = u64::try_from(difference).unwrap_or(u64::MAX).min(*lost);
            *lost -= paid;
            difference -= i128::from(paid);
        }
        let most = i128::from(self.owed_max()) * i128::from(NANO);
        self.due = self.due.saturating_add(difference).clamp(-most, most);
    }

    /// Records that `lost` billionths came back while the counter was full.
    fn lose(&mut self, lost: u64, now: Timestamp) {
        let paid = u64::try_from(self.due).unwrap_or(0).min(lost);
        self.due -= i128::from(paid);
        while self.lost.front().is_some_and(|(at, _)| now.since(*at) > LOST_FOR)
            || self.lost.len() >= LOST_MAX
        {
            self.lost.pop_front();
        }
        if lost > paid {
            self.lost.push_back((now, lost - paid));
        }
    }

    fn owed_max(&self) -> u64 {
        let seconds = u128::from(self.parameters.rate) * u128::from(OWED_SECONDS_MAX) / u128::from(NANO);
        self.parameters.capacity.saturating_add(u64::try_from(seconds).unwrap_or(u64::MAX))
    }

    /// How long after an acquisition the counter could be half full if no other caller used it.
    fn rest(&self) -> Ticks {
        let fill = u128::from(self.parameters.capacity) * u128::from(NANO) * 500_000;
        let fill = fill / u128::from(self.parameters.rate.max(1));
        Ticks::from_micros(u64::try_from(fill).unwrap_or(u64::MAX)).max(DRAW_MIN).min(DRAW_MAX)
    }

    /// Whether to take the due units now. An acquisition is due before the counter could be full, assuming that no other caller
    /// uses it.
    pub(super) fn is_acquisition_due(&self, now: Timestamp) -> bool {
        let is_due = self.due > 0 || self.pace > 0;
        self.is_paced() && is_due && now.since(self.settled_at) >= self.rest()
    }

    /// Returns how many units to take from the engine's counter, which has `left` units. Units that are missing stay
    /// due, except those that the counter lost while it was full. A counter that is not full at this instant counts as
    /// having lost nothing, because other callers used it. Lost units pay last, because other callers may have used
    /// some of them. Only units lost while no acquisition took place pay first.
    pub(super) fn acquire(&mut self, left: u64, now: Timestamp) -> u64 {
        self.advance(now);
        let refill = |time: Ticks| {
            let refill =
                u128::from(self.parameters.refill(self.horizon)) * u128::from(time.as_micros()) / 1_000_000;
            u64::try_from(refill).unwrap_or(u64::MAX)
        };
        let (capacity, elapsed) = (self.parameters.capacity, now.since(self.settled_at));
        let room = capacity.saturating_sub(self.left).saturating_mul(NANO);
        let is_full = left >= capacity;
        let lost = if is_full { refill(elapsed).saturating_sub(room) } else { 0 };
        let first = lost.saturating_sub(refill(self.rest()));
        self.lose(first, now);
        let taken = self.owed().min(left);
        self.due -= i128::from(taken) * i128::from(NANO);
        self.lose(lost - first, now);
        (self.left, self.settled_at) = (left - taken, now);
        taken
    }

    /// Whether the last acquisition was so recent that an Envoy may be about to join the counter.
    pub(super) fn was_acquired_since(&self, now: Timestamp, time: Ticks) -> bool {
        now.since(self.settled_at) < time
    }

    /// Units that were used but not available in the counter.
    pub(super) fn owed(&self) -> u64 {
        u64::try_from(self.due.max(0) / i128::from(NANO)).unwrap_or(u64::MAX)
    }

    /// Records whether a request was denied, and the horizon to plan for.
    pub(super) fn observe(&mut self, pressure: Pressure, horizon: Ticks, now: Timestamp) {
        self.horizon = horizon;
        if pressure == Pressure::Denied {
            self.pressed_until = now + horizon;
        }
    }

    /// The total that may be assigned. Until the horizon it is at most the units left plus those that come back by
    /// then. It is assigned as tokens where tokens can be used. If an Envoy denies requests, its bucket is empty, so
    /// half of the total is assigned as a faster rate. Owed units are paid back over half of the horizon.
    pub(super) fn budget(&self, now: Timestamp) -> Share {
        let seconds = self.horizon.ceil_seconds().max(1);
        let refill = self.parameters.refill(self.horizon);
        let smoothing = refill / SMOOTHING / NANO + u64::from(refill > 0);
        let over = |units: u64| u64::try_from(u128::from(units) * u128::from(NANO) / u128::from(seconds));
        let owed = self.owed().saturating_sub(smoothing);
        if owed > 0 {
            let rate = refill.saturating_sub(over(owed.saturating_mul(2)).unwrap_or(u64::MAX));
            let tokens = if rate > 0 { smoothing.min(self.parameters.capacity) } else { 0 };
            return self.in_steps(Share { rate, tokens });
        }
        let good = self.left.saturating_sub(self.owed());
        let faster = if self.pressed_until > now { good / 2 } else { 0 };
        let tokens = (good - faster).max(smoothing).min(self.parameters.capacity);
        self.in_steps(Share { rate: refill.saturating_add(over(faster).unwrap_or(0)), tokens })
    }

    fn in_steps(&self, share: Share) -> Share {
        let down =
            |number: u64, step: u64| if step > 1 && number > step { number - number % step } else { number };
        Share {
            rate: down(share.rate, self.parameters.rate / RATE_STEPS),
            tokens: down(share.tokens, self.parameters.capacity / TOKEN_STEPS),
        }
    }

    /// The whole of which shares are parts: the assigned rate, or the usual rate of a window that currently assigns
    /// none.
    pub(super) fn whole(&self, budget: Share) -> Nano {
        if budget.rate > 0 { budget.rate } else { self.parameters.rate.max(1) }
    }
}
