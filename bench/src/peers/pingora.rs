//! pingora-limits: a count-min sketch of two windows. It estimates, and never below the truth: keys share counters, so
//! the sketch must be wide enough for the traffic. Used as pingora's guide to rate limiting does: `observe`, then compare.

use std::hint::black_box;

use pingora_limits::rate::Rate;

use crate::Failure;
use crate::contender::Contender;
use crate::quota::Quota;
use crate::workload::Requests;

/// Rows of the sketch, pingora's default.
const HASHES: usize = 4;
/// The least columns, pingora's default.
const SLOTS_MIN: usize = 1_024;

/// One sketch for all keys.
pub struct PingoraLimits {
    rate: Rate,
    burst: isize,
}

impl PingoraLimits {
    /// A sketch wide enough that a million quiet keys do not deny each other.
    ///
    /// # Errors
    /// When the burst does not fit its counters.
    pub fn new(quota: Quota, keys: usize) -> Result<Self, Failure> {
        let slots = (keys / 8).next_power_of_two().max(SLOTS_MIN);
        let rate = Rate::new_with_estimator_config(quota.window(), HASHES, slots);
        Ok(Self { rate, burst: isize::try_from(quota.burst)? })
    }
}

impl Contender for PingoraLimits {
    fn decide(&self, requests: Requests<'_>) -> usize {
        let mut admitted = 0;
        for key in requests.keys {
            admitted += usize::from(black_box(self.rate.observe(key, 1)) <= self.burst);
        }
        admitted
    }
}
