//! Counts tallies, which have no limit, while the store is unreachable. This node counts locally and assumes that every
//! node which shares the store counts as much. A tally has a single stage and no share, so this node reports its local
//! count when the store is back.

use std::sync::Arc;

use super::KeySlot;
use super::counter::Counter;
use crate::engine::Engine;
use crate::engine::active::ActivePolicy;
use crate::engine::ledger::Windows;
use crate::store::{Charge, ChargeAnswer, Store, StoreFailure};
use crate::time::Timestamp;

impl<S: Store> Engine<S> {
    /// Adds what the store has counted to the local count.
    pub(in crate::engine) fn follow_counted(
        &self,
        active: &ActivePolicy,
        charge: &Charge<'_>,
        now: Timestamp,
    ) {
        if self.store.never_waits() {
            return;
        }
        let fallback = self.fallback(active, now);
        fallback.watch.answered(now);
        fallback.attend(self.store.nodes(), active, now);
        if charge.cost > 0 {
            fallback.keep_warm(&KeySlot::tally(charge), now);
        }
    }

    /// Counts locally what the store could not count. Returns the number of nodes that are assumed to count as much, or
    /// `None` if there is no room.
    pub(in crate::engine) fn count_here(
        &self,
        active: &ActivePolicy,
        windows: &Arc<Windows>,
        charge: &Charge<'_>,
        failure: StoreFailure,
        now: Timestamp,
    ) -> Option<(ChargeAnswer, u64)> {
        let fallback = self.fallback(active, now);
        if failure.is_outage() {
            fallback.watch.failed(now);
        }
        fallback.attend(self.store.nodes(), active, now);
        let counter = || Counter::Tally(Arc::clone(windows), charge.key);
        if charge.cost > 0 {
            fallback.deferred.begin(&fallback.local, active, charge, counter, now);
        }
        let answer = fallback.local.ask(&KeySlot::tally(charge), true, now).ok()?;
        if charge.cost > 0 && answer.outcome.is_allowed() {
            fallback.deferred.add(charge); // Counts one for which there was no room.
        }
        fallback.count(&[answer]);
        Some((answer, u64::from(fallback.local.nodes())))
    }

    /// Subtracts locally what the store has subtracted.
    pub(in crate::engine) fn follow_discounted(&self, charge: &Charge<'_>, now: Timestamp) {
        if let Some(fallback) = self.fallback.get() {
            fallback.give(&KeySlot::tally(charge), now);
        }
    }

    /// Takes back units that were counted locally at this very `now`. The store does not know of them unless they were
    /// reported since.
    pub(in crate::engine) fn uncount_here(&self, charge: &Charge<'_>, now: Timestamp) {
        if let Some(fallback) = self.fallback.get() {
            fallback.take_back(&KeySlot::tally(charge), now, now);
        }
    }

    /// Subtracts locally what the store could not subtract, and records it to be reported later.
    pub(in crate::engine) fn discount_here(
        &self,
        active: &ActivePolicy,
        windows: &Arc<Windows>,
        charge: &Charge<'_>,
        now: Timestamp,
    ) {
        let fallback = self.fallback(active, now);
        fallback.give(&KeySlot::tally(charge), now);
        let counter = Counter::Tally(Arc::clone(windows), charge.key);
        fallback.deferred.add_refund(&fallback.local, active, charge, counter, now);
    }
}
