//! The interface between decisions and counters: what every store is asked, what it does, and how it may fail. It knows
//! no implementation.

use std::future::Future;

use smallvec::SmallVec;

use crate::clock::Clock;
use crate::departure::{DepartureRequest, DepartureSlot, LeaveOutcome};
use crate::key::Secret;
use crate::outcome::Source;
use crate::time::{Ticks, Timestamp, WallOffset};

mod charge;
mod lease;
mod together;

pub use charge::{Answers, Charge, ChargeAnswer, Enforcement, Family, Succession};
pub(crate) use charge::{Charges, PolicyInstant, Record, is_wide};
pub use lease::Lease;
pub(crate) use lease::{SHARE_MAX, TTL_MAX, TTL_MIN};
pub use together::{TOGETHER_MAX, together};

/// Why a store did not answer. It is never the caller's fault, and never becomes an error that the caller has to
/// interpret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreFailure {
    /// A counter was already carried over to a policy newer than this decision's. Loading the active policy again cures
    /// it.
    #[error("a newer policy has taken over this counter; the decision is made again with that policy")]
    Superseded,
    /// A counter holds another algorithm's state. Cannot happen while keys name their algorithm.
    #[error("a counter holds the state of another algorithm")]
    WrongKind,
    /// The store cannot be reached, and nothing was done.
    #[error("the store cannot be reached")]
    Unreachable,
    /// The store was asked and no answer came: it may have done what it was asked for. The request is never repeated.
    #[error("the store was asked and did not answer; it may have done what it was asked for")]
    Unanswered,
}

impl StoreFailure {
    /// Whether the store itself was unreachable, and not only a counter faulty. The fallback decides then.
    #[must_use]
    pub(crate) const fn is_outage(self) -> bool {
        matches!(self, StoreFailure::Unreachable | StoreFailure::Unanswered)
    }
}

/// Counters that a store must keep longer than they ask for: under the quota that follows theirs, they may still differ
/// from keys never seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The numbers of the quotas that they were last counted under.
    pub numbers: Vec<u32>,
    /// Only counters that were not yet idle at this instant.
    pub since: Timestamp,
    /// How long, at most.
    pub until: Timestamp,
}

/// For each charge of a request, the source that would answer it without its counter, if there is one.
pub type Foreseen = SmallVec<[Option<Source>; 6]>;

