//! What is due to a node of a counter that has less than all are asked for: its part of the demand.
//!
//! Each unit that a node is asked for is a claim. How many units a claim is worth is the same for all nodes: what comes back in a second
//! and what is there, over what all are asked for in a second. A node that has claims for less than a unit waits until it has; one that
//! got more than was due to it waits until it would have been.

use super::crowd::{DUE_MAX, HORIZON, PARTS, Want};
use super::size::{Demand, unit_interval};
use crate::algorithm::sliding_window::Estimate;
use crate::quota::Quota;
use crate::time::{Ticks, Timestamp};

/// How soon what is there would be used up if nothing came back.
const LEVEL: Ticks = Ticks::from_millis(100);
/// The most and the least that a node waits before it asks again for units that it has claims for.
const PAUSE: Ticks = Ticks::from_millis(25);
const PAUSE_MIN: Ticks = Ticks::from_millis(5);
/// The least where it has claims for more than it may hold.
const SOONEST: Ticks = Ticks::from_millis(1);
/// Limits of less are shared as they are asked.
const UNITS_MIN: u64 = 20;

/// How units of a quota come back.
#[derive(Clone, Copy)]
struct Pace {
    /// Units a second.
    rate: u128,
    /// Units that are given away each second whatever is there: a little less than come, so that some are there for whoever asks next.
    /// None where they come back all at once.
    steady: u128,
    /// How many times a second what is there is given away.
    gain: u128,
    pause: Ticks,
    /// Where units come back many at once, within which time that may be.
    comes_within: Option<Ticks>,
}

impl Pace {
    /// None where so little comes back that a share of it is no unit for long.
    fn of(quota: &Quota) -> Option<Self> {
        let rate = quota.rate().filter(|_| quota.capacity() >= UNITS_MIN)?;
        let period = u128::from(rate.period().as_micros().max(1));
        let second = u128::from(HORIZON.as_micros());
        let a_second = u128::from(rate.units()) * second / period;
        if a_second < u128::from(UNITS_MIN) && !matches!(quota, Quota::FixedWindow(_)) {
            return None;
        }
        // What fills soon must be emptied sooner.
        let filled = u128::from(quota.capacity()) * period / u128::from(rate.units().max(1));
        let filled = Ticks::from_micros(u64::try_from(filled / 10).unwrap_or(u64::MAX));
        let (comes_within, most) = match quota {
            Quota::FixedWindow(window) => (Some(window.period()), LEVEL),
            // What is taken late in a sub-window that counts whole comes back late.
            Quota::SlidingWindow(window) if window.estimate() == Estimate::Strict => {
                (Some(window.sub_window()), Ticks::from_micros(window.sub_window().as_micros() / 6))
            }
            _ => (None, LEVEL),
        };
        let level = filled.min(most).clamp(PAUSE_MIN + PAUSE_MIN, LEVEL).as_micros();
        Some(Self {
            rate: a_second,
            steady: a_second * 9 / 10,
            comes_within,
            gain: second / u128::from(level),
            pause: Ticks::from_micros(level / 4).clamp(PAUSE_MIN, PAUSE),
        })
    }

    /// What all claims of a second are worth.
    fn worth(&self, there: u64) -> u128 {
        self.steady + self.gain * u128::from(there)
    }
}

/// A draw to be made.
#[derive(Clone, Copy)]
pub(super) struct Draw<'q> {
    pub(super) quota: &'q Quota,
    pub(super) cost: u64,
    /// The units that were asked for since the last one.
    pub(super) asked: u64,
    /// The units that are wanted where there are enough, and those that may be held.
    pub(super) wanted: u64,
    pub(super) most: u64,
    pub(super) nodes: u32,
}

/// What a draw brought.
#[derive(Clone, Copy)]
pub(super) struct Brought<'q> {
    pub(super) quota: &'q Quota,
    /// The units that were taken, and those that are there still.
    pub(super) taken: u64,
    pub(super) remaining: u64,
    /// Whether as many were taken as were wanted.
    pub(super) is_all: bool,
    /// What all nodes are asked for in a second, if that is known.
    pub(super) crowd: Option<u64>,
    /// When it was asked for, and how long it is until nothing of what was counted counts.
    pub(super) sent: Timestamp,
    pub(super) reset_after: Ticks,
}

/// A node's claims of a key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    /// Units that were asked for, in [`PARTS`], less those that units were given for.
    claims: i128,
    crowd: Option<u64>,
    there: u64,
    is_tight: bool,
}

