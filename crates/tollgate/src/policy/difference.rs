//! The differences of another policy: fields of the whole file, and limits by their names, with the sentences of both.

use std::collections::HashMap;

use crate::algorithm::fixed_window::Align;
use crate::policy::condition::Condition;
use crate::policy::finding::quoted;
use crate::policy::limit::{Cost, DefaultQuota, Grant, Limit, Quotas};
use crate::policy::text::TextMap;
use crate::policy::{Policy, QuotaIndex};
use crate::quota::Quota;
use crate::rate::Rate;

/// The change of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is new.
    Added {
        /// Its name.
        name: String,
        /// Its meaning.
        sentence: String,
    },
    /// It is gone.
    Removed {
        /// Its name.
        name: String,
        /// Its earlier meaning.
        sentence: String,
    },
    /// It means something else.
    Changed {
        /// Its name.
        name: String,
        /// The fields that differ. A sentence does not spell out every field, so two that read alike may differ.
        fields: Vec<&'static str>,
        /// Its earlier meaning.
        before: String,
        /// Its new meaning.
        after: String,
    },
}

/// A field of the whole file that means something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChange {
    /// Its name.
    pub field: &'static str,
    /// Its earlier meaning.
    pub before: String,
    /// Its new meaning.
    pub after: String,
}

/// The differences of another policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Fields of the whole file that are not as they were. `defaults` are fields of limits, and show there.
    pub fields: Vec<FieldChange>,
    /// Limits that are not as they were: those of the old policy in its order, then those that are new.
    pub changes: Vec<Change>,
    /// How many limits stay as they are.
    pub unchanged: usize,
}

impl Difference {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.changes.is_empty()
    }
}

impl Policy {
    /// The fields of the whole file that `next` would change.
    pub(crate) fn changed_fields(&self, next: &Policy) -> Vec<FieldChange> {
        // Every field is listed, so that a new one causes a compile error here. Limits are compared one by one.
        let Policy {
            domain,
            shard_by,
            vocabulary,
            limits: _,
            compared: _,
            index: _,
            credentials: _,
            positions: _,
            warnings: _,
        } = self;
        let fields = [
            ("domain", domain == &next.domain, self.domain_sentence(), next.domain_sentence()),
            ("shard_by", shard_by == &next.shard_by, self.shard_sentence(), next.shard_sentence()),
            (
                "attributes",
                vocabulary == &next.vocabulary,
                self.attributes_sentence(),
                next.attributes_sentence(),
            ),
        ];
        let changed = fields.into_iter().filter(|(_, is_same, ..)| !is_same);
        changed.map(|(field, _, before, after)| FieldChange { field, before, after }).collect()
    }

    fn domain_sentence(&self) -> String {
        match &self.domain {
            Some(domain) => format!("answers the domain {} only", quoted(domain)),
            None => "answers every domain".to_owned(),
        }
    }

    fn shard_sentence(&self) -> String {
        match &self.shard_by {
            Some(attribute) => format!("keys of one {} share a slot", quoted(attribute)),
            None => "keys share no slot".to_owned(),
        }
    }

    fn attributes_sentence(&self) -> String {
        match self.vocabulary.names() {
            Some(names) => format!("declares {}", names.collect::<Vec<_>>().join(", ")),
            None => "declares no attributes".to_owned(),
        }
    }

    /// The changes that `next` would make.
    #[must_use]
    pub fn difference(&self, next: &Policy) -> Difference {
        let mut difference = Difference { fields: self.changed_fields(next), ..Difference::default() };
        let mut others: HashMap<&str, &Limit> =
            next.limits().iter().map(|limit| (limit.name(), limit)).collect();
        for limit in self.limits() {
            let name = limit.name().to_owned();
            let Some(other) = others.remove(limit.name()) else {
                difference.changes.push(Change::Removed { name, sentence: limit.sentence() });
                continue;
            };
            let fields = differing(limit, other);
            if fields.is_empty() {
                difference.unchanged += 1;
                continue;
            }
            let (before, after) = (limit.sentence(), other.sentence());
            difference.changes.push(Change::Changed { name, fields, before, after });
        }
        for limit in next.limits().iter().filter(|limit| others.contains_key(limit.name())) {
            let (name, sentence) = (limit.name().to_owned(), limit.sentence());
            difference.changes.push(Change::Added { name, sentence });
        }
        difference
    }
}

