//! A policy in force: its limits with the families of their counters, and how a new policy takes over from it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::charge::{Family, Record, is_wide};
use crate::key::{Fingerprint, Secret};
use crate::memory::NUMBERS_MAX;
use crate::policy::{Limit, Match, Policy};
use crate::quota::Quota;
use crate::request::CheckRequest;
use crate::time::{Ticks, Timestamp};

/// How long after its counters are idle a replaced quota is remembered, for decisions that are still under way.
const GRACE: Ticks = Ticks::from_secs(60);

/// The quotas that counters of limits no longer there may be counted under, by what those counters are.
type Gone = HashMap<Vec<String>, Vec<Option<Record>>>;

/// A policy in force. Immutable; a swap makes a new one.
pub(crate) struct Live {
    pub(crate) policy: Arc<Policy>,
    pub(super) counters: Vec<Counters>,
    by_name: HashMap<String, usize>,
    /// Counters of limits that are gone, or were changed beyond recognition, until they are idle. If such a limit comes back
    /// it finds them.
    gone: Gone,
}

/// The counters of one limit.
pub(super) struct Counters {
    pub(super) enforced: Family,
    pub(super) shadow: Family,
    /// The number of each of the limit's quotas.
    pub(super) numbers: Vec<u32>,
    /// The tier of each quota, where tiers have counters of their own.
    tiers: Vec<String>,
}

/// What a swap did to the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwapReport {
    /// Limits whose numbers changed; their counters were kept.
    pub changed: Vec<String>,
    /// Limits that are new.
    pub added: Vec<String>,
    /// Limits that are gone.
    pub removed: Vec<String>,
    /// Limits whose counters start anew, because what they count by, or how, is not what it was.
    pub restarted: Vec<String>,
}

/// Why a policy could not be put in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwapError {
    /// A limit was changed too often.
    #[error(
        "limit {limit}: its counters are still counted under {NUMBERS_MAX} different quotas; try again when the oldest are idle, \
         or give the limit a new name"
    )]
    TooManyQuotas {
        /// Which limit.
        limit: String,
    },
}

impl Live {
    /// The first policy of an engine.
    pub(super) fn first(policy: Policy, secret: &Secret) -> Self {
        let counters = policy.limits().iter().map(|limit| Counters::new(limit, secret)).collect();
        Self::assemble(Arc::new(policy), counters, Gone::new())
    }

    /// The next policy, with the counters of the one before.
    pub(super) fn after(
        before: &Live,
        policy: Arc<Policy>,
        secret: &Secret,
        now: Timestamp,
    ) -> Result<(Self, SwapReport), SwapError> {
        let mut report = SwapReport::default();
        let mut counters = Vec::with_capacity(policy.limits().len());
        for limit in policy.limits() {
            let known =
                before.by_name.get(limit.name()).map(|&index| (&before.policy.limits()[index], index));
            counters.push(match known {
                None => {
                    report.added.push(limit.name().to_owned());
                    Counters::after(before.remembered(limit), limit, secret, now)?
                }
                Some((old, _)) if identity(old) != identity(limit) => {
                    report.restarted.push(limit.name().to_owned());
                    Counters::after(before.remembered(limit), limit, secret, now)?
                }
                Some((old, index)) => {
                    if old.quotas() != limit.quotas() {
                        report.changed.push(limit.name().to_owned());
                    }
                    Counters::after(before.counters[index].enforced.records(), limit, secret, now)?
                }
            });
        }
        let gone = before.gone_after(&policy, now);
        let live = Self::assemble(policy, counters, gone);
        report
            .removed
            .extend(before.by_name.keys().filter(|name| !live.by_name.contains_key(*name)).cloned());
        report.removed.sort();
        Ok((live, report))
    }

    /// The quotas that counters of such a limit may still be counted under, from an earlier time.
    fn remembered(&self, limit: &Limit) -> &[Option<Record>] {
        if self.gone.is_empty() { &[] } else { self.gone.get(&owned(limit)).map_or(&[], Vec::as_slice) }
    }

    /// What is remembered of limits that the next policy does not have.
    fn gone_after(&self, next: &Policy, now: Timestamp) -> Gone {
        let stays: HashSet<Vec<String>> = next.limits().iter().map(owned).collect();
        let retire = |record: &Option<Record>| {
            record.clone().map(|record| Record { retired_at: record.retired_at.or(Some(now)), ..record })
        };
        let left = self.policy.limits().iter().zip(&self.counters).map(|(limit, counters)| {
            (owned(limit), counters.enforced.records().iter().map(retire).collect())
        });
        let earlier = self.gone.iter().map(|(identity, records)| (identity.clone(), records.clone()));
        left.chain(earlier)
            .filter(|(identity, _)| !stays.contains(identity))
            .filter(|(_, records): &(_, Vec<Option<Record>>)| {
                records.iter().flatten().any(|record| !is_forgotten(record, now))
            })
            .collect()
    }

    fn assemble(policy: Arc<Policy>, counters: Vec<Counters>, gone: Gone) -> Self {
        let by_name =
            policy.limits().iter().enumerate().map(|(index, limit)| (limit.name().to_owned(), index));
        Self { by_name: by_name.collect(), policy, counters, gone }
    }

