//! The fallback counters: one for each key, at this node's share of the limit. Every decision charges them, also while
//! the store answers. So they are warm when they are needed, and an outage runs code that always runs.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use super::share::{self, NODES_MAX, Share};
use crate::active::ActivePolicy;
use crate::decision::Held;
use crate::memory::{ChargeMode, MemoryStore};
use crate::outcome::{Outcome, Source, Verdict};
use crate::policy::{Match, Policy, QuotaIndex};
use crate::quota::Quota;
use crate::store::{Charge, ChargeAnswer, Store, StoreFailure};
use crate::time::{Ticks, Timestamp, WallOffset};

/// Bytes of the fallback counters.
const LOCAL_BYTES: u64 = 32 << 20;
/// Bytes of the counters that bound open limits.
const CEILING_BYTES: u64 = 1 << 20;
/// Bytes of the marks of deferred charges.
const MARK_BYTES: u64 = 2 << 20;
/// Retry advice for a request that the share can never admit: the store is expected back, while the share does not
/// grow.
pub(super) const AWAY_RETRY: Ticks = Ticks::from_secs(1);

/// The fallback counters of this process.
pub(crate) struct Local {
    counters: MemoryStore,
    ceilings: MemoryStore,
    /// Copies of the counters of keys with deferred charges, without the units that the store does not know.
    marks: MemoryStore,
    shares: ArcSwap<Shares>,
    /// Locked while shares change.
    resizing: Mutex<()>,
}

/// The shares of every limit, for one policy and one number of nodes.
struct Shares {
    of: Arc<Policy>,
    /// The generation of that policy in the engine.
    generation: u64,
    nodes: u32,
    active: ActivePolicy,
    shares: Vec<Vec<Share>>,
}

/// A charge, with the indexes of its limit and its quota in a policy.
#[derive(Clone, Copy)]
pub(super) struct KeySlot<'s> {
    target: Target<'s>,
    pub(super) charge: &'s Charge<'s>,
}

#[derive(Clone, Copy)]
enum Target<'s> {
    Limit {
        active: &'s ActivePolicy,
        limit: usize,
        quota: QuotaIndex,
    },
    /// A tally: it has no limit, so units are only counted and there is no share.
    Tally,
}

impl<'s> KeySlot<'s> {
    pub(super) fn matched(active: &'s ActivePolicy, matched: &Match, charge: &'s Charge<'s>) -> Self {
        let (limit, quota) = (matched.limit as usize, matched.quota);
        Self { target: Target::Limit { active, limit, quota }, charge }
    }

    /// The charge of units taken under an earlier policy; `None` if their limit is gone.
    pub(super) fn held(active: &'s ActivePolicy, held: &Held, charge: &'s Charge<'s>) -> Option<Self> {
        let (limit, quota) = active.position_of(held)?;
        Some(Self { target: Target::Limit { active, limit, quota }, charge })
    }

    /// The charge of a tally.
    pub(super) const fn tally(charge: &'s Charge<'s>) -> Self {
        Self { target: Target::Tally, charge }
    }
}

/// Which set of counters: the fallback counters, or their marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Counters,
    Marks,
}

/// Whether units that are admitted are also taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Take,
    Look,
}

/// A charge of a fallback counter.
#[derive(Clone, Copy)]
struct ShareCharge<'s> {
    charge: Charge<'s>,
    /// Units of the quota that are not part of the share; see [`Share`].
    headroom: u64,
}

impl ShareCharge<'_> {
    /// The burst of the share, in units.
    fn units(&self) -> u64 {
        self.charge.quota.capacity() - self.headroom
    }

    /// How many units must be available for a request of this cost to pass, the spare units included: its cost or, if
    /// it costs more than the share, the whole share. So a request that is larger than the share passes when the share
    /// is unused, and is paid off afterwards.
    fn wanted(&self, cost: u64) -> u64 {
        cost.min(self.units()) + self.headroom
    }
}

impl Shares {
    fn policy(of: &Policy, nodes: u32) -> (Arc<Policy>, Vec<Vec<Share>>) {
        let shares: Vec<_> = of.limits().iter().map(|limit| share::of_limit(limit, nodes)).collect();
        let limits = of.limits().iter().zip(&shares).map(|(limit, shares)| share::shared(limit, shares));
        (Arc::new(Policy::of_limits(limits.collect())), shares)
    }

