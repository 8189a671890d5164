//! Departure queues of leaky buckets in this process. When a waiter leaves, those behind it move up, and the
//! bucket gets its units back. The buckets themselves are left to their store.
//!
//! A request is charged first, and joins a queue only if it has to wait. In between, other requests may be
//! charged, join and leave. That is safe, since a charge outside of the queue is a gap that no waiter moves
//! past; see `schedule`.
//!
//! Each queue has one timer for its first waiter. It fires on the clock's thread, marks all waiters that are
//! due, and wakes each of them once. So no waiter depends on another task being polled.

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use smallvec::SmallVec;

use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::clock::{Clock, Sleep};
use crate::key::Fingerprint;
use crate::time::Timestamp;

mod schedule;
#[cfg(test)]
mod tests;

use schedule::Schedule;
pub(crate) use schedule::{BucketPace, FreedCredits};

/// The number of shards, each with a lock.
const QUEUE_SHARDS: usize = 16;

/// The departure queues of a store, by counter and quota number.
pub(crate) struct DepartureQueues([Arc<QueueShard>; QUEUE_SHARDS]);

/// Locked before the queues in it, and while a waiter joins, so that no queue is dropped in the meantime.
#[derive(Default)]
struct QueueShard(Mutex<HashMap<(Fingerprint, u32), Arc<DepartureQueue>>>);

struct DepartureQueue {
    at: (Fingerprint, u32),
    clock: Clock,
    /// Wakes this queue without keeping it alive.
    timer_waker: Waker,
    /// Guards the waiters. No waiter is woken while it is locked, since that may run a task that needs the
    /// lock.
    state: Mutex<QueueState>,
}

struct QueueState {
    schedule: Schedule,
    /// The state of each slot of the schedule.
    waiters: Vec<WaiterState>,
    /// The timer and when it fires.
    timer: Option<(Timestamp, Sleep)>,
    /// How often a timer has fired.
    timer_fires: u64,
}

enum WaiterState {
    Waiting(Option<Waker>),
    /// It may depart; its slot ends there.
    Due(u128),
    /// It left before it was due.
    Left,
}

struct TimerWaker(Weak<DepartureQueue>);

type Woken = SmallVec<[Waker; 4]>;

/// A charged request that has to wait.
pub struct DepartureRequest<'q> {
    pub(crate) key: Fingerprint,
    pub(crate) number: u32,
    pub(crate) quota: &'q LeakyBucket,
    pub(crate) cost: u64,
    /// When the bucket becomes empty if no other request comes.
    pub(crate) empty_at: Timestamp,
}

/// A slot in a departure queue. Dropping it without leaving keeps the slot occupied.
pub struct DepartureSlot {
    shard: Arc<QueueShard>,
    queue: Arc<DepartureQueue>,
    id: u32,
}

/// The result of leaving a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaveOutcome {
    /// The slot was freed for another waiter, or the bucket.
    Freed,
    /// The waiter was due, or had left before: the slot that ends there is used.
    Used(Timestamp),
}

impl Default for DepartureQueues {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Arc::default()))
    }
}

impl std::fmt::Debug for DepartureSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DepartureSlot").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Access to the bucket of a queue, which a store keeps.
pub(crate) struct Bucket<L, G> {
    /// The instant at which it becomes empty, in credits; `None` if the bucket is no longer counted by its
    /// number.
    pub(crate) level: L,
    /// Gives freed credits back to it. False if a charge follows them, so that they stay with the queue.
    pub(crate) give_back: G,
}

impl<L, G> Bucket<L, G>
where
    L: Fn(BucketPace) -> Option<u128>,
    G: Fn(BucketPace, FreedCredits) -> bool,
{
    fn free(&self, schedule: &mut Schedule, free: FreedCredits) {
        if free.by > 0 && !(self.give_back)(*schedule.pace(), free) {
            schedule.keep_freed(free);
        }
    }

    fn join(
        &self,
        queue: &DepartureQueue,
        pace: BucketPace,
        request: &DepartureRequest<'_>,
        now: Timestamp,
    ) -> Option<u32> {
        let mut state = queue.state();
        if *state.schedule.pace() != pace {
            return None;
        }
        let expected = pace.credits(request.empty_at);
        let level = (self.level)(pace).unwrap_or(expected);
        // The slot of the last charge is known to the fraction of a tick.
        let end = if pace.tick(level) == request.empty_at { level } else { expected };
        let (id, free) = state.schedule.join(end, pace.cost(request.cost), level, pace.credits(now))?;
        self.free(&mut state.schedule, free);
        state.set(id, WaiterState::Waiting(None));
        Some(id)
    }
}

