//! A wait in line, from its first poll to its answer. What is handed out at the end is left to whoever wraps it.

use std::ops::ControlFlow;
use std::task::{Context, Poll};
use std::time::Duration;

use super::queue::{TICKET_NEXT, Turn, WAITERS_MAX};
use super::{KeyedGate, Shared, forecast};
use crate::algorithm::concurrency::PermitId;
use crate::clock::Sleep;
use crate::decision::Source;
use crate::key::Fingerprint;
use crate::memory::{LineUp, Spot};
use crate::outcome::{Outcome, Verdict};
use crate::quota::Quota;
use crate::time::{Ticks, Timestamp};

/// How often a wait looks that shares a counter with other keys because the gate's memory is full: what those do, and when
/// there is room again, wakes nobody.
const OVERFLOW_LOOK: Ticks = Ticks::from_secs(1);

/// Why a wait ended without being admitted. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// Its turn does not come within the time given.
    #[error("its turn comes after {} at the earliest, later than the deadline allows", format_ticks(.wait))]
    TooLate {
        /// How long it would have to wait, at least. Of a concurrency gate: until a place expires that nobody gives back.
        wait: Ticks,
    },
    /// The cost exceeds what the gate can ever admit at once.
    #[error("the cost exceeds the gate's capacity of {capacity}; ask for at most that")]
    Never {
        /// The most that can pass at once.
        capacity: u64,
    },
    /// Too many wait already.
    #[error("{WAITERS_MAX} waits are at this gate already; come back later")]
    Crowded,
}

fn format_ticks(ticks: &Ticks) -> String {
    format!("{} ms", ticks.ceil_millis())
}

/// What a wait ends with when it was admitted.
#[derive(Clone, Copy)]
pub(super) struct Grant {
    pub(super) outcome: Outcome,
    pub(super) permit: PermitId,
}

/// A wait in line. Dropping it gives up the place and costs nothing.
pub(super) struct Wait {
    pub(super) gate: KeyedGate,
    pub(super) key: Fingerprint,
    pub(super) cost: u64,
    within: Option<Ticks>,
    stage: Stage,
}

enum Stage {
    New,
    Queued(Queued),
    /// Admitted with a departure time: a shaping limit gave it a place that is not yet due.
    Leaving {
        grant: Grant,
        departure: Departure,
    },
    Done,
}

/// When one may go who has a departure time.
enum Departure {
    /// In a line that moves up.
    Line(Spot),
    /// At the instant that it was told.
    Fixed {
        sleep: Sleep,
        /// When the bucket is empty if nobody comes after it.
        empty_at: Timestamp,
    },
}

struct Queued {
    ticket: u64,
    deadline: Option<Timestamp>,
    /// The first's wait until it asks again.
    sleep: Option<Sleep>,
    /// Further back, the wait for the deadline.
    patience: Option<Sleep>,
}

/// How the first in line was answered.
enum Answer {
    Admitted(Grant),
    Departs { grant: Grant, at: Timestamp, empty_at: Timestamp },
    Refused(NotReady),
}

impl Wait {
    pub(super) const fn new(gate: KeyedGate, key: Fingerprint) -> Self {
        Self { gate, key, cost: 1, within: None, stage: Stage::New }
    }

