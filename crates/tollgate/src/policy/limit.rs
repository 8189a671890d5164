//! One compiled limit: the meaning of an entry of the policy, not its text.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};

use smallvec::SmallVec;

use crate::address::{Network, Prefixes, Text};
use crate::path::loose_path;
use crate::policy::builder::intern;
use crate::policy::by::By;
use crate::policy::condition::Condition;
use crate::policy::expression::Expression;
use crate::policy::failures::Failures;
use crate::policy::on_store_failure::OnStoreFailure;
use crate::policy::penalty::Penalty;
use crate::policy::text::{Digits, TextMap, as_text};
use crate::policy::vocabulary::Kind;
use crate::quota::Quota;
use crate::request::{Descriptor, Spelling};
use crate::store::Lease;
use crate::time::Ticks;

/// Most attributes a limit counts by.
pub(crate) const BY_MAX: usize = 8;
/// Most distinct quotas of one limit. A counter stores the index of its quota in ten bits, quotas of replaced policies
/// included.
pub(crate) const QUOTAS_MAX: usize = 512;
/// Most limits one request may match.
pub const MATCHED_MAX: usize = 32;
/// Most conditions of one limit, and most values that one condition lists.
pub(crate) const CONDITIONS_MAX: usize = 64;
/// Most attributes that name a tier together.
pub(crate) const TIER_BY_MAX: usize = 2;
/// With two attributes, the name of the tier for any value without a tier of its own, and for a missing one.
pub(crate) const ANY: &str = "*";
/// Stands between the two values of a tier's name.
pub(crate) const TIER_SEPARATOR: char = '\u{1f}';
/// Inline bytes for the name of a tier of two values; longer ones are allocated.
const TIER_NAME_BYTES: usize = 128;
/// Longest name of a limit, in bytes.
pub const LIMIT_NAME_BYTES_MAX: usize = 128;

/// The mode of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It decides.
    #[default]
    Enforce,
    /// It counts and reports, never denies, and never touches an enforced counter.
    Shadow,
    /// It is skipped.
    Off,
}

impl Mode {
    /// Every mode with its name.
    pub const NAMED: [(&str, Mode); 3] =
        [("enforce", Mode::Enforce), ("shadow", Mode::Shadow), ("off", Mode::Off)];

    /// Its name in policies and answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        // The list is in the order of the variants.
        Self::NAMED[self as usize].0
    }
}

/// How closely a limit follows its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// A round trip for each decision.
    #[default]
    Exact,
    /// Nodes lease batches of units and spend them locally.
    Leased,
    /// Exact for quiet keys, leased for hot ones.
    Auto,
}

/// Whether a limit applies to requests with attributes that it does not name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExtraAttributes {
    /// It does.
    #[default]
    Any,
    /// It does not: every attribute of the request is one that the limit names.
    None,
}

/// The cost of a request.
#[derive(Debug)]
pub enum Cost {
    /// The cost in the request; by default 1.
    Asked,
    /// A fixed number of units.
    Units(u64),
    /// The value of an attribute.
    Attribute(String),
    /// The value of a CEL expression.
    Computed(Expression),
}

/// Which of its quotas a limit applies: an index that only [`Limit::quota`] and [`Limit::grant`] read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuotaIndex(pub(crate) u32);

impl QuotaIndex {
    /// The value `unlimited`: every request passes, and nothing is counted.
    pub(crate) const UNLIMITED: Self = Self(u32::MAX);
    /// The value `deny`: no request passes, and nothing is counted.
    pub const DENY: Self = Self(u32::MAX - 1);

    /// Whether it has a counter.
    #[must_use]
    #[inline]
    pub const fn is_counted(self) -> bool {
        self.0 < Self::DENY.0
    }
}

/// A value of `rate`, `tiers` or `overrides`: how much a limit grants to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant<Q = Quota> {
    /// Nothing: the request is refused, and waiting does not help.
    Deny,
    /// As much as a quota admits.
    Quota(Q),
    /// Everything: the request passes, and nothing is counted.
    Unlimited,
}

impl From<Quota> for Grant {
    fn from(quota: Quota) -> Self {
        Grant::Quota(quota)
    }
}

/// Which quota applies when neither an override nor a known tier does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DefaultQuota {
    /// The one that the limit names.
    Given(QuotaIndex),
    /// The strictest tier, because the limit names none. So a client cannot escape a limit by an unknown tier.
    Strictest(QuotaIndex),
}

