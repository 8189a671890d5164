//! What all clones of an [`Outbound`](crate::Outbound) and all its guards share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::Engine;

use crate::report::AtomicTotals;
use crate::room::WaitingRoom;
use crate::settings::Settings;
use crate::shared_freezes::Exchange;

pub(crate) struct Shared<S> {
    pub(crate) engine: Engine<S>,
    pub(crate) settings: Settings,
    /// Held for a few map operations, never across an await.
    room: Mutex<WaitingRoom>,
    pub(crate) totals: AtomicTotals,
    pub(crate) exchange: Exchange,
}

impl<S> Shared<S> {
    pub(crate) fn new(engine: Engine<S>, settings: Settings, room: WaitingRoom) -> Self {
        let (totals, exchange) = (AtomicTotals::default(), Exchange::default());
        Self { engine, settings, room: Mutex::new(room), totals, exchange }
    }

    pub(crate) fn room(&self) -> MutexGuard<'_, WaitingRoom> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
