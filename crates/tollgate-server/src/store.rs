//! The server's store: one type for all kinds, so that everything above it is compiled once.

use std::sync::Arc;

use tollgate::departure::{DepartureRequest, DepartureSlot, LeaveOutcome};
use tollgate::lease::LeasedStore;
use tollgate::store::{Answers, Charge, Family, Foreseen, Hold, Store, StoreFailure};
use tollgate::time::WallOffset;
use tollgate::{Clock, MemoryStore, Secret, Ticks, Timestamp};
use tollgate_redis::RedisStore;

mod choice;
mod keys;

#[allow(unreachable_pub, reason = "the command line exports it")]
pub use choice::NodesChoice;
pub(crate) use choice::{
    StoreChoice, StoreDocument, StoreLogin, StoreSettings, nodes, settings, store_deadline,
};
pub(crate) use keys::bytes;

/// Maximum number of keys with leases, about 300 bytes each.
const LEASED_KEYS_MAX: usize = 200_000;

/// A store of the server.
#[allow(
    clippy::large_enum_variant,
    reason = "there are one or two for each server, and a box would cost every decision in memory"
)]
pub(crate) enum Stores {
    /// In this process.
    Memory(MemoryStore),
    /// In a store that other servers share. The engines of this server share it as well.
    Redis(Arc<Fleet>),
}

/// A shared store.
pub(crate) struct Fleet {
    /// With the leases of its counters.
    pub(crate) store: LeasedStore<RedisStore>,
    /// The minimum number of servers, however few are seen.
    min_nodes: u32,
}

impl Fleet {
    /// A store that at least this many servers share.
    pub(crate) fn new(store: RedisStore, min_nodes: u32) -> Self {
        Self { store: LeasedStore::new(store, LEASED_KEYS_MAX).expect_nodes(min_nodes), min_nodes }
    }

    /// The store itself.
    pub(crate) const fn redis(&self) -> &RedisStore {
        self.store.store()
    }
}

impl Stores {
    /// The memory store, if it is one: only its counters can be counted and written to a snapshot.
    pub(crate) const fn memory(&self) -> Option<&MemoryStore> {
        match self {
            Stores::Memory(store) => Some(store),
            Stores::Redis(_) => None,
        }
    }

    /// The shared store, if it is one.
    pub(crate) const fn fleet(&self) -> Option<&Arc<Fleet>> {
        match self {
            Stores::Memory(_) => None,
            Stores::Redis(fleet) => Some(fleet),
        }
    }
}

impl Store for Stores {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        match self {
            Stores::Memory(store) => store.charge(charges, now).await,
            Stores::Redis(fleet) => fleet.store.charge(charges, now).await,
        }
    }

    #[inline]
    fn never_waits(&self) -> bool {
        matches!(self, Stores::Memory(_))
    }

    fn secret(&self) -> Option<Secret> {
        match self {
            Stores::Memory(store) => store.secret(),
            Stores::Redis(fleet) => fleet.store.secret(),
        }
    }

    #[inline]
    fn is_grouped(&self) -> bool {
        match self {
            Stores::Memory(store) => store.is_grouped(),
            Stores::Redis(fleet) => fleet.store.is_grouped(),
        }
    }

    fn join_queue(
        &self,
        request: &DepartureRequest<'_>,
        now: Timestamp,
        clock: &Clock,
    ) -> Option<DepartureSlot> {
        match self {
            Stores::Memory(store) => store.join_queue(request, now, clock),
            Stores::Redis(fleet) => fleet.store.join_queue(request, now, clock),
        }
    }

    fn leave_queue(&self, slot: &DepartureSlot, now: Timestamp) -> LeaveOutcome {
        match self {
            Stores::Memory(store) => store.leave_queue(slot, now),
            Stores::Redis(fleet) => fleet.store.leave_queue(slot, now),
        }
    }

    #[inline]
    fn try_charge(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
        answers: &mut Answers,
    ) -> Option<Result<(), StoreFailure>> {
        match self {
            Stores::Memory(store) => store.try_charge(charges, now, answers),
            Stores::Redis(fleet) => fleet.store.try_charge(charges, now, answers),
        }
    }

    fn foreseen(&self, charges: &[Charge<'_>], now: Timestamp) -> Foreseen {
        match self {
            Stores::Memory(store) => store.foreseen(charges, now),
            Stores::Redis(fleet) => fleet.store.foreseen(charges, now),
        }
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        match self {
            Stores::Memory(store) => store.refund(charges, now).await,
            Stores::Redis(fleet) => fleet.store.refund(charges, now).await,
        }
    }

    async fn renew(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        match self {
            Stores::Memory(store) => store.renew(charges, now).await,
            Stores::Redis(fleet) => fleet.store.renew(charges, now).await,
        }
    }

    async fn step_back(
        &self,
        charge: &Charge<'_>,
        empty_at: Timestamp,
        now: Timestamp,
    ) -> Result<bool, StoreFailure> {
        match self {
            Stores::Memory(store) => store.step_back(charge, empty_at, now).await,
            Stores::Redis(fleet) => fleet.store.step_back(charge, empty_at, now).await,
        }
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        match self {
            Stores::Memory(store) => store.reset(charges, now).await,
            Stores::Redis(fleet) => fleet.store.reset(charges, now).await,
        }
    }

    async fn debit(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        match self {
            Stores::Memory(store) => store.debit(charges, now).await,
            Stores::Redis(fleet) => fleet.store.debit(charges, now).await,
        }
    }

    fn hold(&self, hold: &Hold) {
        match self {
            Stores::Memory(store) => store.hold(hold),
            Stores::Redis(fleet) => fleet.store.hold(hold),
        }
    }

    fn follow_wall(&self, wall: WallOffset, now: Timestamp) {
        match self {
            Stores::Memory(store) => store.follow_wall(wall, now),
            Stores::Redis(fleet) => fleet.store.follow_wall(wall, now),
        }
    }

    fn gather<R>(&self, ask: impl FnOnce() -> R) -> R {
        match self {
            Stores::Memory(store) => store.gather(ask),
            Stores::Redis(fleet) => fleet.store.gather(ask),
        }
    }

    fn prepare<'f>(&self, families: impl Iterator<Item = &'f Family>) {
        match self {
            Stores::Memory(store) => store.prepare(families),
            Stores::Redis(fleet) => fleet.store.prepare(families),
        }
    }

    fn nodes(&self) -> u32 {
        match self {
            Stores::Memory(store) => store.nodes(),
            // 0 means that the number is not known yet, and stays 0 unless the operator sets a minimum.
            Stores::Redis(fleet) => fleet.redis().node_count().max(fleet.min_nodes),
        }
    }

    fn away_for(&self, charge: &Charge<'_>, now: Timestamp) -> Option<Ticks> {
        match self {
            Stores::Memory(store) => store.away_for(charge, now),
            Stores::Redis(fleet) => fleet.store.away_for(charge, now),
        }
    }

    fn is_away(&self, charge: &Charge<'_>) -> bool {
        match self {
            Stores::Memory(store) => store.is_away(charge),
            Stores::Redis(fleet) => fleet.store.is_away(charge),
        }
    }
}
