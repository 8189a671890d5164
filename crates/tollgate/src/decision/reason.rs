//! Why a request was denied, in words, and when to retry: the same on every protocol. What of it a caller may see is
//! left to [`crate::headers`].

use std::borrow::Cow;
use std::cmp::Reverse;

use super::{Block, Decision, LimitStatus, Reason};
use crate::outcome::{Source, Verdict};
use crate::policy::Fault;
use crate::quota::Quota;
use crate::time::Ticks;

/// When to look again for a free permit. Its expiry is only the worst case: permits come back as soon as requests end.
const PERMIT_RETRY: Ticks = Ticks::from_secs(1);

impl Reason {
    /// The word for it that programs act on. An exhausted quota, a cost and a fault have none: a sentence describes
    /// them.
    #[must_use]
    pub const fn word(self) -> Option<&'static str> {
        match self {
            Reason::Unavailable => Some("limiter-unavailable"),
            Reason::Blocked => Some(Block::NAME),
            Reason::Forbidden => Some("denied-by-policy"),
            Reason::Penalty => Some("penalty"),
            Reason::Quota | Reason::Cost | Reason::Fault => None,
        }
    }
}

impl LimitStatus<'_> {
    /// How long a caller that this limit denied should wait. It is exact, except that a denied concurrency limit is
    /// worth another look after a second, however long its permits live.
    #[must_use]
    pub fn retry_advice(&self) -> Option<Ticks> {
        let retry_after = self.outcome.verdict.retry_after()?;
        match self.quota {
            Some(Quota::Concurrency(_)) if self.source != Source::Penalty => {
                Some(retry_after.min(PERMIT_RETRY))
            }
            _ => Some(retry_after),
        }
    }

    /// The quota of the limit, as the reason of its denial.
    pub(crate) fn admits(&self) -> String {
        let mut text = self.quota.map(|quota| self.limit.amount(quota)).unwrap_or_default();
        if self.outcome.verdict == Verdict::Never {
            text.push_str(&format!(
                "; the request costs more than the {} that can pass at once",
                self.outcome.limit
            ));
        }
        match self.source {
            Source::Overflow => {
                text.push_str("; memory is full, so this key shares a counter with other new keys")
            }
            Source::Local => text.push_str("; counted by this node alone, because the store does not answer"),
            _ => {}
        }
        text
    }

    /// Among several limits that deny a request, the one with the highest rank is the cause: one that says `deny`,
    /// otherwise one that can never admit it, the smallest first, otherwise the one with the longest wait.
    #[must_use]
    pub fn refusal_rank(&self) -> (u8, Ticks, Reverse<u64>) {
        match self.outcome.verdict {
            Verdict::Forbidden => (4, Ticks::ZERO, Reverse(0)),
            Verdict::Never => (3, Ticks::ZERO, Reverse(self.outcome.limit)),
            Verdict::Deny { retry_after } => (2, self.retry_advice().unwrap_or(retry_after), Reverse(0)),
            Verdict::Wait(wait) => (1, wait, Reverse(0)),
            Verdict::Allow => (0, Ticks::ZERO, Reverse(0)),
        }
    }
}

impl Decision {
    /// When to retry after a denial that waiting cures: the longest advice of the limits that denied the request, or
    /// the end of the operator's block. `Retry-After` is this, rounded up to seconds, with jitter added.
    #[must_use]
    pub fn retry_advice(&self) -> Option<Ticks> {
        self.cause().map_or(self.verdict.retry_after(), |status| status.retry_advice())
    }

    /// The cause of a denial: a limit's name, [`Block::NAME`], or [`Decision::REQUEST`] where no limit was asked. It
    /// also names a limit in shadow whose cost cannot be computed from the request, so it is for operators and
    /// services, not for their callers.
    #[must_use]
    pub fn refused_by(&self) -> Option<&str> {
        match (self.fault(), self.block()) {
            (Some(Fault::Cost { limit, .. }), _) => Some(limit),
            (Some(Fault::TooManyLimits | Fault::TooManyDescriptors), _) => Some(Self::REQUEST),
            (None, Some(_)) => Some(Block::NAME),
            (None, None) => self.cause().map(|status| status.limit.name()),
        }
    }

    /// The cause of a denial that neither a limit nor an operator caused.
    pub const REQUEST: &'static str = "request";

