//! Counting without a limit while the store is away: here, as if every node that shares the store counted as much. It is the way of limits
//! with one stage and no share, so what is counted here is told to the store when it is back.

use std::sync::Arc;

use super::Spot;
use super::counter::Counter;
use crate::engine::Engine;
use crate::engine::live::Live;
use crate::engine::tally::Windows;
use crate::store::{Answer, Charge, Store, StoreFailure};
use crate::time::Timestamp;

impl<S: Store> Engine<S> {
    /// Counts here what the store has counted.
    pub(in crate::engine) fn follow_counted(&self, live: &Live, charge: &Charge<'_>, now: Timestamp) {
        if self.store.answers_at_once() {
            return;
        }
        let standby = self.standby(live, now);
        standby.watch.answered(now);
        standby.attend(self.store.nodes(), live, now);
        if charge.cost > 0 {
            standby.keep_warm(&Spot::tally(charge), now);
        }
    }

    /// Counts here what the store could not count, and tells how many nodes are taken to count as much. None if there is no room.
    pub(in crate::engine) fn count_here(
        &self,
        live: &Live,
        windows: &Arc<Windows>,
        charge: &Charge<'_>,
        failure: StoreFailure,
        now: Timestamp,
    ) -> Option<(Answer, u64)> {
        let standby = self.standby(live, now);
        if failure.is_outage() {
            standby.watch.failed(now);
        }
        standby.attend(self.store.nodes(), live, now);
        let counter = || Counter::Tally(Arc::clone(windows), charge.key);
        if charge.cost > 0 {
            standby.debts.begin(&standby.local, live, charge, counter, now);
        }
        let answer = standby.local.ask(&Spot::tally(charge), true, now).ok()?;
        if charge.cost > 0 && answer.outcome.is_allowed() {
            standby.debts.add(charge); // Counts one for which there was no room.
        }
        standby.count(&[answer]);
        Some((answer, u64::from(standby.local.nodes())))
    }

    /// Takes away here what was taken away in the store.
    pub(in crate::engine) fn follow_discounted(&self, charge: &Charge<'_>, now: Timestamp) {
        if let Some(standby) = self.standby.get() {
            standby.give(&Spot::tally(charge), now);
        }
    }

    /// Takes back what was counted here at this very `now`, of which the store does not know unless it was told since.
    pub(in crate::engine) fn uncount_here(&self, charge: &Charge<'_>, now: Timestamp) {
        if let Some(standby) = self.standby.get() {
            standby.take_back(&Spot::tally(charge), now, now);
        }
    }

    /// Takes away here what the store could not take away, and has to be told.
    pub(in crate::engine) fn discount_here(
        &self,
        live: &Live,
        windows: &Arc<Windows>,
        charge: &Charge<'_>,
        now: Timestamp,
    ) {
        let standby = self.standby(live, now);
        standby.give(&Spot::tally(charge), now);
        let counter = Counter::Tally(Arc::clone(windows), charge.key);
        standby.debts.add_refund(&standby.local, live, charge, counter, now);
    }
}