    fn first(active: &ActivePolicy, nodes: u32) -> Self {
        let (policy, shares) = Self::policy(&active.policy, nodes);
        let active_shares = ActivePolicy::first(policy, Arc::clone(&active.secret), false);
        let generation = active.generation();
        Self { of: Arc::clone(&active.policy), generation, nodes, active: active_shares, shares }
    }

    /// Converts a charge of the store's counter to one of the fallback counter.
    fn share_charge<'s>(&'s self, key_slot: &KeySlot<'s>) -> Option<ShareCharge<'s>> {
        let KeySlot { target, charge } = *key_slot;
        let Target::Limit { active, limit, quota } = target else {
            return Some(ShareCharge { charge: *charge, headroom: 0 });
        };
        // A decision that began before a policy swap has its limits in another order.
        let position = if Arc::ptr_eq(&self.of, &active.policy) {
            limit
        } else {
            self.active.position(active.policy.limits().get(limit)?.name())?
        };
        let counters = self.active.counters.get(position)?;
        let family = counters.family(charge.enforcement);
        let index = (quota.0 as usize).min(counters.numbers.len().checked_sub(1)?);
        let share = self.shares.get(position)?.get(index)?;
        let (number, quota) = (*counters.numbers.get(index)?, &share.quota);
        let charge = Charge { family, number, quota, group: None, lease: None, ..*charge };
        Some(ShareCharge { charge, headroom: share.headroom })
    }
}

impl Local {
    pub(super) fn new(active: &ActivePolicy, nodes: u32, now: Timestamp) -> Self {
        Self {
            counters: MemoryStore::new(LOCAL_BYTES, now),
            ceilings: MemoryStore::new(CEILING_BYTES, now),
            marks: MemoryStore::new(MARK_BYTES, now),
            shares: ArcSwap::from_pointee(Shares::first(active, nodes.min(NODES_MAX))),
            resizing: Mutex::new(()),
        }
    }

    /// Applies a new setting of the wall clock.
    pub(crate) fn follow_wall(&self, wall: WallOffset, now: Timestamp) {
        [&self.counters, &self.ceilings, &self.marks].iter().for_each(|store| store.follow_wall(wall, now));
    }

    /// The number of nodes that share the limits.
    pub(super) fn nodes(&self) -> u32 {
        self.shares.load().nodes
    }

    /// The number of nodes that the shares should be computed for, if they are not: the number has changed, or the
    /// policy has. While the store is failing the number may only grow, because a node that cannot be seen may still be
    /// running.
    pub(super) fn stale_node_count(
        &self,
        reported: u32,
        was_away_lately: impl FnOnce() -> bool,
        active: &ActivePolicy,
    ) -> Option<u32> {
        let (shares, reported) = (self.shares.load(), reported.min(NODES_MAX));
        let is_older = shares.generation < active.generation() && !Arc::ptr_eq(&shares.of, &active.policy);
        let stays =
            reported == 0 || reported == shares.nodes || (reported < shares.nodes && was_away_lately());
        (is_older || !stays).then_some(if stays { shares.nodes } else { reported })
    }

    /// Recomputes the shares for another policy or another number of nodes. Counters are kept, as in a policy swap.
    pub(super) fn resize_shares(&self, active: &ActivePolicy, nodes: u32, now: Timestamp) {
        let _one_at_a_time = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.shares.load();
        if before.nodes == nodes && Arc::ptr_eq(&before.of, &active.policy) {
            return;
        }
        let (policy, shares) = Shares::policy(&active.policy, nodes);
        // If a limit was changed too often, its old shares stay until the oldest quotas are forgotten.
        if let Ok(next) = ActivePolicy::after(&before.active, policy, now) {
            if !next.hold.numbers.is_empty() {
                self.counters.hold(&next.hold);
            }
            let (of, generation) = (Arc::clone(&active.policy), active.generation());
            self.shares.store(Arc::new(Shares { of, generation, nodes, active: next.active, shares }));
        }
    }

