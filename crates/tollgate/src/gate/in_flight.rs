//! A place in flight, held for as long as the request is.

use super::KeyedGate;
use crate::algorithm::concurrency::PermitId;
use crate::charge::Charge;
use crate::key::Fingerprint;
use crate::outcome::Outcome;
use crate::quota::Quota;

/// A place in flight. Dropping it gives the place back, and wakes who waits first in line for it. Of a gate whose quota is
/// not a concurrency limit it is a unit taken, and dropping it gives nothing back.
#[must_use = "dropping it gives the place back at once"]
pub struct InFlight {
    gate: KeyedGate,
    key: Fingerprint,
    permit: PermitId,
}

impl InFlight {
    /// A place that was taken under this permit.
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
            // It cannot fail: a gate has one quota for ever. If it did, the place would return when it expires.
            let _ = shared.store.refund_now(&charge, shared.clock.now());
            shared.queues.stir(self.key);
        }
    }
}
