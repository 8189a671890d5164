//! Where the server's counters live: one type for all of its stores, so that everything above it is compiled once.

use tollgate::MemoryStore;
use tollgate::Timestamp;
use tollgate::charge::{Answers, Charge};
use tollgate::store::{Hold, Store, StoreFailure};

/// A store of the server.
pub(crate) enum Stores {
    /// In this process.
    Memory(MemoryStore),
}

impl Store for Stores {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        match self {
            Stores::Memory(store) => store.charge(charges, now).await,
        }
    }

    #[inline]
    fn answers_at_once(&self) -> bool {
        match self {
            Stores::Memory(_) => true,
        }
    }

    #[inline]
    fn is_grouped(&self) -> bool {
        match self {
            Stores::Memory(store) => store.is_grouped(),
        }
    }

    #[inline]
    fn memory(&self) -> Option<&MemoryStore> {
        match self {
            Stores::Memory(store) => Some(store),
        }
    }

    #[inline]
    fn charge_at_once(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Option<Result<Answers, StoreFailure>> {
        match self {
            Stores::Memory(store) => store.charge_at_once(charges, now),
        }
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        match self {
            Stores::Memory(store) => store.refund(charges, now).await,
        }
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        match self {
            Stores::Memory(store) => store.reset(charges, now).await,
        }
    }

    fn hold(&self, hold: &Hold) {
        match self {
            Stores::Memory(store) => store.hold(hold),
        }
    }
}
