//! A charge, the question to a store: which counters a request wants to charge, and by how much.

use std::sync::atomic::AtomicU32;

use smallvec::SmallVec;

use super::lease::Lease;
use crate::algorithm::Charged;
use crate::algorithm::concurrency::PermitId;
use crate::key::{Fingerprint, Prefix, Secret};
use crate::outcome::{Outcome, Source};
use crate::quota::Quota;
use crate::time::{Ticks, Timestamp};

/// Number of counters that the new keys of one limit share while a store is full.
pub(crate) const OVERFLOW_SHARES: usize = 8;

/// All counters of one limit: the prefix of their keys, and every quota that one of them may have been counted under.
#[derive(Debug)]
pub struct Family {
    prefix: Prefix,
    overflow: [Fingerprint; OVERFLOW_SHARES],
    records: Vec<Option<Record>>,
    /// Whether every number means its only quota.
    is_single: bool,
    wide: bool,
    id: u64,
    marks: Box<[AtomicU32]>,
}

/// A quota that counters of a family were, or are, counted under. Its index in the family is its number.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) quota: Quota,
    /// When it became active, and under which of the engine's policies, counted from the first.
    pub(crate) since: PolicyInstant,
    /// When a new policy replaced it; counters that it left are carried over from that instant.
    pub(crate) retired: Option<PolicyInstant>,
    /// The number of the quota that it replaced, if there was one.
    pub(crate) before: Option<u32>,
    /// For a replaced quota: until when a counter that was last counted under it may still differ from one never seen.
    pub(crate) matters_until: Timestamp,
}

/// The beginning or the end of a quota's active time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyInstant {
    /// Which policy of the engine began it, or ended it.
    pub(crate) policy: u64,
    pub(crate) at: Timestamp,
}

impl Record {
    /// A quota that is active from the first policy on.
    pub(crate) fn first(quota: Quota) -> Self {
        let since = PolicyInstant { policy: 0, at: Timestamp::default() };
        Self { quota, since, retired: None, before: None, matters_until: Timestamp::default() }
    }
}

impl Record {
    /// `now`, or the instant at which the quota was replaced if that was earlier: until then its counters were its own.
    pub(crate) fn latest(&self, now: Timestamp) -> Timestamp {
        self.retired.map_or(now, |retired| retired.at.min(now))
    }
}

/// One step of carrying a counter over: the next quota, and from which instant on it applied.
#[derive(Clone, Copy, Debug)]
pub struct Succession<'a> {
    /// The quota that a counter was counted under until then.
    pub from: &'a Quota,
    /// The quota that replaced it.
    pub to: &'a Quota,
    /// The instant of the change.
    pub at: Timestamp,
}

impl Family {
    pub(crate) fn new(secret: &Secret, identity: &[&[u8]], records: Vec<Option<Record>>) -> Self {
        let prefix = secret.prefix(identity);
        let overflow = std::array::from_fn(|share| prefix.overflow(secret, share as u64));
        let wide = records.iter().flatten().any(|record| is_wide(&record.quota));
        let id = prefix.overflow(secret, u64::MAX).digest();
        let marks = records.iter().map(|_| AtomicU32::new(0)).collect();
        Self { prefix, overflow, records, is_single: false, wide, id, marks }
    }

    /// Counters whose quota never changes: a counter with any number, also from an older snapshot, is counted under
    /// this quota.
    pub(crate) fn single(secret: &Secret, identity: &[&[u8]], quota: Quota) -> Self {
        Self { is_single: true, ..Self::new(secret, identity, vec![Some(Record::first(quota))]) }
    }

    #[inline]
    pub(crate) const fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    /// The shared counter that is used for `key` when there is no room for its own.
    pub(crate) fn overflow(&self, key: Fingerprint) -> Fingerprint {
        let share = key.rest % OVERFLOW_SHARES as u64;
        self.overflow[usize::try_from(share).unwrap_or(0)]
    }

    /// A number that identifies the family, the same in every process with the same secret.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Every quota that its counters may have been counted under, with its number.
    pub fn quotas(&self) -> impl Iterator<Item = (u32, &Quota)> {
        (0..).zip(&self.records).filter_map(|(number, record)| Some((number, &record.as_ref()?.quota)))
    }

