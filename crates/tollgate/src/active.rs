//! An active policy: its limits with the families of their counters, and how a new policy takes over from it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::address::Text;
use crate::key::{Fingerprint, Prefix, Secret};
use crate::memory::QUOTA_NUMBERS_MAX;
use crate::policy::{By, Limit, Match, Mode, Policy, QuotaIndex};
use crate::quota::Quota;
use crate::request::{Descriptor, Value};
use crate::store::{Enforcement, Family, Hold, PolicyInstant, Record, is_wide};
use crate::time::{Ticks, Timestamp};

mod charge;
mod companion;
mod lineage;
mod report;

pub(crate) use charge::CounterKey;
pub(crate) use companion::Companion;
use companion::Companions;
pub(crate) use lineage::{Records, Remembered};
pub use report::SwapReport;

/// How long a replaced quota is remembered after its counters are idle, for decisions that are still in flight.
const GRACE: Ticks = Ticks::from_secs(60);

/// The quotas that counters of removed limits may be counted under, by the identity of those counters.
type Gone = HashMap<Vec<String>, Vec<Option<Record>>>;

/// An active policy. Immutable; a swap makes a new one.
pub(crate) struct ActivePolicy {
    pub(crate) policy: Arc<Policy>,
    /// The secret that keys are hashed with.
    pub(crate) secret: Arc<Secret>,
    /// Which counters belong together, where the store wants to know.
    grouping: Grouping,
    pub(crate) counters: Vec<Counters>,
    by_name: HashMap<String, usize>,
    /// Whether a limit blocks keys that it denied too often.
    pub(crate) has_penalties: bool,
    /// Counters of limits that are gone, or whose identity has changed, until they are idle. If such a limit comes
    /// back, it finds them.
    gone: Gone,
    /// How many policies the engine had before this one.
    generation: u64,
    /// Until when the counters of each quota number are held, by number.
    held: HashMap<u32, Timestamp>,
}

/// The counters of one limit.
pub(crate) struct Counters {
    pub(crate) enforced: Family,
    pub(crate) shadow: Family,
    /// The number of each of the limit's quotas.
    pub(crate) numbers: Vec<u32>,
    /// The attributes that the limit counts by.
    pub(crate) by: Vec<By>,
    /// The tier of each quota, where tiers have counters of their own.
    tiers: Vec<String>,
    /// The counters of denials, where keys are blocked for them.
    pub(crate) companions: Option<Companions>,
}

/// Why a policy could not be made active.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SwapError {
    /// A limit was changed too often.
    #[error(
        "limit {limit}: its counters are still counted under {QUOTA_NUMBERS_MAX} different quotas; try again when the oldest are idle, \
         or give the limit a new name"
    )]
    TooManyQuotas {
        /// The name of the limit.
        limit: String,
    },
}

/// A policy that is ready to be made active.
pub(crate) struct Next {
    pub(crate) active: ActivePolicy,
    pub(crate) report: SwapReport,
    /// The counters that the store must hold before the policy becomes active.
    pub(crate) hold: Hold,
}

impl ActivePolicy {
    /// The first policy of an engine.
    pub(crate) fn first(policy: Arc<Policy>, secret: Arc<Secret>, is_grouped: bool) -> Self {
        let counters: Vec<Counters> =
            policy.limits().iter().map(|limit| Counters::new(limit, &secret)).collect();
        let grouping = Grouping::new(is_grouped, &policy, &secret);
        Self {
            by_name: by_name(&policy),
            has_penalties: has_penalties(&policy),
            policy,
            secret,
            grouping,
            counters,
            gone: Gone::new(),
            generation: 0,
            held: HashMap::new(),
        }
    }

