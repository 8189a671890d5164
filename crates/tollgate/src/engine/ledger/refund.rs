//! Refunds of earlier charges that the caller does not name.

use std::slice;

use smallvec::SmallVec;

use super::Ledger;
use crate::algorithm::Charged;
use crate::algorithm::concurrency::PermitId;
use crate::engine::ATTEMPTS;
use crate::key::Fingerprint;
use crate::quota::Quota;
use crate::request::CheckRequest;
use crate::store::{Store, StoreFailure};
use crate::time::{Ticks, Timestamp};

impl<S: Store> Ledger<'_, S> {
    /// Refunds what an earlier request with these attributes took `within` this time, as far as it still counts: for
    /// the limits named in `limits`, or for all that the request matches if there are none. The caller does not say which request that was. So the refund is no larger than is right for every instant of that
    /// time, and it is nothing if a request at one of these instants may no longer count; see [`Charged::Within`]. A
    /// caller that has the decision can refund exactly what it took: [`Reservations::of_decision`](crate::engine::Reservations::of_decision) makes a reservation of it,
    /// and [`Reservations::cancel`](crate::engine::Reservations::cancel) refunds that at the instant of its charge.
    ///
    /// `within` is counted back from the instant at which the store gets the refund: on a shared store it includes the
    /// way there.
    ///
    /// A leaky bucket refunds nothing: waiters keep their slots, and a slot that was used stays used. A refund that has
    /// begun is finished: if the store fails in the middle, the rest is refunded when the store is back.
    ///
    /// # Errors
    /// When the store does not answer. Then nothing was refunded and the call may be repeated, except after
    /// [`StoreFailure::Unanswered`]: in that case everything was refunded that could be, and some of it perhaps not.
    pub async fn refund(
        self,
        request: &CheckRequest<'_>,
        limits: &[&str],
        within: Ticks,
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        let mut done = SmallVec::new();
        let mut attempts = 0;
        loop {
            match self.refund_rest(request, limits, within, &mut done, now.decidable()).await {
                Err(StoreFailure::Superseded) if attempts < ATTEMPTS => attempts += 1,
                answered => return answered,
            }
        }
    }

    /// Refunds to the counters that are not yet `done`, one by one: a policy swap that interrupts one refund must not
    /// cause another counter to be refunded twice.
    async fn refund_rest(
        self,
        request: &CheckRequest<'_>,
        limits: &[&str],
        within: Ticks,
        done: &mut SmallVec<[Fingerprint; 6]>,
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        let active = self.engine.active.load_full();
        let overrides = self.engine.overrides.at(now);
        let mut matches = overrides.matches(&active.policy, request).unwrap_or_default();
        active.keep_named(&mut matches, limits);
        let charges = active.charges(request, &matches, &overrides, PermitId(0));
        let mut unanswered = Ok(());
        for (matched, charge) in matches.iter().zip(&charges) {
            // A request that has left the queue has used its slot. One that still waits leaves the queue by cancelling
            // its reservation.
            if done.contains(&charge.key) || matches!(charge.quota, Quota::LeakyBucket(_)) {
                continue;
            }
            let charge = &charge.of(Charged::Within(within));
            match self.engine.store.refund(slice::from_ref(charge), now).await {
                Ok(()) => {
                    if let Some(fallback) = self.engine.fallback_if_any(&active, now) {
                        fallback.refund(matched, charge);
                    }
                }
                // The refund may have been made, so it is not repeated.
                Err(StoreFailure::Unanswered) => unanswered = Err(StoreFailure::Unanswered),
                Err(failure @ StoreFailure::Superseded) => return Err(failure),
                // Nothing was refunded, and the call may be repeated.
                Err(failure) if done.is_empty() => return Err(failure),
                // A refund that has begun is finished when the store is back.
                Err(_) => self.engine.fallback_or_new(&active, now).defer_refund(matched, charge),
            }
            done.push(charge.key);
        }
        unanswered
    }
}
