//! Counts tallies, which have no limit, while the store is unreachable. This node counts locally and assumes that every
//! node which shares the store counts as much. A tally has a single stage and no share, so this node reports its local
//! count when the store is back.

use std::sync::Arc;

use super::counter::{Counter, Windows};
use super::local::Access;
use super::{FallbackContext, KeySlot};
use crate::store::{Charge, ChargeAnswer, Store, StoreFailure};

impl<S: Store> FallbackContext<'_, S> {
    /// Adds what the store has counted to the local count.
    pub(crate) fn follow_counted(&self, charge: &Charge<'_>) {
        self.fallback.watch.answered(self.now);
        self.follow_nodes();
        if charge.cost > 0 {
            self.fallback.charge_share(&KeySlot::tally(charge), self.now);
        }
    }

    /// Counts locally what the store could not count. Returns the number of nodes that are assumed to count as much, or
    /// `None` if there is no room.
    pub(crate) fn count(
        &self,
        windows: &Arc<Windows>,
        charge: &Charge<'_>,
        failure: StoreFailure,
    ) -> Option<(ChargeAnswer, u64)> {
        let FallbackContext { fallback, active, now, .. } = *self;
        if failure.is_outage() {
            fallback.watch.failed(now);
        }
        self.follow_nodes();
        let counter = || Counter::Tally(Arc::clone(windows), charge.key);
        if charge.cost > 0 {
            fallback.deferred.begin(&fallback.local, active, charge, counter, now);
        }
        let answer = fallback.local.ask(&KeySlot::tally(charge), Access::Take, now).ok()?;
        if charge.cost > 0 && answer.outcome.is_allowed() {
            fallback.deferred.add(charge); // Counts one for which there was no room.
        }
        fallback.count(&[answer]);
        Some((answer, u64::from(fallback.local.nodes())))
    }

    /// Subtracts locally what the store has subtracted.
    pub(crate) fn follow_discounted(&self, charge: &Charge<'_>) {
        self.fallback.refund_share(&KeySlot::tally(charge), self.now);
    }

    /// Takes back units that were counted locally at this very instant. The store does not know of them unless they
    /// were reported since.
    pub(crate) fn uncount(&self, charge: &Charge<'_>) {
        self.fallback.refund_local_charge(&KeySlot::tally(charge), self.now, self.now);
    }

    /// Subtracts locally what the store could not subtract, and records it to be reported later.
    pub(crate) fn discount(&self, windows: &Arc<Windows>, charge: &Charge<'_>) {
        let FallbackContext { fallback, active, now, .. } = *self;
        self.follow_discounted(charge);
        let counter = Counter::Tally(Arc::clone(windows), charge.key);
        fallback.deferred.add_refund(&fallback.local, active, charge, counter, now);
    }
}
