//! governor: keyed in its default `DashMap`, by text or by number, and the direct limiter of one cell; its default clock.

use std::hint::black_box;
use std::num::NonZeroU32;

use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, RateLimiter};

use crate::Failure;
use crate::contender::Contender;
use crate::quota::Quota;
use crate::workload::Requests;

/// Keyed by `K`.
#[derive(Debug)]
pub struct Keyed<K: Clone + Eq + std::hash::Hash> {
    limiter: DefaultKeyedRateLimiter<K>,
}

impl<K: Clone + Eq + std::hash::Hash> Keyed<K> {
    /// An empty one; it grows as it learns keys.
    ///
    /// # Errors
    /// When the quota is not one of governor's.
    pub fn new(quota: Quota) -> Result<Self, Failure> {
        Ok(Self { limiter: RateLimiter::dashmap(translated(quota)?) })
    }
}

impl Contender for Keyed<String> {
    fn decide(&self, requests: Requests<'_>) -> usize {
        let mut admitted = 0;
        for key in requests.keys {
            admitted += usize::from(black_box(self.limiter.check_key(key)).is_ok());
        }
        admitted
    }
}

impl Contender for Keyed<u64> {
    fn decide(&self, requests: Requests<'_>) -> usize {
        let mut admitted = 0;
        for id in requests.ids {
            admitted += usize::from(black_box(self.limiter.check_key(id)).is_ok());
        }
        admitted
    }
}

/// One cell, no key.
#[derive(Debug)]
pub struct Direct {
    limiter: DefaultDirectRateLimiter,
}

impl Direct {
    /// A fresh one.
    ///
    /// # Errors
    /// When the quota is not one of governor's.
    pub fn new(quota: Quota) -> Result<Self, Failure> {
        Ok(Self { limiter: RateLimiter::direct(translated(quota)?) })
    }
}

impl Contender for Direct {
    fn decide(&self, requests: Requests<'_>) -> usize {
        let mut admitted = 0;
        for _ in requests.keys {
            admitted += usize::from(black_box(self.limiter.check()).is_ok());
        }
        admitted
    }
}

/// The quota in governor's words.
pub(crate) fn translated(quota: Quota) -> Result<governor::Quota, Failure> {
    let burst = NonZeroU32::new(quota.burst).ok_or("governor: a burst of zero")?;
    let every = governor::Quota::with_period(quota.interval()).ok_or("governor: an interval of zero")?;
    Ok(every.allow_burst(burst))
}