/// The quotas of a limit: the default one, those of tiers, and those of single keys. Equal quotas are stored once.
#[derive(Clone, Debug)]
pub struct Quotas {
    /// Every distinct quota; empty where every value is `unlimited` or `deny`.
    pub(crate) all: Vec<Quota>,
    /// The one that applies when no tier or override does.
    pub(crate) default: DefaultQuota,
    /// The burst of every quota that has none of its own, if the limit names one.
    pub(crate) burst: Option<u64>,
    /// The attributes that name the tier, at most `TIER_BY_MAX`.
    pub(crate) tier_by: Vec<String>,
    /// By the value of that attribute; by both values where there are two, see [`tier_name`].
    pub(crate) tiers: TextMap<QuotaIndex>,
    /// By the value of the first attribute of `by`.
    pub(crate) overrides: TextMap<QuotaIndex>,
    /// Values of paths among their names that are not in their loose form, by that form.
    pub(crate) loose: TextMap<Box<str>>,
    /// Which of the attributes that name the tier are addresses.
    pub(crate) tiers_by_client: [bool; TIER_BY_MAX],
    /// The prefixes of the IPv6 networks among the overrides, the longest first.
    pub(crate) override_prefixes: Vec<u8>,
}

/// A tier or an override that a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen<'q> {
    pub(crate) role: Role,
    /// As the policy names it.
    pub(crate) name: &'q str,
    pub(crate) quota: QuotaIndex,
}

/// The attribute values that select the quota of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Override,
    Tier,
}

/// The texts by which a value is looked up: its own, then its other spellings.
type Texts<'t> = SmallVec<[&'t str; 4]>;

impl Quotas {
    /// One value for all keys.
    pub(crate) fn one(grant: Grant) -> Self {
        let mut quotas = Self::none();
        quotas.default = DefaultQuota::Given(intern(&mut quotas.all, grant));
        quotas
    }

    /// No quotas, for a limit with errors, which never becomes part of a policy.
    pub(crate) fn none() -> Self {
        Self {
            all: Vec::new(),
            default: DefaultQuota::Given(QuotaIndex(0)),
            burst: None,
            tier_by: Vec::new(),
            tiers: TextMap::default(),
            overrides: TextMap::default(),
            loose: TextMap::default(),
            tiers_by_client: [false; TIER_BY_MAX],
            override_prefixes: Vec::new(),
        }
    }

    /// Resolves how their names are looked up, by the kinds of the first attribute of `by` and of those that name the tier.
    pub(crate) fn settle(&mut self, by: Option<Kind>, tier_by: &[Kind]) {
        for (is_client, kind) in self.tiers_by_client.iter_mut().zip(tier_by) {
            *is_client = *kind == Kind::Address;
        }
        let networks = self.overrides.keys().filter(|_| by == Some(Kind::Address));
        let networks = networks.filter_map(|name| name.parse::<Network>().ok());
        let prefixes = networks.filter(|network| network.first().is_ipv6()).map(|network| network.prefix());
        self.override_prefixes = prefixes.collect::<BTreeSet<u8>>().into_iter().rev().collect();
        let overrides = self.overrides.keys().filter(|_| by == Some(Kind::Path)).map(|name| &**name);
        let parts = self.tiers.keys().flat_map(|name| name.split(TIER_SEPARATOR).zip(tier_by));
        let tiers = parts.filter(|(_, kind)| **kind == Kind::Path).map(|(part, _)| part);
        let names = overrides.chain(tiers).filter_map(|name| match loose_path(name) {
            Cow::Owned(loose) => Some((loose.into(), name.into())),
            Cow::Borrowed(_) => None,
        });
        self.loose = names.collect();
    }

    /// The override of the smallest network that an address is in, where callers send other networks than overrides name.
    fn override_around(&self, value: &str) -> Option<(&str, QuotaIndex)> {
        if self.override_prefixes.is_empty() || !value.contains(':') {
            return None;
        }
        let given = Network::given(value)?;
        let prefixes = self.override_prefixes.iter().filter(|prefix| **prefix < given.prefix());
        let around = |prefix: &u8| Network::of(given.first(), *prefix).to_string();
        let found = prefixes.map(around).find_map(|network| self.overrides.get_key_value(network.as_str()));
        found.map(|(name, quota)| (&**name, *quota))
    }

