//! Settlement while the store is unreachable: refunds, and charges beyond an estimate, are applied to the fallback
//! counters and to the deferred charges.

use super::local::Access;
use super::{Fallback, FallbackContext, KeySlot, Side};
use crate::algorithm::concurrency::PermitId;
use crate::decision::{Held, Permit, Settled};
use crate::outcome::Source;
use crate::policy::Match;
use crate::store::{Charge, Store};

impl<S: Store> FallbackContext<'_, S> {
    /// Adjusts a charge that was made locally during an outage to `cost`. What was reported to the store meanwhile
    /// stays charged there.
    pub(crate) fn adjust(&self, held: &Held, cost: u64) -> Settled {
        let FallbackContext { fallback, active, now, .. } = *self;
        let Fallback { local, deferred, .. } = fallback;
        let mut settled = Settled::default();
        if cost < held.cost {
            let units = held.cost - cost;
            // The share is a bucket, whatever the limit is: it counts units by the instant of the decision.
            let charge = active.charge_of(held, PermitId(0), units);
            let charge = charge.map(|charge| charge.of_instant(held.decided_at));
            if let Some(key_slot) = charge.as_ref().and_then(|charge| KeySlot::held(active, held, charge)) {
                settled.refunded = held.still_counted(units, now);
                fallback.refund_local_charge(&key_slot, held.decided_at, now);
            }
        } else if let Some(look) = active.charge_of(held, PermitId(0), 0).filter(|_| cost > held.cost) {
            let Some(key_slot) = KeySlot::held(active, held, &look) else { return settled };
            let extra = cost - held.cost;
            let left = local.ask(&key_slot, Access::Look, now);
            settled.charged = left.map_or(0, |left| left.outcome.remaining).min(extra);
            settled.unpaid = extra - settled.charged;
            let charge = look.costing(settled.charged);
            if settled.charged > 0 {
                deferred.begin(local, active, &charge, || held.clone().into(), now);
                if let Some(key_slot) = KeySlot::held(active, held, &charge) {
                    local.charge_share(Side::Counters, &key_slot, now);
                }
            }
        }
        settled
    }

    /// Applies to the fallback counters what was changed in the store. Units that the store refunded were charged
    /// locally at the instant of the decision.
    pub(crate) fn follow_adjusted(&self, held: &Held, settled: Settled) {
        let FallbackContext { fallback, active, now, .. } = *self;
        let charge = |units| {
            let charge = active.charge_of(held, PermitId(0), units).filter(|_| units > 0);
            charge.map(|charge| charge.of_instant(held.decided_at))
        };
        if let Some(charge) = charge(settled.refunded)
            && let Some(key_slot) = KeySlot::held(active, held, &charge)
        {
            fallback.refund_share(&key_slot, now);
        }
        if let Some(charge) = charge(settled.charged)
            && let Some(key_slot) = KeySlot::held(active, held, &charge)
        {
            fallback.charge_share(&key_slot, now);
        }
    }

    /// Releases a permit locally. Returns whether the store need not be asked, because it never knew of the permit.
    pub(crate) fn release(&self, permit: &Permit, held: &Held) -> bool {
        let FallbackContext { fallback, active, now, .. } = *self;
        let Some(charge) = active.charge_of(held, permit.id(), held.cost) else { return false };
        let Some(key_slot) = KeySlot::held(active, held, &charge) else { return false };
        fallback.local.refund(Side::Counters, &key_slot, now);
        match held.source {
            Source::Local => fallback.deferred.permits.take_back(&charge),
            Source::Open => true,
            // The store may know of the permit or not: it gets the release, and the grant is no longer reported.
            _ => {
                fallback.deferred.permits.take_back(&charge);
                false
            }
        }
    }

    /// Renews a permit locally.
    pub(crate) fn renew(&self, permit: &Permit, held: &Held) {
        if let Some(charge) = self.active.charge_of(held, permit.id(), held.cost)
            && let Some(key_slot) = KeySlot::held(self.active, held, &charge)
        {
            self.fallback.local.renew(&key_slot, self.now);
            self.fallback.deferred.permits.renew(&charge, self.now);
        }
    }

    /// Refunds locally what the store has refunded.
    pub(crate) fn refund(&self, matched: &Match, charge: &Charge<'_>) {
        self.fallback.refund_share(&KeySlot::matched(self.active, matched, charge), self.now);
    }

    /// Refunds locally, and records for a report, the part of a started refund that the store has yet to make.
    pub(crate) fn defer_refund(&self, matched: &Match, charge: &Charge<'_>) {
        let FallbackContext { fallback, active, now, .. } = *self;
        let held = Held::new(&active.policy, matched, charge, Source::Exact);
        self.refund(matched, charge);
        fallback.deferred.add_refund(&fallback.local, active, charge, held.into(), now);
    }

    /// Resets locally what was reset in the store.
    pub(crate) fn reset(&self, matched: &Match, charge: &Charge<'_>) {
        self.fallback.local.reset(&KeySlot::matched(self.active, matched, charge), self.now);
        self.fallback.deferred.forget(charge);
    }
}
