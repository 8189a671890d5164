//! Limits whose value for a request is `unlimited` or `deny`. They have no counter, so no store is asked: they also
//! answer while the store is unreachable, and a request that one of them forbids is charged nowhere.

use std::sync::Arc;

use super::active::{ActivePolicy, CounterKey};
use super::check::ChargeSet;
use super::overrides::ActiveOverrides;
use crate::decision::{Decision, Status};
use crate::outcome::{Outcome, Source, Verdict};
use crate::policy::{Match, Matches, QuotaIndex};
use crate::request::CheckRequest;

impl ChargeSet<'_> {
    /// Whether an enforced limit denies the request whatever was counted.
    #[inline]
    pub(super) fn is_forbidden(&self) -> bool {
        self.uncounted.iter().any(Status::refuses)
    }

    /// The decision about a forbidden request. No other limit is asked.
    pub(super) fn forbidden(&self, active: &ActivePolicy) -> Decision {
        let mut decision = Decision::open(Arc::clone(&active.policy));
        decision.add_uncounted(&self.uncounted);
        decision
    }
}

impl ActivePolicy {
    /// Moves the matches that need no counter out of `matches`, as statuses.
    #[inline]
    pub(super) fn take_uncounted(
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
            key_hash: key.digest(),
            outcome: Outcome::uncounted(verdict),
            charged_at: crate::time::Timestamp::default(),
        }
    }
}
