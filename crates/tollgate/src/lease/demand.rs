//! Demand for a key: what this node is asked for ([`LocalDemand`]) and what all nodes are asked for together
//! ([`FleetDemand`]). Each node reports its demand with its lease requests. Demand is additive, so the store keeps
//! one small value per key, however many nodes there are.

pub(super) mod share;

use crate::quota::Quota;
use crate::time::{Ticks, Timestamp};

/// Shares and fractions of a unit are counted in parts of this whole.
pub const SHARE_SCALE: u64 = 1 << 16;
/// The period that demand is summed over.
pub(super) const HORIZON: Ticks = Ticks::from_secs(1);
/// The minimum age of a sum before it is used.
const AGE_MIN: Ticks = Ticks::from_millis(250);
/// The largest count. Larger sums would not be exact in a double.
const COUNT_MAX: u64 = u32::MAX as u64;

/// The largest [`LeaseRequest::guaranteed`].
pub(super) const GUARANTEED_MAX: u64 = 1 << 40;

/// The units that a node asks a counter for beyond the charge, and the demand that it reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The maximum number of units to lend.
    pub units: u64,
    /// The node's entitlement however many units are available, in parts of a unit ([`SHARE_SCALE`]).
    pub guaranteed: u64,
    /// The node's share of the available units, in parts of [`SHARE_SCALE`].
    pub share: u64,
    /// The units that the node was asked for since its last report.
    pub demand: u64,
}

impl LeaseRequest {
    /// Requests up to `units`, within an equal share among `nodes` of what is available.
    #[must_use]
    pub(crate) fn equal_share(nodes: u32, units: u64) -> Self {
        Self { units, guaranteed: 0, share: SHARE_SCALE.div_ceil(u64::from(nodes.max(1))), demand: 0 }
    }

    /// Whether it neither asks for units nor reports demand.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.units == 0 && self.demand == 0
    }

    /// The units to lend if `remaining` are available.
    #[must_use]
    pub fn grant(&self, remaining: u64) -> u64 {
        // Two steps, each of which is exact in a double too.
        let (many, few) = (remaining / SHARE_SCALE, remaining % SHARE_SCALE);
        let entitled = (many * self.share)
            .saturating_add((few * self.share + self.guaranteed.min(GUARANTEED_MAX)) / SHARE_SCALE);
        entitled.min(remaining).min(self.units)
    }
}

/// Whether a counter is more than half used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scarcity {
    Ample,
    Scarce,
}

impl Scarcity {
    pub(super) const fn of(remaining: u64, capacity: u64) -> Self {
        if remaining.saturating_mul(2) < capacity { Self::Scarce } else { Self::Ample }
    }
}

/// The demand of all nodes for one key, summed over this second and the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FleetDemand {
    since: Timestamp,
    second: u64,
    current: u64,
    previous: u64,
}

impl FleetDemand {
    /// Adds a report to the sum. Without a recent sum, a new one starts only if the counter is scarce.
    pub(super) fn with(known: Option<Self>, report: u64, scarcity: Scarcity, now: Timestamp) -> Option<Self> {
        let second = now.unix_micros() / HORIZON.as_micros();
        match known.filter(|known| second < known.second + 2) {
            Some(known) if second > known.second => {
                Some(Self { second, current: report.min(COUNT_MAX), previous: known.current, ..known })
            }
            Some(known) => Some(Self { current: (known.current + report).min(COUNT_MAX), ..known }),
            // The first report is about the time before the sum started, so it is not counted.
            None => {
                (scarcity == Scarcity::Scarce).then_some(Self { since: now, second, current: 0, previous: 0 })
            }
        }
    }

    /// The demand per second, once the sum is old enough.
    pub(super) fn per_second(&self, now: Timestamp) -> Option<u64> {
        let (age, whole) = (now.since(self.since), HORIZON.as_micros());
        let demand = if age < AGE_MIN {
            0
        } else if age < HORIZON {
            (self.current + self.previous) * whole / age.as_micros()
        } else {
            let second_start = self.second * whole;
            let passed = now.unix_micros().saturating_sub(second_start).min(whole);
            // The previous second may have been counted only in part.
            let counted = second_start.saturating_sub(self.since.unix_micros()).clamp(1, whole);
            self.previous * (whole - passed) / counted + self.current
        };
        (demand > 0).then_some(demand)
    }
}

