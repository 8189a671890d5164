//! Who waits at a gate, in the order they came. Only the first of a key asks the counter; the others wait for its place.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::key::Fingerprint;

/// Most waits at one gate, over all keys.
pub(super) const WAITERS_MAX: usize = 65_536;

/// The queues of a gate, one for each key that somebody waits for.
#[derive(Default)]
pub(super) struct Queues(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    queues: HashMap<Fingerprint, VecDeque<Waiter>>,
    waiting: usize,
    next_ticket: u64,
}

struct Waiter {
    ticket: u64,
    cost: u64,
    waker: Option<Waker>,
}

/// The gate has [`WAITERS_MAX`] waits already.
#[derive(Debug)]
pub(super) struct Crowded;

impl Queues {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing between lock and unlock leaves the queues inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the end of a key's queue: the ticket, and the units wanted by those ahead.
    pub(super) fn join(&self, key: Fingerprint, cost: u64) -> Result<(u64, u64), Crowded> {
        let mut inner = self.inner();
        if inner.waiting >= WAITERS_MAX {
            return Err(Crowded);
        }
        inner.waiting += 1;
        inner.next_ticket += 1;
        let ticket = inner.next_ticket;
        let queue = inner.queues.entry(key).or_default();
        let ahead = queue.iter().fold(0u64, |sum, waiter| sum.saturating_add(waiter.cost));
        queue.push_back(Waiter { ticket, cost, waker: None });
        Ok((ticket, ahead))
    }

    /// Whether it is the ticket's turn; if not, whom to wake when it is.
    pub(super) fn is_first(&self, key: Fingerprint, ticket: u64, waker: &Waker) -> bool {
        let mut inner = self.inner();
        let Some(queue) = inner.queues.get_mut(&key) else { return true };
        if queue.front().is_some_and(|first| first.ticket == ticket) {
            return true;
        }
        if let Some(waiter) = queue.iter_mut().find(|waiter| waiter.ticket == ticket) {
            waiter.waker = Some(waker.clone());
        }
        false
    }

    /// The units wanted by those ahead of a ticket.
    pub(super) fn ahead_of(&self, key: Fingerprint, ticket: u64) -> u64 {
        let inner = self.inner();
        let queue = inner.queues.get(&key).into_iter().flatten();
        queue
            .take_while(|waiter| waiter.ticket != ticket)
            .fold(0, |sum, waiter| sum.saturating_add(waiter.cost))
    }

    /// Gives up a place, served or not, and wakes the next if it was the first.
    pub(super) fn leave(&self, key: Fingerprint, ticket: u64) {
        let mut inner = self.inner();
        let Some(queue) = inner.queues.get_mut(&key) else { return };
        let Some(position) = queue.iter().position(|waiter| waiter.ticket == ticket) else { return };
        queue.remove(position);
        let next =
            if position == 0 { queue.front_mut().and_then(|waiter| waiter.waker.take()) } else { None };
        if queue.is_empty() {
            inner.queues.remove(&key);
        }
        inner.waiting -= 1;
        drop(inner);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}