impl Share {
    /// What to ask the store for.
    pub(super) fn want(&mut self, draw: Draw<'_>, demand: &Demand, ttl: Ticks) -> Want {
        let Draw { quota, cost, asked, wanted, most, nodes } = draw;
        let asked_parts = i128::from(asked) * i128::from(PARTS);
        let Some(pace) = Pace::of(quota) else { return Want::among(nodes, wanted) };
        let Some(crowd) = self.crowd.map(u128::from).filter(|&crowd| pace.worth(self.there) < crowd) else {
            self.claims = asked_parts;
            // Where it will soon be scarce nobody holds more than he would then.
            let is_short = self.crowd.is_some_and(|crowd| u128::from(crowd) * 10 > pace.rate * 9);
            let soon = demand.within(ttl, pace.pause + pace.pause) / u128::from(PARTS);
            let soon = u64::try_from(soon).unwrap_or(u64::MAX).max(1);
            let wanted = if is_short { wanted.min(soon) } else { wanted };
            let report = if wanted > 0 || self.is_tight { asked } else { 0 };
            return Want { report, ..Want::among(nodes, wanted) };
        };
        // Who comes after a long time has no more claims than who comes again and again, or than for a few units.
        let price = price(&pace, crowd, self.there);
        let lately = demand.within(ttl, pace.pause + pace.pause);
        let most_claims =
            if self.there == 0 && pace.comes_within.is_some() { lately } else { lately.max(4 * price) };
        let most_claims = i128::try_from(most_claims).unwrap_or(i128::MAX);
        self.claims = (self.claims + asked_parts).min(most_claims);
        let claims = u128::try_from(self.claims).unwrap_or(0);
        let number = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        Want {
            // Nobody gets more than he was asked for.
            units: most.min(number(claims.div_ceil(u128::from(PARTS))).saturating_sub(cost)),
            due: number(claims * pace.steady / crowd).saturating_sub(cost.saturating_mul(PARTS)).min(DUE_MAX),
            part: number(claims.min(lately) * pace.gain / crowd).min(PARTS),
            report: asked,
        }
    }

    /// Notes what a draw brought. Tells for how long it should be enough, if less is there than all are asked for.
    pub(super) fn brought(&mut self, brought: Brought<'_>, demand: &Demand, ttl: Ticks) -> Option<Ticks> {
        let Brought { quota, taken, remaining, is_all, crowd, sent, reset_after } = brought;
        // Who comes first after a time in which nobody had anything to tell hears less than there is.
        self.crowd = crowd.map(|crowd| self.crowd.map_or(crowd, |before| before.midpoint(crowd)));
        self.there = remaining.saturating_add(taken);
        self.is_tight = remaining.saturating_mul(2) < quota.capacity();
        let pace = Pace::of(quota)?;
        let crowd = self.crowd.map(u128::from).filter(|&crowd| pace.worth(self.there) < crowd)?;
        let price = price(&pace, crowd, self.there);
        let signed = |parts: u128| i128::try_from(parts).unwrap_or(i128::MAX);
        self.claims = self.claims.saturating_sub(signed(price.saturating_mul(u128::from(taken))));
        self.claims = self.claims.max(-signed(demand.within(ttl, HORIZON)));
        let lacking = signed(price) - self.claims;
        if lacking <= 0 {
            // It has claims for more units than it may hold: it comes the sooner.
            let left = u128::try_from(self.claims).unwrap_or(0) / price.max(1);
            let whole = u128::from(taken) + left;
            let sooner = u128::from(pace.pause.as_micros()) * u128::from(taken) / whole.max(1);
            let sooner = Ticks::from_micros(u64::try_from(sooner).unwrap_or(u64::MAX)).max(SOONEST);
            return Some(if is_all { sooner } else { uneven(pace.pause, sent) });
        }
        let a_second = demand.within(ttl, HORIZON).max(1);
        let time = u128::try_from(lacking).unwrap_or(0) * u128::from(HORIZON.as_micros()) / a_second;
        let time = Ticks::from_micros(u64::try_from(time).unwrap_or(u64::MAX));
        // Who has had too much of a window waits for the next at most.
        let most = pace.comes_within.map_or(Ticks::MAX, |within| within.min(reset_after));
        Some(time.max(uneven(pace.pause, sent)).min(most))
    }

    /// How long to wait where nothing was there.
    pub(super) fn pause(&self, quota: &Quota, size: u64) -> Ticks {
        match (self.crowd.and(Pace::of(quota)), unit_interval(quota)) {
            (Some(pace), _) => pace.pause,
            // Who is asked often would ask for each unit as it comes: better once for several.
            (None, Some(interval)) if size >= 2 => {
                Ticks::from_micros(interval.as_micros().saturating_mul(size))
            }
            _ => Ticks::ZERO,
        }
    }
}

/// The claims for one unit, in parts.
fn price(pace: &Pace, crowd: u128, there: u64) -> u128 {
    u128::from(PARTS) * crowd / pace.worth(there).max(1)
}

/// A time that is a quarter longer or shorter, as it comes, so that no node always comes just before another.
fn uneven(time: Ticks, at: Timestamp) -> Ticks {
    let mixed = at.unix_micros().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    Ticks::from_micros(time.as_micros() * 3 / 4 + time.as_micros() / 2 * mixed / 256)
}