    /// The next policy, with the counters of the one before.
    pub(crate) fn after(
        before: &ActivePolicy,
        policy: Arc<Policy>,
        now: Timestamp,
    ) -> Result<Next, SwapError> {
        let mut report = SwapReport::default();
        let previous: Vec<PreviousCounters<'_>> =
            policy.limits().iter().map(|limit| before.previous_counters(limit, now, &mut report)).collect();
        let mut held = before.held.clone();
        held.retain(|_, until| *until > now);
        let mut hold = Hold { numbers: Vec::new(), since: now, until: now };
        for (limit, previous) in policy.limits().iter().zip(&previous) {
            if previous.must_be_held(limit) {
                hold.until = hold.until.max(now + memory_of(limit));
                hold.numbers.extend(previous.numbers(now));
            }
        }
        hold.numbers.sort_unstable();
        hold.numbers.dedup();
        for &number in &hold.numbers {
            let until = held.entry(number).or_insert(hold.until);
            *until = hold.until.max(*until);
        }
        let from = PolicyInstant { policy: before.generation + 1, at: now };
        let counters = policy.limits().iter().zip(&previous);
        let counters = counters
            .map(|(limit, previous)| Counters::after(previous, limit, &before.secret, from, &held))
            .collect::<Result<Vec<_>, _>>()?;
        let gone = before.gone_after(&policy, now);
        let secret = Arc::clone(&before.secret);
        let grouping = Grouping::new(before.grouping.is_wanted, &policy, &secret);
        let (by_name, generation) = (by_name(&policy), from.policy);
        let has_penalties = has_penalties(&policy);
        let active =
            Self { by_name, has_penalties, policy, secret, grouping, counters, gone, generation, held };
        report
            .removed
            .extend(before.by_name.keys().filter(|name| !active.by_name.contains_key(*name)).cloned());
        report.removed.sort();
        Ok(Next { active, report, hold })
    }

    /// The counters that this policy has for a limit of the next one.
    fn previous_counters<'l>(
        &'l self,
        limit: &Limit,
        now: Timestamp,
        report: &mut SwapReport,
    ) -> PreviousCounters<'l> {
        let known = self.by_name.get(limit.name()).map(|&index| (&self.policy.limits()[index], index));
        let earlier = || self.remembered(limit).iter().flatten().any(|record| !is_forgotten(record, now));
        match known {
            None => {
                report.added.push(limit.name().to_owned());
                report.resumed.extend(earlier().then(|| limit.name().to_owned()));
            }
            Some((old, _)) if identity(old) != identity(limit) => {
                let list = if earlier() { &mut report.resumed } else { &mut report.restarted };
                list.push(limit.name().to_owned());
            }
            Some((old, index)) => {
                if old.quotas() != limit.quotas() {
                    report.changed.push(limit.name().to_owned());
                }
                let counters = &self.counters[index];
                return PreviousCounters {
                    records: counters.enforced.records(),
                    numbers: &counters.numbers,
                    successors: old.successors(limit),
                };
            }
        }
        PreviousCounters { records: self.remembered(limit), numbers: &[], successors: Vec::new() }
    }

    /// The quotas of earlier policies that counters of such a limit may still be counted under.
    fn remembered(&self, limit: &Limit) -> &[Option<Record>] {
        if self.gone.is_empty() { &[] } else { self.gone.get(&identity(limit)).map_or(&[], Vec::as_slice) }
    }

    /// The records of limits that the next policy does not have. Their counters keep their quotas, and those
    /// retire when such a limit comes back with others.
    fn gone_after(&self, next: &Policy, now: Timestamp) -> Gone {
        let stays: HashSet<Vec<String>> = next.limits().iter().map(identity).collect();
        let leave = |record: &Option<Record>| {
            record.clone().map(|record| {
                let matters_until = record.matters_until.max(now + record.quota.memory());
                Record { matters_until, ..record }
            })
        };
        let left = self.policy.limits().iter().zip(&self.counters).map(|(limit, counters)| {
            (identity(limit), counters.enforced.records().iter().map(leave).collect())
        });
        let earlier = self.gone.iter().map(|(identity, records)| (identity.clone(), records.clone()));
        left.chain(earlier)
            .filter(|(identity, _)| !stays.contains(identity))
            .filter(|(_, records): &(_, Vec<Option<Record>>)| {
                records.iter().flatten().any(|record| !is_forgotten(record, now))
            })
            .collect()
    }

    /// The group of a limit's counter, if it has one.
    #[inline]
    pub(crate) fn group_of(
        &self,
        request: &Descriptor<'_>,
        matched: &Match,
        counters: &Counters,
    ) -> Option<u16> {
        self.grouping.of(request, matched, counters, &self.secret)
    }

    /// The families that decisions charge, as far as the policy determines them: tiers and overrides are quotas of
    /// their limit.
    pub(crate) fn families(&self) -> impl Iterator<Item = &Family> {
        let each = self.policy.limits().iter().zip(&self.counters);
        each.flat_map(|(limit, counters)| {
            let is_counted = !limit.quotas().is_empty();
            let enforced = (limit.mode() == Mode::Enforce && is_counted).then_some(&counters.enforced);
            let is_shadow = is_counted
                && match limit.mode() {
                    Mode::Enforce => limit.enforce_percent() < 100,
                    Mode::Shadow => true,
                    Mode::Off => false,
                };
            let companions = counters.companions.iter().flat_map(Companions::families);
            enforced.into_iter().chain(is_shadow.then_some(&counters.shadow)).chain(companions)
        })
    }

    /// The families that decisions charge while an override puts a limit, or all of them, in shadow.
    pub(crate) fn shadows(&self, of: Option<usize>) -> impl Iterator<Item = &Family> {
        let each = self.counters.iter().enumerate();
        each.filter(move |(index, _)| of.is_none_or(|of| of == *index)).map(|(_, counters)| &counters.shadow)
    }

    /// The index of the limit with this name.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The counters of a limit, by its name.
    pub(crate) fn counters_of(&self, name: &str) -> Option<(&Limit, &Counters)> {
        self.by_name.get(name).map(|&index| (&self.policy.limits()[index], &self.counters[index]))
    }

    /// Whether a matched limit grants permits.
    pub(crate) fn takes_permit(&self, matched: &Match) -> bool {
        let limit = &self.policy.limits()[matched.limit as usize];
        matches!(limit.quota(matched.quota), Some(Quota::Concurrency(_)))
    }
}

