//! Telling the store what happened while it was away. Without a task of its own: a decision tells what its own keys owe, and whoever runs
//! the engine has the rest told now and then.

use super::{Standby, is_outage};
use crate::charge::Charge;
use crate::engine::live::Live;
use crate::engine::Engine;
use crate::store::{Store, StoreFailure};
use crate::time::Timestamp;

/// Most debts that are told in one go.
const AT_ONCE: usize = 64;

/// What became of the debts that were to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Counters that the store was told about.
    pub told: usize,
    /// Counters that it must still be told about.
    pub left: usize,
}

impl<S: Store> Engine<S> {
    /// Tells the store what was admitted here while it was away, and gives back what could not be given back: up to 64 counters a call.
    /// Each is told once. Whoever runs an engine on a shared store calls this now and then; nothing is done while the store is away.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn settle_debts(&self, now: Timestamp) -> Result<Replayed, StoreFailure> {
        let now = now.decidable();
        let Some(standby) = self.standby.get().filter(|standby| standby.debts.held() > 0) else {
            return Ok(Replayed::default());
        };
        let live = self.live.load_full();
        let mut told = 0;
        if standby.watch.is_up() {
            told = self.tell(standby, &live, None, now).await?;
        }
        Ok(Replayed { told, left: standby.debts.held() })
    }

    /// Tells the store what these keys owe, before they are asked about. Only if it is there.
    pub(in crate::engine) async fn pay_first(&self, live: &Live, charges: &[Charge<'_>], now: Timestamp) {
        if self.standby.get().is_some_and(|standby| standby.debts.held() > 0 && standby.watch.is_up()) {
            self.pay(live, charges, now).await;
        }
    }

    /// The same, whatever is known of the store.
    pub(super) async fn pay(&self, live: &Live, charges: &[Charge<'_>], now: Timestamp) {
        let Some(standby) = self.standby.get().filter(|standby| standby.debts.held() > 0) else { return };
        let is_there =
            |charge: &&Charge<'_>| self.store.away_for(charge, now).is_none() || !self.store.is_away(charge);
        let there: super::Charges<'_> = charges.iter().filter(is_there).copied().collect();
        // What cannot be told now is told later.
        let _ = self.tell(standby, live, Some(&there), now).await;
    }

    async fn tell(
        &self,
        standby: &Standby,
        live: &Live,
        of: Option<&[Charge<'_>]>,
        now: Timestamp,
    ) -> Result<usize, StoreFailure> {
        let due = standby.debts.take(live, of, AT_ONCE, now);
        let (mut told, mut failed) = (0, None);
        for due in due {
            let Some(charge) = due.charge(live) else { continue };
            if failed.is_some() {
                due.put_back(live, now);
                continue;
            }
            let answered = if due.is_refund() {
                self.store.refund(&[charge], now).await
            } else {
                self.store.debit(&[charge], now).await
            };
            match answered {
                Ok(()) => {
                    due.paid();
                    told += 1;
                }
                Err(StoreFailure::Unanswered) => {
                    drop(due); // It may have been done, and is not done twice.
                    failed = Some(StoreFailure::Unanswered);
                }
                Err(failure) => {
                    due.put_back(live, now);
                    failed = Some(failure);
                }
            }
        }
        match failed {
            Some(failure) => {
                if is_outage(failure) {
                    standby.watch.failed(now);
                }
                Err(failure)
            }
            None => Ok(told),
        }
    }
}
