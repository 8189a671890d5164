//! Renewals: single-flight per key, so that concurrent requests that lack the same units ask the store once. And the
//! background maintenance, which renews leases before they run out and returns expired units.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use super::cell::{Cell, Renewal, Unspent};
use super::map::Sweep;
use super::{LeasedStore, Lender, Loan};
use crate::store::StoreFailure;
use crate::time::Timestamp;
use crate::together::together;

/// The maximum number of concurrent store calls of one maintenance run.
const CONCURRENT_CALLS: usize = 128;
/// How often [`LeasedStore::close`] waits for renewals in flight.
const CLOSE_ROUNDS: usize = 2;

impl<S: Lender> LeasedStore<S> {
    /// Renews leases that run out and returns units that expired. Call it every few milliseconds.
    pub async fn maintain(&self, now: Timestamp) {
        let queued = if self.map.is_closed() { Vec::new() } else { self.map.take_renewal_queue() };
        let renewals = queued.into_iter().map(|cell| async move {
            cell.is_renewal_queued.store(false, Ordering::Relaxed);
            let receipt = cell.lock().receipt.clone();
            let (Some(receipt), Some(mut guard)) = (receipt, cell.try_start_renewal(&mut Some(0), 0)) else {
                return;
            };
            let quota = self.store.quota_of(&receipt);
            self.map.drain_expired(&cell, now);
            let request = cell.next_request(quota, 0, self.fleet_size(), now);
            if request.units == 0 || self.map.is_closed() {
                return;
            }
            guard.sent(request.units);
            let lent = self.store.lend_more(&receipt, request, now).await;
            if matches!(lent, Err(failure) if failure != StoreFailure::Unanswered) {
                guard.not_lent();
            }
            if let Ok(loan) = lent {
                self.map.counts.acquired(loan.extra);
                let renewal = Renewal { quota, cost: 0, request, sent: now, is_admitted: true };
                self.map.counts.stranded(guard.complete(renewal, loan));
                self.drain_if_removed(&cell);
            }
        });
        in_batches(renewals).await;
        self.return_unspent(now, Sweep::Expired).await;
    }

    /// Returns all units and stops leasing: later charges go to the store. For an orderly shutdown.
    pub async fn close(&self, now: Timestamp) {
        self.map.close();
        // Renewals in flight at this point still bring units.
        for _ in 0..CLOSE_ROUNDS {
            self.return_unspent(now, Sweep::All).await;
            self.map.wait_for_renewals().await;
        }
        self.return_unspent(now, Sweep::All).await;
    }

    async fn return_unspent(&self, now: Timestamp, sweep: Sweep) {
        let unspent = self.map.take_unspent(now, sweep);
        let returns = unspent.into_iter().map(|left| async move {
            let Unspent { receipt, units, acquired_at } = left;
            match self.store.return_units(&receipt, units, acquired_at, now).await {
                Ok(()) => self.map.counts.returned(units),
                Err(_) => self.map.counts.stranded(units),
            }
        });
        in_batches(returns).await;
    }
}

/// Runs all futures, at most [`CONCURRENT_CALLS`] at a time.
async fn in_batches<F: Future<Output = ()>>(futures: impl Iterator<Item = F>) {
    let mut futures = futures.peekable();
    while futures.peek().is_some() {
        together(futures.by_ref().take(CONCURRENT_CALLS)).await;
    }
}

/// The exclusive right to renew one key. Dropping it wakes the waiters.
pub(super) struct RenewalGuard<R: Clone> {
    cell: Arc<Cell<R>>,
    number: u64,
    /// Whether the store was asked. A renewal that is dropped before that has not failed.
    is_sent: bool,
    /// The units that the store may have lent without an answer.
    units_at_risk: u64,
}

impl<R: Clone> RenewalGuard<R> {
    pub(super) const fn new(cell: Arc<Cell<R>>, number: u64) -> Self {
        Self { cell, number, is_sent: false, units_at_risk: 0 }
    }

    pub(super) const fn cell(&self) -> &Arc<Cell<R>> {
        &self.cell
    }

    /// Notes that the store is about to be asked for `units` beyond the charge.
    pub(super) fn sent(&mut self, units: u64) {
        (self.is_sent, self.units_at_risk) = (true, units);
    }

    /// Notes that the store certainly lent nothing.
    pub(super) fn not_lent(&mut self) {
        self.units_at_risk = 0;
    }

    /// Completes the renewal. Returns the units that expired with their window.
    pub(super) fn complete(self, renewal: Renewal<'_>, loan: Loan<R>) -> u64 {
        let expired = self.cell.apply_loan(renewal, loan);
        self.cell.lock().completed = self.number;
        expired
    }
}

impl<R: Clone> Drop for RenewalGuard<R> {
    fn drop(&mut self) {
        let mut state = self.cell.lock();
        state.is_renewing = false;
        if self.is_sent && state.completed != self.number {
            state.failed = self.number;
            // The caller was cancelled, or the store did not answer. At most this many units were lent.
            self.cell.unanswered_units.fetch_add(self.units_at_risk, Ordering::Relaxed);
        }
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(std::task::Waker::wake);
    }
}

/// Counts the units of a waiter until it is dropped.
struct RenewalWaiter<'c, R: Clone>(&'c Cell<R>, u64);

impl<R: Clone> Drop for RenewalWaiter<'_, R> {
    fn drop(&mut self) {
        self.0.remove_waiter(self.1);
    }
}

impl<R: Clone> Cell<R> {
    /// Waits until no renewal of this key is in flight.
    pub(super) async fn wait_for_renewal(&self, cost: u64) {
        self.add_waiter(cost);
        let _waiter = RenewalWaiter(self, cost);
        poll_fn(|context| {
            let mut state = self.lock();
            if !state.is_renewing {
                return Poll::Ready(());
            }
            if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                state.wakers.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}
