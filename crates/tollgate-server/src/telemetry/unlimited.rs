//! Requests to which no limit applies, and attributes that the policy does not declare. Both are probably mistakes in
//! the caller or in the policy, so they are counted and logged, at most once a minute.

use tollgate::time::TICKS_PER_SECOND;
use tollgate::{CheckRequest, Decision, Timestamp};
use tollgate_compat::Rule;

use super::cells::Cells;
use super::exposition::Page;
use super::names::{self, Metric, label};
use crate::protocol::Wire;
use crate::seldom::Seldom;
use crate::text;

/// Maximum number of names in one log entry.
const NAMES_SHOWN: usize = 8;

/// The value of `wire` for Envoys that decide by themselves within their assigned quotas.
const RLQS: &str = "rlqs";

/// The counters by protocol: of requests, then of attributes. The last one counts requests that Envoys admitted by
/// themselves.
pub(super) struct Unlimited {
    counts: Cells,
    without_limit: Seldom,
    undeclared: Seldom,
}

impl Unlimited {
    pub(super) fn new() -> Self {
        Self {
            counts: Cells::new(2 * Wire::ALL.len() + 1),
            without_limit: Seldom::default(),
            undeclared: Seldom::default(),
        }
    }

    #[inline]
    pub(super) fn record(
        &self,
        request: &CheckRequest<'_>,
        decision: &Decision,
        beside: &[Rule<'_>],
        wire: Wire,
        now: Timestamp,
    ) {
        if decision.meets_no_limit() && beside.is_empty() {
            self.without_limit(request.attributes().iter().map(|given| given.name), wire, now);
        }
        // Attributes that Tollgate itself reads from a request were not named by a caller.
        if !wire.reads_requests() && decision.policy().undeclared(request).next().is_some() {
            self.undeclared(request, decision, wire, now);
        }
    }

    /// Counts a request with attributes of these names.
    #[cold]
    pub(super) fn without_limit<'n>(&self, names: impl Iterator<Item = &'n str>, wire: Wire, now: Timestamp) {
        self.counts.add(wire as usize, 1);
        self.log(names, wire.name(), now);
    }

    /// Counts requests that an Envoy admitted by itself.
    #[cold]
    pub(super) fn passed_by_envoy<'n>(
        &self,
        names: impl Iterator<Item = &'n str>,
        requests: u64,
        now: Timestamp,
    ) {
        self.counts.add(2 * Wire::ALL.len(), requests);
        self.log(names, RLQS, now);
    }

    fn log<'n>(&self, names: impl Iterator<Item = &'n str>, wire: &str, now: Timestamp) {
        if let Some(skipped) = self.without_limit.due(minute(now)) {
            let names = listed(names);
            tracing::info!(
                wire,
                attributes = names,
                skipped,
                "no limit applies to a request with these attributes, so it passed uncounted; `tollgate explain` says why"
            );
        }
    }

    #[cold]
    fn undeclared(&self, request: &CheckRequest<'_>, decision: &Decision, wire: Wire, now: Timestamp) {
        let undeclared = || decision.policy().undeclared(request);
        self.counts.add(Wire::ALL.len() + wire as usize, undeclared().count() as u64);
        if let Some(skipped) = self.undeclared.due(minute(now)) {
            let names = listed(undeclared());
            tracing::warn!(
                wire = wire.name(),
                attributes = names,
                skipped,
                "a caller sent attributes that the policy does not declare in `attributes`"
            );
        }
    }

    pub(super) fn show(&self, metric: &Metric, page: &mut Page) {
        let first = if *metric == names::WITHOUT_LIMIT { 0 } else { Wire::ALL.len() };
        for wire in Wire::ALL {
            let count = self.counts.sum(first + wire as usize);
            page.number(metric, &[(label::WIRE, wire.name())], count);
        }
        if *metric == names::WITHOUT_LIMIT {
            page.number(metric, &[(label::WIRE, RLQS)], self.counts.sum(2 * Wire::ALL.len()));
        }
    }
}

/// The minutes of an instant as seconds, for a log throttle that counts seconds.
fn minute(now: Timestamp) -> Timestamp {
    Timestamp::from_unix_seconds(now.unix_micros() / (60 * TICKS_PER_SECOND))
}

/// Names for the log, shortened and without characters that would break its lines.
fn listed<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let mut listed = String::new();
    for name in names.take(NAMES_SHOWN) {
        if !listed.is_empty() {
            listed.push_str(", ");
        }
        text::push(&mut listed, name);
    }
    listed
}