impl DepartureQueues {
    /// Joins the queue with the slot of a charge. `None` if the request must keep its departure time.
    pub(crate) fn join(
        &self,
        request: &DepartureRequest<'_>,
        bucket: &Bucket<impl Fn(BucketPace) -> Option<u128>, impl Fn(BucketPace, FreedCredits) -> bool>,
        now: Timestamp,
        clock: &Clock,
    ) -> Option<DepartureSlot> {
        let pace = BucketPace::of(request.quota)?;
        if pace.due_at(pace.credits(request.empty_at)) <= now {
            return None; // It is due by now.
        }
        let at = (request.key, request.number);
        let shard = &self.0[usize::try_from(request.key.tag % QUEUE_SHARDS as u64).unwrap_or(0)];
        let mut queues = shard.queues();
        let queue = match queues.entry(at) {
            MapEntry::Occupied(known) => known.into_mut(),
            MapEntry::Vacant(free) => free.insert(DepartureQueue::new(at, pace, clock)),
        };
        let id = match bucket.join(queue, pace, request, now) {
            Some(id) => id,
            // The bucket has changed since the earlier waiters joined: they keep a queue of their own.
            None => {
                *queue = DepartureQueue::new(at, pace, clock);
                bucket.join(queue, pace, request, now)?
            }
        };
        let queue = Arc::clone(queue);
        drop(queues);
        queue.arm();
        Some(DepartureSlot { shard: Arc::clone(shard), queue, id })
    }
}