fn has_penalties(policy: &Policy) -> bool {
    policy.limits().iter().any(|limit| limit.block_for().is_some())
}

fn by_name(policy: &Policy) -> HashMap<String, usize> {
    policy.limits().iter().enumerate().map(|(index, limit)| (limit.name().to_owned(), index)).collect()
}

/// Which counters belong together: those of requests with the same value of an attribute that the policy names.
struct Grouping {
    is_wanted: bool,
    by: Option<(String, Prefix)>,
}

impl Grouping {
    fn new(is_wanted: bool, policy: &Policy, secret: &Secret) -> Self {
        let by = policy.shard_by().filter(|_| is_wanted);
        Self { is_wanted, by: by.map(|attribute| (attribute.to_owned(), secret.prefix(&[b"group"]))) }
    }

    /// Only counters of limits that count by the attribute have a group. Any other counter is shared by keys of several
    /// groups, and must be kept on one node.
    #[inline]
    fn of(
        &self,
        request: &Descriptor<'_>,
        matched: &Match,
        counters: &Counters,
        secret: &Secret,
    ) -> Option<u16> {
        let (attribute, prefix) = self.by.as_ref()?;
        let mut counted = matched.by.iter().zip(&counters.by);
        let (position, by) = counted.find(|(_, by)| by.name() == attribute)?;
        let value = request.attributes()[usize::from(*position)].value;
        let mut key = *prefix;
        by.counted(value, &mut Text::EMPTY.clone()).add_to(&mut key, secret);
        #[allow(
            clippy::cast_possible_truncation,
            reason = "sixteen bits of a hash are a hash of sixteen bits"
        )]
        Some(key.finish(secret).digest() as u16)
    }
}

/// The counters of a limit when the next policy takes over.
struct PreviousCounters<'l> {
    records: &'l [Option<Record>],
    /// The number of each quota of the policy before; empty if it did not have the limit.
    numbers: &'l [u32],
    /// Pairs of quotas: one of the next policy, and the one of the policy before that it follows.
    successors: Vec<(QuotaIndex, QuotaIndex)>,
}

impl PreviousCounters<'_> {
    /// Whether a counter that is idle by the quota that it was counted under might not be idle by the quota that
    /// follows.
    fn must_be_held(&self, limit: &Limit) -> bool {
        let later =
            |next: QuotaIndex, quota: &Quota| limit.quota(next).is_some_and(|next| !next.forgets_with(quota));
        if self.numbers.is_empty() {
            let all = (0..).map(QuotaIndex).take(limit.quotas().len());
            return all
                .into_iter()
                .any(|next| self.records.iter().flatten().any(|old| later(next, &old.quota)));
        }
        self.successors.iter().any(|&(next, old)| self.record(old).is_some_and(|old| later(next, &old.quota)))
    }

    /// Whether some key may get another quota than it had. Then every quota gets a new number, so that each counter
    /// shows whether it was last charged before or after the change.
    fn is_changed(&self, limit: &Limit) -> bool {
        let differs = |next: QuotaIndex, old: &Record| limit.quota(next) != Some(&old.quota);
        self.successors.iter().any(|&(next, old)| self.record(old).is_some_and(|old| differs(next, old)))
    }

    fn record(&self, old: QuotaIndex) -> Option<&Record> {
        self.records.get(*self.numbers.get(old.0 as usize)? as usize)?.as_ref()
    }

    /// The numbers that counters may still be counted under.
    fn numbers(&self, now: Timestamp) -> impl Iterator<Item = u32> {
        let records = (0u32..).zip(self.records);
        records
            .filter(move |(_, record)| record.as_ref().is_some_and(|record| !is_forgotten(record, now)))
            .map(|(number, _)| number)
    }

    /// The number of the quota that one of the next policy follows.
    fn before(&self, next: u32) -> Option<u32> {
        let (_, old) = self.successors.iter().find(|(each, _)| each.0 == next)?;
        self.numbers.get(old.0 as usize).copied()
    }
}

