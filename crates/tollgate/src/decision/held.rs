//! Records of a decision's charges: counters that were charged, and permits. Settling and releasing them is left to
//! [`crate::engine`].

use std::sync::Arc;

use smallvec::SmallVec;

use super::Status;
use crate::algorithm::concurrency::PermitId;
use crate::key::Fingerprint;
use crate::outcome::{Source, Verdict};
use crate::policy::{Cost, Limit, Match, Policy, QuotaIndex};
use crate::quota::Quota;
use crate::store::{Charge, Enforcement};
use crate::time::{Ticks, Timestamp};

/// One counter that was charged.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) limit: Arc<str>,
    /// The family of the counter, by number: a limit that has started anew since then has another family.
    pub(crate) family: u64,
    pub(crate) key: Fingerprint,
    pub(crate) group: Option<u16>,
    /// The quota of the key's own tier, and its index among the limit's quotas.
    pub(crate) quota: (Quota, QuotaIndex),
    /// The number of that quota when it was charged.
    pub(crate) number: u32,
    pub(crate) enforcement: Enforcement,
    /// Which counter was charged: that of the store, or the fallback counter of this process during an outage.
    pub(crate) source: Source,
    /// The initial charge, and what it has been adjusted to since.
    pub(crate) estimate: u64,
    pub(crate) cost: u64,
    pub(crate) settles: bool,
    /// Units of it that were refunded too late to make room.
    pub(crate) dropped: u64,
    /// The instant of the decision, by this node's clock, and the instant by which its counter counts it, by the
    /// counter's clock.
    pub(crate) decided_at: Timestamp,
    pub(crate) charged_at: Option<Timestamp>,
    /// When the fixed window ends that it was charged in.
    pub(crate) window_ends_at: Option<Timestamp>,
    /// When the leaky bucket that it was charged to is empty again, if no other request queues behind it.
    pub(crate) empty_at: Option<Timestamp>,
    /// When it leaves the queue, by its decision, if it has to wait.
    pub(crate) turn_at: Option<Timestamp>,
}

/// The result of settling a reservation, for the limit that it changed most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Units refunded.
    pub refunded: u64,
    /// Units charged beyond the estimate.
    pub charged: u64,
    /// Units beyond the estimate that the counter had no room for. They were consumed, so the limit was exceeded by
    /// that much.
    pub unpaid: u64,
}

/// A permit to be in flight. Released once; releasing again changes nothing.
#[derive(Clone, Debug)]
pub struct Permit {
    id: PermitId,
    held: SmallVec<[Held; 1]>,
}

impl Permit {
    /// The permit with this id and what it holds; `None` if that is nothing.
    pub(crate) fn new(id: PermitId, held: SmallVec<[Held; 1]>) -> Option<Self> {
        (!held.is_empty()).then_some(Self { id, held })
    }

    /// The counters that it is counted in.
    pub(crate) fn held(&self) -> &[Held] {
        &self.held
    }

    /// How long it lives without a renewal: the shortest life among its counters.
    #[must_use]
    pub fn ttl(&self) -> Ticks {
        self.held.iter().map(|held| held.quota.0.memory()).min().unwrap_or_default()
    }

    /// The id of the permit within the engine.
    #[must_use]
    pub const fn id(&self) -> PermitId {
        self.id
    }
}

impl Held {
    /// The units that a charge took for a matched limit of a policy.
    pub(crate) fn new(policy: &Policy, matched: &Match, charge: &Charge<'_>, source: Source) -> Self {
        Self::of(&policy.limits()[matched.limit as usize], matched.quota, charge, source)
    }

    fn of(limit: &Limit, quota: QuotaIndex, charge: &Charge<'_>, source: Source) -> Self {
        Self {
            limit: limit.name().into(),
            family: charge.family.id(),
            key: charge.key,
            group: charge.group,
            quota: (charge.quota.clone(), quota),
            number: charge.number,
            enforcement: charge.enforcement,
            source,
            estimate: charge.cost,
            cost: charge.cost,
            settles: !matches!(charge.quota, Quota::Concurrency(_))
                && !matches!(limit.cost(), Cost::Units(_)),
            dropped: 0,
            decided_at: Timestamp::default(),
            charged_at: None,
            window_ends_at: None,
            empty_at: None,
            turn_at: None,
        }
    }

    /// The units that a decision at `now` took, by the status of one of its limits.
    pub(crate) fn by_status(limit: &Limit, charge: &Charge<'_>, status: &Status, now: Timestamp) -> Self {
        // A window from the first hit may have begun long before this charge, so only its own counter knows when it
        // ends.
        let ends_at = now + status.outcome.reset_after;
        let window_ends_at = matches!(charge.quota, Quota::FixedWindow(_)).then_some(ends_at);
        let is_leaky = matches!(charge.quota, Quota::LeakyBucket(_)) && status.source == Source::Exact;
        let empty_at = is_leaky.then_some(ends_at);
        let turn_at = match status.outcome.verdict {
            Verdict::Wait(wait) => Some(now + wait),
            _ => None,
        };
        let charged_at = Some(match status.source {
            // Units of a lease were acquired at an unknown instant; this is that of the oldest.
            Source::Lease => status.charged_at,
            _ => charge.quota.counted_at(&status.outcome, status.charged_at),
        });
        let held = Self::of(limit, status.quota, charge, status.source);
        Self { decided_at: now, charged_at, window_ends_at, empty_at, turn_at, ..held }
    }

    /// Whether it is a permit, which is released on its own.
    pub(crate) const fn is_permit(&self) -> bool {
        matches!(self.quota.0, Quota::Concurrency(_))
    }

    /// Whether it was charged to a leaky bucket.
    pub(crate) const fn is_leaky(&self) -> bool {
        matches!(self.quota.0, Quota::LeakyBucket(_))
    }

    /// How many of these charged units still count, as far as this node knows. The counter refunds no more than really
    /// count, whatever this returns.
    pub(crate) fn still_counted(&self, units: u64, now: Timestamp) -> u64 {
        match self.window_ends_at {
            Some(ends_at) if ends_at <= now => 0,
            Some(_) => units,
            None => self.quota.0.still_counted(units, self.decided_at, now),
        }
    }

    /// Records that the charge was adjusted to `cost`, as far as its counter did that. A queue slot that was not given
    /// back is kept.
    pub(crate) fn settle(&mut self, cost: u64, refunded: u64, charged: u64) {
        if cost < self.cost && !self.is_leaky() {
            self.dropped += (self.cost - cost).saturating_sub(refunded);
            self.cost = cost;
        } else {
            self.cost = self.cost - refunded + charged;
        }
    }

    /// The index of the key's quota in a limit: that of the same quota, otherwise that of the quota that replaced it.
    pub(crate) fn quota_in(&self, limit: &Limit) -> usize {
        let (quota, QuotaIndex(index)) = &self.quota;
        let same = limit.quotas().iter().position(|other| other == quota);
        same.unwrap_or_else(|| (*index as usize).min(limit.quotas().len().saturating_sub(1)))
    }
}
