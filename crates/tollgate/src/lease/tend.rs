//! What is done beside requests: renewing what runs out, and giving back what nobody spent.

use std::future::Future;
use std::sync::atomic::Ordering;

use super::cell::{Asked, Leftover};
use super::{Leased, Lender};
use crate::store::StoreFailure;
use crate::time::Timestamp;
use crate::together::together;

/// Calls to the store that are under way at a time.
const AT_ONCE: usize = 128;
/// How often draws that are under way are waited for at the end.
const CLOSINGS: usize = 2;

impl<S: Lender> Leased<S> {
    /// Renews what runs out and gives back what was not spent in time. To be called every few milliseconds.
    pub async fn tend(&self, now: Timestamp) {
        let wanted = if self.book.is_closed() { Vec::new() } else { self.book.take_wanted() };
        let renewals = wanted.into_iter().map(|cell| async move {
            cell.is_wanted.store(false, Ordering::Relaxed);
            let receipt = cell.lock().receipt.clone();
            let (Some(receipt), Some(mut turn)) = (receipt, cell.turn(&mut Some(0), 0)) else { return };
            let quota = self.store.quota_of(&receipt);
            self.book.take_ended(&cell, now);
            let want = cell.wanted(quota, 0, self.fleet_size(), now);
            if want.units == 0 || self.book.is_closed() {
                return;
            }
            turn.ask(want.units);
            let lent = self.store.lend_more(&receipt, want, now).await;
            if matches!(lent, Err(failure) if failure != StoreFailure::Unanswered) {
                turn.is_refused();
            }
            if let Ok(loan) = lent {
                self.book.counts.drew(loan.extra);
                let asked = Asked { quota, cost: 0, want, sent: now, is_admitted: true };
                self.book.counts.stranded(turn.end(asked, loan));
                self.after(&cell);
            }
        });
        in_batches(renewals).await;
        self.give_back(now, false).await;
    }

    /// Gives everything back, and draws nothing any more: what is charged from now on is charged exactly. For a process that ends in
    /// order.
    pub async fn close(&self, now: Timestamp) {
        self.book.close();
        // What was under way when it closed brings units still.
        for _ in 0..CLOSINGS {
            self.give_back(now, true).await;
            self.book.drawn().await;
        }
        self.give_back(now, true).await;
    }

    async fn give_back(&self, now: Timestamp, all: bool) {
        let leftovers = self.book.take_leftovers(now, all);
        let returns = leftovers.into_iter().map(|left| async move {
            let Leftover { receipt, units, drawn_at } = left;
            match self.store.take_back(&receipt, units, drawn_at, now).await {
                Ok(()) => self.book.counts.returned(units),
                Err(_) => self.book.counts.stranded(units),
            }
        });
        in_batches(returns).await;
    }
}

/// Runs all of them, so many at a time.
async fn in_batches<F: Future<Output = ()>>(futures: impl Iterator<Item = F>) {
    let mut futures = futures.peekable();
    while futures.peek().is_some() {
        together(futures.by_ref().take(AT_ONCE)).await;
    }
}
