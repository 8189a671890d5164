//! The engine: a policy, a store, and the path of a decision between them.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use arc_swap::ArcSwap;

use crate::active::ActivePolicy;
use crate::clock::Clock;
use crate::fallback::Fallback;
use crate::memory::MemoryStore;
use crate::overrides::Overrides;
use crate::policy::{Policy, PolicyError, Problem};
use crate::request::CheckRequest;
use crate::store::Store;
use crate::time::{Timestamp, WallOffset};

mod block;
mod reset_times;
mod penalty;
mod check;
mod swap;
mod reservation;
mod operator;
mod ledger;
mod snapshot;
mod siblings;
mod maintenance;
#[cfg(feature = "reload")]
mod reload;
mod builder;

pub use crate::active::{SwapError, SwapReport};
pub use crate::decision::Settled;
pub use crate::fallback::{DEFERRED_MAX, FallbackReport, Reconciled};
pub use crate::overrides::{
    ActiveOverrides, ExpiringOverride, LimitOverride, OVERRIDES_MAX, OverrideError, Scope,
};
pub use block::{BLOCK_ATTRIBUTES_MAX, BLOCKS_MAX, BlockError};
pub use builder::{EngineBuilder, WithoutPolicy};
pub use check::{Prepared, PreparedCounter};
pub use ledger::{Counted, Ledger, Tally};
pub use maintenance::Maintenance;
pub use operator::{Explained, Explanation, Forgotten, LIMITS_EXPLAINED_MAX, Operator, State};
#[cfg(feature = "reload")]
pub use reload::Reload;
pub use reservation::{CommitError, Departure, Reservation, Reservations};
pub use siblings::Siblings;
#[cfg(feature = "fuzzing")]
pub use snapshot::sealed;
pub use snapshot::{
    RestoreError, RestoreReport, SNAPSHOT_PART_BYTES_MAX, SNAPSHOT_VERSION, Snapshot, SnapshotError,
    SnapshotReport, Snapshots,
};

use block::Blocks;
use reset_times::ResetTimes;

/// How often a decision reloads the active policy because a newer one overtook it.
const ATTEMPTS: usize = 4;

/// Decides about requests by a policy.
///
/// ```
/// use tollgate::{CheckRequest, Engine};
/// let policy = "limits: [{name: per-key, by: [api_key], rate: 2/s}]".parse()?;
/// let engine = Engine::builder().policy(policy).build(); // Or of a file: Engine::open("policy.yaml")?
/// let request = CheckRequest::new().with("api_key", "k-42")?;
/// assert!(engine.try_check(&request, engine.now())?.is_allowed());
/// assert!(engine.try_check(&request, engine.now())?.is_allowed());
/// let denied = engine.try_check(&request, engine.now())?;
/// assert_eq!(denied.cause().unwrap().limit.name(), "per-key");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine<S = MemoryStore> {
    store: S,
    clock: Clock,
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
    /// The file that the policy follows.
    #[cfg(feature = "reload")]
    watch: Option<reload::FileWatch>,
}

impl Engine<MemoryStore> {
    /// An engine in memory that decides by the policy in a file. The rest has its default; [`Engine::builder`] sets it.
    /// With the feature `reload`, the engine follows the file while the program runs, and a file that is not a policy
    /// leaves the last good one active.
    ///
    /// ```no_run
    /// use tollgate::{CheckRequest, Engine};
    /// let engine = Engine::open("policy.yaml")?;
    /// let request = CheckRequest::new().with("api_key", "k-42")?;
    /// let decision = engine.try_check(&request, engine.now())?;
    /// # let _ = decision;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The file cannot be read, or is not a policy.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, PolicyError> {
        Ok(Self::builder().open(path)?.build())
    }

    /// Configures an engine: first its policy, then the rest.
    pub const fn builder() -> WithoutPolicy {
        WithoutPolicy(())
    }
}

impl<S: Store> Engine<S> {
    fn assemble(active: ActivePolicy, store: S, clock: Clock) -> Self {
        store.prepare(active.families());
        Self {
            store,
            clock,
            active: ArcSwap::from_pointee(active),
            swapping: Mutex::new(()),
            permits: AtomicU64::new(first_permit()),
            fallback: OnceLock::new(),
            overrides: Overrides::default(),
            blocks: Blocks::default(),
            reset_times: ResetTimes::default(),
            changes: AtomicU64::new(0),
            wall: AtomicI64::new(0),
            #[cfg(feature = "reload")]
            watch: None,
        }
    }

    /// The time for the next decisions, by the engine's clock. If the wall clock was set, calendar windows follow it from
    /// here on. With the feature `reload`, a changed policy file becomes active here.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let now = self.clock.now();
        self.maintenance().follow_wall(self.clock.wall_offset(now), now);
        #[cfg(feature = "reload")]
        if let Some(watch) = &self.watch
            && let Some(policy) = watch.take()
        {
            watch.report_swap(&self.swap(policy, now));
        }
        now
    }

    /// Records that the attributes that decisions depend on may have changed. Called after the change. Release: a thread that sees the new number sees the change.
    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The active policy.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.active.load().policy)
    }

    /// The problem with a value of a request that the active policy counts as an address and that is none. Such a request
    /// is counted by the text as it is, so a protocol whose callers are programs may refuse it.
    #[must_use]
    pub fn address_problem(&self, request: &CheckRequest<'_>) -> Option<Problem> {
        self.active.load().policy.address_problem(request)
    }

    /// How far the wall clock is ahead of the decisions' clock.
    fn wall_offset(&self) -> WallOffset {
        WallOffset::from_micros(self.wall.load(Ordering::Relaxed))
    }

    /// The handle for settling decisions: reservations, queues, permits, and limits that count only failures.
    #[inline]
    pub const fn reservations(&self) -> Reservations<'_, S> {
        Reservations { engine: self }
    }

    /// The handle for operators: overrides, blocks, explanations and resets.
    #[inline]
    pub const fn operator(&self) -> Operator<'_, S> {
        Operator { engine: self }
    }

    /// Counts and corrections without a check: tallies, debits and refunds.
    #[inline]
    pub const fn ledger(&self) -> Ledger<'_, S> {
        Ledger { engine: self }
    }

    /// The handle for the program that runs the engine: snapshots, the clock, the secret, and the fleet.
    #[inline]
    pub const fn maintenance(&self) -> Maintenance<'_, S> {
        Maintenance { engine: self }
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
