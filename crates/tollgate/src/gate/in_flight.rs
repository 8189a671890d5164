//! A permit, held while a request is in flight.

use super::KeyedGate;
use crate::algorithm::concurrency::PermitId;
use crate::key::Fingerprint;
use crate::outcome::Outcome;
use crate::quota::Quota;
use crate::store::Charge;

/// A permit to be in flight. Dropping it returns the permit and wakes the first waiter. For a quota other
/// than a concurrency limit it is a spent unit, and dropping it returns nothing.
#[must_use = "dropping it returns the permit immediately"]
pub struct InFlight {
    gate: KeyedGate,
    key: Fingerprint,
    permit: PermitId,
}

impl InFlight {
    pub(super) const fn new(gate: KeyedGate, key: Fingerprint, permit: PermitId) -> Self {
        Self { gate, key, permit }
    }

    pub(super) fn take(gate: &KeyedGate, key: Fingerprint) -> Result<Self, Outcome> {
        let charge = gate.shared.charge_of(key, 1);
        let (outcome, _) = gate.decide(&charge, gate.shared.clock.now());
        if !outcome.is_allowed() {
            return Err(outcome);
        }
        Ok(Self::new(gate.clone(), key, charge.permit))
    }
}

impl std::fmt::Debug for InFlight {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("InFlight").field("permit", &self.permit).finish_non_exhaustive()
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let shared = &*self.gate.shared;
        if matches!(shared.quota, Quota::Concurrency(_)) {
            let charge = Charge { permit: self.permit, ..shared.charge_of(self.key, 1) };
            // It cannot fail, since a gate never changes its quota. If it did, the permit would return when
            // it expires.
            let _ = shared.store.refund_now(&charge, shared.clock.now());
            shared.queues.wake_first(self.key);
        }
    }
}
