//! Who waits at a gate, in the order they came. Only the first of a key asks the counter; the others wait for its place.
//!
//! The first asks, and leaves or says whom to wake, under the lock of the queues. Whoever makes room does so first and takes
//! the lock then, so no wake is lost: either the first's question came after the room was made, or its waker is there to be
//! found. For the same reason nobody is ever seen both in line and in the counter. Wakers are woken and dropped without the
//! lock, since either may run a task that waits at this gate.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::key::Fingerprint;

/// Most waits at one gate, over all keys.
pub(super) const WAITERS_MAX: usize = 65_536;
/// A ticket behind all that are ever given out.
pub(super) const TICKET_NEXT: u64 = u64::MAX;

/// The queues of a gate, one for each key that somebody waits for.
#[derive(Default)]
pub(super) struct Queues {
    inner: Mutex<Inner>,
    /// Waits in all queues. Changed under the lock only; read without it by whoever makes room.
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    queues: HashMap<Fingerprint, VecDeque<Waiter>>,
    next_ticket: u64,
}

/// One in line. Tickets ascend along a queue.
struct Waiter {
    ticket: u64,
    cost: u64,
    /// Nobody, while it has been woken and has not looked since.
    waker: Option<Waker>,
    /// Whether room was made since it last asked.
    stirred: bool,
}

/// So many in a row that want the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) cost: u64,
    pub(super) count: u64,
}

/// What a look at one's place in line has come to.
pub(super) enum Turn<A, L> {
    /// Others are ahead. It is woken when it is the first.
    Behind,
    /// It is the first and need not ask yet. It is woken when room is made.
    Resting,
    /// It asked and stays the first. It is woken when room is made.
    Stays(L),
    /// It asked and has left the line.
    Leaves(A),
}

/// The gate has [`WAITERS_MAX`] waits already.
#[derive(Debug)]
pub(super) struct Crowded;

impl Queues {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing between lock and unlock leaves the queues inconsistent.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the end of a key's queue and tells the ticket.
    pub(super) fn join(&self, key: Fingerprint, cost: u64) -> Result<u64, Crowded> {
        let mut inner = self.inner();
        let waiting = self.waiting.load(Ordering::Relaxed); // Changed under the lock only.
        if waiting >= WAITERS_MAX {
            return Err(Crowded);
        }
        self.waiting.store(waiting + 1, Ordering::Relaxed);
        // The other half of the fence in `stir`: the count is written before this wait's first question.
        fence(Ordering::SeqCst);
        inner.next_ticket += 1;
        let ticket = inner.next_ticket;
        let waiter = Waiter { ticket, cost, waker: None, stirred: false };
        inner.queues.entry(key).or_default().push_back(waiter);
        Ok(ticket)
    }

    /// Looks whether it is the ticket's turn. The first asks when it has `rested`, or when room was made: `ask` either
    /// leaves the line with an answer or stays.
    pub(super) fn turn<A, L>(
        &self,
        key: Fingerprint,
        ticket: u64,
        waker: &Waker,
        rested: bool,
        ask: impl FnOnce() -> ControlFlow<A, L>,
    ) -> Turn<A, L> {
        let mut waker = Some(waker.clone());
        let mut inner = self.inner();
        let Some((position, waiter)) = inner.find(key, ticket) else { return Turn::Resting };
        let turn = if position > 0 {
            Turn::Behind
        } else if !rested && !waiter.stirred {
            Turn::Resting
        } else {
            waiter.stirred = false;
            match ask() {
                ControlFlow::Continue(later) => Turn::Stays(later),
                ControlFlow::Break(answer) => {
                    self.remove(inner, key, position);
                    return Turn::Leaves(answer);
                }
            }
        };
        std::mem::swap(&mut waiter.waker, &mut waker);
        drop(inner);
        drop(waker); // The one before, without the lock.
        turn
    }

    /// Those ahead of a ticket, and what `look` sees of the counter while none of them comes or goes.
    pub(super) fn ahead<T>(&self, key: Fingerprint, ticket: u64, look: impl FnOnce() -> T) -> (Vec<Run>, T) {
        let inner = self.inner();
        let queue = inner.queues.get(&key).into_iter().flatten();
        let mut runs: Vec<Run> = Vec::new();
        for waiter in queue.take_while(|waiter| waiter.ticket < ticket) {
            match runs.last_mut() {
                Some(run) if run.cost == waiter.cost => run.count += 1,
                _ => runs.push(Run { cost: waiter.cost, count: 1 }),
            }
        }
        (runs, look())
    }

    /// Gives up a place, and wakes the next if it was the first.
    pub(super) fn leave(&self, key: Fingerprint, ticket: u64) {
        let mut inner = self.inner();
        if let Some((position, _)) = inner.find(key, ticket) {
            self.remove(inner, key, position);
        }
    }

    /// Lets the first of a key ask again. Called when room was made, after it was made.
    pub(super) fn stir(&self, key: Fingerprint) {
        // Where nobody waits, which is nearly always, no lock is taken. If this reads 0 although somebody has joined, the other's
        // fence in `join` comes after this one, and what was given back before this fence is seen by the question after that one.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut inner = self.inner();
        let first = inner.queues.get_mut(&key).and_then(VecDeque::front_mut);
        let woken = first.and_then(|waiter| {
            waiter.stirred = true;
            waiter.waker.take()
        });
        drop(inner);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Removes who stands at a position, and wakes the next if that is now the first.
    fn remove(&self, mut inner: MutexGuard<'_, Inner>, key: Fingerprint, position: usize) {
        let Some(queue) = inner.queues.get_mut(&key) else { return };
        let gone = queue.remove(position);
        let next = queue.front_mut().filter(|_| position == 0).and_then(|waiter| waiter.waker.take());
        if queue.is_empty() {
            inner.queues.remove(&key);
        }
        // Relaxed: under the lock, and reading too many only costs a lock.
        self.waiting.fetch_sub(usize::from(gone.is_some()), Ordering::Relaxed);
        drop(inner);
        next.into_iter().for_each(Waker::wake);
        drop(gone);
    }
}

impl Inner {
    /// Where a ticket stands.
    fn find(&mut self, key: Fingerprint, ticket: u64) -> Option<(usize, &mut Waiter)> {
        let queue = self.queues.get_mut(&key)?;
        let position = queue.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()?;
        queue.get_mut(position).map(|waiter| (position, waiter))
    }
}
