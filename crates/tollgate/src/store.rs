//! The seam between decisions and counters: what every store is asked, what it does, and how it may fail. It knows
//! no implementation.

use std::future::Future;

use smallvec::SmallVec;

use crate::clock::Clock;
use crate::departure::{DepartureRequest, DepartureSlot, LeaveOutcome};
use crate::outcome::Source;
use crate::time::{Ticks, Timestamp, WallOffset};

mod charge;
mod lease;

pub use charge::{Answer, Answers, Charge, Family, Stance, Succession};
pub(crate) use charge::{Record, Reign, is_wide};
pub use lease::Lease;
pub(crate) use lease::{SHARE_MAX, TTL_MAX, TTL_MIN};

/// Why a store did not answer. It is never the caller's fault, and never becomes an error for the caller to interpret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreFailure {
    /// A counter was already carried over to a policy newer than this decision's. Taking a new snapshot cures it.
    #[error("a newer policy has taken over this counter; the decision is made again with that policy")]
    Superseded,
    /// A counter holds another algorithm's state. Cannot happen while keys name their algorithm.
    #[error("a counter holds the state of another algorithm")]
    WrongKind,
    /// The store cannot be reached, and nothing was done.
    #[error("the store cannot be reached")]
    Unreachable,
    /// The store was asked and no answer came: what it was asked for may have been done. It is never asked for it again.
    #[error("the store was asked and did not answer; it may have done what it was asked for")]
    Unanswered,
}

impl StoreFailure {
    /// Whether the store itself was away, and not only a counter out of order. What is asked of it is then answered without it.
    #[must_use]
    pub const fn is_outage(self) -> bool {
        matches!(self, StoreFailure::Unreachable | StoreFailure::Unanswered)
    }
}

/// Counters that a store must keep longer than they say themselves: the quota that follows theirs may still tell them from keys
/// never seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The numbers of the quotas that they were last counted under.
    pub numbers: Vec<u32>,
    /// Those that were not yet idle at this instant.
    pub since: Timestamp,
    /// How long, at most.
    pub until: Timestamp,
}

/// What each charge of a request would be answered by without asking its counter.
pub type Foreseen = SmallVec<[Option<Source>; 6]>;