/// A store of counters.
pub trait Store: Send + Sync {
    /// Charges every enforced counter, or none: if one denies, nothing is changed. Counters in shadow are charged
    /// individually, when the enforced ones admit. Answers in the order of the charges. If one part of a store does not
    /// answer, the call fails, and what the other parts took is refunded.
    fn charge(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<Answers, StoreFailure>> + Send;

    /// Charges as [`Store::charge`] does, if no waiting is needed. The answers are written to a buffer of the caller,
    /// which must be empty: they are large, and returning them through several functions would copy them each time.
    /// `None`: nothing was charged, and [`Store::charge`] must be awaited.
    #[inline]
    fn try_charge(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
        answers: &mut Answers,
    ) -> Option<Result<(), StoreFailure>> {
        let _ = (charges, now, answers);
        None
    }

    /// Whether no method waits and [`Store::try_charge`] always answers, as in memory. Such a store is never
    /// unreachable, so it needs no fallback.
    #[inline]
    fn never_waits(&self) -> bool {
        false
    }

    /// The secret that all engines on this store hash keys with, if the store knows it.
    fn secret(&self) -> Option<Secret> {
        None
    }

    /// Whether the store needs to know which counters belong together; see [`Charge::group`].
    #[inline]
    fn is_grouped(&self) -> bool {
        false
    }

    /// For each charge of one request, the source that would answer it without its counter: [`Source::Lease`] admits
    /// it, and [`Source::DenyCache`] denies it. For explanations, which a look at the counters alone does not cover.
    /// Nothing is charged.
    fn foreseen(&self, charges: &[Charge<'_>], now: Timestamp) -> Foreseen {
        let _ = now;
        charges.iter().map(|_| None).collect()
    }

    /// Runs a function that enqueues several requests without waiting, so that a store that batches requests sends
    /// these together and decides about them in their order.
    #[inline]
    fn gather<R>(&self, ask: impl FnOnce() -> R) -> R {
        ask()
    }

    /// Refunds what the charges took: `cost` units of each, or the permit named in it.
    fn refund(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send;

    /// Refunds `cost` units of a leaky bucket for a request that goes away, if no later request is queued behind it:
    /// the charge that took the units left the bucket empty at `empty_at`, and it is the last as long as that is so.
    /// Requests behind keep their slots, so a slot in the middle passes unused, except where they wait in a queue of
    /// this process; see [`Store::join_queue`]. Returns whether anything was refunded; a store that does not know which
    /// request is last refunds nothing.
    fn step_back(
        &self,
        charge: &Charge<'_>,
        empty_at: Timestamp,
        now: Timestamp,
    ) -> impl Future<Output = Result<bool, StoreFailure>> + Send {
        let _ = (charge, empty_at, now);
        std::future::ready(Ok(false))
    }

    /// Lets a charged request wait in a queue of this process: when a waiter before it leaves, it departs earlier.
    /// `None` where it keeps its departure time, as in every store that other processes share. Only the memory store
    /// has queues; a store that wraps one forwards the call.
    fn join_queue(
        &self,
        request: &DepartureRequest<'_>,
        now: Timestamp,
        clock: &Clock,
    ) -> Option<DepartureSlot> {
        let _ = (request, now, clock);
        None
    }

    /// Removes a request from the queue that [`Store::join_queue`] put it in. Waiters behind it move up, and the bucket
    /// is refunded.
    fn leave_queue(&self, slot: &DepartureSlot, now: Timestamp) -> LeaveOutcome {
        let _ = slot;
        LeaveOutcome::Used(now)
    }

    /// Renews the permits named in the charges, for holders that are still running. A permit that has expired stays
    /// expired. A store without this ability lets them expire.
    fn renew(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send {
        let _ = (charges, now);
        std::future::ready(Ok(()))
    }

    /// Resets the counters, as if their keys had never been seen.
    fn reset(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send;

    /// Takes up to `cost` units of each counter, down to zero, without asking whether it has them: they were consumed
    /// while the store was unreachable. Each counter is debited individually. It is called once for each deferred
    /// charge, so it must not repeat what may have been done. A store that can debit in one step does so; this default
    /// looks first, and takes less if a concurrent request is faster.
    fn debit(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send {
        async move {
            for charge in charges {
                let look = self.charge(&[charge.costing(0)], now).await?;
                let left = look.first().map_or(0, |answer| answer.outcome.remaining);
                self.charge(&[charge.costing(charge.cost.min(left))], now).await?;
            }
            Ok(())
        }
    }

    /// Keeps counters longer than they ask for. Called before the policy that makes it necessary becomes active.
    fn hold(&self, hold: &Hold);

    /// Applies a new setting of the wall clock: from `now` on it is this far ahead of the decisions' clock. A store
    /// whose windows begin by a clock of its own, as in Redis, can ignore it.
    fn follow_wall(&self, wall: WallOffset, now: Timestamp) {
        let _ = (wall, now);
    }

    /// Names the counters that will be charged from now on, so that the store can prepare them without delaying a
    /// decision. It is called whenever a policy becomes active, and must not wait.
    fn prepare<'f>(&self, families: impl Iterator<Item = &'f Family>) {
        let _ = families;
    }

    /// How many nodes share it, this one included; 0 while that is not known. Each node decides by its share during an
    /// outage.
    fn nodes(&self) -> u32 {
        1
    }

    /// How long the part that keeps this counter has been failing. It starts anew only after 30 seconds of health, so a
    /// store that comes and goes is reported as failing all the time. For a part that never answered, the time since
    /// the store was made. `None`: the store does not measure it, and the caller measures it itself.
    fn away_for(&self, charge: &Charge<'_>, now: Timestamp) -> Option<Ticks> {
        let _ = (charge, now);
        None
    }

    /// Whether the part that keeps this counter is unreachable at this moment. Called only after a failure, to separate
    /// the counters that failed from those that did not.
    fn is_away(&self, charge: &Charge<'_>) -> bool {
        let _ = charge;
        true
    }
}