    /// The counters of a limit, by its name.
    pub(super) fn counters_of(&self, name: &str) -> Option<(&Limit, &Counters)> {
        self.by_name.get(name).map(|&index| (&self.policy.limits()[index], &self.counters[index]))
    }

    /// Whether a matched limit hands out permits.
    pub(super) fn takes_permit(&self, matched: &Match) -> bool {
        let limit = &self.policy.limits()[matched.limit as usize];
        matches!(limit.quota(matched.quota), Quota::Concurrency(_))
    }
}

impl Counters {
    fn new(limit: &Limit, secret: &Secret) -> Self {
        let records =
            limit.quotas().iter().map(|quota| Some(Record { quota: quota.clone(), retired_at: None }));
        let numbers = (0..).take(limit.quotas().len()).collect();
        Self::assemble(limit, secret, records.collect(), numbers)
    }

    /// The counters of a limit whose counters may still be counted under the quotas of `old`.
    fn after(
        old: &[Option<Record>],
        limit: &Limit,
        secret: &Secret,
        now: Timestamp,
    ) -> Result<Self, SwapError> {
        // A quota that nobody can still be counted under is forgotten; its number is free from the next swap on.
        let mut records: Vec<Option<Record>> =
            old.iter().map(|record| record.clone().filter(|record| !is_forgotten(record, now))).collect();
        let mut numbers = Vec::with_capacity(limit.quotas().len());
        for quota in limit.quotas() {
            let known = records
                .iter_mut()
                .position(|record| record.as_ref().is_some_and(|record| record.quota == *quota));
            let fresh = || (0..NUMBERS_MAX).find(|&number| old.get(number).is_none_or(Option::is_none));
            let free = || fresh().filter(|&number| records.get(number).is_none_or(Option::is_none));
            let number = known
                .or_else(free)
                .ok_or_else(|| SwapError::TooManyQuotas { limit: limit.name().to_owned() })?;
            if number >= records.len() {
                records.resize(number + 1, None);
            }
            records[number] = Some(Record { quota: quota.clone(), retired_at: None });
            numbers.push(u32::try_from(number).unwrap_or(u32::MAX));
        }
        for (number, record) in (0u32..).zip(&mut records) {
            if let Some(record) = record
                && record.retired_at.is_none()
                && !numbers.contains(&number)
            {
                record.retired_at = Some(now);
            }
        }
        Ok(Self::assemble(limit, secret, records, numbers))
    }

    fn assemble(limit: &Limit, secret: &Secret, records: Vec<Option<Record>>, numbers: Vec<u32>) -> Self {
        let family = |stance: &'static [u8]| {
            let identity = identity(limit);
            let mut parts: Vec<&[u8]> = vec![stance];
            parts.extend(identity.iter().map(|part| part.as_bytes()));
            Family::new(secret, &parts, records.clone())
        };
        Self { enforced: family(b"enforced"), shadow: family(b"shadow"), numbers, tiers: tiers(limit) }
    }
}

fn owned(limit: &Limit) -> Vec<String> {
    identity(limit).into_iter().map(str::to_owned).collect()
}

/// The name of each quota's tier, the first where several have the same numbers. None for a limit without tiers, and none where
/// all its quotas forget after the same time: then a key's tiers share a counter. Otherwise each has its own, for a key could
/// refill a shared one under its fastest tier and spend it under its largest.
fn tiers(limit: &Limit) -> Vec<String> {
    let memories = || limit.quotas().iter().map(|quota| quota.memory().as_micros());
    let (shortest, longest) = (memories().min().unwrap_or(0), memories().max().unwrap_or(0));
    // A thousandth is the rounding of awkward rates, not another time.
    if limit.tier_by().is_none() || longest - shortest <= longest / 1_000 {
        return Vec::new();
    }
    let mut names = vec![String::new(); limit.quotas().len()];
    for (name, index) in limit.tiers() {
        let known = &mut names[index.0 as usize];
        if known.is_empty() || name < known.as_str() {
            name.clone_into(known);
        }
    }
    names
}

/// What the counters of a limit are: its name, how their states are kept, and what they count by. Numbers are not part of it.
fn identity(limit: &Limit) -> Vec<&str> {
    let kind = match limit.quotas() {
        quotas if quotas.iter().any(is_wide) => "token-bucket, wide",
        [first, ..] => first.algorithm(),
        [] => "",
    };
    let mut parts = vec![limit.name(), kind];
    parts.extend(limit.by().iter().map(String::as_str));
    parts
}

fn is_forgotten(record: &Record, now: Timestamp) -> bool {
    record.retired_at.is_some_and(|retired| retired + record.quota.memory() + GRACE < now)
}

impl Counters {
    /// The key of a request's counter in one of the limit's families.
    #[inline]
    pub(super) fn key(
        &self,
        family: &Family,
        secret: &Secret,
        request: &CheckRequest<'_>,
        matched: &Match,
    ) -> Fingerprint {
        let mut key = *family.prefix();
        for &position in &matched.by {
            key.value(secret, request.attributes()[usize::from(position)].value);
        }
        if let Some(tier) = self.tiers.get(matched.quota.0 as usize) {
            key.part(secret, tier.as_bytes());
        }
        key.finish(secret)
    }
}
