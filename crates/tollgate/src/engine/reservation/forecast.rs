//! Forecasts a decision and its wait without a charge. It is for callers that cannot wait for long, and that must not
//! take a slot in a queue to find out how long the wait is.

use super::Reservations;
use crate::algorithm::leaky_bucket;
use crate::decision::Decision;
use crate::quota::Quota;
use crate::request::CheckRequest;
use crate::store::Store;
use crate::time::{Ticks, Timestamp};

impl<S: Store> Reservations<'_, S> {
    /// The decision that the request would get, without a charge, with its wait or up to a tick more.
    pub async fn forecast(self, request: &CheckRequest<'_>, now: Timestamp) -> Decision {
        let mut prepared = match self.engine.prepare(request, now.decidable()) {
            Ok(prepared) => prepared,
            Err(decision) => return *decision,
        };
        let costs = prepared.take_costs();
        let decision = self.engine.decide(&mut prepared, &request.clone().looking(), now).await;
        decision.foreseen(|limit, quota, empty_after| {
            let Quota::LeakyBucket(bucket) = quota else { return Ticks::ZERO };
            let cost = costs.iter().find(|(of, _)| *of == limit).map_or(0, |(_, cost)| *cost);
            leaky_bucket::wait_behind(bucket, empty_after, cost)
        })
    }
}
