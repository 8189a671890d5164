//! The index of limits that may match a request. Each limit is indexed by exactly one predicate: a value that an attribute
//! must have, else an attribute that must be present, else none. [`super::matching`] decides whether it does match.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use smallvec::SmallVec;

use crate::path::{loose_path, without_format};
use crate::policy::by::By;
use crate::policy::condition::{Condition, Negation};
use crate::policy::finding::Problem;
use crate::policy::limit::{BY_MAX, Cost, ExtraAttributes, Limit, Mode, QuotaIndex, TIER_BY_MAX};
use crate::policy::text::{Digits, TextMap, as_text};
use crate::request::{Descriptor, PATH, Spelling};

/// The id of the name of an attribute.
pub(crate) type NameId = u16;

/// Number of names whose positions are in a table. Others are searched in a list; few policies have more.
const TABLED: usize = 64;
/// The position of an absent attribute.
const ABSENT: u8 = u8::MAX;
/// The attributes of a request that the policy mentions, with their positions in the request.
pub(crate) struct MentionedAttributes {
    list: SmallVec<[(NameId, u8); 16]>,
    table: [u8; TABLED],
}

impl MentionedAttributes {
    /// Whether the names of a request with this many attributes are all in a sorted list.
    pub(crate) fn are_all_in(&self, names: &[NameId], count: usize) -> bool {
        self.list.len() == count && self.list.iter().all(|(name, _)| names.binary_search(name).is_ok())
    }

    /// The position in the request of the attribute with this name.
    #[inline]
    pub(crate) fn position(&self, name: NameId) -> Option<u8> {
        match self.table.get(usize::from(name)) {
            Some(&position) => (position != ABSENT).then_some(position),
            None => {
                let found = self.list.iter().find(|&&(known, _)| known == name);
                found.map(|&(_, position)| position)
            }
        }
    }
}

/// The limits that may match a request, in the order of the policy.
pub(crate) type Candidates = SmallVec<[u32; 32]>;

/// Limits by their predicates.
#[derive(Debug, Default)]
pub(crate) struct LimitIndex {
    names: TextMap<NameId>,
    mentions: Vec<Mentions>,
    always: Vec<u32>,
    plans: Vec<LimitPlan>,
    single: Option<SingleLimit>,
}

/// The only limit of a policy, if it depends on one attribute alone. It is the commonest policy of a program with its own
/// engine.
#[derive(Debug)]
pub(crate) struct SingleLimit {
    pub(crate) by: By,
    pub(crate) quota: QuotaIndex,
    /// Its fixed cost, if it has one.
    pub(crate) units: Option<u64>,
}

impl SingleLimit {
    fn of(limits: &[Limit], plans: &[LimitPlan]) -> Option<Self> {
        let ([limit], [plan]) = (limits, plans) else { return None };
        let ([by], []) = (limit.by.as_slice(), limit.when.as_slice()) else { return None };
        let is_plain = by.is_plain() && limit.extra_attributes == ExtraAttributes::Any;
        if !is_plain || limit.block_for.is_some() || limit.failures.is_some() {
            return None;
        }
        let units = match limit.cost {
            Cost::Asked => None,
            Cost::Units(units) => Some(units),
            Cost::Attribute(_) | Cost::Computed(_) => return None,
        };
        let quota = plan.quota.filter(|quota| quota.is_counted() && limit.mode == Mode::Enforce)?;
        Some(Self { by: by.clone(), quota, units })
    }
}

/// The limits that are indexed by one attribute.
#[derive(Debug, Default)]
struct Mentions {
    present: Vec<u32>,
    equal: TextMap<Vec<u32>>,
    /// Limits by the loose form of their paths, for paths that are not in their loose form.
    loose: TextMap<Vec<u32>>,
    /// The longest value in `equal`, so that longer ones need not be hashed.
    longest: usize,
    /// Most dots in the last segment of a path among them. It bounds the format suffixes that are tried.
    dots: usize,
}

impl Mentions {
    fn equal(&self, text: &str) -> &[u32] {
        if text.len() > self.longest {
            return &[];
        }
        self.equal.get(text).map_or(&[], Vec::as_slice)
    }

    /// Adds the limits that require a value with this other spelling.
    fn spelled(&self, spelling: Spelling<'_>, value: &str, found: &mut Candidates) {
        if spelling.text() != value {
            found.extend_from_slice(self.equal(spelling.text()));
        }
        if let Spelling::LoosePath(path) = spelling {
            found.extend_from_slice(self.loose(path));
            for path in without_format(path).take(self.dots.saturating_add(1)) {
                found.extend_from_slice(self.equal(path));
                found.extend_from_slice(self.loose(path));
            }
        }
    }

