//! The wait for a gate to admit.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::KeyedGate;
use super::queue::WAITERS_MAX;
use crate::clock::Sleep;
use crate::key::Fingerprint;
use crate::outcome::{Outcome, Verdict};
use crate::quota::Quota;
use crate::time::{Ticks, Timestamp};

/// Why a wait ended without being admitted. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// Its turn cannot come within the time given.
    #[error("its turn comes after {}, later than the deadline allows", format_ticks(.wait))]
    TooLate {
        /// How long it would have to wait.
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

/// A wait in line. Resolves when its turn has come and it was admitted. Dropping it gives up the place and costs nothing.
#[must_use = "a wait does nothing unless awaited"]
pub struct Ready {
    gate: KeyedGate,
    key: Fingerprint,
    cost: u64,
    within: Option<Ticks>,
    stage: Stage,
}

enum Stage {
    New,
    /// `sleep` is the first's wait for its units; `patience` is, further back, the wait for the deadline.
    Queued {
        ticket: u64,
        deadline: Option<Timestamp>,
        sleep: Option<Sleep>,
        patience: Option<Sleep>,
    },
    /// Admitted with a departure time: a shaping limit gave it a place that is not yet due.
    Leaving {
        outcome: Outcome,
        sleep: Sleep,
    },
    Done,
}

impl Ready {
    pub(super) const fn new(gate: KeyedGate, key: Fingerprint) -> Self {
        Self { gate, key, cost: 1, within: None, stage: Stage::New }
    }

    /// Waits for so many units.
    pub const fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// Waits at most so long, and refuses at once when that is known not to be enough.
    pub fn within(mut self, deadline: Duration) -> Self {
        self.within = Some(Ticks::ceil_from(deadline));
        self
    }

    fn now(&self) -> Timestamp {
        self.gate.shared.clock.now()
    }

    fn enter(&mut self) -> Result<(), NotReady> {
        let now = self.now();
        let capacity = self.gate.shared.quota.capacity();
        if self.cost > capacity {
            return Err(NotReady::Never { capacity });
        }
        let (ticket, ahead) =
            self.gate.shared.queues.join(self.key, self.cost).map_err(|_| NotReady::Crowded)?;
        // From here on the place is given up when `self` is dropped or done.
        let deadline = self.within.map(|within| now + within);
        self.stage = Stage::Queued { ticket, deadline, sleep: None, patience: None };
        let wait = self.expected_wait(ahead, now);
        match self.within {
            Some(within) if wait > within => Err(NotReady::TooLate { wait }),
            _ => Ok(()),
        }
    }

    /// The least that it must wait: for a reservoir exactly what it and those ahead need, else what it alone needs.
    fn expected_wait(&self, ahead: u64, now: Timestamp) -> Ticks {
        let shared = &*self.gate.shared;
        let look = self.gate.charge_key(self.key, now, 0);
        // A queue has room for units that are not yet due: they leave when that much of it is free again.
        let queue = match &shared.quota {
            Quota::LeakyBucket(bucket) => bucket.queue(),
            _ => 0,
        };
        let wanted = ahead.saturating_add(self.cost).saturating_add(queue);
        if wanted <= look.remaining {
            return Ticks::ZERO;
        }
        let short = wanted - look.remaining;
        let Some(rate) = shared.quota.rate().filter(|_| shared.quota.is_reservoir()) else {
            return if self.cost > look.remaining { look.next_unit_after } else { Ticks::ZERO };
        };
        // The first missing unit comes after `next_unit_after`, each further one an emission interval later.
        let later = if look.next_unit_after.is_zero() { short } else { short - 1 };
        let more = u128::from(later) * u128::from(rate.period().as_micros()) / u128::from(rate.units());
        look.next_unit_after + Ticks::from_micros(u64::try_from(more).unwrap_or(u64::MAX))
    }

    /// Ends the wait and makes room for the next in line.
    fn finish(&mut self) {
        if let Stage::Queued { ticket, .. } = std::mem::replace(&mut self.stage, Stage::Done) {
            self.gate.shared.queues.leave(self.key, ticket);
        }
    }

    fn poll_queued(&mut self, context: &mut Context<'_>) -> Poll<Result<Outcome, NotReady>> {
        loop {
            let now = self.now();
            let Stage::Queued { ticket, deadline, sleep, .. } = &mut self.stage else { return Poll::Pending };
            let (ticket, deadline) = (*ticket, *deadline);
            if !self.gate.shared.queues.is_first(self.key, ticket, context.waker()) {
                return self.poll_patience(context);
            }
            if let Some(waiting) = sleep {
                if waiting.poll(context).is_pending() {
                    return Poll::Pending;
                }
                *sleep = None;
            }
            let outcome = self.gate.charge_key(self.key, now, self.cost);
            let wait = match outcome.verdict {
                Verdict::Allow => {
                    self.finish();
                    return Poll::Ready(Ok(outcome));
                }
                Verdict::Never => {
                    self.finish();
                    return Poll::Ready(Err(NotReady::Never { capacity: outcome.limit }));
                }
                Verdict::Wait(wait) if deadline.is_some_and(|deadline| now + wait > deadline) => {
                    self.gate.refund_key(self.key, self.cost);
                    wait
                }
                Verdict::Wait(wait) => {
                    self.finish();
                    let sleep = self.gate.shared.clock.sleep_until(now + wait);
                    self.stage = Stage::Leaving { outcome, sleep };
                    return self.poll_leaving(context);
                }
                Verdict::Deny { retry_after } => retry_after,
            };
            if deadline.is_some_and(|deadline| now + wait > deadline) {
                self.finish();
                return Poll::Ready(Err(NotReady::TooLate { wait }));
            }
            let later = self.gate.shared.clock.sleep_until(now + wait);
            if let Stage::Queued { sleep, .. } = &mut self.stage {
                *sleep = Some(later);
            }
        }
    }

    /// Further back in line: nothing to do but to be woken, or to give up once the deadline is past.
    fn poll_patience(&mut self, context: &mut Context<'_>) -> Poll<Result<Outcome, NotReady>> {
        let Stage::Queued { ticket, deadline: Some(deadline), patience, .. } = &mut self.stage else {
            return Poll::Pending;
        };
        // At the deadline itself those ahead may still make room.
        let clock = &self.gate.shared.clock;
        let patience = patience.get_or_insert_with(|| clock.sleep_until(*deadline + Ticks::ONE));
        if patience.poll(context).is_pending() {
            return Poll::Pending;
        }
        let ahead = self.gate.shared.queues.ahead_of(self.key, *ticket);
        let wait = self.expected_wait(ahead, self.now());
        self.finish();
        Poll::Ready(Err(NotReady::TooLate { wait }))
    }

    fn poll_leaving(&mut self, context: &mut Context<'_>) -> Poll<Result<Outcome, NotReady>> {
        let Stage::Leaving { outcome, sleep } = &mut self.stage else { return Poll::Pending };
        let outcome = *outcome;
        if sleep.poll(context).is_pending() {
            return Poll::Pending;
        }
        self.stage = Stage::Done;
        Poll::Ready(Ok(outcome))
    }
}

impl Future for Ready {
    type Output = Result<Outcome, NotReady>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if matches!(self.stage, Stage::New)
            && let Err(refused) = self.enter()
        {
            self.finish();
            return Poll::Ready(Err(refused));
        }
        match self.stage {
            Stage::Leaving { .. } => self.poll_leaving(context),
            _ => self.poll_queued(context),
        }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if matches!(self.stage, Stage::Leaving { .. }) {
            // Its place in the shaped stream was taken and is not used: it goes back.
            self.gate.refund_key(self.key, self.cost);
        }
        self.finish();
    }
}
