//! Limits whose value for a request is `unlimited` or `deny`. They have no counter, so no store is asked: they also
//! answer while the store is unreachable, and a request that one of them forbids is charged nowhere.

use std::sync::Arc;

use super::Question;
use super::live::Live;
use super::ruling::InForce;
use crate::decision::{Decision, Status};
use crate::outcome::{Outcome, Source, Verdict};
use crate::policy::{Match, Matches, QuotaIndex};
use crate::request::CheckRequest;

impl Question<'_> {
    /// Whether an enforced limit denies the request whatever was counted.
    #[inline]
    pub(super) fn is_forbidden(&self) -> bool {
        self.uncounted.iter().any(Status::refuses)
    }

    /// The decision about a forbidden request. No other limit is asked.
    pub(super) fn forbidden(&self, live: &Live) -> Decision {
        let mut decision = Decision::open(Arc::clone(&live.policy));
        decision.add_uncounted(&self.uncounted);
        decision
    }
}

impl Live {
    /// Moves the matches that need no counter out of `matches`, as statuses.
    #[inline]
    pub(super) fn take_uncounted(
        &self,
        views: &[CheckRequest<'_>],
        matches: &mut Matches,
        rulings: &InForce,
        uncounted: &mut Vec<Status>,
    ) {
        if matches.iter().any(|matched| !matched.quota.is_counted()) {
            let without = matches.iter().filter(|matched| !matched.quota.is_counted());
            uncounted.extend(without.map(|matched| self.uncounted(views, matched, rulings)));
            matches.retain(|matched| matched.quota.is_counted());
        }
    }

    fn uncounted(&self, views: &[CheckRequest<'_>], matched: &Match, rulings: &InForce) -> Status {
        let (stance, _, key) = self.counter(&views[usize::from(matched.view)], matched, rulings);
        let verdict = match matched.quota {
            QuotaIndex::UNLIMITED => Verdict::Allow,
            _ => Verdict::Forbidden,
        };
        Status {
            limit: matched.limit,
            quota: matched.quota,
            view: matched.view,
            stance,
            source: Source::Policy,
            key_hash: key.digest(),
            outcome: Outcome::uncounted(verdict),
            charged_at: crate::time::Timestamp::default(),
        }
    }
}
