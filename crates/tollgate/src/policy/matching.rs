//! The limits that match a request, with their quota and cost. This is the hot path: limits without CEL allocate nothing.

use smallvec::SmallVec;

use crate::policy::compared::Replaced;
use crate::policy::condition::Condition;
use crate::policy::finding::quoted;
use crate::policy::index::{Check, LimitPlan, MentionedAttributes};
use crate::policy::limit::{BY_MAX, Cost, Limit, MATCHED_MAX, Mode, QuotaIndex, TIER_BY_MAX};
use crate::policy::text::{Digits, as_text};
use crate::policy::{Fault, Policy};
use crate::request::{COST_MAX, CheckRequest, DESCRIPTORS_MAX, Descriptor, Value};

/// One limit that matches a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Its position in the policy.
    pub limit: u32,
    /// Which of its quotas applies.
    pub quota: QuotaIndex,
    /// Units to charge; 0 only reads the counter.
    pub cost: u64,
    /// The position of the descriptor that it applies to; 0 for a request with one.
    pub descriptor: u8,
    /// Positions of the attributes that it counts by, in the order of the limit's `by`. The rest is zero.
    pub by: [u8; BY_MAX],
}

/// The limits that match a request, in the order of the policy.
pub type Matches = SmallVec<[Match; 6]>;

impl Policy {
    /// The limits that match a request. It checks only limits that mention attributes of the request. A limit is in the
    /// list at most once, for the first descriptor that it applies to: no limit sees attributes of two descriptors.
    ///
    /// # Errors
    /// A cost cannot be computed from the request, more than [`MATCHED_MAX`] limits match it, or it has more than
    /// [`DESCRIPTORS_MAX`] descriptors.
    #[inline]
    pub fn matches(&self, request: &CheckRequest<'_>) -> Result<Matches, Fault> {
        let mut matches = Matches::new();
        self.match_into(request, &mut matches)?;
        Ok(matches)
    }

    /// Writes the matches in place, because each move of them would copy much memory.
    #[inline]
    pub(crate) fn match_into(&self, request: &CheckRequest<'_>, matches: &mut Matches) -> Result<(), Fault> {
        // A policy of one plain limit needs no index.
        if let Some(matched) = request.only().and_then(|descriptor| self.match_single(descriptor)) {
            #[cfg(test)]
            crate::counted::matching();
            matches.push(matched);
            return Ok(());
        }
        self.match_as(request, |limit| limit.mode, matches)
    }

    /// Matches with other modes of limits than those of the policy. A limit that is off in the policy stays off.
    #[inline]
    pub(crate) fn match_as(
        &self,
        request: &CheckRequest<'_>,
        mode_of: impl Fn(&Limit) -> Mode,
        matches: &mut Matches,
    ) -> Result<(), Fault> {
        #[cfg(test)]
        crate::counted::matching();
        if request.descriptor_count() > DESCRIPTORS_MAX {
            return Err(Fault::TooManyDescriptors);
        }
        let mut found = Found { matches, shadow: SmallVec::new() };
        for (number, descriptor) in (0u8..).zip(request.descriptors()) {
            self.find(number, descriptor, &mode_of, &mut found)?;
        }
        if request.only().is_none() {
            found.matches.sort_unstable_by_key(|matched| matched.limit);
        }
        found.put_in_order();
        Ok(())
    }

    /// The match of a policy of one plain limit. Returns `None` if the index must be asked.
    #[inline]
    fn match_single(&self, descriptor: &Descriptor<'_>) -> Option<Match> {
        let single = self.index.single()?;
        let position = descriptor.attributes().iter().position(|given| given.name == single.by.name())?;
        let mut by = [0; BY_MAX];
        by[0] = u8::try_from(position).ok()?;
        let cost = match (descriptor.units(), single.units) {
            (0, _) => 0,
            (_, Some(units)) => units,
            (requested, None) => requested,
        };
        Some(Match { limit: 0, quota: single.quota, cost, descriptor: 0, by })
    }

    /// Adds the limits that match one descriptor, and none before it.
    #[inline]
    fn find(
        &self,
        number: u8,
        request: &Descriptor<'_>,
        mode_of: &impl Fn(&Limit) -> Mode,
        found: &mut Found<'_>,
    ) -> Result<(), Fault> {
        match self.compared(request, &mut Replaced::new()) {
            None => self.find_compared(number, request, mode_of, found),
            Some(request) => self.find_compared(number, &request, mode_of, found),
        }
    }

    #[inline]
    fn find_compared(
        &self,
        number: u8,
        request: &Descriptor<'_>,
        mode_of: &impl Fn(&Limit) -> Mode,
        found: &mut Found<'_>,
    ) -> Result<(), Fault> {
        let request_match = MatchRequest { request, known: self.index.known(request) };
        for &index in &self.index.candidates(request, &request_match.known) {
            let (Some(limit), Some(plan)) = (self.limits.get(index as usize), self.index.plan_of(index))
            else {
                continue;
            };
            if number > 0 && found.has(index) {
                continue;
            }
            let Some(by) = request_match.meets(limit, plan) else {
                continue;
            };
            let mode = mode_of(limit);
            if mode == Mode::Off {
                continue;
            }
            let in_shadow = mode == Mode::Shadow;
            let quota = plan.quota.unwrap_or_else(|| request_match.chosen_quota(limit, plan, &by));
            let cost = match request_match.cost(limit, plan) {
                Ok(cost) => cost,
                // Nothing is charged, so the cost does not matter.
                Err(_) if !quota.is_counted() => 0,
                // A limit in shadow never refuses, so a failed cost skips it.
                Err(_) if in_shadow => continue,
                Err(fault) => return Err(fault),
            };
            let matched = Match { limit: index, quota, cost, descriptor: number, by };
            if in_shadow {
                found.shadow.push(matched);
                continue;
            }
            if found.matches.len() == MATCHED_MAX {
                return Err(Fault::TooManyLimits);
            }
            found.matches.push(matched);
        }
        Ok(())
    }
}

