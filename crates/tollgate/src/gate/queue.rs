//! The queues of waiters at a gate, first in, first out per key. Only the first waiter of a key tries to
//! charge the counter.
//!
//! The first waiter charges, and leaves or stores its waker, under the lock of the queues. A caller that
//! frees capacity does so before it takes the lock, so no wake is lost: either the charge came after that, or
//! the waker is already stored. For the same reason a waiter is never both queued and counted. Wakers are
//! woken and dropped without the lock, since either may run a task that waits at this gate.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::key::Fingerprint;

/// Maximum number of waiters at one gate, over all keys.
pub(super) const WAITERS_MAX: usize = 65_536;
/// Greater than any issued ticket.
pub(super) const TICKET_NEXT: u64 = u64::MAX;

/// The queues of a gate, one for each key with waiters.
#[derive(Default)]
pub(super) struct Queues {
    state: Mutex<QueuesState>,
    /// The number of waiters in all queues. Written only under the lock; read without it when capacity is
    /// freed.
    waiting: AtomicUsize,
}

#[derive(Default)]
struct QueuesState {
    queues: HashMap<Fingerprint, VecDeque<Waiter>>,
    next_ticket: u64,
}

/// A waiter. Tickets ascend along a queue.
struct Waiter {
    ticket: u64,
    cost: u64,
    /// None after it was woken and before it is polled again.
    waker: Option<Waker>,
    /// Whether capacity was freed since its last attempt.
    is_notified: bool,
}

/// Consecutive waiters with the same cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CostRun {
    pub(super) cost: u64,
    pub(super) count: u64,
}

/// Whether the next attempt of the first waiter is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryDue {
    Yes,
    No,
}

/// The result of polling a waiter.
pub(super) enum WaiterPoll<A, L> {
    /// Other waiters are ahead. It is woken when it becomes the first.
    NotFirst,
    /// It is the first, and its next attempt is not due. It is woken when capacity is freed.
    NotDue,
    /// Its attempt failed and it stays the first. It is woken when capacity is freed.
    Waits(L),
    /// Its attempt ended and it has left the queue.
    Done(A),
}

/// The gate has [`WAITERS_MAX`] waiters.
#[derive(Debug)]
pub(super) struct QueueFull;

impl Queues {
    fn state(&self) -> MutexGuard<'_, QueuesState> {
        // A panic leaves the queues consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the end of a key's queue. Returns the ticket.
    pub(super) fn join(&self, key: Fingerprint, cost: u64) -> Result<u64, QueueFull> {
        let mut state = self.state();
        let waiting = self.waiting.load(Ordering::Relaxed); // Written only under the lock.
        if waiting >= WAITERS_MAX {
            return Err(QueueFull);
        }
        self.waiting.store(waiting + 1, Ordering::Relaxed);
        // Pairs with the fence in `wake_first`: the count is written before the waiter's first attempt.
        fence(Ordering::SeqCst);
        state.next_ticket += 1;
        let ticket = state.next_ticket;
        let waiter = Waiter { ticket, cost, waker: None, is_notified: false };
        state.queues.entry(key).or_default().push_back(waiter);
        Ok(ticket)
    }

    /// Polls a waiter. The first waiter makes an attempt when its retry is due or capacity was freed. The
    /// attempt either ends its wait or keeps it waiting.
    pub(super) fn poll_waiter<A, L>(
        &self,
        key: Fingerprint,
        ticket: u64,
        waker: &Waker,
        retry: RetryDue,
        attempt: impl FnOnce() -> ControlFlow<A, L>,
    ) -> WaiterPoll<A, L> {
        let mut waker = Some(waker.clone());
        let mut state = self.state();
        let Some((position, waiter)) = state.find(key, ticket) else { return WaiterPoll::NotDue };
        let polled = if position > 0 {
            WaiterPoll::NotFirst
        } else if retry == RetryDue::No && !waiter.is_notified {
            WaiterPoll::NotDue
        } else {
            waiter.is_notified = false;
            match attempt() {
                ControlFlow::Continue(later) => WaiterPoll::Waits(later),
                ControlFlow::Break(answer) => {
                    self.remove(state, key, position);
                    return WaiterPoll::Done(answer);
                }
            }
        };
        std::mem::swap(&mut waiter.waker, &mut waker);
        drop(state);
        drop(waker); // The previous waker, without the lock.
        polled
    }

    /// The waiters ahead of a ticket, and the result of `look_up` while none of them comes or goes.
    pub(super) fn ahead<T>(
        &self,
        key: Fingerprint,
        ticket: u64,
        look_up: impl FnOnce() -> T,
    ) -> (Vec<CostRun>, T) {
        let state = self.state();
        let queue = state.queues.get(&key).into_iter().flatten();
        let mut runs: Vec<CostRun> = Vec::new();
        for waiter in queue.take_while(|waiter| waiter.ticket < ticket) {
            match runs.last_mut() {
                Some(run) if run.cost == waiter.cost => run.count += 1,
                _ => runs.push(CostRun { cost: waiter.cost, count: 1 }),
            }
        }
        (runs, look_up())
    }

    /// Removes a waiter, and wakes the next one if it was the first.
    pub(super) fn leave(&self, key: Fingerprint, ticket: u64) {
        let mut state = self.state();
        if let Some((position, _)) = state.find(key, ticket) {
            self.remove(state, key, position);
        }
    }

    /// Wakes the first waiter of a key. Called after capacity was freed.
    pub(super) fn wake_first(&self, key: Fingerprint) {
        // Usually there are no waiters, and no lock is taken. If this reads 0 although a waiter has joined,
        // the waiter's fence in `join` comes after this one, and its attempt sees the capacity that was freed
        // before.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut state = self.state();
        let first = state.queues.get_mut(&key).and_then(VecDeque::front_mut);
        let woken = first.and_then(|waiter| {
            waiter.is_notified = true;
            waiter.waker.take()
        });
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Removes the waiter at a position, and wakes the next one if that is now the first.
    fn remove(&self, mut state: MutexGuard<'_, QueuesState>, key: Fingerprint, position: usize) {
        let Some(queue) = state.queues.get_mut(&key) else { return };
        let gone = queue.remove(position);
        let next = queue.front_mut().filter(|_| position == 0).and_then(|waiter| waiter.waker.take());
        if queue.is_empty() {
            state.queues.remove(&key);
        }
        // Relaxed: written under the lock, and reading too many only costs a lock.
        self.waiting.fetch_sub(usize::from(gone.is_some()), Ordering::Relaxed);
        drop(state);
        next.into_iter().for_each(Waker::wake);
        drop(gone);
    }
}

impl QueuesState {
    /// The position of a ticket.
    fn find(&mut self, key: Fingerprint, ticket: u64) -> Option<(usize, &mut Waiter)> {
        let queue = self.queues.get_mut(&key)?;
        let position = queue.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()?;
        queue.get_mut(position).map(|waiter| (position, waiter))
    }
}
