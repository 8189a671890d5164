//! The state machine of a waiter, from its first poll to its result. The wrappers in `ready` convert the
//! result.

use std::ops::ControlFlow;
use std::task::{Context, Poll};
use std::time::Duration;

use super::queue::{RetryDue, TICKET_NEXT, WAITERS_MAX, WaiterPoll};
use super::{GateShared, KeyedGate, forecast};
use crate::algorithm::concurrency::PermitId;
use crate::clock::Sleep;
use crate::departure::{DepartureRequest, DepartureSlot};
use crate::key::Fingerprint;
use crate::outcome::{Outcome, Source, Verdict};
use crate::quota::Quota;
use crate::time::{Ticks, Timestamp};

/// How often a waiter retries on a counter that is shared because the gate's memory is full. Nothing wakes it
/// when other keys or freed memory make space.
const OVERFLOW_RETRY: Ticks = Ticks::from_secs(1);

/// Why a wait failed. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// It cannot be served within the deadline.
    #[error("the wait takes at least {}, longer than the deadline allows", format_ticks(.wait))]
    TooLate {
        /// The minimum wait. With a concurrency quota: until the next permit expires.
        wait: Ticks,
    },
    /// The cost exceeds the capacity of the gate.
    #[error("the cost exceeds the gate's capacity of {capacity}; ask for at most that")]
    Never {
        /// The largest cost that can pass.
        capacity: u64,
    },
    /// Too many requests are waiting.
    #[error("{WAITERS_MAX} requests already wait at this gate; retry later")]
    QueueFull,
}

fn format_ticks(ticks: &Ticks) -> String {
    format!("{} ms", ticks.ceil_millis())
}

/// The result of a successful wait.
#[derive(Clone, Copy)]
pub(super) struct WaitGrant {
    pub(super) outcome: Outcome,
    pub(super) permit: PermitId,
}

/// A waiter. Dropping it leaves the queue and costs nothing.
pub(super) struct Wait {
    pub(super) gate: KeyedGate,
    pub(super) key: Fingerprint,
    pub(super) cost: u64,
    within: Option<Ticks>,
    stage: WaitStage,
}

enum WaitStage {
    New,
    Queued(Queued),
    /// Admitted by a shaping limit with a departure time that is not yet due.
    Leaving {
        grant: WaitGrant,
        departure: Departure,
    },
    Done,
}

/// The departure of an admitted waiter.
enum Departure {
    /// In a departure queue, in which later waiters move up.
    Queued(DepartureSlot),
    /// At a fixed instant.
    Fixed {
        sleep: Sleep,
        /// When the bucket becomes empty if no other request comes.
        empty_at: Timestamp,
    },
}

struct Queued {
    ticket: u64,
    deadline: Option<Timestamp>,
    /// The timer of the first waiter until its next attempt.
    sleep: Option<Sleep>,
    /// The deadline timer of the other waiters.
    deadline_timer: Option<Sleep>,
}

/// The result of an attempt by the first waiter.
enum AttemptResult {
    Admitted(WaitGrant),
    Departs { grant: WaitGrant, at: Timestamp, empty_at: Timestamp },
    Refused(NotReady),
}

impl Wait {
    pub(super) const fn new(gate: KeyedGate, key: Fingerprint) -> Self {
        Self { gate, key, cost: 1, within: None, stage: WaitStage::New }
    }