    /// A number that a store may keep beside one of those quotas, initially 0; it lives as long as the family.
    #[must_use]
    pub fn mark(&self, number: u32) -> Option<&AtomicU32> {
        self.marks.get(if self.is_single { 0 } else { number as usize })
    }

    pub(crate) fn record(&self, number: u32) -> Option<&Record> {
        let place = if self.is_single { 0 } else { number as usize };
        self.records.get(place)?.as_ref()
    }

    /// The steps of a counter from the quota that it was last counted under to that of a charge, through all quotas
    /// that were active in between: the result must not depend on whether the counter was charged meanwhile. `None` if
    /// this family does not know that quota.
    #[must_use]
    pub fn successions<'a>(
        &'a self,
        from: u32,
        to: u32,
        now: Timestamp,
    ) -> Option<SmallVec<[Succession<'a>; 4]>> {
        let first = self.record(from)?;
        let mut steps = SmallVec::new();
        let mut number = to;
        while let Some(record) = self.record(number) {
            let Some(retired) = first.retired.filter(|retired| record.since.policy > retired.policy) else {
                // Both were active at the same time: a key that changes its tier is carried over now, otherwise at the
                // replacement.
                steps.push(Succession { from: &first.quota, to: &record.quota, at: first.latest(now) });
                break;
            };
            let before =
                record.before.filter(|&before| before != from).and_then(|before| self.record(before));
            let Some(before) = before.filter(|before| before.since.policy < record.since.policy) else {
                steps.push(Succession { from: &first.quota, to: &record.quota, at: retired.at.min(now) });
                break;
            };
            steps.push(Succession { from: &before.quota, to: &record.quota, at: record.since.at.min(now) });
            number = record.before?;
        }
        steps.reverse();
        Some(steps)
    }

    pub(crate) fn records(&self) -> &[Option<Record>] {
        &self.records
    }

    /// Whether its token buckets need two words: if one of them does, all do, so that a key has one location whatever
    /// its tier.
    #[inline]
    pub(crate) const fn is_wide(&self) -> bool {
        self.wide
    }
}

/// Whether a quota's state needs a second word for fractions of a tick.
pub(crate) fn is_wide(quota: &Quota) -> bool {
    matches!(quota, Quota::TokenBucket(bucket) if bucket.reservoir().word().is_none())
}

/// Whether a limit took part in the verdict of this decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Enforcement {
    /// It decided.
    Enforced,
    /// It was only counted.
    Shadow,
}

impl Enforcement {
    /// Its name in answers: that of the mode.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Enforcement::Enforced => "enforce",
            Enforcement::Shadow => "shadow",
        }
    }
}

/// One counter to charge.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    pub(crate) key: Fingerprint,
    pub(crate) family: &'a Family,
    pub(crate) number: u32,
    pub(crate) quota: &'a Quota,
    pub(crate) cost: u64,
    pub(crate) enforcement: Enforcement,
    pub(crate) permit: PermitId,
    pub(crate) group: Option<u16>,
    pub(crate) lease: Option<Lease>,
    /// For a refund: when the units were charged.
    pub(crate) charged: Charged,
}

impl<'a> Charge<'a> {
    /// A charge that takes part in the verdict, outside any group, without a permit and without a lease.
    #[inline]
    pub(crate) const fn new(
        key: Fingerprint,
        family: &'a Family,
        number: u32,
        quota: &'a Quota,
        cost: u64,
    ) -> Self {
        Self {
            key,
            family,
            number,
            quota,
            cost,
            enforcement: Enforcement::Enforced,
            permit: PermitId(0),
            group: None,
            lease: None,
            charged: Charged::UNKNOWN,
        }
    }

    /// The counter: a keyed hash that no two counters share.
    #[must_use]
    pub const fn key(&self) -> u128 {
        self.key.whole()
    }

