//! The upkeep of an engine by its program: settings of the wall clock, deferred charges, resets by other nodes.

use std::sync::atomic::Ordering;

use super::{Engine, Siblings, Snapshots};
use crate::clock::Clock;
use crate::fallback::{FallbackReport, Reconciled};
use crate::key::Fingerprint;
use crate::store::{Store, StoreFailure};
use crate::time::{Timestamp, WallOffset};

/// The upkeep of an engine by its program.
pub struct Maintenance<'e, S> {
    pub(super) engine: &'e Engine<S>,
}

impl<S> Copy for Maintenance<'_, S> {}

impl<S> Clone for Maintenance<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<'e, S: Store> Maintenance<'e, S> {
    /// Snapshots of the counters in memory.
    #[inline]
    pub const fn snapshots(self) -> Snapshots<'e, S> {
        Snapshots { engine: self.engine }
    }

    /// Engines that hash keys with the same secret.
    #[inline]
    pub const fn siblings(self) -> Siblings<'e, S> {
        Siblings { engine: self.engine }
    }

    /// Why the policy file as it is now is not active: what `tollgate policy check` prints about it. `None` if it is.
    #[cfg(feature = "reload")]
    #[must_use]
    pub fn reload_refusal(self) -> Option<String> {
        self.engine.watch.as_ref()?.refusal()
    }

    /// The clock of [`Engine::now`].
    #[must_use]
    pub const fn clock(self) -> &'e Clock {
        &self.engine.clock
    }

    /// Reports to the store what was admitted here while it was unreachable, and makes the refunds that could not be
    /// made: up to 64 counters per call. Each is reported once. A program with an engine on a shared store calls this
    /// now and then; the call does nothing while the store is unreachable.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn reconcile(self, now: Timestamp) -> Result<Reconciled, StoreFailure> {
        let active = self.engine.active.load_full();
        match self.engine.fallback_if_any(&active, now.decidable()) {
            Some(fallback) => fallback.reconcile_some().await,
            None => Ok(Reconciled::default()),
        }
    }

    /// Statistics of the fallback so far; `None` for a store that is never unreachable.
    #[must_use]
    pub fn fallback(self) -> Option<FallbackReport> {
        self.engine.fallback.get().map(|fallback| fallback.report())
    }

    /// The limits of the active policy that may be [leased](crate::lease), and the [numbers](crate::store::Family::id)
    /// of their counters: first those that decide, then those in shadow.
    #[must_use]
    pub fn leased_families(self) -> Vec<(String, [u64; 2])> {
        let active = self.engine.active.load();
        let each = active.policy.limits().iter().zip(&active.counters);
        each.filter(|(limit, _)| limit.lease().is_some())
            .map(|(limit, counters)| {
                (limit.name().to_owned(), [counters.enforced.id(), counters.shadow.id()])
            })
            .collect()
    }

    /// Records that another node has reset these counters: a reservation that was decided before refunds nothing. The
    /// leases of this node are dropped by [`LeasedStore::discard`](crate::lease::LeasedStore::discard).
    pub fn apply_remote_reset(self, keys: &[u128], now: Timestamp) {
        let keys = keys.iter().map(|key| Fingerprint::of_whole(*key));
        self.engine.reset_times.record(keys, now.decidable());
    }

    /// Applies a new setting of the wall clock, so that calendar windows and epoch windows begin and end by it. The
    /// owner of the clock calls this about once a second with [`Clock::wall_offset`](crate::Clock::wall_offset), or for
    /// each request: without a change it is one comparison. Returns whether anything changed.
    ///
    /// A clock step opens no window early: what was counted goes on to count in the window in which the clock lands,
    /// and a window that the clock was set back out of goes on.
    pub fn follow_wall(self, wall: WallOffset, now: Timestamp) -> bool {
        if self.wall() == wall {
            return false;
        }
        let now = now.decidable();
        self.engine.wall.store(wall.as_micros(), Ordering::Relaxed);
        self.engine.store.follow_wall(wall, now);
        self.engine.blocks.follow_wall(wall);
        if let Some(fallback) = self.engine.fallback.get() {
            fallback.follow_wall(wall, now);
        }
        true
    }

    /// How far the wall clock is ahead of the decisions' clock, by the last call of [`Maintenance::follow_wall`].
    #[must_use]
    pub fn wall(self) -> WallOffset {
        self.engine.wall_offset()
    }

    /// Whether decisions depend on an attribute of this name. A program that reads requests can skip attributes that
    /// are not used.
    #[must_use]
    pub fn uses(self, attribute: &str) -> bool {
        self.engine.blocks.uses(attribute) || self.engine.active.load().policy.uses(attribute)
    }

    /// A number that changes whenever [`Maintenance::uses`] may return something else than before.
    #[must_use]
    pub fn changes(self) -> u64 {
        self.engine.changes.load(Ordering::Acquire)
    }
}
