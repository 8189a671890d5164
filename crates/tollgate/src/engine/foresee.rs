//! Forecasts a decision and its wait without a charge. It is for callers that cannot wait for long, and that must not
//! take a slot in a queue to find out how long the wait is.

use std::slice;

use super::{Engine, Made};
use crate::algorithm::leaky_bucket;
use crate::decision::Decision;
use crate::quota::Quota;
use crate::request::CheckRequest;
use crate::store::Store;
use crate::time::{Ticks, Timestamp};

impl<S: Store> Engine<S> {
    /// Whether any limit makes requests wait.
    #[must_use]
    pub fn shapes(&self) -> bool {
        let live = self.live.load();
        let mut quotas = live.policy.limits().iter().flat_map(|limit| limit.quotas());
        quotas.any(|quota| matches!(quota, Quota::LeakyBucket(bucket) if bucket.queue() > 0))
    }

    /// As [`Engine::peek`], with the wait that the request itself would get now, or up to a tick more.
    pub async fn foresee(&self, request: &CheckRequest<'_>, now: Timestamp) -> Decision {
        let look = request.clone().looking();
        let Made { live, rulings, decision, .. } = self.decide(slice::from_ref(&look), now).await;
        let matches = rulings.matches(&live.policy, slice::from_ref(request)).unwrap_or_default();
        decision.foreseen(|limit, quota, empty_after| {
            let Quota::LeakyBucket(bucket) = quota else { return Ticks::ZERO };
            let matched = matches.iter().find(|matched| matched.limit == limit);
            matched
                .map_or(Ticks::ZERO, |matched| leaky_bucket::wait_behind(bucket, empty_after, matched.cost))
        })
    }
}