    /// The texts by which a value is looked up. A path also has those of the policy with its loose form.
    fn texts<'t, 's: 't>(
        &'t self,
        value: &'t str,
        spellings: impl Iterator<Item = Spelling<'s>>,
    ) -> Texts<'t> {
        let mut texts = Texts::new();
        texts.push(value);
        for text in spellings.flat_map(Spelling::texts) {
            texts.push(text);
            texts.extend(self.loose.get(text).map(|name| &**name));
        }
        texts
    }

    /// The tier that has one of these names: that of both values, else that of one with any value of the other.
    fn tier(&self, [first, second]: [&[&str]; TIER_BY_MAX]) -> Option<(&str, QuotaIndex)> {
        let found = |name: &str| self.tiers.get_key_value(name).map(|(name, index)| (&**name, *index));
        if self.tier_by.len() < TIER_BY_MAX {
            return first.iter().find_map(|name| found(name));
        }
        let any: &[&str] = &[ANY];
        let ways = [(first, second), (first, any), (any, second), (any, any)];
        ways.into_iter().find_map(|(first, second)| {
            let pairs = first.iter().flat_map(|one| second.iter().map(move |other| (one, other)));
            let mut pairs = pairs.map(|(one, other)| {
                let mut name: SmallVec<[u8; TIER_NAME_BYTES]> = SmallVec::new();
                name.extend_from_slice(one.as_bytes());
                name.push(TIER_SEPARATOR as u8);
                name.extend_from_slice(other.as_bytes());
                name
            });
            pairs.find_map(|name| found(std::str::from_utf8(&name).ok()?))
        })
    }

    /// The tier that holds for every pair of values that is not listed, if there is one.
    pub(crate) fn everything(&self) -> Option<QuotaIndex> {
        self.tiers.get(&*tier_name(ANY, ANY)).copied()
    }

    pub(crate) const fn default_index(&self) -> QuotaIndex {
        match self.default {
            DefaultQuota::Given(index) | DefaultQuota::Strictest(index) => index,
        }
    }

    /// The only value that any request gets, if there is only one.
    pub(crate) fn only(&self) -> Option<QuotaIndex> {
        let DefaultQuota::Given(only) = self.default else { return None };
        let mut others = self.tiers.values().chain(self.overrides.values());
        others.all(|&other| other == only).then_some(only)
    }

    /// The meaning of an index.
    pub(crate) fn grant(&self, index: QuotaIndex) -> Grant<&Quota> {
        match self.all.get(index.0 as usize) {
            Some(quota) => Grant::Quota(quota),
            None if index == QuotaIndex::UNLIMITED => Grant::Unlimited,
            None => Grant::Deny,
        }
    }
}

/// The name of a tier of two values in [`Quotas::tiers`]. No tier's name has the separator in it, so no two tiers share a name.
pub(crate) fn tier_name(first: &str, second: &str) -> String {
    format!("{first}{TIER_SEPARATOR}{second}")
}

/// The name of a tier for messages.
pub(crate) fn shown_tier(name: &str) -> String {
    name.replace(TIER_SEPARATOR, "/")
}

/// Whether `one` is stricter than `other`. `deny` is the strictest, then a lower rate, then a smaller burst at the same
/// rate, and `unlimited` the least strict.
pub(crate) fn stricter(one: Grant<&Quota>, other: Grant<&Quota>) -> bool {
    let (one, other) = match (one, other) {
        (Grant::Deny, other) => return other != Grant::Deny,
        (_, Grant::Deny) | (Grant::Unlimited, _) => return false,
        (Grant::Quota(_), Grant::Unlimited) => return true,
        (Grant::Quota(one), Grant::Quota(other)) => (one, other),
    };
    let (Some(a), Some(b)) = (one.rate(), other.rate()) else {
        return one.capacity() < other.capacity();
    };
    let a_over_time = u128::from(a.units()) * u128::from(b.period().as_micros());
    let b_over_time = u128::from(b.units()) * u128::from(a.period().as_micros());
    (a_over_time, one.capacity()) < (b_over_time, other.capacity())
}

