//! The right to draw for a key: one at a time, so that those who lack the same units at the same time ask once.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use super::Loan;
use super::cell::{Asked, Cell};

/// The right itself. Dropped, others may try.
pub(super) struct Turn<R: Clone> {
    cell: Arc<Cell<R>>,
    number: u64,
    /// Whether the store was asked: one that is given up before is nobody's failure.
    has_asked: bool,
    /// The units that it may have lent, as long as it has not answered.
    at_stake: u64,
}

impl<R: Clone> Turn<R> {
    pub(super) const fn new(cell: Arc<Cell<R>>, number: u64) -> Self {
        Self { cell, number, has_asked: false, at_stake: 0 }
    }

    pub(super) const fn cell(&self) -> &Arc<Cell<R>> {
        &self.cell
    }

    /// The store is asked now for so many units beyond what is charged.
    pub(super) fn ask(&mut self, units: u64) {
        (self.has_asked, self.at_stake) = (true, units);
    }

    /// It was not there, or did nothing: nothing was lent.
    pub(super) fn is_refused(&mut self) {
        self.at_stake = 0;
    }

    /// Ends it with what it brought. Tells how many units ended with their window.
    pub(super) fn end(self, asked: Asked<'_>, loan: Loan<R>) -> u64 {
        let ended = self.cell.received(asked, loan);
        self.cell.lock().ended = self.number;
        ended
    }
}

impl<R: Clone> Drop for Turn<R> {
    fn drop(&mut self) {
        let mut inner = self.cell.lock();
        inner.is_drawing = false;
        if self.has_asked && inner.ended != self.number {
            inner.failed = self.number;
            // Whoever waited for the answer is gone, or none came. At most so many units were lent, and nobody knows of them.
            self.cell.lost.fetch_add(self.at_stake, Ordering::Relaxed);
        }
        let wakers = std::mem::take(&mut inner.wakers);
        drop(inner);
        wakers.into_iter().for_each(std::task::Waker::wake);
    }
}

/// Somebody who waits for units.
struct Waiting<'c, R: Clone>(&'c Cell<R>, u64);

impl<R: Clone> Drop for Waiting<'_, R> {
    fn drop(&mut self) {
        self.0.waits_no_more(self.1);
    }
}

impl<R: Clone> Cell<R> {
    /// Waits until whoever draws is done.
    pub(super) async fn others_turn(&self, cost: u64) {
        self.waits(cost);
        let _waiting = Waiting(self, cost);
        poll_fn(|context| {
            let mut inner = self.lock();
            if !inner.is_drawing {
                return Poll::Ready(());
            }
            if !inner.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                inner.wakers.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}