    /// The family of all counters of its limit.
    #[must_use]
    pub const fn family(&self) -> &'a Family {
        self.family
    }

    /// The number of its quota in the family.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// The quota to count under.
    #[must_use]
    pub const fn quota(&self) -> &'a Quota {
        self.quota
    }

    /// The units to take; 0 only looks.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Whether it takes part in the verdict.
    #[must_use]
    pub const fn enforcement(&self) -> Enforcement {
        self.enforcement
    }

    /// The permit that a concurrency limit grants or releases.
    #[must_use]
    pub const fn permit(&self) -> PermitId {
        self.permit
    }

    /// The group of counters that it belongs to, by the policy's `shard_by`: counters of one group should be kept on
    /// one node. It is set only for a store that [asks](crate::store::Store::is_grouped); `None` where the request
    /// lacks the attribute.
    #[must_use]
    pub const fn group(&self) -> Option<u16> {
        self.group
    }

    /// The bounds of what a node may lease of it; `None` where each request charges the counter itself.
    #[must_use]
    pub const fn lease(&self) -> Option<Lease> {
        self.lease
    }

    /// For a refund: when the units were charged. For a charge it has no meaning: the store's answer says when it was
    /// made.
    #[must_use]
    pub const fn charged(&self) -> Charged {
        self.charged
    }

    /// The same charge with another cost.
    #[must_use]
    pub const fn costing(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// The refund of what this charge took, by the store's answer.
    #[must_use]
    pub fn refunding(self, answer: &ChargeAnswer) -> Self {
        Self { charged: Charged::At(answer.counted_at(self.quota)), ..self }
    }

    /// The same refund for a store that receives it later by `way`. A refund that knows the instant of its charge stays
    /// as it is.
    #[must_use]
    pub fn later(self, way: Ticks) -> Self {
        match self.charged {
            Charged::At(_) => self,
            Charged::Within(age) => self.of(Charged::Within(age + way)),
        }
    }

    /// The refund of units that were charged at an instant.
    pub(crate) const fn of_instant(self, charged_at: Timestamp) -> Self {
        self.of(Charged::At(charged_at))
    }

    /// The refund of units that were charged then.
    pub(crate) const fn of(self, charged: Charged) -> Self {
        Self { charged, ..self }
    }
}

/// A store's answer to one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeAnswer {
    /// The outcome.
    pub outcome: Outcome,
    /// Where it came from.
    pub source: Source,
    /// For an answer by [`Source::Lease`]: units of the counter that were spent here and that no earlier answer has
    /// reported, including this charge. Most answers report none, and one now and then reports all. Any other answer
    /// reports its own charge, and has 0 here.
    pub unheard: u32,
    /// When it was charged, by the clock of its counter. For an answer by [`Source::Lease`], when the oldest of the
    /// held units were acquired. The epoch where this is unknown: a refund is then dropped as too old.
    pub charged_at: Timestamp,
}

impl ChargeAnswer {
    /// An answer that reports its own charge.
    #[must_use]
    #[inline]
    pub const fn new(outcome: Outcome, source: Source) -> Self {
        Self { outcome, source, unheard: 0, charged_at: Timestamp::from_unix_seconds(0) }
    }

    /// The same answer, charged at an instant by the counter's clock.
    #[must_use]
    #[inline]
    pub const fn charged(self, at: Timestamp) -> Self {
        Self { charged_at: at, ..self }
    }

    /// The instant by which the counter counts the charge, for a refund of it.
    #[must_use]
    pub fn counted_at(&self, quota: &Quota) -> Timestamp {
        match self.source {
            Source::Lease => self.charged_at,
            _ => quota.counted_at(&self.outcome, self.charged_at),
        }
    }

    /// The units that were not reported before, for a charge that was admitted at this cost: for a program that counts
    /// beside the store.
    #[must_use]
    #[inline]
    pub fn news(&self, cost: u64) -> u64 {
        match self.source {
            Source::Lease => u64::from(self.unheard),
            Source::DenyCache => 0,
            _ => cost,
        }
    }
}

/// One answer for each charge, in order.
pub type Answers = SmallVec<[ChargeAnswer; 6]>;

/// The charges of one request.
pub(crate) type Charges<'a> = SmallVec<[Charge<'a>; 6]>;
