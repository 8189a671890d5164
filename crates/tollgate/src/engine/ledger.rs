//! The ledger: counts and corrections without a check. Tallies count without a limit, debits take what was consumed
//! already, and refunds give back.

use super::Engine;

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
