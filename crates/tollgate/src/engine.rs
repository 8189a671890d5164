//! The engine: a policy, a store, and the path of a decision between them.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use arc_swap::ArcSwap;
use smallvec::SmallVec;

use crate::decision::Decision;
use crate::key::Secret;
use crate::memory::{CAPACITY_BYTES_DEFAULT, MemoryStore};
use crate::policy::Policy;
use crate::request::CheckRequest;
use crate::store::{Charge, Store};
use crate::time::{Timestamp, WallOffset};

mod active;
mod swap;
mod check;
mod fallback;
mod reset_times;
mod reservation;
mod permit;
mod queue;
mod correct;
mod reset;
mod forecast;
mod debit;
mod tally;
mod snapshot;
mod operator;
mod uncounted;
mod penalty;
mod failures;
mod overrides;
mod block;
mod explain;

pub use active::{SwapError, SwapReport};
pub use block::{BLOCK_ATTRIBUTES_MAX, BLOCKS_MAX, BlockError};
pub use check::Prepared;
pub use explain::{Explained, Explanation, LIMITS_EXPLAINED_MAX, State};
pub use fallback::{DEBTS_MAX, Replayed, StandIn};
pub use overrides::{RULINGS_MAX, Ruled, Ruling, RulingError, Scope};
pub use queue::Turn;
pub use reservation::{CommitError, Reservation, Settled};
pub use reset::Forgotten;
#[cfg(feature = "fuzzing")]
pub use snapshot::sealed;
pub use snapshot::{
    RestoreError, RestoreReport, SNAPSHOT_PART_BYTES_MAX, SNAPSHOT_VERSION, Snapshot, SnapshotError,
    SnapshotReport,
};
pub use tally::{Counted, Tally};

use active::ActivePolicy;
use block::Blocks;
use fallback::Fallback;
use overrides::Overrides;
use reset_times::ResetTimes;

/// How often a decision reloads the active policy because a newer one overtook it.
const ATTEMPTS: usize = 4;

type Charges<'a> = SmallVec<[Charge<'a>; 6]>;

/// Decides about requests by a policy.
///
/// ```
/// use tollgate::{CheckRequest, Clock, Engine, Policy};
/// let (policy, _) = Policy::compile("policy.yaml", b"limits: [{name: per-key, by: [api_key], rate: 2/s}]")?;
/// let clock = Clock::precise();
/// let engine = Engine::new(policy, clock.now());
/// let request = CheckRequest::new().with("api_key", "k-42")?;
/// assert!(engine.try_check(&request, clock.now())?.is_allowed());
/// assert!(engine.try_check(&request, clock.now())?.is_allowed());
/// let denied = engine.try_check(&request, clock.now())?;
/// assert_eq!(denied.cause().unwrap().limit.name(), "per-key");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine<S = MemoryStore> {
    store: S,
    active: ArcSwap<ActivePolicy>,
    /// Locked while a policy is swapped in, so that two swaps do not build on the same predecessor.
    swapping: Mutex<()>,
    permits: AtomicU64,
    /// The fallback for a store that can be unreachable.
    fallback: OnceLock<Box<Fallback>>,
    /// The operator's overrides of the policy.
    overrides: Overrides,
    blocks: Blocks,
    reset_times: ResetTimes,
    /// How often the attributes that decisions depend on may have changed.
    changes: AtomicU64,
    /// How far the wall clock is ahead, in microseconds, by the last call of `follow_wall`. Relaxed: it guards no other
    /// memory.
    wall: AtomicI64,
}

impl Engine<MemoryStore> {
    /// An engine on memory, for decisions from `now` on.
    #[must_use]
    pub fn new(policy: Policy, now: Timestamp) -> Self {
        Self::with_store(policy, MemoryStore::new(CAPACITY_BYTES_DEFAULT, now.decidable()), Secret::random())
    }
}

impl<S: Store> Engine<S> {
    /// An engine on a store of the caller's choice.
    pub fn with_store(policy: Policy, store: S, secret: Secret) -> Self {
        Self::with_shared(Arc::new(policy), store, secret)
    }

    fn with_shared(policy: Arc<Policy>, store: S, secret: Secret) -> Self {
        Self::assemble(
            ActivePolicy::first(policy, Arc::new(secret), store.is_grouped()),
            store,
            first_permit(),
        )
    }

    fn assemble(active: ActivePolicy, store: S, permits: u64) -> Self {
        store.prepare(active.families());
        Self {
            store,
            active: ArcSwap::from_pointee(active),
            swapping: Mutex::new(()),
            permits: AtomicU64::new(permits),
            fallback: OnceLock::new(),
            overrides: Overrides::default(),
            blocks: Blocks::default(),
            reset_times: ResetTimes::default(),
            changes: AtomicU64::new(0),
            wall: AtomicI64::new(0),
        }
    }

    /// The decision that the request would get, without charging anything.
    pub async fn peek(&self, request: &CheckRequest<'_>, now: Timestamp) -> Decision {
        self.check(&request.clone().looking(), now).await
    }

    /// Whether decisions depend on an attribute of this name. A program that reads requests can skip attributes that
    /// are not used.
    #[must_use]
    pub fn uses(&self, attribute: &str) -> bool {
        self.blocks.uses(attribute) || self.active.load().policy.uses(attribute)
    }

    /// A number that changes whenever [`Engine::uses`] may return something else than before.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Called after the change. Release: a thread that sees the new number sees the change.
    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The active policy.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.active.load().policy)
    }

    /// The same engine on another type of store, for a program whose stores are of one type. The new store must keep
    /// the counters.
    #[must_use]
    pub fn map_store<T: Store>(self, map: impl FnOnce(S) -> T) -> Engine<T> {
        let Self {
            store,
            active,
            swapping,
            permits,
            fallback,
            overrides,
            blocks,
            reset_times,
            changes,
            wall,
        } = self;
        Engine {
            store: map(store),
            active,
            swapping,
            permits,
            fallback,
            overrides,
            blocks,
            reset_times,
            changes,
            wall,
        }
    }

    /// Applies a new setting of the wall clock, so that calendar windows and epoch windows begin and end by it. The
    /// owner of the clock calls this about once a second with [`Clock::wall_offset`](crate::Clock::wall_offset), or for
    /// each request: without a change it is one comparison. Returns whether anything changed.
    ///
    /// A clock step opens no window early: what was counted goes on to count in the window in which the clock lands,
    /// and a window that the clock was set back out of goes on.
    pub fn follow_wall(&self, wall: WallOffset, now: Timestamp) -> bool {
        if self.wall() == wall {
            return false;
        }
        let now = now.decidable();
        self.wall.store(wall.as_micros(), Ordering::Relaxed);
        self.store.follow_wall(wall, now);
        self.blocks.follow_wall(wall);
        if let Some(fallback) = self.fallback.get() {
            fallback.local.follow_wall(wall, now);
        }
        true
    }

    /// How far the wall clock is ahead of the decisions' clock, by the last call of [`Engine::follow_wall`].
    #[must_use]
    pub fn wall(&self) -> WallOffset {
        WallOffset::from_micros(self.wall.load(Ordering::Relaxed))
    }

    /// The store.
    #[must_use]
    pub const fn store(&self) -> &S {
        &self.store
    }
}

/// The first id for permits. Engines that share a store must use different ids, so it is random.
fn first_permit() -> u64 {
    RandomState::new().hash_one(0) >> 3
}
