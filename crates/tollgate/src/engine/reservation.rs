//! Reservations: what a decision took and may give back, settled later. They are plain values: dropping one without
//! settling it leaves the counters as they are. Permits, queues, failures and forecasts have files of their own.

use smallvec::SmallVec;

mod failures;
mod forecast;
mod permit;
mod queue;

pub use queue::Departure;
use queue::{LeftQueue, QueuedSlot};

use super::{ATTEMPTS, Engine};
use crate::active::ActivePolicy;
use crate::algorithm::concurrency::PermitId;
use crate::decision::{Decision, Held, Permit, Settled, Status};
use crate::outcome::{Source, Verdict};
use crate::policy::{Cost, Limit};
use crate::request::{CheckRequest, Descriptor};
use crate::store::{Charge, Charges, Store, StoreFailure};
use crate::time::{Ticks, Timestamp};

/// Settlement of decisions: reservations, queues, permits, and limits that count only failures.
pub struct Reservations<'e, S> {
    pub(super) engine: &'e Engine<S>,
}

impl<S> Copy for Reservations<'_, S> {}

impl<S> Clone for Reservations<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

/// Units set aside for a request whose cost is not yet known.
#[derive(Debug)]
#[must_use = "a reservation that is neither committed nor cancelled stays charged at its estimate"]
pub struct Reservation {
    held: SmallVec<[Held; 4]>,
    permit: Option<Permit>,
    /// Its queue slot, if it moves up in a queue of this process.
    queued: Option<QueuedSlot>,
    /// When it leaves the queue, at the latest.
    leaves_at: Timestamp,
    expires_at: Timestamp,
    is_settled: bool,
}

/// The cost at which a reservation is settled.
#[derive(Clone, Copy)]
enum ActualCost<'r, 'd> {
    /// Nothing: all of it is given back.
    Nothing,
    /// The actual cost.
    Units(u64),
    /// The cost of this request at each limit.
    OfRequest(&'r Descriptor<'d>),
}

impl ActualCost<'_, '_> {
    /// The units that a counter is to be charged.
    fn cost_of(self, held: &Held, active: &ActivePolicy) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Units(actual) if held.settles => actual,
            Self::Units(_) => held.estimate,
            Self::OfRequest(request) => {
                let limit = active.counters_of(&held.limit).map(|(limit, _)| limit);
                let limit = limit.filter(|limit| !matches!(limit.cost(), Cost::Units(_)));
                limit.and_then(|limit| limit.cost_of(request).ok()).unwrap_or(held.estimate)
            }
        }
    }
}

/// Why a reservation could not be settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// It expired, and stays charged at its estimate.
    #[error("the reservation has expired and stays charged at its estimate; reserve for longer")]
    Expired,
    /// It was committed or cancelled before.
    #[error("the reservation was committed or cancelled before; each is settled once")]
    AlreadySettled,
    /// The store did not answer. The reservation is unchanged, except for the counters that had answered before, and
    /// may be settled again.
    #[error(transparent)]
    Store(#[from] StoreFailure),
}

impl Reservation {
    /// From when on it can no longer be settled.
    #[must_use]
    pub const fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    /// The limits at which it is settled, and the units that it holds at each.
    pub fn units(&self) -> impl Iterator<Item = (&str, u64)> {
        let settled = self.held.iter().filter(|held| held.settles);
        settled.map(|held| (&*held.limit, held.cost))
    }

    /// Splits off the part that belongs to some limits, by name; `None` if there is no such part.
    fn split(&mut self, is_taken: impl Fn(&str) -> bool) -> Option<Self> {
        let taken: SmallVec<[Held; 4]> =
            self.held.iter().filter(|held| is_taken(&held.limit)).cloned().collect();
        if taken.is_empty() {
            return None;
        }
        self.held.retain(|held| !is_taken(&held.limit));
        let Self { leaves_at, expires_at, .. } = *self;
        Some(Self { held: taken, permit: None, queued: None, leaves_at, expires_at, is_settled: false })
    }

    /// Drops the parts of other limits than these; they stay charged.
    fn keep(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.held.retain(|held| is_kept(&held.limit));
    }

