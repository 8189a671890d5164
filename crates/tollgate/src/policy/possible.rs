//! The counters that may exist for some attributes of a request, while the others are unknown. An operator who names an
//! address means all of its counters, for any path and any tier.

use smallvec::SmallVec;

use crate::policy::compared::Replaced;
use crate::policy::condition::Condition;
use crate::policy::limit::{BY_MAX, Chosen, Limit, Mode, QuotaIndex, Role, TIER_BY_MAX, TIER_SEPARATOR};
use crate::policy::unmet::Unmet;
use crate::policy::{MATCHED_MAX, Match, Matches, Policy};
use crate::request::{Descriptor, Value};

impl Policy {
    /// The limits that may count a request that has these attributes and perhaps others.
    #[must_use]
    pub fn may_count<'p>(&'p self, request: &Descriptor<'_>) -> Vec<&'p Limit> {
        let mut digests = Replaced::new();
        let request =
            self.compared(request, &mut digests).unwrap_or_else(|| request.replaced(std::iter::empty()));
        let may = |limit: &&Limit| limit.mode != Mode::Off && limit.may_count(&request).is_some();
        self.limits.iter().filter(may).collect()
    }

    /// The limits by key that have no match yet and may count a request with these attributes and others. Each has the
    /// quota of a request with these attributes alone.
    pub(crate) fn open_matches(
        &self,
        request: &Descriptor<'_>,
        matches: &Matches,
        is_on: impl Fn(&Limit) -> bool,
    ) -> Matches {
        let mut digests = Replaced::new();
        let request =
            self.compared(request, &mut digests).unwrap_or_else(|| request.replaced(std::iter::empty()));
        let is_matched = |number: u32| matches.iter().any(|matched| matched.limit == number);
        let open = |(number, limit): (u32, &Limit)| {
            if limit.by.is_empty() || is_matched(number) || !is_on(limit) {
                return None;
            }
            let by = limit.may_count(&request)?;
            let quota = limit.chosen(&request).map_or_else(|| limit.default_quota(), |chosen| chosen.quota);
            // Without the attributes of its cost, the counter is looked at for one unit.
            let cost = limit.cost_of(&request).unwrap_or(1);
            quota.is_counted().then_some(Match { limit: number, quota, cost, descriptor: 0, by })
        };
        (0u32..).zip(self.limits.iter()).filter_map(open).take(MATCHED_MAX).collect()
    }
}

impl Limit {
    /// The positions of the attributes that it counts by, if it may count a request with these attributes and perhaps others.
    #[must_use]
    pub(crate) fn may_count(&self, request: &Descriptor<'_>) -> Option<[u8; BY_MAX]> {
        let mut by = [0; BY_MAX];
        for (slot, counted) in by.iter_mut().zip(&self.by) {
            *slot = u8::try_from(position(request, counted.name())?).ok()?;
        }
        let may_hold = self.when.iter().all(|condition| condition.may_hold(request));
        (may_hold && self.unnamed(request).next().is_none()).then_some(by)
    }

    /// Why it counts no request with these attributes; an empty list if it may count one.
    #[must_use]
    pub fn never_counts(&self, request: &Descriptor<'_>) -> Vec<Unmet> {
        let is_by = |attribute: &str| self.by.iter().any(|by| by.name() == attribute);
        let is_final = |reason: &Unmet| match reason {
            Unmet::Missing { attribute } => is_by(attribute),
            Unmet::False { .. } => !self.when.iter().all(|condition| condition.may_hold(request)),
            Unmet::Off | Unmet::Differs { .. } | Unmet::Excluded { .. } | Unmet::Extra { .. } => true,
        };
        self.unmet(request).into_iter().filter(is_final).collect()
    }

    /// The quotas of requests with these attributes and perhaps others, without those that count nothing.
    pub(crate) fn possible_quotas(&self, request: &Descriptor<'_>) -> SmallVec<[QuotaIndex; 4]> {
        let chosen = self.chosen(request);
        let quota = |chosen: Option<Chosen<'_>>| chosen.map_or_else(|| self.default_quota(), |one| one.quota);
        let mut possible = SmallVec::<[QuotaIndex; 4]>::new();
        possible.push(quota(chosen));
        let is_overridden = chosen.is_some_and(|chosen| chosen.role == Role::Override);
        let is_open = |name: &&String| position(request, name).is_none();
        let open: SmallVec<[&String; TIER_BY_MAX]> = self.tier_by().iter().filter(is_open).collect();
        match open.as_slice() {
            _ if is_overridden => {}
            [] => {}
            [name] if self.tier_by().len() > 1 => {
                // The tier of a given value, with every value of the other attribute in the policy.
                let part = self.tier_by().iter().position(|known| known == *name).unwrap_or_default();
                for value in self.tiers().filter_map(|(tier, _)| tier.split(TIER_SEPARATOR).nth(part)) {
                    let mut with = request.replaced(std::iter::empty());
                    if with.push(name, Value::Text(value)).is_ok() {
                        possible.push(quota(self.chosen(&with)));
                    }
                }
            }
            _ => possible.extend(self.tiers().map(|(_, index)| index)),
        }
        possible.retain(|index| index.is_counted());
        possible.sort_unstable_by_key(|index| index.0);
        possible.dedup();
        possible
    }

    /// The override or tier that a request has.
    fn chosen(&self, request: &Descriptor<'_>) -> Option<Chosen<'_>> {
        let first = self.by.first().and_then(|by| position(request, by.name()));
        let mut tier = [None; TIER_BY_MAX];
        for (place, name) in tier.iter_mut().zip(self.tier_by()) {
            *place = position(request, name);
        }
        self.choose(request, first, tier)
    }
}

impl Condition {
    /// Whether it may hold for a request that has these attributes and perhaps others.
    fn may_hold(&self, request: &Descriptor<'_>) -> bool {
        self.mentioned().any(|name| position(request, name).is_none()) || self.holds(request)
    }
}

fn position(request: &Descriptor<'_>, name: &str) -> Option<usize> {
    request.attributes().iter().position(|given| given.name == name)
}
