//! The expected answer to a request of a test, and whether a decision meets it.

use serde::Deserialize;
use tollgate::{Decision, Enforcement, LimitStatus, Ticks, Verdict};

use crate::decision_json::verdict_name;
use crate::time_text::people;

/// The verdict that is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ExpectedVerdict {
    Allow,
    Deny,
    Wait,
    Never,
}

impl ExpectedVerdict {
    const fn name(self) -> &'static str {
        match self {
            ExpectedVerdict::Allow => "allow",
            ExpectedVerdict::Deny => "deny",
            ExpectedVerdict::Wait => "wait",
            ExpectedVerdict::Never => "never",
        }
    }
}

/// The expected answer to a request. Fields that are `None` are not compared.
#[derive(Debug, Default)]
pub(super) struct Expectation {
    pub(super) verdict: Option<ExpectedVerdict>,
    /// The limit that refuses the request, or one that applies to it if it passes.
    pub(super) limit: Option<String>,
    /// The remaining units of that limit; without a name, of the one with the least.
    pub(super) remaining: Option<u64>,
    pub(super) retry_after: Option<Ticks>,
    pub(super) wait: Option<Ticks>,
    pub(super) no_limit_applies: Option<bool>,
}

impl Expectation {
    /// Whether anything is expected.
    pub(super) const fn is_some(&self) -> bool {
        self.verdict.is_some()
            || self.limit.is_some()
            || self.remaining.is_some()
            || self.no_limit_applies.is_some()
    }

    /// The fields that have no meaning beside the expected verdict, and the verdict beside which they have one.
    pub(super) fn conflicts(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let retry = self.retry_after.is_some() && self.verdict != Some(ExpectedVerdict::Deny);
        let wait = self.wait.is_some() && self.verdict != Some(ExpectedVerdict::Wait);
        [retry.then_some(("retry_after", "deny")), wait.then_some(("wait", "wait"))].into_iter().flatten()
    }

    /// Whether a decision has the expected verdict, by the expected limit.
    pub(super) fn has_verdict(&self, decision: &Decision) -> bool {
        let verdict = self.verdict.is_none_or(|verdict| verdict.name() == verdict_name(decision.verdict()));
        let limit = self.limit.as_deref().is_none_or(|limit| match decision.refused_by() {
            Some(cause) => cause == limit,
            None => status(decision, limit).is_some(),
        });
        verdict && limit && self.no_limit_applies.is_none_or(|none| none == decision.meets_no_limit())
    }

    /// Whether a decision has the expected numbers. Times are compared to the millisecond, rounded up as in answers.
    pub(super) fn has_numbers(&self, decision: &Decision) -> bool {
        let is_time = |expected: Option<Ticks>, actual: Option<Ticks>| {
            expected.is_none_or(|time| actual.map(Ticks::ceil_millis) == Some(time.ceil_millis()))
        };
        let left = || self.left(decision).map(|(_, remaining)| remaining);
        is_time(self.retry_after, decision.retry_advice())
            && is_time(self.wait, waiting(decision))
            && self.remaining.is_none_or(|remaining| left() == Some(remaining))
    }

    /// The limit whose rest is compared, and its rest.
    pub(super) fn left<'d>(&self, decision: &'d Decision) -> Option<(&'d str, u64)> {
        let counted = |status: LimitStatus<'d>| {
            status.source.has_numbers().then(|| (status.limit.name(), status.outcome.remaining))
        };
        match &self.limit {
            Some(limit) => status(decision, limit).and_then(counted),
            None => decision
                .limits()
                .filter(|status| status.enforcement == Enforcement::Enforced)
                .filter_map(counted)
                .min_by_key(|(_, remaining)| *remaining),
        }
    }

    /// The expectation in words.
    pub(super) fn text(&self) -> String {
        let mut parts = Vec::new();
        let limit = self.limit.as_deref();
        match (self.verdict, limit) {
            (Some(verdict @ (ExpectedVerdict::Deny | ExpectedVerdict::Never)), Some(limit)) => {
                parts.push(format!("{} by {limit}", verdict.name()));
            }
            (Some(verdict), Some(limit)) => parts.push(format!("{} under {limit}", verdict.name())),
            (Some(verdict), None) => parts.push(verdict.name().to_owned()),
            (None, Some(limit)) => parts.push(format!("a decision under {limit}")),
            (None, None) => {}
        }
        parts.extend(self.retry_after.map(|time| format!("retry in {}", people(time.ceil_millis()))));
        parts.extend(self.wait.map(|time| format!("wait {}", people(time.ceil_millis()))));
        parts.extend(self.remaining.map(|remaining| format!("{remaining} left")));
        parts.extend(
            self.no_limit_applies
                .map(|none| if none { "no limit applies".to_owned() } else { "a limit applies".to_owned() }),
        );
        parts.join(", ")
    }

    /// A decision in the same words.
    pub(super) fn text_of(&self, decision: &Decision) -> String {
        let verdict = verdict_name(decision.verdict());
        let mut parts = vec![match decision.refused_by() {
            Some(cause) => format!("{verdict} by {cause}"),
            None => verdict.to_owned(),
        }];
        parts.extend(decision.retry_advice().map(|time| format!("retry in {}", people(time.ceil_millis()))));
        parts.extend(waiting(decision).map(|time| format!("wait {}", people(time.ceil_millis()))));
        if decision.meets_no_limit() {
            parts.push("no limit applies".to_owned());
        }
        parts.extend(self.left(decision).map(|(limit, remaining)| format!("{remaining} left of {limit}")));
        parts.join(", ")
    }
}

fn status<'d>(decision: &'d Decision, limit: &str) -> Option<LimitStatus<'d>> {
    decision.limits().find(|status| status.limit.name() == limit)
}

const fn waiting(decision: &Decision) -> Option<Ticks> {
    if let Verdict::Wait(wait) = decision.verdict() { Some(wait) } else { None }
}