/// Where counters live.
pub trait Store: Send + Sync {
    /// Charges every enforced counter, or none: if one denies, nothing is changed. Counters in shadow are charged each for
    /// itself, when the enforced ones admit. Answers in the order of the charges. A store of several parts of which one does not answer
    /// fails, and gives back what the others took.
    fn charge(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<Answers, StoreFailure>> + Send;

    /// Whether [`Store::charge_at_once`] answers, as memory does. Where it does not, nobody tries.
    #[inline]
    fn answers_at_once(&self) -> bool {
        false
    }

    /// Whether [`Store::charge_at_once`] answers sometimes, where a limit is leased, so that it is worth trying.
    #[inline]
    fn may_answer_at_once(&self) -> bool {
        self.answers_at_once()
    }

    /// Whether it wants to know which counters belong together; see [`Charge::group`].
    #[inline]
    fn is_grouped(&self) -> bool {
        false
    }

    /// The same as [`Store::charge`] without waiting. The answers are written where they are needed, which is empty: they are large, and
    /// each hand that they go through would copy them. `None`: nothing was charged, and [`Store::charge`] must be waited for.
    #[inline]
    fn charge_at_once(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
        answers: &mut Answers,
    ) -> Option<Result<(), StoreFailure>> {
        let _ = (charges, now, answers);
        None
    }

    /// For each charge of one request whether it would be answered without its counter, and by what: [`Source::Lease`] admits it, and
    /// [`Source::DenyCache`] denies it. For whoever explains what a look at the counters alone would not tell. Nothing is charged.
    fn foreseen(&self, charges: &[Charge<'_>], now: Timestamp) -> Foreseen {
        let _ = now;
        charges.iter().map(|_| None).collect()
    }

    /// Runs what lines up several requests at once, without waiting, so that a store that sends several in one call sends these together and
    /// decides about them in their order.
    #[inline]
    fn gather<R>(&self, ask: impl FnOnce() -> R) -> R {
        ask()
    }

    /// Gives back what the charges took: `cost` units of each, or the permit named in it.
    fn refund(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send;

    /// Gives back `cost` units of a leaky bucket to a request that goes away, if nobody has lined up behind it: the charge that took them left
    /// the bucket empty at `empty_at`, and it is the last as long as that is so. Those behind keep their turns, so that a place in the middle
    /// passes unused, unless they wait in a queue of this process; see [`Store::join_queue`]. Tells
    /// whether anything was given back; a store that cannot tell who is last gives nothing.
    fn step_back(
        &self,
        charge: &Charge<'_>,
        empty_at: Timestamp,
        now: Timestamp,
    ) -> impl Future<Output = Result<bool, StoreFailure>> + Send {
        let _ = (charge, empty_at, now);
        std::future::ready(Ok(false))
    }

    /// Lets a charged request wait in a queue of this process: when a waiter before it leaves, it departs earlier. `None` where it keeps
    /// its departure time, as in every store that other processes share. Only the memory store has queues; a store around one passes
    /// this on.
    fn join_queue(
        &self,
        request: &DepartureRequest<'_>,
        now: Timestamp,
        clock: &Clock,
    ) -> Option<DepartureSlot> {
        let _ = (request, now, clock);
        None
    }

    /// Takes a request out of the queue that [`Store::join_queue`] put it in. Those behind it move up, and the bucket gets its units back.
    fn leave_queue(&self, slot: &DepartureSlot, now: Timestamp) -> LeaveOutcome {
        let _ = slot;
        LeaveOutcome::Used(now)
    }

    /// Lets the permits named in the charges live anew, for holders that are still there. One that has expired stays gone. A store that cannot
    /// lets them expire.
    fn renew(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send {
        let _ = (charges, now);
        std::future::ready(Ok(()))
    }

    /// Forgets the counters, as if their keys had never been seen.
    fn reset(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send;

    /// Takes up to `cost` units of each counter, down to none, without asking whether it has them: they were consumed while the store
    /// was away. Each counter stands for itself. It is asked once for each debt, so it must not try again what may have been done.
    /// A store that can, does it in one step; this one looks first, and takes less if another is faster.
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

    /// Keeps counters longer than they say. Called before the policy that makes it necessary is put in force.
    fn hold(&self, hold: &Hold);

    /// Takes note that the wall clock was set: from `now` on it is this far ahead of the clock that decisions are made by. A store
    /// whose windows begin by a clock of its own, as Redis has one, need not know.
    fn follow_wall(&self, wall: WallOffset, now: Timestamp) {
        let _ = (wall, now);
    }

    /// Tells which counters will be charged from now on, so that what a store has to find out about them first takes no decision's time. It
    /// is called whenever a policy is put in force, and must not wait.
    fn prepare<'f>(&self, families: impl Iterator<Item = &'f Family>) {
        let _ = families;
    }

    /// How many nodes share it, this one included; 0 while that is not known. Each decides by its share while the store is away.
    fn nodes(&self) -> u32 {
        1
    }

    /// How long the part that keeps this counter has been failing. It starts anew only after 30 seconds of health, so that a store that
    /// comes and goes is told as away all the time. Of a part that never answered, since the store was made. `None`: it does not keep
    /// count, and whoever asks counts for itself.
    fn away_for(&self, charge: &Charge<'_>, now: Timestamp) -> Option<Ticks> {
        let _ = (charge, now);
        None
    }

    /// Whether the part that keeps this counter is away at this moment. Asked only after a failure, to tell the counters that failed
    /// from those that did not.
    fn is_away(&self, charge: &Charge<'_>) -> bool {
        let _ = charge;
        true
    }
}
