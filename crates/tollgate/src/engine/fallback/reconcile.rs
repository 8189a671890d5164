//! Reports to the store what happened while it was unreachable. There is no task for it: a decision reports the
//! deferred charges of its own keys, and the program that runs the engine reports the rest now and then.

use std::slice;

use super::Fallback;
use super::deferred::Due;
use crate::engine::active::ActivePolicy;
use crate::engine::{Charges, Engine};
use crate::store::{Charge, Store, StoreFailure};
use crate::time::Timestamp;
use crate::together::together;

/// Maximum number of deferred charges in one report.
const BATCH_MAX: usize = 64;

/// The result of reporting deferred charges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Counters that were reported to the store.
    pub settled: usize,
    /// Counters that are still to be reported.
    pub left: usize,
}

impl<S: Store> Engine<S> {
    /// Reports to the store what was admitted here while it was unreachable, and makes the refunds that could not be
    /// made: up to 64 counters per call. Each is reported once. A program with an engine on a shared store calls this
    /// now and then; the call does nothing while the store is unreachable.
    ///
    /// # Errors
    /// When the store does not answer.
    pub(in crate::engine) async fn reconcile_some(&self, now: Timestamp) -> Result<Reconciled, StoreFailure> {
        let now = now.decidable();
        let Some(fallback) = self.fallback.get().filter(|fallback| fallback.deferred.held() > 0) else {
            return Ok(Reconciled::default());
        };
        let active = self.active.load_full();
        let some = fallback.deferred.any(&active);
        let look = some.as_ref().and_then(|(counter, permit)| counter.charge(&active, *permit, 0));
        let looks = look.as_slice();
        // Without a counter to look at, all deferred charges belong to limits that are gone.
        let settled = if looks.is_empty() || self.is_back(fallback, looks, now).await? {
            self.tell(fallback, &active, None, now).await?
        } else {
            0
        };
        Ok(Reconciled { settled, left: fallback.deferred.held() })
    }

    /// Whether these keys have deferred charges that must be reported before the store is charged for them.
    #[inline]
    pub(in crate::engine) fn must_reconcile_first(&self, charges: &[Charge<'_>]) -> bool {
        !self.store.never_waits()
            && self.fallback.get().is_some_and(|fallback| fallback.deferred.owes_anything(charges))
    }

    /// The number of locally granted permits that the store has recorded so far.
    pub(in crate::engine) fn permits_reported(&self) -> u64 {
        self.fallback.get().map_or(0, |fallback| fallback.deferred.permits.reported_so_far())
    }

    /// Reports the deferred charges of these keys, before the store is charged for them.
    ///
    /// # Errors
    /// When the store is unreachable, and need not be asked.
    pub(in crate::engine) async fn reconcile_first(
        &self,
        active: &ActivePolicy,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        let Some(fallback) = self.fallback.get().filter(|fallback| fallback.deferred.owes_anything(charges))
        else {
            return Ok(());
        };
        // Boxed, because this future is large and every decision that waits would reserve room for it.
        Box::pin(self.reconcile_now(fallback, active, charges, now)).await
    }

    async fn reconcile_now(
        &self,
        fallback: &Fallback,
        active: &ActivePolicy,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        // Another request is reporting it now. The store would admit again the units that it does not know yet.
        if fallback.deferred.is_reporting(charges) {
            return Err(StoreFailure::Unreachable);
        }
        let is_well =
            |charge: &Charge<'_>| self.store.away_for(charge, now).is_none() || !self.store.is_away(charge);
        let (well, unwell): (Charges<'_>, Charges<'_>) = charges.iter().copied().partition(is_well);
        if self.is_back(fallback, &looks(&well), now).await? {
            self.report_first(fallback, active, &well, now).await?;
        }
        // Part of the store was unreachable and answers only some calls: a look shows whether it answers this one.
        let owes = |charge: &Charge<'_>| fallback.deferred.owes_anything(slice::from_ref(charge));
        let owing: Charges<'_> = unwell.into_iter().filter(owes).collect();
        if owing.is_empty() {
            return Ok(());
        }
        match self.store.charge(&looks(&owing), now).await {
            Ok(_) => self.report_first(fallback, active, &owing, now).await,
            Err(failure) if failure.is_outage() => Err(StoreFailure::Unreachable),
            Err(_) => Ok(()),
        }
    }

    /// Reports the deferred charges of these counters. While they cannot be reported, the store is not charged for
    /// them.
    async fn report_first(
        &self,
        fallback: &Fallback,
        active: &ActivePolicy,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        match self.tell(fallback, active, Some(charges), now).await {
            Err(failure) if failure.is_outage() => Err(StoreFailure::Unreachable),
            _ => Ok(()),
        }
    }

    /// Whether the store is reachable: by its last answer or, after an outage, by a look. The look avoids risking a
    /// deferred charge.
    async fn is_back(
        &self,
        fallback: &Fallback,
        looks: &[Charge<'_>],
        now: Timestamp,
    ) -> Result<bool, StoreFailure> {
        if fallback.watch.is_up() || looks.is_empty() {
            return Ok(!looks.is_empty());
        }
        match self.store.charge(looks, now).await {
            Ok(_) => {
                fallback.watch.answered(now);
                Ok(true)
            }
            Err(failure) if failure.is_outage() => Err(StoreFailure::Unreachable), // A look changes nothing.
            Err(_) => Ok(false),
        }
    }

    async fn tell(
        &self,
        fallback: &Fallback,
        active: &ActivePolicy,
        of: Option<&[Charge<'_>]>,
        now: Timestamp,
    ) -> Result<usize, StoreFailure> {
        let due = fallback.deferred.take(&fallback.local, active, of, BATCH_MAX, now);
        let (mut settled, mut failed) = (0, None);
        // A decision waits for the reports of its own counters, so these are sent concurrently. The others are sent one
        // by one, so that a failure loses at most one.
        let mut answers = match of {
            Some(_) => together(due.iter().map(|due| self.pay(due, active, now))).await,
            None => Vec::new(),
        }
        .into_iter();
        for due in due {
            let answered = match (of, failed) {
                (Some(_), _) => answers.next().flatten(),
                (None, None) => self.pay(&due, active, now).await,
                (None, Some(failure)) => Some(Err(failure)),
            };
            match answered {
                None => {}
                Some(Ok(())) => {
                    due.paid(now);
                    settled += 1;
                }
                Some(Err(StoreFailure::Unanswered)) if failed.is_none() || of.is_some() => {
                    drop(due); // It may have been done, and is not done twice.
                    failed = Some(StoreFailure::Unanswered);
                }
                Some(Err(failure)) => {
                    due.put_back(&fallback.local, active, now);
                    failed = failed.or(Some(failure));
                }
            }
        }
        match failed {
            Some(failure) => {
                if failure.is_outage() {
                    fallback.watch.failed(now);
                }
                Err(failure)
            }
            None => Ok(settled),
        }
    }

    /// Reports one deferred charge to the store. `None` when the policy no longer has its counter.
    async fn pay(
        &self,
        due: &Due<'_>,
        active: &ActivePolicy,
        now: Timestamp,
    ) -> Option<Result<(), StoreFailure>> {
        let charge = due.charge(active, now)?;
        Some(if due.is_refund() {
            self.store.refund(&[charge], now).await
        } else {
            self.store.debit(&[charge], now).await
        })
    }
}

/// The same counters with a cost of 0, which only looks.
fn looks<'c>(charges: &[Charge<'c>]) -> Charges<'c> {
    charges.iter().map(|charge| charge.costing(0)).collect()
}