/// The fields in which two limits differ.
pub(crate) fn differing(one: &Limit, other: &Limit) -> Vec<&'static str> {
    let (a, b) = (&one.quotas, &other.quotas);
    let mut fields = Vec::new();
    let same_conditions =
        one.when.len() == other.when.len() && one.when.iter().all(|condition| holds(&other.when, condition));
    if !same_conditions {
        fields.push("when");
    }
    if one.by != other.by {
        fields.push("by");
    }
    differing_quotas(a, b, &mut fields);
    let same = [
        ("extra_attributes", one.extra_attributes == other.extra_attributes),
        ("tier_by", a.tier_by == b.tier_by),
        ("tiers", are_same([a, b], [&a.tiers, &b.tiers])),
        ("overrides", are_same([a, b], [&a.overrides, &b.overrides])),
        ("cost", same_cost(&one.cost, &other.cost)),
        ("mode", one.mode == other.mode),
        ("enforce_percent", one.enforce_percent == other.enforce_percent),
        ("on_store_failure", one.on_store_failure == other.on_store_failure),
        ("consistency", one.consistency == other.consistency),
        ("lease", one.lease().zip(other.lease()).is_none_or(|(one, other)| one == other)),
        ("block_for", one.block_for == other.block_for),
        ("count", one.failures.is_some() == other.failures.is_some()),
        (
            "failures",
            one.failures.as_ref().zip(other.failures.as_ref()).is_none_or(|(one, other)| one == other),
        ),
    ];
    fields.extend(same.into_iter().filter(|(_, same)| !same).map(|(field, _)| field));
    fields
}

/// The grant of one value: a rate or permits, and a burst.
#[derive(Clone, Copy)]
struct Amount {
    over_time: Option<Rate>,
    permits: Option<u64>,
    burst: u64,
    /// Whether the burst is that of the limit, or what an algorithm gives by default.
    is_inherited: bool,
}

impl Amount {
    fn of(quotas: &Quotas, quota: &Quota) -> Self {
        let Some(rate) = quota.rate() else {
            return Self { over_time: None, permits: Some(quota.capacity()), burst: 0, is_inherited: true };
        };
        let written = rate.burst_units();
        let by_default = if matches!(quota, Quota::LeakyBucket(_)) { 1 } else { rate.units() };
        Self {
            over_time: Some(Rate::per_ticks(rate.units(), rate.period())),
            permits: None,
            burst: written.unwrap_or(by_default),
            is_inherited: written.is_none() || written == quotas.burst,
        }
    }

    fn has_rate_of(&self, other: &Self) -> bool {
        self.over_time == other.over_time && self.permits == other.permits
    }

    fn has_burst_of(&self, other: &Self) -> bool {
        self.burst == other.burst || self.is_inherited && other.is_inherited
    }
}

fn amount(quotas: &Quotas, index: QuotaIndex) -> Grant<Amount> {
    match quotas.grant(index) {
        Grant::Quota(quota) => Grant::Quota(Amount::of(quotas, quota)),
        Grant::Deny => Grant::Deny,
        Grant::Unlimited => Grant::Unlimited,
    }
}

/// The amount of `rate` or `concurrency`. A limit with tiers may have none.
fn base(quotas: &Quotas) -> Option<Grant<Amount>> {
    match quotas.default {
        DefaultQuota::Given(index) if quotas.everything().is_none() => Some(amount(quotas, index)),
        DefaultQuota::Given(_) | DefaultQuota::Strictest(_) => None,
    }
}

/// Whether two values differ, apart from a burst that they do not name themselves.
fn is_same(one: Grant<Amount>, other: Grant<Amount>) -> bool {
    match (one, other) {
        (Grant::Quota(one), Grant::Quota(other)) => one.has_rate_of(&other) && one.has_burst_of(&other),
        (Grant::Deny, Grant::Deny) | (Grant::Unlimited, Grant::Unlimited) => true,
        _ => false,
    }
}

/// Whether tiers or overrides are the same.
fn are_same([one, other]: [&Quotas; 2], named: [&TextMap<QuotaIndex>; 2]) -> bool {
    named[0].len() == named[1].len() && pairs([one, other], named).count() == named[0].len() && {
        pairs([one, other], named).all(|(one, other)| is_same(one, other))
    }
}