    fn loose(&self, path: &str) -> &[u32] {
        self.loose.get(path).map_or(&[], Vec::as_slice)
    }

    fn insert(&mut self, name: &str, value: &str, limit: u32) {
        insert(&mut self.equal, value, limit);
        self.longest = self.longest.max(value.len());
        if name != PATH {
            return;
        }
        let loose = loose_path(value);
        self.dots = self.dots.max(without_format(&loose).count());
        if let Cow::Owned(loose) = loose {
            insert(&mut self.loose, &loose, limit);
        }
    }
}

fn insert(limits: &mut TextMap<Vec<u32>>, value: &str, limit: u32) {
    let limits = limits.entry(value.into()).or_default();
    // A value listed twice still names the limit once.
    if limits.last() != Some(&limit) {
        limits.push(limit);
    }
}

/// The requirements of a limit, by ids instead of names.
#[derive(Debug, Default)]
pub(crate) struct LimitPlan {
    pub(crate) by: SmallVec<[NameId; BY_MAX]>,
    /// One for each condition that its index entry does not prove.
    pub(crate) checks: Vec<Check>,
    pub(crate) tier_by: SmallVec<[NameId; TIER_BY_MAX]>,
    pub(crate) cost: Option<NameId>,
    /// The names that a request may have, sorted, if it may have no others.
    pub(crate) only: Option<Box<[NameId]>>,
    /// The quota of a limit that has only one.
    pub(crate) quota: Option<QuotaIndex>,
}

/// One condition of a limit, and the attributes that must be present for it to hold.
#[derive(Debug)]
pub(crate) struct Check {
    pub(crate) condition: usize,
    pub(crate) needed: SmallVec<[NameId; 2]>,
}

impl LimitIndex {
    /// Indexes the limits.
    ///
    /// # Errors
    /// There are too many names for their ids.
    pub(crate) fn new(limits: &[Limit]) -> Result<Self, Problem> {
        let mut index = Self::default();
        let frequencies = Frequencies::of(limits);
        for (number, limit) in limits.iter().enumerate() {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            let mut plan = index.plan(limit)?;
            if limit.mode != Mode::Off {
                index.insert(number, limit, &frequencies, &mut plan)?;
            }
            index.plans.push(plan);
        }
        index.single = SingleLimit::of(limits, &index.plans);
        Ok(index)
    }

    pub(crate) fn plan_of(&self, limit: u32) -> Option<&LimitPlan> {
        self.plans.get(limit as usize)
    }

    /// The name that differs from this one, which is none itself, in case alone.
    pub(crate) fn in_other_case(&self, name: &str) -> Option<&str> {
        if self.names.contains_key(name) {
            return None;
        }
        self.names.keys().map(|known| &**known).find(|known| known.eq_ignore_ascii_case(name))
    }

    pub(crate) const fn single(&self) -> Option<&SingleLimit> {
        self.single.as_ref()
    }

    /// The attributes of a request that the policy mentions.
    #[inline]
    pub(crate) fn known(&self, request: &Descriptor<'_>) -> MentionedAttributes {
        let mut known = MentionedAttributes { list: SmallVec::new(), table: [ABSENT; TABLED] };
        for (position, attribute) in (0u8..).zip(request.attributes()) {
            if let Some(&name) = self.names.get(attribute.name) {
                known.list.push((name, position));
                if let Some(slot) = known.table.get_mut(usize::from(name)) {
                    *slot = position;
                }
            }
        }
        known
    }

    /// The limits that may match a request.
    #[inline]
    pub(crate) fn candidates(&self, request: &Descriptor<'_>, known: &MentionedAttributes) -> Candidates {
        let mut found = Candidates::new();
        for &limit in &self.always {
            found.push(limit);
        }
        for &(name, position) in &known.list {
            let mentions = &self.mentions[usize::from(name)];
            for &limit in &mentions.present {
                found.push(limit);
            }
            if mentions.equal.is_empty() {
                continue;
            }
            let mut digits = Digits::new();
            let position = usize::from(position);
            let value = as_text(request.attributes()[position].value, &mut digits);
            found.extend_from_slice(mentions.equal(value));
            request.spellings_of(position).for_each(|spelling| mentions.spelled(spelling, value, &mut found));
        }
        found.sort_unstable();
        if !request.spellings().is_empty() {
            // Two spellings may name one limit.
            found.dedup();
        }
        found
    }

