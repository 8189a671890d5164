//! The ledger: counts and corrections without a check. Tallies count without a limit, debits take what was consumed
//! already, and refunds give back.

use super::{Engine, Prepared};
use crate::request::CheckRequest;
use crate::store::Store;
use crate::time::Timestamp;

mod debit;
mod refund;
mod tally;

pub use tally::{Counted, Tally};

/// Counts and corrections without a check.
pub struct Ledger<'e, S> {
    pub(super) engine: &'e Engine<S>,
}

impl<S> Copy for Ledger<'_, S> {}

impl<S> Clone for Ledger<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Store> Ledger<'_, S> {
    /// The counters that a request would be charged to: [`Prepared::counters`] lists them with their costs. Nothing is
    /// charged, and the store is not asked. `None` for a request that no counter decides about.
    #[must_use]
    pub fn prepare(self, request: &CheckRequest<'_>, now: Timestamp) -> Option<Prepared> {
        self.engine.prepare(request, now).ok()
    }
}