    /// Why the request was denied, in a sentence for people; `None` if it passes.
    #[must_use]
    pub fn explanation(&self) -> Option<Cow<'_, str>> {
        let reason = self.reason()?;
        if let Some(fault) = self.fault() {
            return Some(Cow::Owned(fault.to_string()));
        }
        if let Some(block) = self.block() {
            return Some(Cow::Owned(block.to_string()));
        }
        self.cause().map(|status| match reason {
            Reason::Unavailable => Cow::Borrowed(uncounted(status.source)),
            Reason::Forbidden => {
                Cow::Borrowed("the policy says `deny` for such requests; waiting does not help")
            }
            Reason::Penalty => {
                Cow::Borrowed("the limit denied the key too often, and refuses it for a while")
            }
            _ => Cow::Owned(status.admits()),
        })
    }
}

/// Why the limit could not be counted.
const fn uncounted(source: Source) -> &'static str {
    match source {
        Source::Full => "memory is full, and there is no room for a counter",
        _ => "the store does not answer, and the limit lets nothing pass until it does",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::headers::fixture::{Case, bucket, decision, permits, secs};
    use crate::policy::Policy;
    use crate::rate::Rate;

    fn case() -> Case {
        Case::new("per-key", bucket(Rate::per_second(100).burst(200)))
    }

    fn shown(cases: &[Case]) -> (String, String, Option<Ticks>) {
        let decision = decision(cases);
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        (text(decision.refused_by()), text(decision.explanation().as_deref()), decision.retry_advice())
    }

    /// Every denial names its cause and says why, also one that no wait cures, and says when its numbers are not exact.
    #[test]
    fn a_refusal_names_its_cause_and_says_why() {
        let quota = "100 requests a second, burst 200";
        let denied = || case().denied(secs(1));
        assert_eq!(shown(&[denied()]), ("per-key".into(), quota.into(), Some(secs(1))));
        let overflow = format!("{quota}; memory is full, so this key shares a counter with other new keys");
        assert_eq!(shown(&[denied().sourced(Source::Overflow)]).1, overflow);
        let local = format!("{quota}; counted by this node alone, because the store does not answer");
        assert_eq!(shown(&[denied().sourced(Source::Local)]).1, local);
        for source in [Source::Closed, Source::Full] {
            assert_eq!(shown(&[denied().sourced(source)]).0, "per-key");
            assert!(!shown(&[denied().sourced(source)]).1.is_empty());
        }
        let small = Case::new("small", bucket(Rate::per_minute(3))).says(Verdict::Never);
        let never = "3 requests a minute, burst 3; the request costs more than the 3 that can pass at once";
        let large = case().says(Verdict::Never);
        for order in [[small.clone(), large.clone()], [large, small]] {
            assert_eq!(shown(&order), ("small".into(), never.into(), None));
        }
        let (cause, why, advice) = shown(&[case().denied(secs(9)), case().says(Verdict::Forbidden)]);
        assert_eq!((cause.as_str(), why.contains("`deny`"), advice), ("per-key", true, None));
        assert_eq!(shown(&[case()]), (String::new(), String::new(), None));
    }

    /// A fault names the limit whose cost cannot be computed, else the request.
    #[test]
    fn a_fault_names_the_limit_or_the_request() {
        let policy = Arc::new(Policy::of_limits(Vec::new()));
        let fault = Fault::Cost { limit: "tokens".to_owned(), reason: "tokens: is missing".to_owned() };
        let decision = Decision::faulty(Arc::clone(&policy), fault);
        assert_eq!(decision.refused_by(), Some("tokens"));
        assert!(decision.explanation().unwrap().contains("tokens: is missing"));
        let decision = Decision::faulty(policy, Fault::TooManyLimits);
        assert_eq!(decision.refused_by(), Some(Decision::REQUEST));
        assert!(decision.explanation().unwrap().contains("limits match"));
    }

    /// A permit comes back when its request ends, so its expiry does not keep callers away. A quota that is exhausted
    /// for longer than a second does, and is the cause then.
    #[test]
    fn an_expiry_of_permits_is_no_advice_to_stay_away() {
        let in_flight = Case::new("in-flight", permits(20, secs(30))).denied(secs(29));
        assert_eq!(shown(std::slice::from_ref(&in_flight)).2, Some(secs(1)));
        assert_eq!(shown(std::slice::from_ref(&in_flight)).1, "20 requests in flight");
        let (cause, _, advice) = shown(&[in_flight, case().denied(secs(5))]);
        assert_eq!((cause.as_str(), advice), ("per-key", Some(secs(5))));
    }
}
