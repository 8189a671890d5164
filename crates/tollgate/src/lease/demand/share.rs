//! The fair share of a node while all nodes together demand more than a counter has.
//!
//! Each unit that a node is asked for is a claim. A claim has the same value on every node: the units that
//! refill in a second plus the available ones, divided by the fleet's demand per second. A node whose claims
//! are worth less than a unit waits until they are worth one. A node that received more than its share waits
//! until it has claims for it.

use super::{GUARANTEED_MAX, HORIZON, LeaseRequest, LocalDemand, SHARE_SCALE, unit_interval};
use crate::algorithm::sliding_window::Estimate;
use crate::quota::Quota;
use crate::time::{Ticks, Timestamp};

/// The time in which the available units would be used up without refill.
const DRAIN_TIME: Ticks = Ticks::from_millis(100);
/// The bounds of the pause before a node asks again for units that it has claims for.
const PAUSE_MAX: Ticks = Ticks::from_millis(25);
const PAUSE_MIN: Ticks = Ticks::from_millis(5);
/// The shortest pause of a node that has claims for more than it may hold.
const PAUSE_SHORT_MIN: Ticks = Ticks::from_millis(1);
/// Smaller limits are shared first come, first served.
const UNITS_MIN: u64 = 20;

/// How units of a quota refill.
#[derive(Clone, Copy)]
struct RefillPace {
    /// Units per second.
    rate: u128,
    /// Units that are given out each second however many are available: slightly less than refill, so that
    /// some stay available for the next node.
    steady: u128,
    /// How often per second the available units are given out.
    gain: u128,
    pause: Ticks,
    /// For quotas that refill many units at once: the time within which that happens.
    refills_within: Option<Ticks>,
}

impl RefillPace {
    /// None where so few units refill that a share stays below one unit for long.
    fn of(quota: &Quota) -> Option<Self> {
        let rate = quota.rate().filter(|_| quota.capacity() >= UNITS_MIN)?;
        let period = u128::from(rate.period().as_micros().max(1));
        let second = u128::from(HORIZON.as_micros());
        let per_second = u128::from(rate.units()) * second / period;
        if per_second < u128::from(UNITS_MIN) && !matches!(quota, Quota::FixedWindow(_)) {
            return None;
        }
        // A counter that fills fast must be drained faster.
        let fill_time = u128::from(quota.capacity()) * period / u128::from(rate.units().max(1));
        let fill_time = Ticks::from_micros(u64::try_from(fill_time / 10).unwrap_or(u64::MAX));
        let (refills_within, drain_max) = match quota {
            Quota::FixedWindow(window) => (Some(window.period()), DRAIN_TIME),
            // Units taken late in a sub-window that counts as a whole refill late.
            Quota::SlidingWindow(window) if window.estimate() == Estimate::Strict => {
                (Some(window.sub_window()), Ticks::from_micros(window.sub_window().as_micros() / 6))
            }
            _ => (None, DRAIN_TIME),
        };
        let drain_time = fill_time.min(drain_max).clamp(PAUSE_MIN + PAUSE_MIN, DRAIN_TIME).as_micros();
        Some(Self {
            rate: per_second,
            steady: per_second * 9 / 10,
            refills_within,
            gain: second / u128::from(drain_time),
            pause: Ticks::from_micros(drain_time / 4).clamp(PAUSE_MIN, PAUSE_MAX),
        })
    }

    /// The value of all claims of one second, in units.
    fn value(&self, available: u64) -> u128 {
        self.steady + self.gain * u128::from(available)
    }
}

/// The input to a lease request.
#[derive(Clone, Copy)]
pub(crate) struct Need<'q> {
    pub(crate) quota: &'q Quota,
    pub(crate) cost: u64,
    /// The units that the node was asked for since the last request.
    pub(crate) asked: u64,
    /// The units to acquire if enough are available, and the maximum that the node may hold.
    pub(crate) wanted: u64,
    pub(crate) units_max: u64,
    pub(crate) nodes: u32,
}

/// The result of a renewal.
#[derive(Clone, Copy)]
pub(crate) struct Received<'q> {
    pub(crate) quota: &'q Quota,
    /// The units taken, and those still available.
    pub(crate) taken: u64,
    pub(crate) remaining: u64,
    /// Whether all requested units were taken.
    pub(crate) is_complete: bool,
    /// The demand of all nodes per second, if it is known.
    pub(crate) fleet_demand: Option<u64>,
    /// When the request was sent, and how long until nothing counted so far counts.
    pub(crate) sent: Timestamp,
    pub(crate) reset_after: Ticks,
}

/// The claims of this node on one key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FairShare {
    /// Units that were asked for, in parts of [`SHARE_SCALE`], less the claims that received units were
    /// worth.
    claims: i128,
    fleet_demand: Option<u64>,
    available: u64,
    is_scarce: bool,
}

impl FairShare {
    /// The demand of all nodes, if it exceeds what the counter can give.
    fn excess_demand(&self, pace: &RefillPace) -> Option<u128> {
        self.fleet_demand.map(u128::from).filter(|&demand| pace.value(self.available) < demand)
    }

