//! The units and slot that a call reserves before it leaves, and their fate if the call goes away.

use std::sync::Arc;

use tollgate::store::Store;
use tollgate::{Decision, Timestamp, Verdict};

use crate::background;
use crate::guard::HeldUnits;
use crate::slots::{Charged, ChargedTo, SlotId};
use crate::state::Shared;

/// The charge of a call that has not left. If it is dropped before its slot, another call may take it until then. Then
/// it is refunded, but for the slot. A store that does not answer keeps the units charged, which errs on the safe side.
pub(crate) struct Reserved<S: Store + Send + Sync + 'static> {
    shared: Arc<Shared<S>>,
    to: Arc<ChargedTo>,
    /// When its slot comes.
    leaves_at: Timestamp,
    charged: Option<Charged>,
}

impl<S: Store + Send + Sync + 'static> Reserved<S> {
    pub(crate) fn new(
        shared: &Arc<Shared<S>>,
        to: &Arc<ChargedTo>,
        charged: Charged,
        now: Timestamp,
    ) -> Self {
        let leaves_at = match charged.decision.verdict() {
            Verdict::Wait(wait) => now + wait,
            _ => now,
        };
        Self { shared: Arc::clone(shared), to: Arc::clone(to), leaves_at, charged: Some(charged) }
    }

    /// Takes a slot that another call has left, if one comes by this instant.
    pub(crate) fn take_free(shared: &Arc<Shared<S>>, to: &Arc<ChargedTo>, until: Timestamp) -> Option<Self> {
        let ((leaves_at, _), charged) = shared.free_slots().take_first(to, until)?;
        let (shared, to) = (Arc::clone(shared), Arc::clone(to));
        Some(Self { shared, to, leaves_at, charged: Some(charged) })
    }

    pub(crate) const fn leaves_at(&self) -> Timestamp {
        self.leaves_at
    }

    pub(crate) const fn decision(&self) -> Option<&Decision> {
        match &self.charged {
            Some(charged) => Some(&charged.decision),
            None => None,
        }
    }

    /// The units of the call, which leaves with them.
    pub(crate) fn into_units(mut self) -> Option<HeldUnits> {
        self.charged.take().map(|charged| HeldUnits::new(&self.shared, charged.reservation))
    }
}

impl<S: Store + Send + Sync + 'static> Drop for Reserved<S> {
    fn drop(&mut self) {
        if let Some(charged) = self.charged.take() {
            let (shared, to) = (Arc::clone(&self.shared), Arc::clone(&self.to));
            background::run(give_up(shared, to, self.leaves_at, charged));
        }
    }
}

/// Offers a slot until it comes, and refunds it if no call takes it.
async fn give_up<S: Store + Send + Sync + 'static>(
    shared: Arc<Shared<S>>,
    to: Arc<ChargedTo>,
    leaves_at: Timestamp,
    mut charged: Charged,
) {
    if leaves_at > shared.engine.now() {
        let id = shared.free_slots().offer(&to, leaves_at, charged);
        let offer = Offer { shared: &shared, to: &to, id };
        shared.queues().wake(&to.counters);
        shared.engine.maintenance().clock().sleep_until(leaves_at).await;
        let Some(left) = offer.withdraw() else { return };
        charged = left;
    }
    let now = shared.engine.now();
    let _ = shared.engine.reservations().cancel(&mut charged.reservation, now).await;
    shared.queues().wake(&to.counters);
}

/// A slot that is offered. Dropping it withdraws the slot, so that none stays for ever.
struct Offer<'o, S> {
    shared: &'o Shared<S>,
    to: &'o ChargedTo,
    id: SlotId,
}

impl<S> Offer<'_, S> {
    fn withdraw(&self) -> Option<Charged> {
        self.shared.free_slots().take(self.to, self.id)
    }
}

impl<S> Drop for Offer<'_, S> {
    fn drop(&mut self) {
        self.withdraw();
    }
}
