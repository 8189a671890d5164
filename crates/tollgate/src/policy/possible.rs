//! What a limit may have counted for some attributes of a request, where the others are not named: an operator who names an address
//! means what was counted for it, on whatever path and in whatever tier.

use smallvec::SmallVec;

use crate::policy::Policy;
use crate::policy::condition::Condition;
use crate::policy::limit::{ANY, BY_MAX, Limit, Mode, QuotaIndex, TIER_BY_MAX, TIER_SEPARATOR};
use crate::policy::seal::Sealed;
use crate::policy::text::{Digits, as_text};
use crate::policy::unmet::Unmet;
use crate::request::{CheckRequest, Value};

impl Policy {
    /// The limits that may count a request that has these attributes and perhaps others.
    #[must_use]
    pub fn may_count<'p>(&'p self, request: &CheckRequest<'_>) -> Vec<&'p Limit> {
        let mut digests = Sealed::new();
        let request = self.compared(request, &mut digests).unwrap_or_else(|| request.replaced(&[]));
        let may = |limit: &&Limit| limit.mode != Mode::Off && limit.may_count(&request).is_some();
        self.limits.iter().filter(may).collect()
    }
}

impl Limit {
    /// Where the values stand that it counts by, if it may count a request that has these attributes and perhaps others.
    #[must_use]
    pub(crate) fn may_count(&self, request: &CheckRequest<'_>) -> Option<SmallVec<[u8; BY_MAX]>> {
        let mut by = SmallVec::new();
        for counted in &self.by {
            by.push(u8::try_from(position(request, counted.name())?).ok()?);
        }
        self.when.iter().all(|condition| condition.may_hold(request)).then_some(by)
    }

    /// Why it counts no request that has these attributes, whatever else it has; nothing if it may count one.
    #[must_use]
    pub fn never_counts(&self, request: &CheckRequest<'_>) -> Vec<Unmet> {
        let is_by = |attribute: &str| self.by.iter().any(|by| by.name() == attribute);
        let is_final = |reason: &Unmet| match reason {
            Unmet::Missing { attribute } => is_by(attribute),
            Unmet::False { .. } => !self.when.iter().all(|condition| condition.may_hold(request)),
            Unmet::Off | Unmet::Differs { .. } | Unmet::Excluded { .. } => true,
        };
        self.unmet(request).into_iter().filter(is_final).collect()
    }

    /// The quotas that a request may get that has these attributes and perhaps others, without those that count nothing.
    pub(crate) fn possible_quotas(&self, request: &CheckRequest<'_>, by: &[u8]) -> SmallVec<[QuotaIndex; 4]> {
        let value = |place: usize| request.attributes().get(place).map(|given| given.value);
        let mut room = crate::address::Text::EMPTY;
        let first = by.first().zip(self.by.first());
        let first = first.and_then(|(&place, by)| Some(by.counted(value(usize::from(place))?, &mut room)));
        let mut tier = [None; TIER_BY_MAX];
        for (given, name) in tier.iter_mut().zip(self.tier_by()) {
            *given = position(request, name).and_then(value);
        }
        let given = self.quotas.select(first, tier);
        let mut possible = SmallVec::<[QuotaIndex; 4]>::new();
        possible.push(given);
        let is_open = tier.iter().zip(self.tier_by()).any(|(given, _)| given.is_none());
        if is_open && !self.is_overridden(first) {
            let fitting = self.tiers().filter(|(name, _)| may_be_tier(name, self.tier_by().len(), tier));
            possible.extend(fitting.map(|(_, index)| index));
        }
        possible.retain(|index| index.is_counted());
        possible.sort_unstable_by_key(|index| index.0);
        possible.dedup();
        possible
    }

    /// Whether the key has a quota of its own, whatever its tier.
    fn is_overridden(&self, first: Option<Value<'_>>) -> bool {
        let mut room: Digits = [0; 20];
        first.is_some_and(|value| self.quotas.overrides.contains_key(as_text(value, &mut room)))
    }
}

impl Condition {
    /// Whether it may hold for a request that has these attributes and perhaps others.
    fn may_hold(&self, request: &CheckRequest<'_>) -> bool {
        self.mentioned().any(|name| position(request, name).is_none()) || self.holds(request)
    }
}

fn position(request: &CheckRequest<'_>, name: &str) -> Option<usize> {
    request.attributes().iter().position(|given| given.name == name)
}

/// Whether a request may have the tier of this name, of which these values are given.
fn may_be_tier(name: &str, parts: usize, given: [Option<Value<'_>>; TIER_BY_MAX]) -> bool {
    let mut rooms: [Digits; TIER_BY_MAX] = Default::default();
    let named: SmallVec<[&str; TIER_BY_MAX]> =
        if parts == 1 { SmallVec::from_slice(&[name]) } else { name.split(TIER_SEPARATOR).collect() };
    named.iter().zip(given).zip(&mut rooms).all(|((part, given), room)| match given {
        Some(value) => *part == ANY || *part == as_text(value, room),
        None => true,
    })
}