/// One named rule, compiled. One inside a [`Policy`](super::Policy) is valid.
#[derive(Debug)]
pub struct Limit {
    pub(crate) name: String,
    pub(crate) when: Vec<Condition>,
    pub(crate) by: Vec<By>,
    pub(crate) extra_attributes: ExtraAttributes,
    pub(crate) quotas: Quotas,
    pub(crate) cost: Cost,
    pub(crate) mode: Mode,
    pub(crate) enforce_percent: u8,
    pub(crate) on_store_failure: OnStoreFailure,
    pub(crate) consistency: Consistency,
    pub(crate) lease: Lease,
    pub(crate) block_for: Option<Penalty>,
    pub(crate) failures: Option<Failures>,
}

impl Limit {
    /// A limit that is used only for its counters.
    pub(crate) const fn for_counters(name: String, by: Vec<By>, quotas: Quotas) -> Self {
        Self {
            name,
            when: Vec::new(),
            by,
            extra_attributes: ExtraAttributes::Any,
            quotas,
            cost: Cost::Asked,
            mode: Mode::Enforce,
            enforce_percent: 100,
            on_store_failure: OnStoreFailure::Local,
            consistency: Consistency::Exact,
            lease: Lease { share: 0, ttl: Ticks::ZERO, is_auto: false },
            block_for: None,
            failures: None,
        }
    }

    /// Its name: unique in the policy, and the identity of its counters.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The conditions that must all hold for it to apply.
    #[must_use]
    pub fn when(&self) -> &[Condition] {
        &self.when
    }

    /// Whether it applies to requests with attributes that it does not name.
    #[must_use]
    pub const fn extra_attributes(&self) -> ExtraAttributes {
        self.extra_attributes
    }

    /// The attributes for which it does not apply to a request, because it does not name them.
    pub(crate) fn unnamed<'r>(&self, request: &'r Descriptor<'_>) -> impl Iterator<Item = &'r str> {
        let given = request.attributes().iter().map(|given| given.name);
        given.filter(|name| self.extra_attributes == ExtraAttributes::None && !self.mentions_name(name))
    }

    /// How the cost of a request is computed.
    #[must_use]
    pub const fn cost(&self) -> &Cost {
        &self.cost
    }

    /// The attributes that name the tier together; none if its quota does not depend on any.
    #[must_use]
    pub fn tier_by(&self) -> &[String] {
        &self.quotas.tier_by
    }

    /// The override or tier that a request has, if it has one: by the value at the position of the first attribute of `by`, and by those
    /// at the positions of `tier_by`, in any spelling.
    #[inline]
    pub(crate) fn choose(
        &self,
        request: &Descriptor<'_>,
        first: Option<usize>,
        tier: [Option<usize>; TIER_BY_MAX],
    ) -> Option<Chosen<'_>> {
        let quotas = &self.quotas;
        let value = |position: usize| request.attributes().get(position).map(|given| given.value);
        if let Some((position, by)) = first.zip(self.by.first()).filter(|_| !quotas.overrides.is_empty()) {
            let (mut network, mut digits) = (Text::EMPTY, Digits::new());
            let value = as_text(by.counted(value(position)?, &mut network), &mut digits);
            let texts = quotas.texts(value, request.spellings_of(position));
            let found = texts.into_iter().find_map(|text| quotas.overrides.get_key_value(text));
            let found =
                found.map(|(name, quota)| (&**name, *quota)).or_else(|| quotas.override_around(value));
            if let Some((name, quota)) = found {
                return Some(Chosen { role: Role::Override, name, quota });
            }
        }
        if quotas.tier_by.is_empty() {
            return None;
        }
        let mut digits: [Digits; TIER_BY_MAX] = Default::default();
        let mut networks = [Text::EMPTY; TIER_BY_MAX];
        let mut texts: [Texts<'_>; TIER_BY_MAX] = Default::default();
        let rooms = digits.iter_mut().zip(&mut networks).zip(quotas.tiers_by_client);
        for ((texts, position), ((digits, network), is_client)) in texts.iter_mut().zip(tier).zip(rooms) {
            let Some((position, value)) = position.and_then(|at| Some((at, value(at)?))) else { continue };
            let text = as_text(value, digits);
            *texts = quotas.texts(text, request.spellings_of(position));
            if is_client {
                texts.push(Prefixes::Default.counted(text, network));
            }
        }
        let (name, quota) = quotas.tier([&texts[0], &texts[1]])?;
        Some(Chosen { role: Role::Tier, name, quota })
    }

    /// Its tiers, by name.
    pub(crate) fn tiers(&self) -> impl Iterator<Item = (&str, QuotaIndex)> {
        self.quotas.tiers.iter().map(|(name, index)| (&**name, *index))
    }