    pub(super) fn within(&mut self, deadline: Duration) {
        self.within = Some(Ticks::ceil_from(deadline));
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<WaitGrant, NotReady>> {
        if matches!(self.stage, WaitStage::New) {
            match self.enter() {
                Ok(queued) => self.stage = WaitStage::Queued(queued),
                Err(refused) => {
                    self.stage = WaitStage::Done;
                    return Poll::Ready(Err(refused));
                }
            }
        }
        match self.stage {
            WaitStage::Leaving { .. } => self.poll_leaving(context),
            _ => self.poll_queued(context),
        }
    }

    /// Joins the queue, unless the wait is known to fail. A wait that fails here was never queued, so it
    /// delayed no other.
    fn enter(&self) -> Result<Queued, NotReady> {
        let now = self.gate.shared.clock.now();
        let capacity = self.gate.shared.quota.capacity();
        if self.cost > capacity {
            return Err(NotReady::Never { capacity });
        }
        if let Some(within) = self.within {
            let wait = self.least_wait(TICKET_NEXT, now);
            // A permit may be returned at any time, so only a deadline of zero is known to fail.
            let is_hopeless = is_foreseeable(&self.gate.shared.quota) || within.is_zero();
            if wait > within && is_hopeless {
                return Err(NotReady::TooLate { wait });
            }
        }
        let joined = self.gate.shared.queues.join(self.key, self.cost);
        let ticket = joined.map_err(|_| NotReady::QueueFull)?;
        let deadline = self.within.map(|within| now + within);
        Ok(Queued { ticket, deadline, sleep: None, deadline_timer: None })
    }

    /// The minimum wait of this ticket, simulated at least up to the deadline.
    fn least_wait(&self, ticket: u64, now: Timestamp) -> Ticks {
        let horizon = now + self.within.unwrap_or(Ticks::ZERO);
        forecast::least_wait(&self.gate, self.key, ticket, self.cost, now, horizon)
    }

    fn poll_queued(&mut self, context: &mut Context<'_>) -> Poll<Result<WaitGrant, NotReady>> {
        let Self { gate, key, cost, stage, .. } = self;
        let WaitStage::Queued(queued) = stage else { return Poll::Pending };
        let answer = loop {
            if queued.sleep.as_mut().is_some_and(|sleep| sleep.poll_due(context).is_ready()) {
                queued.sleep = None;
            }
            let retry = if queued.sleep.is_none() { RetryDue::Yes } else { RetryDue::No };
            let deadline = queued.deadline;
            let attempt = || attempt(gate, *key, *cost, deadline);
            match gate.shared.queues.poll_waiter(*key, queued.ticket, context.waker(), retry, attempt) {
                WaiterPoll::NotFirst => return self.poll_deadline(context),
                WaiterPoll::NotDue => return Poll::Pending,
                WaiterPoll::Waits(until) => {
                    let mut sleep = gate.shared.clock.sleep_until(until);
                    if sleep.poll_due(context).is_pending() {
                        queued.sleep = Some(sleep);
                        return Poll::Pending;
                    }
                    queued.sleep = None;
                }
                WaiterPoll::Done(answer) => break answer,
            }
        };
        self.stage = WaitStage::Done;
        match answer {
            AttemptResult::Admitted(grant) => Poll::Ready(Ok(grant)),
            AttemptResult::Refused(refused) => Poll::Ready(Err(refused)),
            AttemptResult::Departs { grant, at, empty_at } => {
                self.stage =
                    WaitStage::Leaving { grant, departure: self.enter_departure_queue(at, empty_at) };
                self.poll_leaving(context)
            }
        }
    }

    /// Polls a waiter that is not the first: it is woken later, or fails once the deadline has passed.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<Result<WaitGrant, NotReady>> {
        let clock = &self.gate.shared.clock;
        let WaitStage::Queued(Queued { ticket, deadline: Some(deadline), deadline_timer, .. }) =
            &mut self.stage
        else {
            return Poll::Pending;
        };
        // At the deadline itself the waiters ahead may still leave.
        let deadline_timer = deadline_timer.get_or_insert_with(|| clock.sleep_until(*deadline + Ticks::ONE));
        if deadline_timer.poll_due(context).is_pending() {
            return Poll::Pending;
        }
        let (ticket, now) = (*ticket, clock.now());
        let wait = self.least_wait(ticket, now);
        self.stage = WaitStage::Done;
        self.gate.shared.queues.leave(self.key, ticket);
        Poll::Ready(Err(NotReady::TooLate { wait }))
    }