/// The longest memory among a limit's quotas.
fn memory_of(limit: &Limit) -> Ticks {
    limit.quotas().iter().map(Quota::memory).max().unwrap_or(Ticks::ZERO)
}

impl Counters {
    fn new(limit: &Limit, secret: &Secret) -> Self {
        let records = limit.quotas().iter().map(|quota| Some(Record::first(quota.clone())));
        let numbers = (0..).take(limit.quotas().len()).collect();
        Self::assemble(limit, secret, records.collect(), numbers)
    }

    /// The counters of a limit under the next policy. Quotas get numbers whose counters are not held, so that only
    /// counters stay held that were not charged since.
    fn after(
        previous: &PreviousCounters<'_>,
        limit: &Limit,
        secret: &Secret,
        from: PolicyInstant,
        held: &HashMap<u32, Timestamp>,
    ) -> Result<Self, SwapError> {
        let old = previous.records;
        // A quota that no counter can still be counted under is forgotten; its number is free from the next swap on.
        let mut records: Vec<Option<Record>> =
            old.iter().map(|record| record.clone().filter(|record| !is_forgotten(record, from.at))).collect();
        let mut numbers = Vec::with_capacity(limit.quotas().len());
        let is_changed = previous.is_changed(limit);
        let may_keep = |number: &u32| !is_changed && !held.contains_key(number);
        let is_light = |number: &u32| !held.contains_key(number);
        for (index, quota) in (0u32..).zip(limit.quotas()) {
            let number = number_for(quota, old, &records, may_keep, is_light)
                .ok_or_else(|| SwapError::TooManyQuotas { limit: limit.name().to_owned() })?;
            let slot = number as usize;
            if slot >= records.len() {
                records.resize(slot + 1, None);
            }
            let (since, before) = match &records[slot] {
                Some(known) if known.retired.is_none() => (known.since, known.before),
                _ => (from, previous.before(index).filter(|&before| before != number)),
            };
            let matters_until = Timestamp::default();
            records[slot] =
                Some(Record { quota: quota.clone(), since, retired: None, before, matters_until });
            numbers.push(number);
        }
        let changed = previous.numbers != numbers;
        let last = from.at + memory_of(limit);
        for (number, record) in (0u32..).zip(&mut records) {
            let Some(record) = record.as_mut().filter(|_| !numbers.contains(&number)) else { continue };
            if record.retired.is_none() {
                record.retired = Some(from);
                record.matters_until = last.max(from.at + record.quota.memory());
            } else if changed {
                record.matters_until = record.matters_until.max(last);
            }
        }
        Ok(Self::assemble(limit, secret, records, numbers))
    }

    fn assemble(limit: &Limit, secret: &Secret, records: Vec<Option<Record>>, numbers: Vec<u32>) -> Self {
        let family = |enforcement: &'static [u8]| {
            let identity = identity(limit);
            let mut parts: Vec<&[u8]> = vec![enforcement];
            parts.extend(identity.iter().map(|part| part.as_bytes()));
            Family::new(secret, &parts, records.clone())
        };
        Self {
            enforced: family(b"enforced"),
            shadow: family(b"shadow"),
            numbers,
            by: limit.by().to_vec(),
            tiers: tiers(limit),
            companions: Companions::of(limit, secret),
        }
    }
}