/// The amounts of the names that both have.
fn pairs<'q>(
    [one, other]: [&'q Quotas; 2],
    named: [&'q TextMap<QuotaIndex>; 2],
) -> impl Iterator<Item = (Grant<Amount>, Grant<Amount>)> {
    named[0].iter().filter_map(move |(name, &index)| {
        let found = named[1].get(&**name)?;
        Some((amount(one, index), amount(other, *found)))
    })
}

/// Whether `burst` differs, in the rate or as a field of the limit. A field that changes no amount is no change.
fn is_other_burst(one: &Quotas, other: &Quotas) -> bool {
    let both = [one, other];
    let base = base(one).zip(base(other));
    let of_base = base.is_some_and(
        |amounts| matches!(amounts, (Grant::Quota(one), Grant::Quota(other)) if !one.has_burst_of(&other)),
    );
    let mut amounts = base
        .into_iter()
        .chain(pairs(both, [&one.tiers, &other.tiers]))
        .chain(pairs(both, [&one.overrides, &other.overrides]));
    let has_effect = amounts.any(
        |amounts| matches!(amounts, (Grant::Quota(one), Grant::Quota(other)) if one.burst != other.burst),
    );
    of_base || one.burst != other.burst && has_effect
}

/// Whether `rate` or `concurrency` differs. Their burst is another field.
fn is_other_base(one: &Quotas, other: &Quotas) -> bool {
    match (base(one), base(other)) {
        (Some(Grant::Quota(one)), Some(Grant::Quota(other))) => !one.has_rate_of(&other),
        (Some(one), Some(other)) => !is_same(one, other),
        (one, other) => one.is_some() != other.is_some(),
    }
}

/// The fields that say how much every key gets, and how it is counted. All quotas of a limit are counted alike, so the
/// first one shows it.
fn differing_quotas(one: &Quotas, other: &Quotas, fields: &mut Vec<&'static str>) {
    let is_concurrency = matches!(one.all.first(), Some(Quota::Concurrency(_)));
    let name = if is_concurrency { "concurrency" } else { "rate" };
    fields.extend(is_other_base(one, other).then_some(name));
    fields.extend(is_other_burst(one, other).then_some("burst"));
    let (Some(one), Some(other)) = (one.all.first(), other.all.first()) else { return };
    match (one, other) {
        (Quota::TokenBucket(_), Quota::TokenBucket(_)) | (Quota::Gcra(_), Quota::Gcra(_)) => {}
        (Quota::FixedWindow(one), Quota::FixedWindow(other)) => {
            differing_windows(one.align(), other.align(), fields)
        }
        (Quota::SlidingWindow(one), Quota::SlidingWindow(other)) => {
            fields.extend((one.precision() != other.precision()).then_some("precision"));
            fields.extend((one.estimate() != other.estimate()).then_some("estimate"));
        }
        (Quota::LeakyBucket(one), Quota::LeakyBucket(other)) => {
            fields.extend((one.queue() != other.queue()).then_some("queue"));
        }
        (Quota::Concurrency(one), Quota::Concurrency(other)) => {
            fields.extend((one.ttl() != other.ttl()).then_some("permit_ttl"));
        }
        (Quota::SlidingLog(_), Quota::SlidingLog(_)) => {}
        _ => fields.push("algorithm"),
    }
}

fn differing_windows(one: &Align, other: &Align, fields: &mut Vec<&'static str>) {
    match (one, other) {
        (Align::Calendar(one), Align::Calendar(other)) => {
            fields.extend((one.zone() != other.zone()).then_some("timezone"));
            fields.extend((one.billing_day() != other.billing_day()).then_some("billing_day"));
        }
        _ => fields.extend((one != other).then_some("align")),
    }
}

fn holds(conditions: &[Condition], condition: &Condition) -> bool {
    conditions.iter().any(|other| same_condition(condition, other))
}

fn same_condition(one: &Condition, other: &Condition) -> bool {
    match (one, other) {
        (
            Condition::OneOf { name, choices, sense },
            Condition::OneOf { name: other, choices: other_choices, sense: other_sense },
        ) => name == other && choices == other_choices && sense == other_sense,
        (Condition::Holds(one), Condition::Holds(other)) => one.to_string() == other.to_string(),
        _ => false,
    }
}

fn same_cost(one: &Cost, other: &Cost) -> bool {
    match (one, other) {
        (Cost::Asked, Cost::Asked) => true,
        (Cost::Units(one), Cost::Units(other)) => one == other,
        (Cost::Attribute(one), Cost::Attribute(other)) => one == other,
        (Cost::Computed(one), Cost::Computed(other)) => one.to_string() == other.to_string(),
        _ => false,
    }
}