    pub(super) fn within(&mut self, deadline: Duration) {
        self.within = Some(Ticks::ceil_from(deadline));
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Grant, NotReady>> {
        if matches!(self.stage, Stage::New) {
            match self.enter() {
                Ok(queued) => self.stage = Stage::Queued(queued),
                Err(refused) => {
                    self.stage = Stage::Done;
                    return Poll::Ready(Err(refused));
                }
            }
        }
        match self.stage {
            Stage::Leaving { .. } => self.poll_leaving(context),
            _ => self.poll_queued(context),
        }
    }

    /// Joins the line, unless that is known to be in vain. Who is refused here was never in line, so nobody was held up.
    fn enter(&self) -> Result<Queued, NotReady> {
        let now = self.gate.shared.clock.now();
        let capacity = self.gate.shared.quota.capacity();
        if self.cost > capacity {
            return Err(NotReady::Never { capacity });
        }
        if let Some(within) = self.within {
            let wait = self.least_wait(TICKET_NEXT, now);
            // A place in flight may be given back at any time, so only having no time at all is too little.
            let is_hopeless = is_foreseeable(&self.gate.shared.quota) || within.is_zero();
            if wait > within && is_hopeless {
                return Err(NotReady::TooLate { wait });
            }
        }
        let joined = self.gate.shared.queues.join(self.key, self.cost);
        let ticket = joined.map_err(|_| NotReady::Crowded)?;
        let deadline = self.within.map(|within| now + within);
        Ok(Queued { ticket, deadline, sleep: None, patience: None })
    }

    /// The least that who has this ticket must wait, told at least as far as the time that was given.
    fn least_wait(&self, ticket: u64, now: Timestamp) -> Ticks {
        let horizon = now + self.within.unwrap_or(Ticks::ZERO);
        forecast::least_wait(&self.gate, self.key, ticket, self.cost, now, horizon)
    }

    fn poll_queued(&mut self, context: &mut Context<'_>) -> Poll<Result<Grant, NotReady>> {
        let Self { gate, key, cost, stage, .. } = self;
        let Stage::Queued(queued) = stage else { return Poll::Pending };
        let answer = loop {
            if queued.sleep.as_mut().is_some_and(|sleep| sleep.poll_due(context).is_ready()) {
                queued.sleep = None;
            }
            let (rested, deadline) = (queued.sleep.is_none(), queued.deadline);
            let ask = || ask(gate, *key, *cost, deadline);
            match gate.shared.queues.turn(*key, queued.ticket, context.waker(), rested, ask) {
                Turn::Behind => return self.poll_patience(context),
                Turn::Resting => return Poll::Pending,
                Turn::Stays(until) => {
                    let mut sleep = gate.shared.clock.sleep_until(until);
                    if sleep.poll_due(context).is_pending() {
                        queued.sleep = Some(sleep);
                        return Poll::Pending;
                    }
                    queued.sleep = None;
                }
                Turn::Leaves(answer) => break answer,
            }
        };
        self.stage = Stage::Done;
        match answer {
            Answer::Admitted(grant) => Poll::Ready(Ok(grant)),
            Answer::Refused(refused) => Poll::Ready(Err(refused)),
            Answer::Departs { grant, at, empty_at } => {
                self.stage = Stage::Leaving { grant, departure: self.line_up(at, empty_at) };
                self.poll_leaving(context)
            }
        }
    }

    /// Further back in line: nothing to do but to be woken, or to give up once the deadline is past.
    fn poll_patience(&mut self, context: &mut Context<'_>) -> Poll<Result<Grant, NotReady>> {
        let clock = &self.gate.shared.clock;
        let Stage::Queued(Queued { ticket, deadline: Some(deadline), patience, .. }) = &mut self.stage else {
            return Poll::Pending;
        };
        // At the deadline itself those ahead may still make room.
        let patience = patience.get_or_insert_with(|| clock.sleep_until(*deadline + Ticks::ONE));
        if patience.poll_due(context).is_pending() {
            return Poll::Pending;
        }
        let (ticket, now) = (*ticket, clock.now());
        let wait = self.least_wait(ticket, now);
        self.stage = Stage::Done;
        self.gate.shared.queues.leave(self.key, ticket);
        Poll::Ready(Err(NotReady::TooLate { wait }))
    }

    fn line_up(&self, at: Timestamp, empty_at: Timestamp) -> Departure {
        let Shared { store, clock, quota, number, .. } = &*self.gate.shared;
        let spot = match quota {
            Quota::LeakyBucket(quota) => {
                let wanted = LineUp { key: self.key, number: *number, quota, cost: self.cost, empty_at };
                store.line_up(&wanted, clock.now(), clock)
            }
            _ => None,
        };
        spot.map_or_else(|| Departure::Fixed { sleep: clock.sleep_until(at), empty_at }, Departure::Line)
    }

    fn poll_leaving(&mut self, context: &mut Context<'_>) -> Poll<Result<Grant, NotReady>> {
        let Stage::Leaving { grant, departure } = &mut self.stage else { return Poll::Pending };
        let grant = *grant;
        let turn = match departure {
            Departure::Line(spot) => spot.poll_turn(context),
            Departure::Fixed { sleep, .. } => sleep.poll_due(context),
        };
        if turn.is_pending() {
            return Poll::Pending;
        }
        self.stage = Stage::Done;
        Poll::Ready(Ok(grant))
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        match &self.stage {
            Stage::New | Stage::Done => {}
            Stage::Queued(queued) => self.gate.shared.queues.leave(self.key, queued.ticket),
            // Its place in the shaped stream was taken and is not used: those behind move up.
            Stage::Leaving { departure: Departure::Line(spot), .. } => self.gate.leave_line(self.key, spot),
            Stage::Leaving { departure: Departure::Fixed { empty_at, .. }, .. } => {
                self.gate.step_back_key(self.key, self.cost, *empty_at);
            }
        }
    }
}

/// Whether time alone makes room. Places in flight are given back when their holders are done.
const fn is_foreseeable(quota: &Quota) -> bool {
    !matches!(quota, Quota::Concurrency(_))
}

/// The first in line asks: it leaves with an answer, or stays until an instant at which to ask again.
fn ask(
    gate: &KeyedGate,
    key: Fingerprint,
    cost: u64,
    deadline: Option<Timestamp>,
) -> ControlFlow<Answer, Timestamp> {
    let now = gate.shared.clock.now();
    let charge = gate.shared.charge_of(key, cost);
    let (outcome, source) = gate.decide(&charge, now);
    let grant = Grant { outcome, permit: charge.permit };
    match outcome.verdict {
        Verdict::Allow => ControlFlow::Break(Answer::Admitted(grant)),
        Verdict::Never | Verdict::Forbidden => {
            ControlFlow::Break(Answer::Refused(NotReady::Never { capacity: outcome.limit }))
        }
        Verdict::Wait(wait) if deadline.is_some_and(|deadline| now + wait > deadline) => {
            // Who asked leaves the line, and the next is woken for that.
            gate.shared.store.step_back_now(&charge, now + outcome.reset_after, now);
            ControlFlow::Break(Answer::Refused(NotReady::TooLate { wait }))
        }
        Verdict::Wait(wait) => {
            let (at, empty_at) = (now + wait, now + outcome.reset_after);
            ControlFlow::Break(Answer::Departs { grant, at, empty_at })
        }
        Verdict::Deny { retry_after } => {
            let is_certain = source == Source::Exact && is_foreseeable(&gate.shared.quota);
            let look_after =
                if source == Source::Exact { retry_after } else { retry_after.min(OVERFLOW_LOOK) };
            match deadline {
                Some(deadline) if now + retry_after > deadline && (is_certain || now >= deadline) => {
                    ControlFlow::Break(Answer::Refused(NotReady::TooLate { wait: retry_after }))
                }
                // Where room may be made before it is due, the last look is at the deadline itself.
                Some(deadline) if now < deadline => ControlFlow::Continue(deadline.min(now + look_after)),
                _ => ControlFlow::Continue(now + look_after),
            }
        }
    }
}