    /// The attributes whose values make its keys.
    #[must_use]
    pub fn by(&self) -> &[By] {
        &self.by
    }

    /// Whether it decides.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The share of keys, in per cent, for which it decides; it shadows the others.
    #[must_use]
    pub const fn enforce_percent(&self) -> u8 {
        self.enforce_percent
    }

    /// Its fallback while the store is unreachable.
    #[must_use]
    pub const fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// How closely it follows its store.
    #[must_use]
    pub const fn consistency(&self) -> Consistency {
        self.consistency
    }

    /// The bounds of its leases; `None` if each request charges the counters.
    #[must_use]
    pub fn lease(&self) -> Option<Lease> {
        if self.consistency == Consistency::Exact {
            return None;
        }
        self.quotas.all.first().is_some_and(Lease::suits).then_some(self.lease)
    }

    /// Which responses count, where only failures do.
    #[must_use]
    pub const fn failures(&self) -> Option<&Failures> {
        self.failures.as_ref()
    }

    /// When it blocks a key after too many denials; `None` if it never does.
    #[must_use]
    pub const fn block_for(&self) -> Option<&Penalty> {
        self.block_for.as_ref()
    }

    /// One of its quotas; none where the index stands for `unlimited` or `deny`.
    #[must_use]
    #[inline]
    pub fn quota(&self, index: QuotaIndex) -> Option<&Quota> {
        self.quotas.all.get(index.0 as usize)
    }

    /// The meaning of an index.
    #[must_use]
    pub fn grant(&self, index: QuotaIndex) -> Grant<&Quota> {
        self.quotas.grant(index)
    }

    /// Every distinct quota it may apply.
    #[must_use]
    pub fn quotas(&self) -> &[Quota] {
        &self.quotas.all
    }

    /// Every value with its name: `rate` for the default, then each tier and each override, sorted.
    #[must_use]
    pub fn named_grants(&self) -> Vec<(String, Grant<&Quota>)> {
        let by_name = |role: &'static str, quotas: &'_ TextMap<QuotaIndex>| {
            let mut named: Vec<(String, QuotaIndex)> =
                quotas.iter().map(|(name, index)| (format!("{role} {}", shown_tier(name)), *index)).collect();
            named.sort_unstable_by(|one, other| one.0.cmp(&other.0));
            named
        };
        let mut named = vec![("rate".to_owned(), self.quotas.default_index())];
        named.extend(by_name("tier", &self.quotas.tiers));
        named.extend(by_name("override", &self.quotas.overrides));
        named.into_iter().map(|(name, index)| (name, self.grant(index))).collect()
    }

    /// The pairs of quotas that a key may change between: that of the other limit first, and that of this limit second.
    pub(crate) fn successors(&self, next: &Limit) -> Vec<(QuotaIndex, QuotaIndex)> {
        let (old, new) = (&self.quotas, &next.quotas);
        let mut pairs = vec![(new.default_index(), old.default_index())];
        let every = |quotas: &Quotas| (0..).map(QuotaIndex).take(quotas.all.len()).collect::<Vec<_>>();
        let roles = [(&old.tiers, &new.tiers), (&old.overrides, &new.overrides)];
        for (mine, others) in roles {
            pairs
                .extend(mine.iter().filter_map(|(name, &index)| others.get(name).map(|&next| (next, index))));
        }
        // A key with a new or a removed tier or override may change between any quotas.
        for (mine, others) in roles {
            let gone = mine.iter().filter(|(name, _)| !others.contains_key(*name)).map(|(_, &index)| index);
            let added = others.iter().filter(|(name, _)| !mine.contains_key(*name)).map(|(_, &index)| index);
            let (gone, added): (HashSet<_>, HashSet<_>) = (gone.collect(), added.collect());
            pairs.extend(added.iter().map(|&next| (next, old.default_index())));
            pairs.extend(
                added.iter().flat_map(|&next| every(old).into_iter().map(move |index| (next, index))),
            );
            pairs
                .extend(gone.iter().flat_map(|&index| every(new).into_iter().map(move |next| (next, index))));
        }
        let mut seen = HashSet::new();
        // Nothing is counted under `unlimited` and `deny`, so no counter is carried over to or from them.
        pairs.retain(|pair| pair.0.is_counted() && pair.1.is_counted() && seen.insert(*pair));
        pairs
    }
}
