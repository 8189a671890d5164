//! The fallback: decisions while the store does not answer. Each limit has stages of its own, from open through this
//! node's share to closed. Every decision charges the share, so that it is warm. What the share admits during an outage
//! is reported to the store when that is back.

use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::active::ActivePolicy;
use crate::outcome::Source;
use crate::store::{Charge, ChargeAnswer, Store};
use crate::time::{Ticks, Timestamp, WallOffset};

mod share;
mod local;
mod counter;
mod permits;
mod deferred;
mod watch;
mod stages;
mod settle;
mod tally;
mod reconcile;

pub(crate) use counter::Windows;
pub use deferred::DEFERRED_MAX;
use deferred::Deferred;
use local::{KeySlot, Local, Side};
pub use reconcile::Reconciled;
pub(crate) use stages::{Asked, has_news};
use watch::Watch;

/// The assumed number of nodes where the store does not know it.
const NODES_UNKNOWN: u32 = 3;

/// The fallback for a store that can be unreachable. A store that answers at once has none.
pub(crate) struct Fallback {
    local: Local,
    watch: Watch,
    deferred: Deferred,
    answers: [AtomicU64; 3],
}

/// Statistics of the fallback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FallbackReport {
    /// How many nodes share each limit.
    pub nodes: u32,
    /// The total time that limits were open.
    pub open_for: Ticks,
    /// Answers of open limits.
    pub open: u64,
    /// Answers by this node's share.
    pub local: u64,
    /// Answers of closed limits.
    pub closed: u64,
    /// Counters that are still to be reported to the store.
    pub deferred_held: usize,
    /// Counters that were reported to the store.
    pub deferred_settled: u64,
    /// Counters that were not, or perhaps not, reported: there were too many, or an answer was lost.
    pub deferred_dropped: u64,
    /// Bytes of the fallback counters.
    pub bytes: u64,
}

/// The fallback at one instant, with the store that it stands in for and the active policy.
pub(crate) struct FallbackContext<'f, S> {
    pub(crate) fallback: &'f Fallback,
    pub(crate) store: &'f S,
    pub(crate) active: &'f ActivePolicy,
    pub(crate) now: Timestamp,
}

/// How many nodes share a store, as far as the store knows.
pub(crate) fn node_count(store: &impl Store) -> u32 {
    match store.nodes() {
        0 => NODES_UNKNOWN,
        nodes => nodes,
    }
}

impl Fallback {
    /// Statistics so far.
    pub(crate) fn report(&self) -> FallbackReport {
        let Fallback { local, watch, deferred, answers } = self;
        let [open, locally, closed] = answers.each_ref().map(|number| number.load(Ordering::Relaxed));
        FallbackReport {
            nodes: local.nodes(),
            open_for: watch.open_for(),
            open,
            local: locally,
            closed,
            deferred_held: deferred.held(),
            deferred_settled: deferred.settled.load(Ordering::Relaxed),
            deferred_dropped: deferred.dropped.load(Ordering::Relaxed),
            bytes: local.bytes(),
        }
    }

    pub(crate) fn new(active: &ActivePolicy, nodes: u32, wall: WallOffset, now: Timestamp) -> Self {
        let local = Local::new(active, nodes, now);
        local.follow_wall(wall, now);
        Self {
            local,
            watch: Watch::default(),
            deferred: Deferred::new(),
            answers: [const { AtomicU64::new(0) }; 3],
        }
    }

    /// Follows a policy that became active after another.
    pub(crate) fn follow_swap(&self, before: &ActivePolicy, active: &ActivePolicy, now: Timestamp) {
        self.deferred.carry(&self.local, before, now);
        self.local.resize_shares(active, self.local.nodes(), now);
    }

    /// Follows the number of nodes, and the active policy if its swap was missed.
    fn follow_nodes(&self, nodes: u32, active: &ActivePolicy, now: Timestamp) {
        if let Some(nodes) = self.local.stale_node_count(nodes, || self.watch.was_away_lately(now), active) {
            self.deferred.carry(&self.local, active, now);
            self.local.resize_shares(active, nodes, now);
        }
    }

    /// Applies a new setting of the wall clock.
    pub(crate) fn follow_wall(&self, wall: WallOffset, now: Timestamp) {
        self.local.follow_wall(wall, now);
    }

    /// Whether one of these counters has deferred charges or permits, or is being reported.
    #[inline]
    pub(crate) fn has_deferred(&self, charges: &[Charge<'_>]) -> bool {
        self.deferred.has_deferred(charges)
    }

    /// The number of locally granted permits that the store has recorded so far.
    pub(crate) fn permits_reported(&self) -> u64 {
        self.deferred.permits.reported_so_far()
    }

    /// Drops all deferred charges, as when keys change their meaning.
    pub(crate) fn drop_deferred(&self) {
        self.deferred.drop_all();
    }

    /// Refunds to the share units that the store knows of, or that are not to be reported.
    fn refund_share(&self, key_slot: &KeySlot<'_>, now: Timestamp) {
        self.sides(key_slot).for_each(|side| self.local.refund(side, key_slot, now));
    }

    /// Refunds to the share units that were charged locally at an instant: the store does not know of them unless they
    /// were reported since.
    fn refund_local_charge(&self, key_slot: &KeySlot<'_>, charged_at: Timestamp, now: Timestamp) {
        if self.deferred.is_marked_since(key_slot.charge, charged_at) {
            self.local.refund(Side::Counters, key_slot, now);
        } else {
            self.refund_share(key_slot, now);
        }
    }

    /// Takes from the share units that the store knows of, or that are not to be reported.
    fn charge_share(&self, key_slot: &KeySlot<'_>, now: Timestamp) {
        self.sides(key_slot).for_each(|side| self.local.charge_share(side, key_slot, now));
    }

    /// Where a counter is kept: a counter with deferred charges has a mark, too.
    fn sides(&self, key_slot: &KeySlot<'_>) -> impl Iterator<Item = Side> {
        let marks = self.deferred.has_deferred_units(slice::from_ref(key_slot.charge)).then_some(Side::Marks);
        std::iter::once(Side::Counters).chain(marks)
    }

    fn count(&self, answers: &[ChargeAnswer]) {
        for answer in answers {
            let place = match answer.source {
                Source::Open => 0,
                Source::Local => 1,
                Source::Closed => 2,
                _ => continue,
            };
            self.answers[place].fetch_add(1, Ordering::Relaxed); // Relaxed: a number for people.
        }
    }
}