/// The name of each quota's tier, the first where several have the same numbers. Empty for a limit without tiers. Also
/// empty where all its quotas forget after the same time: then a key's tiers share a counter. Otherwise each tier has
/// its own, because a key could refill a shared counter under its fastest tier and spend it under its largest.
fn tiers(limit: &Limit) -> Vec<String> {
    let memories = || limit.quotas().iter().map(|quota| quota.memory().as_micros());
    let (shortest, longest) = (memories().min().unwrap_or(0), memories().max().unwrap_or(0));
    // A thousandth is the rounding of awkward rates, not a different time.
    if limit.tier_by().is_empty() || longest - shortest <= longest / 1_000 {
        return Vec::new();
    }
    let mut names = vec![String::new(); limit.quotas().len()];
    for (name, index) in limit.tiers() {
        let Some(known) = names.get_mut(index.0 as usize) else { continue };
        if known.is_empty() || name < known.as_str() {
            name.clone_into(known);
        }
    }
    names
}

/// Whether the tiers of a limit have counters of their own.
pub(crate) fn counts_tiers_apart(limit: &Limit) -> bool {
    !tiers(limit).is_empty()
}

/// The identity of a limit's counters: its name, how their states are kept, and what they count by, including the tier
/// where tiers count apart. Numbers are not part of it.
fn identity(limit: &Limit) -> Vec<String> {
    let kind = match limit.quotas() {
        quotas if quotas.iter().any(is_wide) => "token-bucket, wide",
        [first, ..] => first.algorithm(),
        [] => "",
    };
    let apart = if tiers(limit).is_empty() { &[] } else { limit.tier_by() };
    let first = apart.first().map_or("", String::as_str);
    let mut parts = vec![limit.name().to_owned(), kind.to_owned(), first.to_owned()];
    parts.extend(limit.by().iter().map(By::identity));
    if let [_, second] = apart {
        parts.extend([String::new(), second.clone()]); // No attribute of `by` is empty, so this is none of them.
    }
    parts
}

fn is_forgotten(record: &Record, now: Timestamp) -> bool {
    record.matters_until != Timestamp::default() && record.matters_until + GRACE < now
}

/// A number for a quota: its current one if it may be kept, else a new one whose counters are not held, else any
/// possible one. Reusing the number of a replaced quota, or of held counters, costs memory. It also costs exactness for
/// counters that were not charged in between.
fn number_for(
    quota: &Quota,
    old: &[Option<Record>],
    records: &[Option<Record>],
    may_keep: impl Fn(&u32) -> bool,
    is_light: impl Fn(&u32) -> bool,
) -> Option<u32> {
    let is_same = |record: &Record| record.quota == *quota;
    let known = || {
        let same = (0u32..).zip(records).filter(|(_, record)| record.as_ref().is_some_and(is_same));
        same.map(|(number, record)| (number, record.as_ref().is_some_and(|record| record.retired.is_none())))
    };
    let is_free = |number: &u32| {
        let slot = *number as usize;
        old.get(slot).is_none_or(Option::is_none) && records.get(slot).is_none_or(Option::is_none)
    };
    let free = || (0u32..).take(QUOTA_NUMBERS_MAX).filter(is_free);
    let kept = known().filter(|(_, is_active)| *is_active).map(|(number, _)| number).find(may_keep);
    kept.or_else(|| free().find(is_light))
        .or_else(|| free().next())
        .or_else(|| known().map(|(number, _)| number).next())
}

impl Counters {
    /// The counters that decide, or those in shadow.
    #[inline]
    pub(crate) const fn family(&self, enforcement: Enforcement) -> &Family {
        match enforcement {
            Enforcement::Enforced => &self.enforced,
            Enforcement::Shadow => &self.shadow,
        }
    }

    /// The key of a request's counter in one of the limit's families.
    #[inline]
    pub(crate) fn key(
        &self,
        family: &Family,
        secret: &Secret,
        request: &Descriptor<'_>,
        matched: &Match,
    ) -> Fingerprint {
        #[cfg(test)]
        crate::counted::hashed_key();
        let value = |position: u8| request.attributes()[usize::from(position)].value;
        if let ([by], true) = (self.by.as_slice(), self.tiers.is_empty())
            && let Value::Text(text) = by.counted(value(matched.by[0]), &mut Text::EMPTY.clone())
        {
            return secret.text_key(family.prefix(), text.as_bytes());
        }
        let mut key = *family.prefix();
        for (&position, by) in matched.by.iter().zip(&self.by) {
            by.counted(value(position), &mut Text::EMPTY.clone()).add_to(&mut key, secret);
        }
        if let Some(tier) = self.tiers.get(matched.quota.0 as usize) {
            key.part(secret, tier.as_bytes());
        }
        key.finish(secret)
    }
}