    const fn side(&self, side: Side) -> &MemoryStore {
        match side {
            Side::Counters => &self.counters,
            Side::Marks => &self.marks,
        }
    }

    /// Charges what was admitted elsewhere, as far as the share has units. The outcome is ignored.
    pub(super) fn charge_share(&self, side: Side, key_slot: &KeySlot<'_>, now: Timestamp) {
        let shares = self.shares.load();
        if let Some(share_charge) = shares.share_charge(key_slot) {
            let _ = self.side(side).ask(&share_charge.charge, ChargeMode::UpTo(share_charge.headroom), now);
        }
    }

    /// Records a permit that the store granted. Returns whether all permits that this node has granted are within the
    /// limit with it; if not, it is not recorded. The limit counts here and not the share, which other nodes may leave
    /// to this one.
    pub(super) fn record_permit(&self, key_slot: &KeySlot<'_>, now: Timestamp) -> bool {
        let shares = self.shares.load();
        let Some(ShareCharge { charge, .. }) = shares.share_charge(key_slot) else { return true };
        let charge = Charge { quota: key_slot.charge.quota, ..charge };
        // Without memory for the key nothing is known of its permits.
        let answer = self.counters.ask(&charge, ChargeMode::If(charge.cost), now);
        !answer.is_ok_and(|answer| answer.source == Source::Exact && !answer.outcome.is_allowed())
    }

    /// Asks this node's share about a charge. With [`Access::Take`], the units are taken if the share admits them.
    pub(super) fn ask(
        &self,
        key_slot: &KeySlot<'_>,
        access: Access,
        now: Timestamp,
    ) -> Result<ChargeAnswer, StoreFailure> {
        let shares = self.shares.load();
        let share_charge = shares.share_charge(key_slot).ok_or(StoreFailure::Superseded)?;
        let wanted = share_charge.wanted(key_slot.charge.cost);
        let demand = match (key_slot.charge.cost, access) {
            (0, _) => ChargeMode::Would(0),
            (_, Access::Look) => ChargeMode::Would(wanted),
            (_, Access::Take) => ChargeMode::If(wanted),
        };
        let answer = self.counters.ask(&share_charge.charge, demand, now)?;
        let source = if answer.source == Source::Full { Source::Full } else { Source::Local };
        // A look with a cost reports what it would leave; ask again for what is there.
        let answer = if matches!(demand, ChargeMode::Would(1..)) && answer.outcome.is_allowed() {
            let look = self.counters.ask(&share_charge.charge, ChargeMode::Would(0), now)?.outcome;
            ChargeAnswer { outcome: Outcome { verdict: answer.outcome.verdict, ..look }, ..answer }
        } else {
            answer
        };
        Ok(ChargeAnswer::new(self.share_outcome(&share_charge, answer.outcome, now), source)
            .charged(answer.charged_at))
    }

    /// Converts an outcome to the numbers of the share, which exclude the spare units.
    fn share_outcome(&self, share_charge: &ShareCharge<'_>, outcome: Outcome, now: Timestamp) -> Outcome {
        let headroom = share_charge.headroom;
        let verdict = match outcome.verdict {
            // The limit itself could admit it; only the share cannot.
            Verdict::Never => Verdict::Deny { retry_after: AWAY_RETRY },
            verdict => verdict,
        };
        let remaining = outcome.remaining.saturating_sub(headroom);
        let mut outcome_of_share = Outcome { verdict, limit: share_charge.units(), remaining, ..outcome };
        if outcome.remaining < headroom {
            // The counter pays off a request that was larger than the share: its next unit comes later than the next
            // spare unit.
            let next = self.counters.ask(&share_charge.charge, ChargeMode::Would(headroom + 1), now);
            if let Ok(ChargeAnswer {
                outcome: Outcome { verdict: Verdict::Deny { retry_after }, .. }, ..
            }) = next
            {
                outcome_of_share.next_unit_after = retry_after;
            }
        }
        outcome_of_share
    }

