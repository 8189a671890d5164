//! Reports to the store what happened while it was unreachable. There is no task for it: a decision reports the
//! deferred charges of its own keys, and the program that runs the engine reports the rest now and then.

use std::slice;

use super::FallbackContext;
use super::deferred::Due;
use crate::store::{Charge, Charges, Store, StoreFailure};
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

impl<S: Store> FallbackContext<'_, S> {
    /// Reports deferred charges of any keys, as many as one report takes.
    ///
    /// # Errors
    /// When the store does not answer.
    pub(crate) async fn reconcile_some(&self) -> Result<Reconciled, StoreFailure> {
        let deferred = &self.fallback.deferred;
        if deferred.held() == 0 {
            return Ok(Reconciled::default());
        }
        let some = deferred.any(self.active);
        let look = some.as_ref().and_then(|(counter, permit)| counter.charge(self.active, *permit, 0));
        let looks = look.as_slice();
        // Without a counter to look at, all deferred charges belong to limits that are gone.
        let settled = if looks.is_empty() || self.is_back(looks).await? {
            self.report_deferred(None).await?
        } else {
            0
        };
        Ok(Reconciled { settled, left: deferred.held() })
    }

    /// Reports the deferred charges of these keys, before the store is charged for them.
    ///
    /// # Errors
    /// When the store is unreachable, and need not be asked.
    pub(crate) async fn reconcile_first(&self, charges: &[Charge<'_>]) -> Result<(), StoreFailure> {
        // Another request is reporting it now. The store would admit again the units that it does not know yet.
        if self.fallback.deferred.is_reporting(charges) {
            return Err(StoreFailure::Unreachable);
        }
        let is_well = |charge: &Charge<'_>| {
            self.store.away_for(charge, self.now).is_none() || !self.store.is_away(charge)
        };
        let (well, unwell): (Charges<'_>, Charges<'_>) = charges.iter().copied().partition(is_well);
        if self.is_back(&looks(&well)).await? {
            self.report_first(&well).await?;
        }
        // Part of the store was unreachable and answers only some calls: a look shows whether it answers this one.
        let has_deferred = |charge: &Charge<'_>| self.fallback.has_deferred(slice::from_ref(charge));
        let owing: Charges<'_> = unwell.into_iter().filter(has_deferred).collect();
        if owing.is_empty() {
            return Ok(());
        }
        match self.store.charge(&looks(&owing), self.now).await {
            Ok(_) => self.report_first(&owing).await,
            Err(failure) if failure.is_outage() => Err(StoreFailure::Unreachable),
            Err(_) => Ok(()),
        }
    }

    /// Reports the deferred charges of these counters. While they cannot be reported, the store is not charged for
    /// them.
    async fn report_first(&self, charges: &[Charge<'_>]) -> Result<(), StoreFailure> {
        match self.report_deferred(Some(charges)).await {
            Err(failure) if failure.is_outage() => Err(StoreFailure::Unreachable),
            _ => Ok(()),
        }
    }

    /// Whether the store is reachable: by its last answer or, after an outage, by a look. The look avoids risking a
    /// deferred charge.
    async fn is_back(&self, looks: &[Charge<'_>]) -> Result<bool, StoreFailure> {
        let watch = &self.fallback.watch;
        if watch.is_up() || looks.is_empty() {
            return Ok(!looks.is_empty());
        }
        match self.store.charge(looks, self.now).await {
            Ok(_) => {
                watch.answered(self.now);
                Ok(true)
            }
            Err(failure) if failure.is_outage() => Err(StoreFailure::Unreachable), // A look changes nothing.
            Err(_) => Ok(false),
        }
    }

    /// Reports the deferred charges of these keys, or those of any keys, to the store. Returns how many it took.
    async fn report_deferred(&self, of: Option<&[Charge<'_>]>) -> Result<usize, StoreFailure> {
        let FallbackContext { fallback, active, now, .. } = *self;
        let due = fallback.deferred.take(&fallback.local, active, of, BATCH_MAX, now);
        let (mut settled, mut failed) = (0, None);
        // A decision waits for the reports of its own counters, so these are sent concurrently. The others are sent one
        // by one, so that a failure loses at most one.
        let mut answers = match of {
            Some(_) => together(due.iter().map(|due| self.pay(due))).await,
            None => Vec::new(),
        }
        .into_iter();
        for due in due {
            let answered = match (of, failed) {
                (Some(_), _) => answers.next().flatten(),
                (None, None) => self.pay(&due).await,
                (None, Some(failure)) => Some(Err(failure)),
            };
            match answered {
                None => {}
                Some(Ok(())) => {
                    due.settle(now);
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
    async fn pay(&self, due: &Due<'_>) -> Option<Result<(), StoreFailure>> {
        let charge = due.charge(self.active, self.now)?;
        Some(if due.is_refund() {
            self.store.refund(&[charge], self.now).await
        } else {
            self.store.debit(&[charge], self.now).await
        })
    }
}

/// The same counters with a cost of 0, which only looks.
fn looks<'c>(charges: &[Charge<'c>]) -> Charges<'c> {
    charges.iter().map(|charge| charge.costing(0)).collect()
}