    fn name(&mut self, name: &str) -> Result<NameId, Problem> {
        if let Some(&known) = self.names.get(name) {
            return Ok(known);
        }
        let id = NameId::try_from(self.names.len())
            .map_err(|_| Problem::new("too many attribute names", format!("at most {}", NameId::MAX)))?;
        self.names.insert(name.into(), id);
        self.mentions.push(Mentions::default());
        Ok(id)
    }

    fn plan(&mut self, limit: &Limit) -> Result<LimitPlan, Problem> {
        let mut plan = LimitPlan::default();
        for by in &limit.by {
            plan.by.push(self.name(by.name())?);
        }
        for (condition, wanted) in limit.when.iter().enumerate() {
            let mut needed = SmallVec::new();
            match wanted {
                Condition::OneOf { name, .. } => needed.push(self.name(name)?),
                Condition::Holds(expression) => {
                    for name in expression.needed() {
                        needed.push(self.name(name)?);
                    }
                }
            }
            plan.checks.push(Check { condition, needed });
        }
        plan.quota = limit.quotas.only();
        for name in &limit.quotas.tier_by {
            plan.tier_by.push(self.name(name)?);
        }
        if let Cost::Attribute(name) = &limit.cost {
            plan.cost = Some(self.name(name)?);
        }
        if limit.extra_attributes == ExtraAttributes::None {
            let names = limit.attributes().map(|name| self.name(name));
            plan.only = Some(names.collect::<Result<BTreeSet<_>, _>>()?.into_iter().collect());
        }
        Ok(plan)
    }

    /// Indexes a limit by the predicate that the fewest limits share.
    fn insert(
        &mut self,
        number: u32,
        limit: &Limit,
        frequencies: &Frequencies<'_>,
        plan: &mut LimitPlan,
    ) -> Result<(), Problem> {
        if let Some(condition) = frequencies.rarest_value(limit)
            && let Condition::OneOf { name, choices, .. } = &limit.when[condition]
        {
            let id = self.name(name)?;
            let mentions = &mut self.mentions[usize::from(id)];
            choices.values().iter().for_each(|value| mentions.insert(name, value, number));
            plan.checks.retain(|check| check.condition != condition);
            return Ok(());
        }
        match frequencies.rarest_name(limit) {
            Some(name) => {
                let id = self.name(name)?;
                self.mentions[usize::from(id)].present.push(number);
            }
            None => self.always.push(number),
        }
        Ok(())
    }
}

/// How many limits require each value and each attribute.
struct Frequencies<'l> {
    values: HashMap<(&'l str, &'l str), usize>,
    names: HashMap<&'l str, usize>,
}

impl<'l> Frequencies<'l> {
    fn of(limits: &'l [Limit]) -> Self {
        let (mut values_of, mut names) = (HashMap::new(), HashMap::new());
        for limit in limits {
            for name in required(limit) {
                *names.entry(name).or_default() += 1;
            }
            for (name, values) in limit.when.iter().filter_map(values) {
                for value in values {
                    *values_of.entry((name, value.as_str())).or_default() += 1;
                }
            }
        }
        Self { values: values_of, names }
    }

    /// The condition on values whose commonest value is rarest.
    fn rarest_value(&self, limit: &Limit) -> Option<usize> {
        let frequency = |name: &str, value: &String| self.values.get(&(name, value.as_str())).copied();
        let conditions = limit.when.iter().enumerate();
        conditions
            .filter_map(|(i, condition)| {
                let (name, values) = values(condition)?;
                let frequency = values.iter().filter_map(|value| frequency(name, value)).max()?;
                Some((frequency, i))
            })
            .min()
            .map(|(_, condition)| condition)
    }

    /// The required attribute that the fewest limits require.
    fn rarest_name<'n>(&self, limit: &'n Limit) -> Option<&'n str> {
        required(limit).min_by_key(|name| self.names.get(name).copied())
    }
}

/// The values of a condition that requires one of them, and has no patterns.
fn values(condition: &Condition) -> Option<(&str, &[String])> {
    match condition {
        Condition::OneOf { name, choices, sense: Negation::Is } if choices.are_plain() => {
            Some((name, choices.values()))
        }
        Condition::OneOf { .. } | Condition::Holds(_) => None,
    }
}

/// The attributes without which a limit cannot apply.
fn required(limit: &Limit) -> impl Iterator<Item = &str> {
    let conditions = limit.when.iter().flat_map(Condition::required);
    limit.by.iter().map(By::name).chain(conditions)
}
