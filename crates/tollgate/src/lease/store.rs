//! [`LeasedStore`] as a store: leases and the deny cache answer what they can, the inner store answers the
//! rest.

use std::slice;

use smallvec::SmallVec;

use super::{LeasedStore, Lender};
use crate::clock::Clock;
use crate::departure::{DepartureRequest, DepartureSlot, LeaveOutcome};
use crate::key::Secret;
use crate::outcome::Source;
use crate::store::{Answers, Charge, Family, Foreseen, Hold, Lease, Store, StoreFailure};
use crate::time::{Ticks, Timestamp, WallOffset};

impl<S: Lender> Store for LeasedStore<S> {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        // Queries, and charges that cannot be leased, go to the store.
        if charges.iter().all(|charge| charge.lease().is_none() || charge.cost() == 0) {
            return self.store.charge(charges, now).await;
        }
        // The caller has tried `try_charge`, or does not need the fast path. The slow path has a large future. Boxed, so that the futures of all callers stay small.
        Box::pin(self.charge_slow_path(charges, now)).await
    }

    fn try_charge(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
        answers: &mut Answers,
    ) -> Option<Result<(), StoreFailure>> {
        self.try_charge_leases(charges, now, answers).map(Ok)
    }

    fn foreseen(&self, charges: &[Charge<'_>], now: Timestamp) -> Foreseen {
        let known = |charge: &Charge<'_>| {
            let cell = self.map.cell(charge).filter(|_| charge.cost() > 0)?;
            match cell.can_spend(charge.cost(), now) {
                true => Some(Source::Lease),
                false => cell.denies(charge, now).then_some(Source::DenyCache),
            }
        };
        let mut foreseen: Foreseen = charges.iter().map(known).collect();
        // Where one of them has to be asked about, those that are denied are asked about with it.
        if foreseen.iter().any(Option::is_none) {
            foreseen.iter_mut().for_each(|source| *source = source.filter(|source| *source == Source::Lease));
        }
        foreseen
    }

    fn never_waits(&self) -> bool {
        self.store.never_waits()
    }

    fn secret(&self) -> Option<Secret> {
        self.store.secret()
    }

    fn is_grouped(&self) -> bool {
        self.store.is_grouped()
    }

    fn join_queue(
        &self,
        request: &DepartureRequest<'_>,
        now: Timestamp,
        clock: &Clock,
    ) -> Option<DepartureSlot> {
        self.store.join_queue(request, now, clock)
    }

    fn leave_queue(&self, slot: &DepartureSlot, now: Timestamp) -> LeaveOutcome {
        self.store.leave_queue(slot, now)
    }

    fn gather<R>(&self, ask: impl FnOnce() -> R) -> R {
        self.store.gather(ask)
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        // A unit may have been acquired long before the request that spent it, so that its age is larger by as much.
        let held_for = |charge: &Charge<'_>| charge.lease().map_or(Ticks::ZERO, Lease::held_for);
        let acquired: SmallVec<[Charge<'_>; 6]> =
            charges.iter().map(|charge| charge.later(held_for(charge))).collect();
        let refunded = self.store.refund(&acquired, now).await;
        // After the refund: requests that were denied in the meantime may pass now.
        self.map.clear_denials(charges);
        refunded
    }

    async fn step_back(
        &self,
        charge: &Charge<'_>,
        empty_at: Timestamp,
        now: Timestamp,
    ) -> Result<bool, StoreFailure> {
        let stepped = self.store.step_back(charge, empty_at, now).await;
        self.map.clear_denials(slice::from_ref(charge));
        stepped
    }

    async fn renew(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.store.renew(charges, now).await
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        // Held units were debited from the counter that is reset. They are discarded with it.
        self.map.discard_cells(charges.iter().map(Charge::key));
        let reset = self.store.reset(charges, now).await;
        // Units that were acquired during the reset are discarded too.
        self.map.discard_cells(charges.iter().map(Charge::key));
        reset
    }

    async fn debit(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.store.debit(charges, now).await
    }

    fn hold(&self, hold: &Hold) {
        self.store.hold(hold);
    }

    fn follow_wall(&self, wall: WallOffset, now: Timestamp) {
        self.store.follow_wall(wall, now);
    }

    fn prepare<'f>(&self, families: impl Iterator<Item = &'f Family>) {
        self.store.prepare(families);
    }

    fn nodes(&self) -> u32 {
        self.store.nodes()
    }

    fn away_for(&self, charge: &Charge<'_>, now: Timestamp) -> Option<Ticks> {
        self.store.away_for(charge, now)
    }

    fn is_away(&self, charge: &Charge<'_>) -> bool {
        self.store.is_away(charge)
    }
}
