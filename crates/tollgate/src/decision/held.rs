//! What a decision took: counters that were charged, and permits in flight. Settling and releasing them is left to
//! [`crate::engine`].

use std::sync::Arc;

use smallvec::SmallVec;

use super::LimitStatus;
use crate::algorithm::concurrency::PermitId;
use crate::key::Fingerprint;
use crate::outcome::{Source, Verdict};
use crate::policy::{Cost, Limit, Match, Policy, QuotaIndex};
use crate::quota::Quota;
use crate::store::{Charge, Stance};
use crate::time::{Ticks, Timestamp};

/// One counter that was charged.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) limit: Arc<str>,
    /// Whose counter it is, by number: a limit that counts anew since has others.
    pub(crate) family: u64,
    pub(crate) key: Fingerprint,
    pub(crate) group: Option<u16>,
    /// The quota of the key's own tier, and its place among the limit's quotas.
    pub(crate) quota: (Quota, QuotaIndex),
    /// The number of that quota when it was charged.
    pub(crate) number: u32,
    pub(crate) stance: Stance,
    /// Whose counter it was: the store's, or this process's while the store was away.
    pub(crate) source: Source,
    /// What it was charged at first, and what it has been brought to since.
    pub(crate) estimate: u64,
    pub(crate) cost: u64,
    pub(crate) settles: bool,
    /// Units of it that were given back too late to make room.
    pub(crate) dropped: u64,
    /// When it was decided, by this node's clock, and by which instant its counter counts it, by the counter's.
    pub(crate) decided_at: Timestamp,
    pub(crate) charged_at: Option<Timestamp>,
    /// When the fixed window ends that it was charged in.
    pub(crate) window_ends_at: Option<Timestamp>,
    /// When the leaky bucket that it was charged to is empty again, unless another request queues behind it.
    pub(crate) empty_at: Option<Timestamp>,
    /// When its turn comes, as it was told, if it has to wait.
    pub(crate) turn_at: Option<Timestamp>,
}

/// A permit to be in flight. Released once; releasing again changes nothing.
#[derive(Clone, Debug)]
pub struct Permit {
    id: PermitId,
    held: SmallVec<[Held; 1]>,
}

impl Permit {
    /// The permit of this number with what it holds; none if that is nothing.
    pub(crate) fn new(id: PermitId, held: SmallVec<[Held; 1]>) -> Option<Self> {
        (!held.is_empty()).then_some(Self { id, held })
    }

    /// The counters that it is counted in.
    pub(crate) fn held(&self) -> &[Held] {
        &self.held
    }

    /// How long it lives unless it is renewed: the shortest life among its counters.
    #[must_use]
    pub fn ttl(&self) -> Ticks {
        self.held.iter().map(|held| held.quota.0.memory()).min().unwrap_or_default()
    }

    /// A number that names it within the engine.
    #[must_use]
    pub const fn id(&self) -> PermitId {
        self.id
    }
}

impl Held {
    /// What a charge took that a limit of a policy matched.
    pub(crate) fn new(policy: &Policy, matched: &Match, charge: &Charge<'_>, source: Source) -> Self {
        let limit = &policy.limits()[matched.limit as usize];
        Self {
            limit: limit.name().into(),
            family: charge.family.id(),
            key: charge.key,
            group: charge.group,
            quota: (charge.quota.clone(), matched.quota),
            number: charge.number,
            stance: charge.stance,
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

    /// What was taken by a decision at `now`, as one of its limits told.
    pub(crate) fn by_status(
        policy: &Policy,
        matched: &Match,
        charge: &Charge<'_>,
        status: &LimitStatus<'_>,
        now: Timestamp,
    ) -> Self {
        // A window from the first hit may have begun long before this charge, so only its own counter knows when it ends.
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
        let held = Self::new(policy, matched, charge, status.source);
        Self { decided_at: now, charged_at, window_ends_at, empty_at, turn_at, ..held }
    }

    /// Whether it was charged to a leaky bucket.
    pub(crate) const fn is_leaky(&self) -> bool {
        matches!(self.quota.0, Quota::LeakyBucket(_))
    }

    /// How many of these units, of those that it was charged, still count, as far as this node can tell. The counter gives back
    /// no more than that, whatever is told here.
    pub(crate) fn still_counted(&self, units: u64, now: Timestamp) -> u64 {
        match self.window_ends_at {
            Some(ends_at) if ends_at <= now => 0,
            Some(_) => units,
            None => self.quota.0.still_counted(units, self.decided_at, now),
        }
    }

    /// Notes that it was brought to `cost`, as far as its counter did that. A turn in a line that was not given back is kept.
    pub(crate) fn settle(&mut self, cost: u64, refunded: u64, charged: u64) {
        if cost < self.cost && !self.is_leaky() {
            self.dropped += (self.cost - cost).saturating_sub(refunded);
            self.cost = cost;
        } else {
            self.cost = self.cost - refunded + charged;
        }
    }

    /// Where the key's quota is among a limit's: the same quota, else the one in its place since it was changed.
    pub(crate) fn quota_in(&self, limit: &Limit) -> usize {
        let (quota, QuotaIndex(index)) = &self.quota;
        let same = limit.quotas().iter().position(|other| other == quota);
        same.unwrap_or_else(|| (*index as usize).min(limit.quotas().len().saturating_sub(1)))
    }
}
