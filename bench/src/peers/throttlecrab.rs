//! throttlecrab: a limiter that wants `&mut self`, with the store that its README shows, sized for the keys. Its documentation
//! says to wrap it in a mutex for threads; alone it is locked once for a whole chunk, so that the mutex costs it nothing.

use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use throttlecrab::{PeriodicStore, RateLimiter};

use crate::contender::Contender;
use crate::quota::Quota;
use crate::workload::Requests;

/// One limiter for all threads.
pub struct Throttlecrab {
    limiter: Mutex<RateLimiter<PeriodicStore>>,
    quota: Quota,
}

impl Throttlecrab {
    /// One with room for so many keys.
    #[must_use]
    pub fn new(quota: Quota, keys: usize) -> Self {
        let store = PeriodicStore::builder().capacity(keys).build();
        Self { limiter: Mutex::new(RateLimiter::new(store)), quota }
    }
}

impl Contender for Throttlecrab {
    fn decide(&self, requests: Requests<'_>) -> usize {
        let mut admitted = 0;
        for key in requests.keys {
            let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
            admitted += check(&mut limiter, key, self.quota);
        }
        admitted
    }

    fn decide_alone(&self, requests: Requests<'_>) -> usize {
        let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        let mut admitted = 0;
        for key in requests.keys {
            admitted += check(&mut limiter, key, self.quota);
        }
        admitted
    }
}

#[inline]
#[allow(
    clippy::disallowed_methods,
    reason = "throttlecrab's documentation reads the system clock for each request"
)]
fn check(limiter: &mut RateLimiter<PeriodicStore>, key: &str, quota: Quota) -> usize {
    let (burst, units, seconds) = (quota.burst.into(), quota.units.into(), quota.seconds.into());
    // An error is neither an admission nor a denial; the check before the run would have shown it.
    let answer = black_box(limiter.rate_limit(key, burst, units, seconds, 1, SystemTime::now()));
    usize::from(matches!(answer, Ok((true, _))))
}