/// The demand for one key on this node: a running mean that forgets what is older than a lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalDemand {
    /// Units per lease lifetime, in parts of [`SHARE_SCALE`].
    mean: u128,
    updated_at: Timestamp,
}

impl LocalDemand {
    pub(super) const fn new(now: Timestamp) -> Self {
        Self { mean: 0, updated_at: now }
    }

    pub(super) const fn updated_at(&self) -> Timestamp {
        self.updated_at
    }

    /// The units asked for within `time`, in parts of [`SHARE_SCALE`], given the lifetime of a lease.
    pub(super) fn within(&self, ttl: Ticks, time: Ticks) -> u128 {
        self.mean * u128::from(time.as_micros()) / u128::from(ttl.as_micros().max(1))
    }

    /// Adds the units asked for since the last update. Returns the units expected in the lifetime of a lease.
    pub(super) fn update(&mut self, asked: u64, ttl: Ticks, now: Timestamp) -> u64 {
        let scale = u128::from(SHARE_SCALE);
        let passed = u128::from(now.since(self.updated_at).as_micros());
        let life = u128::from(ttl.as_micros());
        if let Some(recent) = (u128::from(asked) * scale * life).checked_div(passed) {
            // An observation is weighted by its length. The first one stands alone, and counts as at least a tenth of
            // a lease long.
            self.mean = match self.mean {
                0 => u128::from(asked) * scale * life / passed.max(life / 10).max(1),
                mean => (mean * life + recent * passed) / (passed + life),
            };
            self.updated_at = now;
        }
        u64::try_from(self.mean / scale).unwrap_or(u64::MAX)
    }
}

/// The time in which one unit refills, for quotas that refill unit by unit.
fn unit_interval(quota: &Quota) -> Option<Ticks> {
    let rate = match quota {
        Quota::TokenBucket(bucket) => bucket.rate(),
        Quota::Gcra(bucket) => bucket.rate(),
        _ => return None,
    };
    Some(Ticks::from_micros(rate.period().as_micros() / rate.units().max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_unix_seconds(1_000);

    /// A steady demand is known within a quarter of a second, and forgotten when the reports stop.
    #[test]
    fn fleet_demand_follows_the_reports() {
        assert_eq!(FleetDemand::with(None, 5, Scarcity::Ample, START), None);
        let mut now = START + Ticks::from_millis(730);
        let mut fleet = FleetDemand::with(None, 50, Scarcity::Scarce, now);
        for step in 1..=500 {
            now = now + Ticks::from_millis(10);
            fleet = FleetDemand::with(fleet, 7, Scarcity::Ample, now);
            let demand = fleet.unwrap().per_second(now);
            if step < 25 {
                assert_eq!(demand, None);
            } else {
                assert!((665..=735).contains(&demand.unwrap()), "{demand:?} after {step} steps");
            }
        }
        let later = now + Ticks::from_secs(2);
        assert_eq!(FleetDemand::with(fleet, 7, Scarcity::Ample, later), None);
    }

    /// A grant is the share plus the guaranteed units, never more than is available or asked for.
    #[test]
    fn grants_are_bounded() {
        let request =
            LeaseRequest { units: 10, guaranteed: SHARE_SCALE * 3 / 2, share: SHARE_SCALE / 4, demand: 0 };
        assert_eq!([0, 1, 2, 8, 100].map(|remaining| request.grant(remaining)), [0, 1, 2, 3, 10]);
        assert_eq!(LeaseRequest::equal_share(3, 1_000).grant(300), 100);
        let all = LeaseRequest { units: u64::MAX, share: SHARE_SCALE, ..LeaseRequest::default() };
        assert_eq!(all.grant(1 << 53), 1 << 53);
    }

    /// The lease of a steady key covers its demand in one lifetime; a quiet key needs fewer than two units.
    #[test]
    fn lease_size_follows_local_demand() {
        let ttl = Ticks::from_millis(250);
        let mut demand = LocalDemand::new(Timestamp::default());
        let mut now = Timestamp::default();
        let mut size = 0;
        for _ in 0..50 {
            now = now + Ticks::from_millis(100);
            size = demand.update(40, ttl, now);
        }
        assert!((99..=100).contains(&size), "{size}");
        for _ in 0..20 {
            now = now + Ticks::from_secs(1);
            size = demand.update(1, ttl, now);
        }
        assert_eq!(size, 0);
    }
}
