//! How many units to draw: by how often a key was asked about lately.

use crate::quota::Quota;
use crate::time::{Ticks, Timestamp};

/// Parts of a unit that are told apart.
const PARTS: u128 = super::crowd::PARTS as u128;

/// How often a key is asked about, as a running mean that forgets what is older than a lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Units in the life of a lease, in [`PARTS`].
    mean: u128,
    looked: Timestamp,
}

impl Demand {
    pub(super) const fn new(now: Timestamp) -> Self {
        Self { mean: 0, looked: now }
    }

    /// When it was last looked at.
    pub(super) const fn looked(&self) -> Timestamp {
        self.looked
    }

    /// The units that are asked for in a time, in parts, given the life of a lease.
    pub(super) fn within(&self, ttl: Ticks, time: Ticks) -> u128 {
        self.mean * u128::from(time.as_micros()) / u128::from(ttl.as_micros().max(1))
    }

    /// The units that will be asked for in the life of a lease, given those that were asked for since the last look.
    pub(super) fn size(&mut self, asked: u64, ttl: Ticks, now: Timestamp) -> u64 {
        let passed = u128::from(now.since(self.looked).as_micros());
        let life = u128::from(ttl.as_micros());
        if let Some(lately) = (u128::from(asked) * PARTS * life).checked_div(passed) {
            // A short look says little: it weighs by how long it was. The first is all that there is, and counts as no shorter than a tenth
            // of a lease.
            self.mean = match self.mean {
                0 => u128::from(asked) * PARTS * life / passed.max(life / 10).max(1),
                mean => (mean * life + lately * passed) / (passed + life),
            };
            self.looked = now;
        }
        u64::try_from(self.mean / PARTS).unwrap_or(u64::MAX)
    }
}

/// How long one unit takes to come back, where units come one by one.
pub(super) fn unit_interval(quota: &Quota) -> Option<Ticks> {
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

    /// A steady key's size is what it asks for in the life of a lease; a quiet one's is less than two.
    #[test]
    fn sizes_follow_demand() {
        let ttl = Ticks::from_millis(250);
        let mut demand = Demand::new(Timestamp::default());
        let mut now = Timestamp::default();
        let mut size = 0;
        for _ in 0..50 {
            now = now + Ticks::from_millis(100);
            size = demand.size(40, ttl, now);
        }
        assert!((99..=100).contains(&size), "{size}");
        for _ in 0..20 {
            now = now + Ticks::from_secs(1);
            size = demand.size(1, ttl, now);
        }
        assert_eq!(size, 0);
    }
}
