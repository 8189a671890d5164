//! Charges under a policy: those of a matched request, and those of what earlier decisions took.

use super::{ActivePolicy, identity};
use crate::algorithm::Charged;
use crate::algorithm::concurrency::PermitId;
use crate::decision::{Decision, Held, Status};
use crate::key::Fingerprint;
use crate::outcome::{Outcome, Source, Verdict};
use crate::overrides::ActiveOverrides;
use crate::policy::{Match, Matches, Mode, QuotaIndex};
use crate::request::CheckRequest;
use crate::store::{Charge, Charges, Enforcement, Family};
use crate::time::Timestamp;

/// The counter of a matched limit, as far as it depends on the request. It is computed once for each request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CounterKey {
    pub(crate) key: Fingerprint,
    pub(crate) enforcement: Enforcement,
    group: Option<u16>,
}

impl From<&Charge<'_>> for CounterKey {
    fn from(charge: &Charge<'_>) -> Self {
        Self { key: charge.key, enforcement: charge.enforcement, group: charge.group }
    }
}

impl ActivePolicy {
    /// Keeps only the limits with these names, or all if there are none.
    pub(crate) fn keep_named(&self, matches: &mut Matches, names: &[&str]) {
        let name = |matched: &Match| self.policy.limits()[matched.limit as usize].name();
        matches.retain(|matched| names.is_empty() || names.contains(&name(matched)));
    }

    /// The charges of the matched limits, in the policy's order.
    pub(crate) fn charges<'l>(
        &'l self,
        request: &CheckRequest<'_>,
        matches: &[Match],
        overrides: &ActiveOverrides,
        permit: PermitId,
    ) -> Charges<'l> {
        let mut charges = Charges::new();
        charges.extend(matches.iter().map(|matched| self.charge(request, matched, overrides, permit)));
        charges
    }

    /// The counter of one matched limit.
    #[inline]
    pub(crate) fn counter_key(
        &self,
        request: &CheckRequest<'_>,
        matched: &Match,
        overrides: &ActiveOverrides,
    ) -> CounterKey {
        let limit = &self.policy.limits()[matched.limit as usize];
        let counters = &self.counters[matched.limit as usize];
        let descriptor = request.descriptor(matched.descriptor);
        let group = self.group_of(descriptor, matched, counters);
        let key = |family: &Family| counters.key(family, &self.secret, descriptor, matched);
        let (mode, percent) = overrides.matching_mode(limit);
        if mode != Mode::Shadow {
            let key = key(&counters.enforced);
            if percent >= 100 || key.digest() % 100 < u64::from(percent) {
                return CounterKey { key, enforcement: Enforcement::Enforced, group };
            }
        }
        CounterKey { key: key(&counters.shadow), enforcement: Enforcement::Shadow, group }
    }

    /// Moves the matches that need no counter out of `matches`, as statuses: limits whose value for a request is
    /// `unlimited` or `deny`. They also answer while the store is unreachable.
    #[inline]
    pub(crate) fn take_uncounted(
        &self,
        request: &CheckRequest<'_>,
        matches: &mut Matches,
        overrides: &ActiveOverrides,
        uncounted: &mut Vec<Status>,
    ) {
        if matches.iter().any(|matched| !matched.quota.is_counted()) {
            let without = matches.iter().filter(|matched| !matched.quota.is_counted());
            uncounted.extend(without.map(|matched| self.uncounted(request, matched, overrides)));
            matches.retain(|matched| matched.quota.is_counted());
        }
    }

    fn uncounted(&self, request: &CheckRequest<'_>, matched: &Match, overrides: &ActiveOverrides) -> Status {
        let CounterKey { key, enforcement, .. } = self.counter_key(request, matched, overrides);
        let verdict = match matched.quota {
            QuotaIndex::UNLIMITED => Verdict::Allow,
            _ => Verdict::Forbidden,
        };
        Status {
            limit: matched.limit,
            quota: matched.quota,
            descriptor: matched.descriptor,
            enforcement,
            source: Source::Policy,
            key,
            group: None,
            cost: 0,
            outcome: Outcome::uncounted(verdict),
            charged_at: Timestamp::default(),
        }
    }

    /// The charge of one matched limit, which has a counter.
    #[inline]
    pub(crate) fn charge<'l>(
        &'l self,
        request: &CheckRequest<'_>,
        matched: &Match,
        overrides: &ActiveOverrides,
        permit: PermitId,
    ) -> Charge<'l> {
        self.charge_key(matched, self.counter_key(request, matched, overrides), permit)
    }

    /// The charge of one matched limit whose counter is known.
    #[inline]
    pub(crate) fn charge_key<'l>(
        &'l self,
        matched: &Match,
        CounterKey { key, enforcement, group }: CounterKey,
        permit: PermitId,
    ) -> Charge<'l> {
        let limit = &self.policy.limits()[matched.limit as usize];
        let counters = &self.counters[matched.limit as usize];
        Charge {
            key,
            family: counters.family(enforcement),
            number: counters.numbers[matched.quota.0 as usize],
            quota: &limit.quotas()[matched.quota.0 as usize],
            cost: matched.cost,
            enforcement,
            permit,
            group,
            lease: limit.lease(),
            charged: Charged::UNKNOWN,
        }
    }

    /// The charge of what was taken, under this policy; `None` when the limit is gone, or counts anew.
    pub(crate) fn charge_of(&self, held: &Held, permit: PermitId, cost: u64) -> Option<Charge<'_>> {
        let (limit, counters) = self.counters_of(&held.limit)?;
        let family = counters.family(held.enforcement);
        if family.id() != held.family {
            return None;
        }
        let at = held.quota_in(limit);
        let (number, quota) = (*counters.numbers.get(at)?, limit.quotas().get(at)?);
        Some(Charge {
            key: held.key,
            family,
            number,
            quota,
            cost,
            enforcement: held.enforcement,
            permit,
            group: held.group,
            // Later settlement goes to the counter itself, not to a lease.
            lease: None,
            charged: held.charged_at.map_or(Charged::UNKNOWN, Charged::At),
        })
    }

    /// Units that a decision at `now` took from one counter; `None` when the limit is gone, or counts anew: nothing was taken
    /// from those counters.
    pub(crate) fn held_by(&self, decision: &Decision, status: &Status, now: Timestamp) -> Option<Held> {
        let limit = &decision.policy().limits()[status.limit as usize];
        let (known, counters) = self.counters_of(limit.name())?;
        if !std::ptr::eq(limit, known) && identity(limit) != identity(known) {
            return None;
        }
        let (family, quota) = (counters.family(status.enforcement), limit.quota(status.quota)?);
        let charge = Charge {
            enforcement: status.enforcement,
            group: status.group,
            ..Charge::new(status.key, family, 0, quota, status.cost)
        };
        let mut held = Held::by_status(limit, &charge, status, now);
        held.number = *counters.numbers.get(held.quota_in(known))?;
        Some(held)
    }

    /// The indexes of the limit and of the quota that it was taken from, in this policy.
    pub(crate) fn position_of(&self, held: &Held) -> Option<(usize, QuotaIndex)> {
        let position = self.position(&held.limit)?;
        let at = held.quota_in(&self.policy.limits()[position]);
        Some((position, QuotaIndex(u32::try_from(at).ok()?)))
    }
}