    /// Separates the permit from the reservation, for a caller that releases it at another time than it settles.
    pub fn take_permit(&mut self) -> Option<Permit> {
        self.permit.take()
    }

    /// Settles it as [`Reservations::commit`] does, at what each limit charges for a request with these attributes and this
    /// cost: the same request, as it turned out to be. Limits with a fixed cost keep what they took, and so do limits that
    /// cannot compute their cost.
    ///
    /// ```
    /// use tollgate::{CheckRequest, Engine, Ticks};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limits = "limits: [{name: read, rate: 9/h, cost: input}, {name: written, rate: 9/h, cost: output}]";
    /// let engine = Engine::builder().policy(limits.parse()?).build();
    /// let request = |input: i64, output: i64| CheckRequest::new().with("input", input)?.with("output", output);
    /// let (now, estimate, actual) = (engine.now(), request(5, 8)?, request(6, 2)?);
    /// # pollster::block_on(async {
    /// let (_, reservation) = engine.reservations().reserve(&estimate, Ticks::from_secs(60), now).await;
    /// reservation.unwrap().commit_as(&engine, &actual, now).await.unwrap();
    /// let left = engine.operator().peek(&actual, now).await;
    /// assert_eq!(left.limits().map(|limit| limit.outcome.remaining).collect::<Vec<_>>(), [3, 7]);
    /// # });
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Reservations::commit`].
    pub async fn commit_as<S: Store>(
        &mut self,
        engine: &Engine<S>,
        actual: &CheckRequest<'_>,
        now: Timestamp,
    ) -> Result<Settled, CommitError> {
        engine.reservations().settle(self, ActualCost::OfRequest(actual.first()), now).await
    }
}

impl<S: Store> Reservations<'_, S> {
    /// Charges the request's cost as an estimate, to be settled within `lifetime`. The lifetime starts when the request
    /// leaves the queue, which is at once if it does not have to wait. A reservation that is not settled stays charged.
    pub async fn reserve(
        self,
        request: &CheckRequest<'_>,
        lifetime: Ticks,
        now: Timestamp,
    ) -> (Decision, Option<Reservation>) {
        let now = now.decidable();
        let mut prepared = match self.engine.prepare(request, now) {
            Ok(prepared) => prepared,
            Err(decision) => return (*decision, None),
        };
        let mut decision = self.engine.decide(&mut prepared, request, now).await;
        if !decision.is_allowed() {
            return (decision, None);
        }
        let permit = decision.take_permit();
        let reservation = self.of_decision(&decision, lifetime, now);
        (decision, Some(Reservation { permit, ..reservation }))
    }

    /// Turns what a decision of [`Engine::check`] took into a reservation without its permit, for a caller that may
    /// have to give it back: a request that waits in a queue leaves it by [`Reservations::cancel`].
    pub fn of_decision(self, decision: &Decision, lifetime: Ticks, decided_at: Timestamp) -> Reservation {
        reserved(&self.engine.active.load(), decision, lifetime, decided_at.decidable())
    }

    /// Settles a reservation at the request's actual cost: the rest is refunded, and units beyond the estimate are
    /// charged as far as the counters have room.
    ///
    /// The cost applies to the limits that compute it from attributes or, if there are none, to those that count the
    /// requested cost. Limits with a fixed cost keep what they took.
    ///
    /// If the store does not answer, or the future is dropped, the reservation may be settled again. What was settled
    /// by then stays settled and is not repeated. Neither is a change that the store may have made although its answer
    /// was lost.
    ///
    /// # Errors
    /// When the reservation has expired, was settled before, or the store does not answer.
    pub async fn commit(
        self,
        reservation: &mut Reservation,
        actual: u64,
        now: Timestamp,
    ) -> Result<Settled, CommitError> {
        self.settle(reservation, ActualCost::Units(actual), now).await
    }

    /// Gives back all that a reservation took. A failed call may be repeated, as with [`Reservations::commit`]. A slot in the
    /// queue of a leaky bucket is given back while the request waits. If the request has [queued up](crate::engine::Reservations::enqueue),
    /// the waiters behind it move up. Otherwise they keep their slots, and the slot is given back only if it is the
    /// last. A slot that was used stays used.
    ///
    /// # Errors
    /// When the reservation has expired, was settled before, or the store does not answer.
    pub async fn cancel(self, reservation: &mut Reservation, now: Timestamp) -> Result<Settled, CommitError> {
        self.settle(reservation, ActualCost::Nothing, now).await
    }

    async fn settle(
        self,
        reservation: &mut Reservation,
        actual: ActualCost<'_, '_>,
        now: Timestamp,
    ) -> Result<Settled, CommitError> {
        let now = now.decidable();
        if reservation.is_settled {
            return Err(CommitError::AlreadySettled);
        }
        if now >= reservation.expires_at {
            return Err(CommitError::Expired);
        }
        let mut settled = Settled::default();
        let parted = self.leave_queue(reservation, actual, now);
        let has_left = parted == LeftQueue::Used || now >= reservation.leaves_at;
        let costs: SmallVec<[u64; 4]> = {
            let active = self.engine.active.load();
            reservation.held.iter().map(|held| actual.cost_of(held, &active)).collect()
        };
        for ((at, held), cost) in reservation.held.iter_mut().enumerate().zip(costs) {
            let change = if held.is_leaky() && cost < held.cost {
                if parted == (LeftQueue::Free { at }) {
                    Settled { refunded: held.cost, ..Settled::default() }
                } else if has_left || !matches!(actual, ActualCost::Nothing) {
                    // A request pays for its slot before it leaves: the next may leave no earlier, whatever this one
                    // cost.
                    Settled::default()
                } else {
                    self.step_back(held, now).await?
                }
            } else {
                self.adjust(held, cost, now).await?
            };
            held.settle(cost, change.refunded, change.charged); // From here another attempt would go on.
            let refunded = held.estimate.saturating_sub(held.cost).saturating_sub(held.dropped);
            settled.refunded = settled.refunded.max(refunded);
            settled.charged = settled.charged.max(held.cost.saturating_sub(held.estimate));
            settled.unpaid = settled.unpaid.max(change.unpaid);
        }
        if let Some(permit) = &reservation.permit {
            self.release(permit, now).await?;
        }
        reservation.is_settled = true;
        Ok(settled)
    }

    /// Refunds a leaky bucket in full, if no later request is queued behind.
    async fn step_back(self, held: &Held, now: Timestamp) -> Result<Settled, StoreFailure> {
        let mut settled = Settled::default();
        if self.engine.reset_times.covers(held.key, held.decided_at) {
            return Ok(settled);
        }
        let active = self.engine.active.load_full();
        let charge = active.charge_of(held, PermitId(0), held.cost);
        if let (Some(empty_at), Some(charge)) = (held.empty_at, charge) {
            match self.engine.store.step_back(&charge, empty_at, now).await {
                Ok(true) => settled.refunded = charge.cost,
                // The refund may have been made, so it is not repeated.
                Ok(false) | Err(StoreFailure::Unanswered | StoreFailure::Superseded) => {}
                Err(failure) => return Err(failure),
            }
        }
        self.follow_adjusted(held, settled, now);
        Ok(settled)
    }

    /// Applies to the fallback what was changed in the store.
    fn follow_adjusted(self, held: &Held, settled: Settled, now: Timestamp) {
        let active = self.engine.active.load();
        if let Some(fallback) = self.engine.fallback_if_any(&active, now) {
            fallback.follow_adjusted(held, settled);
        }
    }

    /// Adjusts what one counter was charged to `cost`, in the counter that was charged.
    async fn adjust(self, held: &Held, cost: u64, now: Timestamp) -> Result<Settled, StoreFailure> {
        if cost < held.cost && self.engine.reset_times.covers(held.key, held.decided_at) {
            return Ok(Settled::default());
        }
        match held.source {
            // A shared counter does not know which key paid.
            Source::Overflow if cost < held.cost => Ok(Settled::default()),
            Source::Local => {
                let active = self.engine.active.load();
                let fallback = self.engine.fallback_if_any(&active, now);
                Ok(fallback.map_or_else(Settled::default, |fallback| fallback.adjust(held, cost)))
            }
            _ => {
                let settled = self.adjust_in_store(held, cost, now).await?;
                let refunded = if settled.refunded > 0 { held.cost - cost } else { 0 };
                self.follow_adjusted(held, Settled { refunded, ..settled }, now);
                Ok(settled)
            }
        }
    }

    async fn adjust_in_store(self, held: &Held, cost: u64, now: Timestamp) -> Result<Settled, StoreFailure> {
        let mut attempts = 0;
        loop {
            let active = self.engine.active.load_full();
            match adjust_once(&self.engine.store, &active, held, cost, now).await {
                Err(StoreFailure::Superseded) if attempts < ATTEMPTS => attempts += 1,
                settled => return settled,
            }
        }
    }
}

/// The reservation of what a decision took from its counters.
fn reserved(active: &ActivePolicy, decision: &Decision, lifetime: Ticks, now: Timestamp) -> Reservation {
    // Units that were never counted cannot be refunded.
    let is_held = |status: &&Status| status.outcome.is_allowed() && status.source.is_counted();
    let held = decision.statuses().iter().filter(is_held);
    let held = held.filter_map(|status| active.held_by(decision, status, now));
    let mut held: SmallVec<[Held; 4]> = held.filter(|held| !held.is_permit()).collect();
    // Where some limits compute their own cost, the actual cost applies to those; the others count requests, not units.
    let computed = |limit: &Limit| matches!(limit.cost(), Cost::Attribute(_) | Cost::Computed(_));
    let is_computed = |held: &Held| active.counters_of(&held.limit).is_some_and(|(limit, _)| computed(limit));
    if held.iter().any(is_computed) {
        held.iter_mut().for_each(|held| held.settles = held.settles && is_computed(held));
    }
    let wait = match decision.verdict() {
        Verdict::Wait(wait) => wait,
        _ => Ticks::ZERO,
    };
    let leaves_at = now + wait;
    Reservation {
        held,
        permit: None,
        queued: None,
        leaves_at,
        expires_at: leaves_at + lifetime,
        is_settled: false,
    }
}

async fn adjust_once(
    store: &impl Store,
    active: &ActivePolicy,
    held: &Held,
    cost: u64,
    now: Timestamp,
) -> Result<Settled, StoreFailure> {
    let mut settled = Settled::default();
    if cost < held.cost {
        let units = held.cost - cost;
        settled.refunded = held.still_counted(units, now);
        if settled.refunded == 0 {
            return Ok(settled); // Time has given it back already.
        }
        let refund: Charges<'_> = active.charge_of(held, PermitId(0), units).into_iter().collect();
        match store.refund(&refund, now).await {
            // The refund may have been made, so it is not repeated.
            Ok(()) | Err(StoreFailure::Unanswered) => {}
            Err(failure) => return Err(failure),
        }
    } else if cost > held.cost {
        let extra = cost - held.cost;
        settled.charged = debit(store, active, held, extra, now).await?;
        settled.unpaid = extra - settled.charged;
    }
    Ok(settled)
}

/// Takes up to `units` from a counter, as many as it has: the units were consumed already.
async fn debit(
    store: &impl Store,
    active: &ActivePolicy,
    held: &Held,
    units: u64,
    now: Timestamp,
) -> Result<u64, StoreFailure> {
    let Some(charge) = active.charge_of(held, PermitId(0), 0) else { return Ok(0) };
    // Another request may come between the look and the charge; then there is less to take, or nothing.
    for _ in 0..ATTEMPTS {
        let answers = store.charge(&[charge], now).await?;
        let available = answers.first().map_or(0, |answer| answer.outcome.remaining).min(units);
        match store.charge(&[Charge { cost: available, ..charge }], now).await {
            Ok(answers) if answers.first().is_some_and(|answer| answer.outcome.is_allowed()) => {
                return Ok(available);
            }
            Ok(_) => {}
            // The units may have been taken, so they are not taken again.
            Err(StoreFailure::Unanswered) => return Ok(available),
            Err(failure) => return Err(failure),
        }
    }
    Ok(0)
}