/// The matches so far: enforced limits, and those in shadow.
struct Found<'m> {
    matches: &'m mut Matches,
    shadow: SmallVec<[Match; 2]>,
}

impl Found<'_> {
    fn has(&self, limit: u32) -> bool {
        self.matches.iter().chain(&self.shadow).any(|matched| matched.limit == limit)
    }

    #[inline]
    fn put_in_order(self) {
        let Self { matches, shadow } = self;
        if !shadow.is_empty() {
            // Enforced limits take precedence within the bound.
            let left = MATCHED_MAX - matches.len();
            matches.extend(shadow.into_iter().take(left));
            matches.sort_unstable_by_key(|matched| matched.limit);
        }
    }
}

/// A request, and the attributes of it that the policy mentions.
struct MatchRequest<'r, 'a> {
    request: &'r Descriptor<'a>,
    known: MentionedAttributes,
}

impl<'a> MatchRequest<'_, 'a> {
    #[inline]
    fn value(&self, position: u8) -> Value<'a> {
        self.request.attributes()[usize::from(position)].value
    }

    /// The values that the limit counts by, if it applies.
    #[inline]
    fn meets(&self, limit: &Limit, plan: &LimitPlan) -> Option<[u8; BY_MAX]> {
        let mut by = [0; BY_MAX];
        for (slot, &name) in by.iter_mut().zip(&plan.by) {
            *slot = self.known.position(name)?;
        }
        let holds = |check: &Check| self.holds(&limit.when[check.condition], check);
        let is_only = |names: &[_]| self.known.are_all_in(names, self.request.attributes().len());
        (plan.only.as_deref().is_none_or(is_only) && plan.checks.iter().all(holds)).then_some(by)
    }

    fn holds(&self, condition: &Condition, check: &Check) -> bool {
        match condition {
            Condition::OneOf { choices, sense, .. } => {
                let position = check.needed.first().and_then(|&name| self.known.position(name));
                sense.holds(choices, self.request, position.map(usize::from))
            }
            Condition::Holds(expression) => {
                check.needed.iter().all(|&name| self.known.position(name).is_some())
                    && expression.holds(self.request)
            }
        }
    }

    /// The quota of a limit with several: that of the key's override or tier, or the default.
    fn chosen_quota(&self, limit: &Limit, plan: &LimitPlan, by: &[u8]) -> QuotaIndex {
        let first = by.first().map(|&position| usize::from(position));
        let mut tier = [None; TIER_BY_MAX];
        for (slot, &name) in tier.iter_mut().zip(&plan.tier_by) {
            *slot = self.known.position(name).map(usize::from);
        }
        let chosen = limit.choose(self.request, first, tier);
        chosen.map_or_else(|| limit.default_quota(), |chosen| chosen.quota)
    }

    /// The cost of the limit. A request with a cost of 0 only reads the counters, whatever the cost of the limit.
    #[inline(always)]
    fn cost(&self, limit: &Limit, plan: &LimitPlan) -> Result<u64, Fault> {
        match &limit.cost {
            _ if self.request.units() == 0 => Ok(0),
            Cost::Asked => Ok(self.request.units()),
            Cost::Units(units) => Ok(*units),
            Cost::Attribute(name) => {
                let position = plan.cost.and_then(|name| self.known.position(name));
                self.attribute_cost(limit, name, position)
            }
            Cost::Computed(expression) => {
                expression.cost(self.request).map_err(|reason| fault(limit, reason))
            }
        }
    }

    #[inline(never)]
    fn attribute_cost(&self, limit: &Limit, name: &str, position: Option<u8>) -> Result<u64, Fault> {
        match position {
            Some(position) => attribute_cost(name, self.value(position)),
            None => Err(format!("the attribute {name} is missing")),
        }
        .map_err(|reason| fault(limit, reason))
    }
}

impl Limit {
    /// The cost of a request that it matches.
    ///
    /// # Errors
    /// The cost cannot be computed. The message says why.
    pub(crate) fn cost_of(&self, request: &Descriptor<'_>) -> Result<u64, String> {
        if request.units() == 0 {
            return Ok(0);
        }
        match &self.cost {
            Cost::Asked => Ok(request.units()),
            Cost::Units(units) => Ok(*units),
            Cost::Attribute(name) => {
                let given = request.attributes().iter().find(|given| given.name == name);
                let given = given.ok_or_else(|| format!("the attribute {name} is missing"))?;
                attribute_cost(name, given.value)
            }
            Cost::Computed(expression) => expression.cost(request),
        }
    }
}

fn fault(limit: &Limit, reason: String) -> Fault {
    Fault::Cost { limit: limit.name.clone(), reason }
}

/// The cost in an attribute, as a number or in decimal digits.
fn attribute_cost(name: &str, value: Value<'_>) -> Result<u64, String> {
    let cost = match value {
        Value::Number(number) => u64::try_from(number).ok(),
        Value::Text(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        Value::Text(_) => None,
    };
    cost.filter(|&cost| cost <= COST_MAX).ok_or_else(|| {
        let mut digits = Digits::new();
        let text = quoted(as_text(value, &mut digits));
        format!("the attribute {name} is {text}; accepted: whole numbers from 0 to {COST_MAX}")
    })
}
