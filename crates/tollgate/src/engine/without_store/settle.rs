//! Settlement while the store is unreachable: refunds, and charges beyond an estimate, are applied to the fallback
//! counters and to the deferred charges.

use super::{Side, Spot, Standby};
use crate::algorithm::concurrency::PermitId;
use crate::decision::{Held, Permit};
use crate::engine::Engine;
use crate::engine::hold::Settled;
use crate::engine::live::Live;
use crate::outcome::Source;
use crate::policy::Match;
use crate::store::{Charge, Store};
use crate::time::Timestamp;

impl<S: Store> Engine<S> {
    /// Adjusts a charge that was made locally during an outage to `cost`. What was reported to the store meanwhile
    /// stays charged there.
    pub(in crate::engine) fn adjust_here(&self, held: &Held, cost: u64, now: Timestamp) -> Settled {
        let live = self.live.load_full();
        let mut settled = Settled::default();
        let Some(standby) = self.standby.get() else { return settled };
        let Standby { local, debts, .. } = &**standby;
        if cost < held.cost {
            let units = held.cost - cost;
            // The share is a bucket, whatever the limit is: it counts units by the instant of the decision.
            let charge = live.charge_of(held, PermitId(0), units);
            let charge = charge.map(|charge| charge.of_instant(held.decided_at));
            if let Some(spot) = charge.as_ref().and_then(|charge| Spot::held(&live, held, charge)) {
                settled.refunded = held.still_counted(units, now);
                standby.take_back(&spot, held.decided_at, now);
            }
        } else if let Some(look) = live.charge_of(held, PermitId(0), 0).filter(|_| cost > held.cost) {
            let Some(spot) = Spot::held(&live, held, &look) else { return settled };
            let extra = cost - held.cost;
            let left = local.ask(&spot, false, now);
            settled.charged = left.map_or(0, |left| left.outcome.remaining).min(extra);
            settled.unpaid = extra - settled.charged;
            let charge = look.costing(settled.charged);
            if settled.charged > 0 {
                debts.begin(local, &live, &charge, || held.clone().into(), now);
                if let Some(spot) = Spot::held(&live, held, &charge) {
                    local.keep_warm(Side::Counters, &spot, now);
                }
            }
        }
        settled
    }

    /// Applies to the fallback counters what was changed in the store. Units that the store refunded were charged
    /// locally at the instant of the decision.
    pub(in crate::engine) fn follow_adjusted(&self, held: &Held, settled: Settled, now: Timestamp) {
        let Some(standby) = self.standby.get() else { return };
        let live = self.live.load_full();
        let charge = |units| {
            let charge = live.charge_of(held, PermitId(0), units).filter(|_| units > 0);
            charge.map(|charge| charge.of_instant(held.decided_at))
        };
        if let Some(charge) = charge(settled.refunded)
            && let Some(spot) = Spot::held(&live, held, &charge)
        {
            standby.give(&spot, now);
        }
        if let Some(charge) = charge(settled.charged)
            && let Some(spot) = Spot::held(&live, held, &charge)
        {
            standby.keep_warm(&spot, now);
        }
    }

    /// Releases a permit locally. Returns whether the store need not be asked, because it never knew of the permit.
    pub(in crate::engine) fn release_here(
        &self,
        live: &Live,
        permit: &Permit,
        held: &Held,
        now: Timestamp,
    ) -> bool {
        let Some(standby) = self.standby.get() else { return false };
        let Some(charge) = live.charge_of(held, permit.id(), held.cost) else { return false };
        let Some(spot) = Spot::held(live, held, &charge) else { return false };
        standby.local.refund(Side::Counters, &spot, now);
        match held.source {
            Source::Local => standby.debts.permits.take_back(&charge),
            Source::Open => true,
            // The store may know of the permit or not: it gets the release, and the grant is no longer reported.
            _ => {
                standby.debts.permits.take_back(&charge);
                false
            }
        }
    }

    /// Renews a permit locally. Returns whether the store need not be asked, because it never knew of the permit.
    pub(in crate::engine) fn renew_here(
        &self,
        live: &Live,
        permit: &Permit,
        held: &Held,
        now: Timestamp,
    ) -> bool {
        if let Some(standby) = self.standby.get()
            && let Some(charge) = live.charge_of(held, permit.id(), held.cost)
            && let Some(spot) = Spot::held(live, held, &charge)
        {
            standby.local.renew(&spot, now);
            standby.debts.permits.renew(&charge, now);
        }
        held.source == Source::Open
    }

    /// Refunds locally what the store has refunded.
    pub(in crate::engine) fn refund_here(
        &self,
        live: &Live,
        matched: &Match,
        charge: &Charge<'_>,
        now: Timestamp,
    ) {
        if let Some(standby) = self.standby.get() {
            standby.give(&Spot::matched(live, matched, charge), now);
        }
    }

    /// Records the part of a started refund that the store has yet to make.
    pub(in crate::engine) fn owe(&self, live: &Live, matched: &Match, charge: &Charge<'_>, now: Timestamp) {
        let standby = self.standby(live, now);
        let held = Held::new(&live.policy, matched, charge, Source::Exact);
        standby.give(&Spot::matched(live, matched, charge), now);
        standby.debts.add_refund(&standby.local, live, charge, held.into(), now);
    }

    /// Resets locally what was reset in the store.
    pub(in crate::engine) fn reset_here(
        &self,
        live: &Live,
        matched: &Match,
        charge: &Charge<'_>,
        now: Timestamp,
    ) {
        if let Some(standby) = self.standby.get() {
            standby.local.reset(&Spot::matched(live, matched, charge), now);
            standby.debts.forget(charge);
        }
    }
}
