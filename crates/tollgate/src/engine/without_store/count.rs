//! Counts tallies, which have no limit, while the store is unreachable. This node counts locally and assumes that every
//! node which shares the store counts as much. A tally has a single stage and no share, so this node reports its local
//! count when the store is back.

use std::sync::Arc;

use super::Spot;
use super::counter::Counter;
use crate::engine::Engine;
use crate::engine::live::Live;
use crate::engine::tally::Windows;
use crate::store::{Answer, Charge, Store, StoreFailure};
use crate::time::Timestamp;

impl<S: Store> Engine<S> {
    /// Adds what the store has counted to the local count.
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

    /// Counts locally what the store could not count. Returns the number of nodes that are assumed to count as much, or
    /// `None` if there is no room.
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

    /// Subtracts locally what the store has subtracted.
    pub(in crate::engine) fn follow_discounted(&self, charge: &Charge<'_>, now: Timestamp) {
        if let Some(standby) = self.standby.get() {
            standby.give(&Spot::tally(charge), now);
        }
    }

    /// Takes back units that were counted locally at this very `now`. The store does not know of them unless they were
    /// reported since.
    pub(in crate::engine) fn uncount_here(&self, charge: &Charge<'_>, now: Timestamp) {
        if let Some(standby) = self.standby.get() {
            standby.take_back(&Spot::tally(charge), now, now);
        }
    }

    /// Subtracts locally what the store could not subtract, and records it to be reported later.
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