    /// Refunds what a charge took from the share.
    pub(super) fn refund(&self, side: Side, key_slot: &KeySlot<'_>, now: Timestamp) {
        let shares = self.shares.load();
        if let Some(share_charge) = shares.share_charge(key_slot) {
            // Memory always answers, and it ignores units that are not there.
            let _ = self.side(side).refund_now(&share_charge.charge, now);
        }
        if side == Side::Counters && matches!(key_slot.charge.quota, Quota::Concurrency(_)) {
            let _ = self.ceilings.refund_now(key_slot.charge, now);
        }
    }

    /// Renews a permit in the share.
    pub(super) fn renew(&self, key_slot: &KeySlot<'_>, now: Timestamp) {
        let shares = self.shares.load();
        if let Some(share_charge) = shares.share_charge(key_slot) {
            // Memory always answers, and it ignores a permit that is not there.
            let _ = self.counters.renew_now(&share_charge.charge, now);
        }
        let _ = self.ceilings.renew_now(key_slot.charge, now);
    }

    /// Resets a counter.
    pub(super) fn reset(&self, key_slot: &KeySlot<'_>, now: Timestamp) {
        let shares = self.shares.load();
        if let Some(share_charge) = shares.share_charge(key_slot) {
            self.counters.reset_now(&share_charge.charge, now);
        }
    }

    /// Copies a counter as it is now, when the store knows all of it. Whatever it counts beyond the copy later is to be
    /// reported.
    pub(super) fn mark(&self, key_slot: &KeySlot<'_>, now: Timestamp) {
        let shares = self.shares.load();
        if let Some(share_charge) = shares.share_charge(key_slot) {
            let _ = self.counters.copy_to(&self.marks, &share_charge.charge, now); // Without room `since_mark` is `None`.
        }
    }

    /// Units taken from a counter since it was marked, minus those that have come back; negative if more was refunded.
    /// `None` if there was no room for a mark of its own.
    pub(super) fn since_mark(&self, key_slot: &KeySlot<'_>, now: Timestamp) -> Option<i64> {
        let shares = self.shares.load();
        let share_charge = shares.share_charge(key_slot)?;
        let look = Charge { cost: 0, ..share_charge.charge };
        let [now_is, was] =
            [&self.counters, &self.marks].map(|store| store.ask(&look, ChargeMode::UpTo(0), now));
        let (now_is, was) = (now_is.ok()?, was.ok()?);
        (now_is.source == Source::Exact && was.source == Source::Exact)
            .then(|| more_used(share_charge.charge.quota, &now_is.outcome, &was.outcome))
    }

    /// Whether an open limit admits a request: up to `up_to` times this node's share.
    pub(super) fn is_below_ceiling(
        &self,
        charge: &Charge<'_>,
        up_to: Option<u32>,
        access: Access,
        now: Timestamp,
    ) -> bool {
        let Some(times) = up_to.filter(|_| charge.cost > 0) else { return true };
        let Some(quota) = share::ceiling(charge.quota, self.nodes(), times) else { return true };
        let bound = Charge { quota: &quota, number: 0, ..*charge };
        let demand =
            if access == Access::Take { ChargeMode::If(charge.cost) } else { ChargeMode::Would(charge.cost) };
        self.ceilings.ask(&bound, demand, now).is_ok_and(|answer| answer.outcome.is_allowed())
    }

    /// Bytes that the counters use.
    pub(super) fn bytes(&self) -> u64 {
        self.counters.bytes() + self.ceilings.bytes() + self.marks.bytes()
    }
}

/// By how many units one outcome of a quota has used more than another. A fraction of a unit is rounded up.
fn more_used(quota: &Quota, one: &Outcome, other: &Outcome) -> i64 {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let Some(reservoir) = quota.reservoir() else {
        return signed(other.remaining) - signed(one.remaining);
    };
    // The time until the bucket is full gives the missing units to the tick. Whole units would hide that both outcomes
    // have used the same fraction of one.
    let [one, other] = [one, other].map(|outcome| outcome.reset_after.as_micros());
    let units = |ticks: u64| {
        let credits = u128::from(ticks.saturating_sub(1)) * u128::from(reservoir.pace().gain().get());
        i64::try_from(credits.div_ceil(u128::from(reservoir.pace().unit_credits().get()))).unwrap_or(i64::MAX)
    };
    if one >= other { units(one - other) } else { -units(other - one) }
}
