//! Corrections of what was counted: units given back.

use std::slice;

use smallvec::SmallVec;

use super::{ATTEMPTS, Engine};
use crate::algorithm::Charged;
use crate::algorithm::concurrency::PermitId;
use crate::key::Fingerprint;
use crate::quota::Quota;
use crate::request::CheckRequest;
use crate::store::{Store, StoreFailure};
use crate::time::{Ticks, Timestamp};

impl<S: Store> Engine<S> {
    /// Gives back what an earlier request with these attributes took `within` this time, as far as it is still counted. Nobody says
    /// which request that was, so no more is given back than is right for any of that time, and nothing if one of them may no longer
    /// count; see [`Charged::Within`]. A caller that has the decision gives back exactly what it took: [`Engine::set_aside`] makes a
    /// reservation of it, and [`Engine::cancel`] returns that to the instant of its charge.
    ///
    /// `within` is counted back from the instant at which the store gets the refund: on a shared store it includes the way there.
    ///
    /// A leaky bucket gives nothing back: those who wait keep their turns, and a turn that was used stays used. A refund that has begun
    /// is finished: what a store that fails in the middle leaves of it is given back when the store is back.
    ///
    /// # Errors
    /// When the store does not answer. Nothing was given back then, and it may be asked again; but not after
    /// [`StoreFailure::Unanswered`], with which all was given back that can be, and some of it perhaps not.
    pub async fn refund(
        &self,
        request: &CheckRequest<'_>,
        within: Ticks,
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        self.refund_of(request, &[], within, now).await
    }

    /// The same, only to the limits named in `limits`; to all that the request matches if none is.
    ///
    /// # Errors
    /// As [`Engine::refund`].
    pub async fn refund_of(
        &self,
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

    /// Gives back to the counters that are not yet `done`: one by one, since a swap that overtakes one of them must not have
    /// another given back twice.
    async fn refund_rest(
        &self,
        request: &CheckRequest<'_>,
        limits: &[&str],
        within: Ticks,
        done: &mut SmallVec<[Fingerprint; 6]>,
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        let live = self.live.load_full();
        let (rulings, views) = (self.bench.at(now), slice::from_ref(request));
        let mut matches = rulings.matches(&live.policy, views).unwrap_or_default();
        live.keep_named(&mut matches, limits);
        let charges = live.charges(views, &matches, &rulings, PermitId(0));
        let mut unanswered = Ok(());
        for (matched, charge) in matches.iter().zip(&charges) {
            // Who has left a line has used its turn, and who still waits in it steps back by its reservation.
            if done.contains(&charge.key) || matches!(charge.quota, Quota::LeakyBucket(_)) {
                continue;
            }
            let charge = &charge.of(Charged::Within(within));
            match self.store.refund(slice::from_ref(charge), now).await {
                Ok(()) => self.refund_here(&live, matched, charge, now),
                // It may have been given back, so it is not given back again.
                Err(StoreFailure::Unanswered) => unanswered = Err(StoreFailure::Unanswered),
                Err(failure @ StoreFailure::Superseded) => return Err(failure),
                // Nothing was given back, and asking again is safe.
                Err(failure) if done.is_empty() => return Err(failure),
                // What has begun is finished when the store is back.
                Err(_) => self.owe(&live, matched, charge, now),
            }
            done.push(charge.key);
        }
        unanswered
    }
}
