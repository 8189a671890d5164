//! The state that all clones of an [`Outbound`](crate::Outbound) and all its guards share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::Engine;

use crate::queues::Queues;
use crate::report::AtomicTotals;
use crate::retry::RetryBudgets;
use crate::settings::Settings;
use crate::shared_freezes::FreezeOutbox;
use crate::slots::FreeSlots;

pub(crate) struct Shared<S> {
    pub(crate) engine: Engine<S>,
    pub(crate) settings: Settings,
    /// Held for a few map operations, never across an await.
    queues: Mutex<Queues>,
    /// As above, and never together with another lock.
    free_slots: Mutex<FreeSlots>,
    /// Held for a few map operations too.
    budgets: Mutex<RetryBudgets>,
    pub(crate) totals: AtomicTotals,
    pub(crate) outbox: FreezeOutbox,
}

impl<S> Shared<S> {
    pub(crate) fn new(engine: Engine<S>, settings: Settings, queues: Queues) -> Self {
        let budgets = Mutex::new(RetryBudgets::new(&settings.retry));
        let (totals, outbox) = (AtomicTotals::default(), FreezeOutbox::default());
        let (queues, free_slots) = (Mutex::new(queues), Mutex::default());
        Self { engine, settings, queues, free_slots, budgets, totals, outbox }
    }

    pub(crate) fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn free_slots(&self) -> MutexGuard<'_, FreeSlots> {
        self.free_slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn budgets(&self) -> MutexGuard<'_, RetryBudgets> {
        self.budgets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