impl QueueShard {
    fn queues(&self) -> MutexGuard<'_, HashMap<(Fingerprint, u32), Arc<DepartureQueue>>> {
        // A panic leaves it consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DepartureQueue {
    fn new(at: (Fingerprint, u32), pace: BucketPace, clock: &Clock) -> Arc<Self> {
        let state =
            QueueState { schedule: Schedule::new(pace), waiters: Vec::new(), timer: None, timer_fires: 0 };
        Arc::new_cyclic(|queue| Self {
            at,
            clock: clock.clone(),
            timer_waker: Waker::from(Arc::new(TimerWaker(Weak::clone(queue)))),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        // As above.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks and wakes all waiters that are due, and sets the timer for the next.
    fn serve_due(&self, now: Timestamp) {
        let woken = self.state().call_due(now);
        wake_all(woken);
        self.arm();
    }

    /// Sets the timer for the first waiter. A timer that fires too early has no effect and is set again.
    fn arm(&self) {
        loop {
            let (at, timer_fires) = {
                let state = self.state();
                let Some(at) = state.schedule.next_at() else { return };
                if state.runs_until(at) {
                    return;
                }
                (at, state.timer_fires)
            };
            // Without the lock, since the timer may fire during the poll, on this thread or another.
            let mut sleep = self.clock.sleep_until(at);
            if Pin::new(&mut sleep).poll(&mut Context::from_waker(&self.timer_waker)).is_ready() {
                let woken = self.state().call_due(at);
                wake_all(woken);
                continue;
            }
            let mut state = self.state();
            // If a timer has fired since, it may have been this one, which does not fire again.
            if state.timer_fires != timer_fires {
                continue;
            }
            let before =
                if state.runs_until(at) { Some((at, sleep)) } else { state.timer.replace((at, sleep)) };
            let is_late = state.schedule.next_at().is_some_and(|first| !state.runs_until(first));
            drop(state);
            drop(before);
            if !is_late {
                return;
            }
        }
    }
}

/// Called without any lock.
fn wake_all(woken: Woken) {
    woken.into_iter().for_each(Waker::wake);
}

impl Wake for TimerWaker {
    fn wake(self: Arc<Self>) {
        if let Some(queue) = self.0.upgrade() {
            let fired = {
                let mut state = queue.state();
                state.timer_fires += 1;
                state.timer.take()
            };
            drop(fired);
            queue.serve_due(queue.clock.now());
        }
    }
}

impl QueueState {
    fn runs_until(&self, at: Timestamp) -> bool {
        self.timer.as_ref().is_some_and(|(until, _)| *until <= at)
    }

    fn waiter(&self, id: u32) -> Option<&WaiterState> {
        self.waiters.get(id as usize)
    }

    /// The caller drops the previous state without the lock.
    fn set(&mut self, id: u32, waiter: WaiterState) -> Option<WaiterState> {
        match self.waiters.get_mut(id as usize) {
            Some(slot) => Some(std::mem::replace(slot, waiter)),
            None => {
                self.waiters.push(waiter); // Slots are numbered from zero, so this is the next one.
                None
            }
        }
    }

    fn call_due(&mut self, now: Timestamp) -> Woken {
        let (mut woken, waiters) = (Woken::new(), &mut self.waiters);
        self.schedule.call_due(now, |id, end| {
            if let Some(waiter) = waiters.get_mut(id as usize)
                && let WaiterState::Waiting(Some(waker)) = std::mem::replace(waiter, WaiterState::Due(end))
            {
                woken.push(waker);
            }
        });
        woken
    }
}

impl DepartureSlot {
    /// The counter that its bucket is, and the number of its quota.
    pub(crate) fn bucket(&self) -> (Fingerprint, u32) {
        self.queue.at
    }

    /// Leaves the queue. A waiter that is due gives nothing back.
    pub(crate) fn leave(
        &self,
        bucket: &Bucket<impl Fn(BucketPace) -> Option<u128>, impl Fn(BucketPace, FreedCredits) -> bool>,
        now: Timestamp,
    ) -> LeaveOutcome {
        let mut state = self.queue.state();
        let (woken, pace) = (state.call_due(now), *state.schedule.pace());
        let (left, gone) = match state.waiter(self.id) {
            Some(WaiterState::Waiting(_)) => {
                let free = state.schedule.leave(self.id, pace.credits(now));
                bucket.free(&mut state.schedule, free);
                (LeaveOutcome::Freed, state.set(self.id, WaiterState::Left))
            }
            Some(WaiterState::Due(end)) => (LeaveOutcome::Used(pace.tick(*end)), None),
            Some(WaiterState::Left) | None => (LeaveOutcome::Used(now), None),
        };
        drop(state);
        drop(gone);
        wake_all(woken);
        self.queue.serve_due(now); // A waiter that moved up may be due.
        left
    }

    /// Ready when it is due or has left.
    pub(crate) fn poll_due(&self, context: &Context<'_>) -> Poll<()> {
        let mut waker = Some(context.waker().clone());
        let mut state = self.queue.state();
        match state.waiters.get_mut(self.id as usize) {
            Some(WaiterState::Waiting(known)) => std::mem::swap(known, &mut waker),
            _ => return Poll::Ready(()),
        }
        drop(state);
        drop(waker); // The previous waker, without the lock.
        Poll::Pending
    }

    /// When the bucket becomes empty if no other request comes, after all moves so far. It no longer moves
    /// from now on.
    pub(crate) fn keep(&self) -> Option<Timestamp> {
        let mut state = self.queue.state();
        let end = match state.waiter(self.id)? {
            WaiterState::Due(end) => *end,
            WaiterState::Left => return None,
            WaiterState::Waiting(_) => {
                let end = state.schedule.end_of(self.id);
                state.schedule.quit(self.id);
                end
            }
        };
        let before = state.set(self.id, WaiterState::Due(end));
        let empty_at = state.schedule.pace().tick(end);
        drop(state);
        if let Some(WaiterState::Waiting(Some(waker))) = before {
            waker.wake();
        }
        Some(empty_at)
    }
}

impl Drop for DepartureSlot {
    fn drop(&mut self) {
        let mut queues = self.shard.queues();
        let mut state = self.queue.state();
        let before = state.set(self.id, WaiterState::Left);
        if matches!(before, Some(WaiterState::Waiting(_))) {
            state.schedule.quit(self.id);
        }
        state.schedule.release(self.id);
        let is_over = state.schedule.has_no_slots();
        drop(state);
        // No waiter can have joined, since the shard is locked.
        let is_known = queues.get(&self.queue.at).is_some_and(|queue| Arc::ptr_eq(queue, &self.queue));
        let over = if is_over && is_known { queues.remove(&self.queue.at) } else { None };
        drop(queues);
        drop((before, over));
    }
}
