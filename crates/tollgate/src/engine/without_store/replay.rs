//! Telling the store what happened while it was away. Without a task of its own: a decision tells what its own keys owe, and whoever runs
//! the engine has the rest told now and then.

use std::slice;

use super::Standby;
use super::debts::Due;
use crate::engine::live::Live;
use crate::engine::{Charges, Engine};
use crate::store::{Charge, Store, StoreFailure};
use crate::time::Timestamp;
use crate::together::together;

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
        let some = standby.debts.any(&live);
        let look = some.as_ref().and_then(|(counter, permit)| counter.charge(&live, *permit, 0));
        let looks = look.as_slice();
        // Without a look there are only debts of limits that are gone.
        let told = if looks.is_empty() || self.is_back(standby, looks, now).await? {
            self.tell(standby, &live, None, now).await?
        } else {
            0
        };
        Ok(Replayed { told, left: standby.debts.held() })
    }

    /// Whether these keys owe something that the store must be told before they are asked about.
    #[inline]
    pub(in crate::engine) fn must_pay_first(&self, charges: &[Charge<'_>]) -> bool {
        !self.store.answers_at_once()
            && self.standby.get().is_some_and(|standby| standby.debts.owes_anything(charges))
    }

    /// How many places that were given here the store has taken note of by now.
    pub(in crate::engine) fn permits_reported(&self) -> u64 {
        self.standby.get().map_or(0, |standby| standby.debts.permits.reported_so_far())
    }

    /// Tells the store what these keys owe, before they are asked about.
    ///
    /// # Errors
    /// When the store is away, and need not be asked.
    pub(in crate::engine) async fn pay_first(
        &self,
        live: &Live,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        let Some(standby) = self.standby.get().filter(|standby| standby.debts.owes_anything(charges)) else {
            return Ok(());
        };
        // Apart: it is large, and every decision that waits would have room for it.
        Box::pin(self.pay_now(standby, live, charges, now)).await
    }

    async fn pay_now(
        &self,
        standby: &Standby,
        live: &Live,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        // Another request reports it now. The store would admit again what it does not know yet.
        if standby.debts.is_reporting(charges) {
            return Err(StoreFailure::Unreachable);
        }
        let is_well =
            |charge: &Charge<'_>| self.store.away_for(charge, now).is_none() || !self.store.is_away(charge);
        let (well, unwell): (Charges<'_>, Charges<'_>) = charges.iter().copied().partition(is_well);
        if self.is_back(standby, &looks(&well), now).await? {
            self.report_first(standby, live, &well, now).await?;
        }
        // A part that was away and answers some calls only: a look shows whether it answers this one.
        let owes = |charge: &Charge<'_>| standby.debts.owes_anything(slice::from_ref(charge));
        let owing: Charges<'_> = unwell.into_iter().filter(owes).collect();
        if owing.is_empty() {
            return Ok(());
        }
        match self.store.charge(&looks(&owing), now).await {
            Ok(_) => self.report_first(standby, live, &owing, now).await,
            Err(failure) if failure.is_outage() => Err(StoreFailure::Unreachable),
            Err(_) => Ok(()),
        }
    }

    /// Reports what these counters owe. While it cannot be reported the store is not asked about them.
    async fn report_first(
        &self,
        standby: &Standby,
        live: &Live,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        match self.tell(standby, live, Some(charges), now).await {
            Err(failure) if failure.is_outage() => Err(StoreFailure::Unreachable),
            _ => Ok(()),
        }
    }

    /// Whether the store is there: by the last that was heard of it, or after an absence by a look. A debt is not risked for that.
    async fn is_back(
        &self,
        standby: &Standby,
        looks: &[Charge<'_>],
        now: Timestamp,
    ) -> Result<bool, StoreFailure> {
        if standby.watch.is_up() || looks.is_empty() {
            return Ok(!looks.is_empty());
        }
        match self.store.charge(looks, now).await {
            Ok(_) => {
                standby.watch.answered(now);
                Ok(true)
            }
            Err(failure) if failure.is_outage() => Err(StoreFailure::Unreachable), // A look changes nothing.
            Err(_) => Ok(false),
        }
    }

    async fn tell(
        &self,
        standby: &Standby,
        live: &Live,
        of: Option<&[Charge<'_>]>,
        now: Timestamp,
    ) -> Result<usize, StoreFailure> {
        let due = standby.debts.take(&standby.local, live, of, AT_ONCE, now);
        let (mut told, mut failed) = (0, None);
        // Somebody's decision waits for those of its own counters: they go out together. The others are risked one by one.
        let mut answers = match of {
            Some(_) => together(due.iter().map(|due| self.pay(due, live, now))).await,
            None => Vec::new(),
        }
        .into_iter();
        for due in due {
            let answered = match (of, failed) {
                (Some(_), _) => answers.next().flatten(),
                (None, None) => self.pay(&due, live, now).await,
                (None, Some(failure)) => Some(Err(failure)),
            };
            match answered {
                None => {}
                Some(Ok(())) => {
                    due.paid(now);
                    told += 1;
                }
                Some(Err(StoreFailure::Unanswered)) if failed.is_none() || of.is_some() => {
                    drop(due); // It may have been done, and is not done twice.
                    failed = Some(StoreFailure::Unanswered);
                }
                Some(Err(failure)) => {
                    due.put_back(&standby.local, live, now);
                    failed = failed.or(Some(failure));
                }
            }
        }
        match failed {
            Some(failure) => {
                if failure.is_outage() {
                    standby.watch.failed(now);
                }
                Err(failure)
            }
            None => Ok(told),
        }
    }

    /// Tells the store of one debt. None where the policy has no such counter any more.
    async fn pay(&self, due: &Due<'_>, live: &Live, now: Timestamp) -> Option<Result<(), StoreFailure>> {
        let charge = due.charge(live, now)?;
        Some(if due.is_refund() {
            self.store.refund(&[charge], now).await
        } else {
            self.store.debit(&[charge], now).await
        })
    }
}

/// The same counters, without a charge.
fn looks<'c>(charges: &[Charge<'c>]) -> Charges<'c> {
    charges.iter().map(|charge| charge.costing(0)).collect()
}
