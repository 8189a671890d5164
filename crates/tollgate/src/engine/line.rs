//! Requests that wait for their turn here, in a line that moves up when somebody leaves it. The lines themselves are the memory store's.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Engine;
use super::hold::Reservation;
use crate::clock::Clock;
use crate::decision::Held;
use crate::departure::{DepartureRequest, DepartureSlot, LeaveOutcome};
use crate::quota::Quota;
use crate::store::{Stance, Store};
use crate::time::Timestamp;

/// Something to await until one's turn in a line has come. Dropping it changes nothing: who goes away cancels its reservation.
#[derive(Debug)]
#[must_use = "nobody waits until it is awaited"]
pub struct Turn(Arc<DepartureSlot>);

/// Where a reservation stands in line, and for which of its counters.
#[derive(Debug)]
pub(super) struct Lined {
    at: usize,
    spot: Arc<DepartureSlot>,
}

/// How a reservation parted from its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parted {
    /// It stood in none.
    No,
    /// It left the line of this counter before its turn came.
    Free { at: usize },
    /// It keeps its turn, or has used it.
    Used,
}

impl Future for Turn {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.poll_due(context)
    }
}

impl<S: Store> Engine<S> {
    /// Lets a request that was told to wait do so in a line of this process: when somebody before it goes away, its turn comes earlier, and when
    /// it goes away itself ([`Engine::cancel`]), those behind move up and the bucket has its units back. The clock is that of its decision.
    ///
    /// None where it keeps the instant that it was told: on a store that others share; where it waits in several lines at once, since a place that
    /// moves up in one while the request stays for the other would be used by two; and above 333,333 units a second.
    pub fn line_up(&self, reservation: &mut Reservation, clock: &Clock) -> Option<Turn> {
        let waits = |held: &Held| held.turn_at.is_some() && held.stance == Stance::Enforced;
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
        let spot = Arc::new(self.store.join_queue(&wanted, clock.now(), clock)?);
        reservation.lined = Some(Lined { at, spot: Arc::clone(&spot) });
        Some(Turn(spot))
    }

    /// Takes a reservation out of its line: it leaves if it is cancelled, and keeps its turn if it is committed.
    pub(super) fn part(&self, reservation: &mut Reservation, actual: Option<u64>, now: Timestamp) -> Parted {
        let Some(Lined { at, spot }) = &reservation.lined else { return Parted::No };
        let empty_at = match actual {
            None => match self.store.leave_queue(spot, now) {
                LeaveOutcome::Freed => {
                    let at = *at;
                    reservation.lined = None;
                    return Parted::Free { at };
                }
                LeaveOutcome::Used(empty_at) => Some(empty_at),
            },
            Some(_) => spot.keep(),
        };
        if let Some(held) = reservation.held.get_mut(*at) {
            held.empty_at = empty_at;
        }
        Parted::Used
    }
}