    fn enter_departure_queue(&self, at: Timestamp, empty_at: Timestamp) -> Departure {
        let GateShared { store, clock, quota, number, .. } = &*self.gate.shared;
        let slot = match quota {
            Quota::LeakyBucket(quota) => {
                let wanted =
                    DepartureRequest { key: self.key, number: *number, quota, cost: self.cost, empty_at };
                store.queue_departure(&wanted, clock.now(), clock)
            }
            _ => None,
        };
        slot.map_or_else(|| Departure::Fixed { sleep: clock.sleep_until(at), empty_at }, Departure::Queued)
    }

    fn poll_leaving(&mut self, context: &mut Context<'_>) -> Poll<Result<WaitGrant, NotReady>> {
        let WaitStage::Leaving { grant, departure } = &mut self.stage else { return Poll::Pending };
        let grant = *grant;
        let due = match departure {
            Departure::Queued(slot) => slot.poll_due(context),
            Departure::Fixed { sleep, .. } => sleep.poll_due(context),
        };
        if due.is_pending() {
            return Poll::Pending;
        }
        self.stage = WaitStage::Done;
        Poll::Ready(Ok(grant))
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        match &self.stage {
            WaitStage::New | WaitStage::Done => {}
            WaitStage::Queued(queued) => self.gate.shared.queues.leave(self.key, queued.ticket),
            // Its departure slot is not used: later waiters move up.
            WaitStage::Leaving { departure: Departure::Queued(slot), .. } => {
                self.gate.leave_queue(self.key, slot)
            }
            WaitStage::Leaving { departure: Departure::Fixed { empty_at, .. }, .. } => {
                self.gate.step_back_key(self.key, self.cost, *empty_at);
            }
        }
    }
}

/// Whether only time frees capacity. Permits are returned when their owners are done.
const fn is_foreseeable(quota: &Quota) -> bool {
    !matches!(quota, Quota::Concurrency(_))
}

/// An attempt by the first waiter: it ends the wait, or returns the instant of the next attempt.
fn attempt(
    gate: &KeyedGate,
    key: Fingerprint,
    cost: u64,
    deadline: Option<Timestamp>,
) -> ControlFlow<AttemptResult, Timestamp> {
    let now = gate.shared.clock.now();
    let charge = gate.shared.charge_of(key, cost);
    let (outcome, source) = gate.decide(&charge, now);
    let grant = WaitGrant { outcome, permit: charge.permit };
    match outcome.verdict {
        Verdict::Allow => ControlFlow::Break(AttemptResult::Admitted(grant)),
        Verdict::Never | Verdict::Forbidden => {
            ControlFlow::Break(AttemptResult::Refused(NotReady::Never { capacity: outcome.limit }))
        }
        Verdict::Wait(wait) if deadline.is_some_and(|deadline| now + wait > deadline) => {
            // The waiter leaves the queue, which wakes the next one.
            gate.shared.store.step_back_now(&charge, now + outcome.reset_after, now);
            ControlFlow::Break(AttemptResult::Refused(NotReady::TooLate { wait }))
        }
        Verdict::Wait(wait) => {
            let (at, empty_at) = (now + wait, now + outcome.reset_after);
            ControlFlow::Break(AttemptResult::Departs { grant, at, empty_at })
        }
        Verdict::Deny { retry_after } => {
            let is_certain = source == Source::Exact && is_foreseeable(&gate.shared.quota);
            let retry_after_max =
                if source == Source::Exact { retry_after } else { retry_after.min(OVERFLOW_RETRY) };
            match deadline {
                Some(deadline) if now + retry_after > deadline && (is_certain || now >= deadline) => {
                    ControlFlow::Break(AttemptResult::Refused(NotReady::TooLate { wait: retry_after }))
                }
                // Where capacity may be freed early, the last attempt is at the deadline itself.
                Some(deadline) if now < deadline => {
                    ControlFlow::Continue(deadline.min(now + retry_after_max))
                }
                _ => ControlFlow::Continue(now + retry_after_max),
            }
        }
    }
}
