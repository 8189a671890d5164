//! The seam between decisions and counters: what every store does, and how it may fail.

use std::future::Future;

use crate::charge::{Answers, Charge};
use crate::memory::MemoryStore;
use crate::time::Timestamp;

/// Why a store did not answer. It is never the caller's fault, and never becomes an error for the caller to interpret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreFailure {
    /// A counter was already carried over to a policy newer than this decision's. Taking a new snapshot cures it.
    #[error("a newer policy has taken over this counter; the decision is made again with that policy")]
    Superseded,
    /// A counter holds another algorithm's state. Cannot happen while keys name their algorithm.
    #[error("a counter holds the state of another algorithm")]
    WrongKind,
    /// The store cannot be reached.
    #[error("the store cannot be reached")]
    Unreachable,
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

/// Where counters live.
pub trait Store: Send + Sync {
    /// Charges every enforced counter, or none: if one denies, nothing is changed. Counters in shadow are charged each for
    /// itself, when the enforced ones admit. Answers in the order of the charges.
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

    /// Whether it wants to know which counters belong together; see [`Charge::group`].
    #[inline]
    fn is_grouped(&self) -> bool {
        false
    }

    /// The memory store that it is, if it is one: only such counters can be written to a snapshot, and counted.
    #[inline]
    fn memory(&self) -> Option<&MemoryStore> {
        None
    }

    /// The same as [`Store::charge`] without waiting. `None`: nothing was charged, and [`Store::charge`] must be waited for.
    #[inline]
    fn charge_at_once(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Option<Result<Answers, StoreFailure>> {
        let _ = (charges, now);
        None
    }

    /// Gives back what the charges took: `cost` units of each, or the permit named in it.
    fn refund(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send;

    /// Forgets the counters, as if their keys had never been seen.
    fn reset(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send;

    /// Keeps counters longer than they say. Called before the policy that makes it necessary is put in force.
    fn hold(&self, hold: &Hold);
}