    /// Builds the next request to the store.
    pub(crate) fn request(&mut self, need: Need<'_>, demand: &LocalDemand, ttl: Ticks) -> LeaseRequest {
        let Need { quota, cost, asked, wanted, units_max, nodes } = need;
        let asked_scaled = i128::from(asked) * i128::from(SHARE_SCALE);
        let Some(pace) = RefillPace::of(quota) else { return LeaseRequest::equal_share(nodes, wanted) };
        let Some(fleet_demand) = self.excess_demand(&pace) else {
            self.claims = asked_scaled;
            // Shortly before the counter becomes scarce, a node acquires only what it needs for two pauses.
            let is_short = self.fleet_demand.is_some_and(|demand| u128::from(demand) * 10 > pace.rate * 9);
            let soon = demand.within(ttl, pace.pause + pace.pause) / u128::from(SHARE_SCALE);
            let soon = u64::try_from(soon).unwrap_or(u64::MAX).max(1);
            let wanted = if is_short { wanted.min(soon) } else { wanted };
            let demand = if wanted > 0 || self.is_scarce { asked } else { 0 };
            return LeaseRequest { demand, ..LeaseRequest::equal_share(nodes, wanted) };
        };
        // A node that was idle for long has no more claims than one that asks all the time, or than a few
        // units are worth.
        let claims_per_unit = claims_per_unit(&pace, fleet_demand, self.available);
        let recent = demand.within(ttl, pace.pause + pace.pause);
        let claims_max = if self.available == 0 && pace.refills_within.is_some() {
            recent
        } else {
            recent.max(4 * claims_per_unit)
        };
        let claims_max = i128::try_from(claims_max).unwrap_or(i128::MAX);
        self.claims = (self.claims + asked_scaled).min(claims_max);
        let claims = u128::try_from(self.claims).unwrap_or(0);
        let number = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        LeaseRequest {
            // A node never receives more than it was asked for.
            units: units_max.min(number(claims.div_ceil(u128::from(SHARE_SCALE))).saturating_sub(cost)),
            guaranteed: number(claims * pace.steady / fleet_demand)
                .saturating_sub(cost.saturating_mul(SHARE_SCALE))
                .min(GUARANTEED_MAX),
            share: number(claims.min(recent) * pace.gain / fleet_demand).min(SHARE_SCALE),
            demand: asked,
        }
    }

    /// Records what a renewal brought. Returns how long it should last, if demand exceeds what is available.
    pub(crate) fn record(
        &mut self,
        received: Received<'_>,
        demand: &LocalDemand,
        ttl: Ticks,
    ) -> Option<Ticks> {
        let Received { quota, taken, remaining, is_complete, fleet_demand, sent, reset_after } = received;
        // The first report after a quiet time gets a sum that is too low, so it is averaged with the one
        // before.
        self.fleet_demand =
            fleet_demand.map(|latest| self.fleet_demand.map_or(latest, |before| before.midpoint(latest)));
        self.available = remaining.saturating_add(taken);
        self.is_scarce = remaining.saturating_mul(2) < quota.capacity();
        let pace = RefillPace::of(quota)?;
        let fleet_demand = self.excess_demand(&pace)?;
        let claims_per_unit = claims_per_unit(&pace, fleet_demand, self.available);
        let signed = |parts: u128| i128::try_from(parts).unwrap_or(i128::MAX);
        self.claims = self.claims.saturating_sub(signed(claims_per_unit.saturating_mul(u128::from(taken))));
        self.claims = self.claims.max(-signed(demand.within(ttl, HORIZON)));
        let missing = signed(claims_per_unit) - self.claims;
        if missing <= 0 {
            // Claims remain beyond what the node may hold, so it asks again sooner.
            let left = u128::try_from(self.claims).unwrap_or(0) / claims_per_unit.max(1);
            let whole = u128::from(taken) + left;
            let pause = u128::from(pace.pause.as_micros()) * u128::from(taken) / whole.max(1);
            let pause = Ticks::from_micros(u64::try_from(pause).unwrap_or(u64::MAX)).max(PAUSE_SHORT_MIN);
            return Some(if is_complete { pause } else { jittered(pace.pause, sent) });
        }
        let per_second = demand.within(ttl, HORIZON).max(1);
        let time = u128::try_from(missing).unwrap_or(0) * u128::from(HORIZON.as_micros()) / per_second;
        let time = Ticks::from_micros(u64::try_from(time).unwrap_or(u64::MAX));
        // A node that received too much of a window waits for the next window at most.
        let wait_max = pace.refills_within.map_or(Ticks::MAX, |within| within.min(reset_after));
        Some(time.max(jittered(pace.pause, sent)).min(wait_max))
    }

    /// How long to wait after the counter was found empty.
    pub(crate) fn pause(&self, quota: &Quota, size: u64) -> Ticks {
        match (self.fleet_demand.and(RefillPace::of(quota)), unit_interval(quota)) {
            (Some(pace), _) => pace.pause,
            // A busy node would ask for each unit as it refills. It asks once for several instead.
            (None, Some(interval)) if size >= 2 => {
                Ticks::from_micros(interval.as_micros().saturating_mul(size))
            }
            _ => Ticks::ZERO,
        }
    }
}

/// The claims that one unit is worth, in parts of [`SHARE_SCALE`].
fn claims_per_unit(pace: &RefillPace, fleet_demand: u128, available: u64) -> u128 {
    u128::from(SHARE_SCALE) * fleet_demand / pace.value(available).max(1)
}

/// Jitters a time by up to a quarter, so that no node always comes just before another.
fn jittered(time: Ticks, at: Timestamp) -> Ticks {
    let mixed = at.unix_micros().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    Ticks::from_micros(time.as_micros() * 3 / 4 + time.as_micros() / 2 * mixed / 256)
}
