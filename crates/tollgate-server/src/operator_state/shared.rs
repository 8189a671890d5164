//! The operator state of a node in a fleet: what its engine holds, kept in step with what the nodes know together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate_redis::{FleetExchange, FleetNews, SharedItem};

use super::file::OperatorState;
use super::items::{FleetItem, FleetItems, HeldItems};
use crate::service::Service;

/// The shared operator state of a fleet, as this node knows it.
pub(crate) struct SharedState {
    /// Locked while an operator's change is made and noted, and while a change of another node is applied, so that
    /// neither is taken for the other.
    known: Mutex<FleetItems>,
}

impl SharedState {
    /// Goes on with the items of an earlier run.
    pub(crate) fn new(known: FleetItems) -> Arc<Self> {
        Arc::new(Self { known: Mutex::new(known) })
    }

    fn known(&self) -> MutexGuard<'_, FleetItems> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change of an operator, and notes it. Returns the ids of the items that it changed.
    pub(crate) fn change<T>(&self, service: &Service, change: impl FnOnce() -> T) -> (T, Vec<String>) {
        let mut known = self.known();
        let before = held(service);
        let changed = change();
        let ids = known.note(&before, &held(service), wall_now(service));
        (changed, ids)
    }

    /// The next exchange with the store.
    pub(crate) fn exchange(&self) -> FleetExchange {
        self.known().exchange()
    }

    /// Takes what the store says in answer to these items, and applies what is new.
    pub(crate) fn hear(&self, service: &Service, sent: &[SharedItem], news: &FleetNews) {
        let mut known = self.known();
        known.hear(sent, news, wall_now(service));
        if news.items.is_none() {
            return;
        }
        let (engine, shedder, now) = (&service.engine, service.shedder(), service.now());
        let target = OperatorState::of_items(&known.holding(wall_now(service)));
        let target = target.off_wall(engine.maintenance().wall());
        let refused = target.replace(&OperatorState::of(engine, shedder, now), engine, shedder, now);
        for error in refused {
            tracing::error!(error, "an override or block of another node is not active on this one");
        }
    }

    /// All that is known, for the next start.
    pub(super) fn entries(&self) -> BTreeMap<String, FleetItem> {
        self.known().entries()
    }

    /// How many items the store does not have.
    pub(crate) fn unshared(&self) -> usize {
        self.known().unshared()
    }

    /// Whether the store has all of these items, or later words about them.
    pub(crate) fn has_shared(&self, ids: &[String]) -> bool {
        self.known().has_shared(ids)
    }
}

/// The overrides and blocks of the engine and of the controllers.
fn held(service: &Service) -> HeldItems {
    let state = OperatorState::of(&service.engine, service.shedder(), service.now());
    state.on_wall(service.engine.maintenance().wall()).items()
}

/// The wall clock, in microseconds since 1970.
fn wall_now(service: &Service) -> u64 {
    service.on_wall(service.now()).unix_micros()
}
