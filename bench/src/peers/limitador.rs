//! limitador in memory: one limit with one variable. The context is made for each request, as it must be for a new caller.

use std::collections::HashMap;
use std::hint::black_box;

use limitador::RateLimiter;
use limitador::limit::{Context, Limit, Namespace};

use crate::Failure;
use crate::contender::Contender;
use crate::quota::Quota;
use crate::workload::Requests;

const NAMESPACE: &str = "api";

/// A limiter with a single limit, counted by `user`.
pub struct Limitador {
    limiter: RateLimiter,
    namespace: Namespace,
}

impl Limitador {
    /// One that keeps so many counters.
    ///
    /// # Errors
    /// When limitador refuses the variable's name.
    pub fn new(quota: Quota, keys: usize) -> Result<Self, Failure> {
        // Its cache evicts when it is full; twice the room keeps all the keys live.
        let limiter = RateLimiter::new(2 * keys as u64 + 1_000);
        let user = "user".try_into().map_err(|error| format!("limitador: {error}"))?;
        limiter.add_limit(Limit::new(NAMESPACE, quota.burst.into(), quota.window().as_secs(), [], [user]));
        Ok(Self { limiter, namespace: NAMESPACE.into() })
    }
}

impl Contender for Limitador {
    fn decide(&self, requests: Requests<'_>) -> usize {
        let mut admitted = 0;
        for key in requests.keys {
            let context = Context::from(HashMap::from([("user".to_owned(), key.clone())]));
            // An error is neither an admission nor a denial; the check before the run would have shown it.
            let answer = self.limiter.check_rate_limited_and_update(&self.namespace, &context, 1);
            admitted += usize::from(black_box(answer).is_ok_and(|result| !result.limited));
        }
        admitted
    }

    fn chunk(&self) -> usize {
        64
    }
}
