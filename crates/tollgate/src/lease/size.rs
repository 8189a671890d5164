//! How many units to draw: by how often a key was asked about lately.

use crate::quota::Quota;
use crate::time::{Ticks, Timestamp};

/// How often a key is asked about, as a running mean that forgets what is older than a lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Units a second.
    rate: f64,
    looked: Timestamp,
}

impl Demand {
    pub(super) const fn new(now: Timestamp) -> Self {
        Self { rate: 0.0, looked: now }
    }

    /// When it was last looked at.
    pub(super) const fn looked(&self) -> Timestamp {
        self.looked
    }

    /// The units that will be asked for in the life of a lease, given those that were asked for since the last look.
    pub(super) fn size(&mut self, asked: u64, ttl: Ticks, now: Timestamp) -> u64 {
        let passed = now.since(self.looked).as_micros() as f64 / 1e6;
        let life = ttl.as_micros() as f64 / 1e6;
        if passed > 0.0 {
            // A short look says little: it weighs by how long it was. The first is all that there is.
            let weight = if self.rate > 0.0 { passed / (passed + life) } else { 1.0 };
            self.rate += (asked as f64 / passed - self.rate) * weight;
            self.looked = now;
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a mean of what was counted; it saturates"
        )]
        let size = (self.rate * life) as u64;
        size
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
