//! Requests that wait in a queue of this process, which moves up when a waiter leaves it. The memory store owns the
//! queues.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::{ActualCost, Reservation, Reservations};
use crate::clock::Clock;
use crate::decision::Held;
use crate::departure::{DepartureRequest, DepartureSlot, LeaveOutcome};
use crate::quota::Quota;
use crate::store::{Enforcement, Store};
use crate::time::Timestamp;

/// A future that completes when a request may leave its queue. Dropping it changes nothing: a request that goes away
/// cancels its reservation.
#[derive(Debug)]
#[must_use = "the request does not wait until this is awaited"]
pub struct Departure(Arc<DepartureSlot>);

/// The queue slot of a reservation, and the counter that it queues for.
#[derive(Debug)]
pub(super) struct QueuedSlot {
    at: usize,
    slot: Arc<DepartureSlot>,
}

/// How a reservation left its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeftQueue {
    /// It was in no queue.
    No,
    /// It left the queue of this counter before its slot came.
    Free { at: usize },
    /// It keeps its slot, or has used it.
    Used,
}

impl Future for Departure {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.poll_due(context)
    }
}

impl<S: Store> Reservations<'_, S> {
    /// Lets a request that has to wait do so in a queue of this process. When a waiter before it goes away, it leaves
    /// earlier. When it goes away itself ([`Reservations::cancel`]), the waiters behind move up and the bucket is refunded.
    /// `clock` is the clock of its decision.
    ///
    /// Returns `None` where the request keeps the instant in its decision: on a shared store; where it waits in several
    /// queues at once, because a slot that moves up in one queue while the request waits for the other would be used
    /// twice; and above 333,333 units a second.
    pub fn enqueue(self, reservation: &mut Reservation, clock: &Clock) -> Option<Departure> {
        let waits = |held: &Held| held.turn_at.is_some() && held.enforcement == Enforcement::Enforced;
        let mut waiting = reservation.held.iter().enumerate().filter(|(_, held)| waits(held));
        let (at, held) = waiting.next()?;
        if waiting.next().is_some() || held.turn_at != Some(reservation.leaves_at) {
            return None;
        }
        let Quota::LeakyBucket(quota) = &held.quota.0 else { return None };
        let wanted = DepartureRequest {
            key: held.key,
            number: held.number,
            quota,
            cost: held.cost,
            empty_at: held.empty_at?,
        };
        let slot = Arc::new(self.engine.store.join_queue(&wanted, clock.now(), clock)?);
        reservation.queued = Some(QueuedSlot { at, slot: Arc::clone(&slot) });
        Some(Departure(slot))
    }

    /// Removes a reservation from its queue: it leaves if it is cancelled, and keeps its slot if it is committed.
    pub(super) fn leave_queue(
        self,
        reservation: &mut Reservation,
        actual: ActualCost<'_, '_>,
        now: Timestamp,
    ) -> LeftQueue {
        let Some(QueuedSlot { at, slot }) = &reservation.queued else { return LeftQueue::No };
        let empty_at = match actual {
            ActualCost::Nothing => match self.engine.store.leave_queue(slot, now) {
                LeaveOutcome::Freed => {
                    let at = *at;
                    reservation.queued = None;
                    return LeftQueue::Free { at };
                }
                LeaveOutcome::Used(empty_at) => Some(empty_at),
            },
            ActualCost::Units(_) | ActualCost::OfRequest(_) => slot.keep(),
        };
        if let Some(held) = reservation.held.get_mut(*at) {
            held.empty_at = empty_at;
        }
        LeftQueue::Used
    }
}
