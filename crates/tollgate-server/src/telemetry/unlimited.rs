//! Requests to which no limit applies, and attributes that the policy does not declare. Both are probably mistakes in
//! the caller or in the policy, so they are counted and logged, at most once a minute.

use tollgate::time::TICKS_PER_SECOND;
use tollgate::{CheckRequest, Decision, Timestamp};
use tollgate_compat::Rule;

use super::exposition::Page;
use super::names::{self, label};
use super::striped::StripedCounters;
use crate::log_throttle::LogThrottle;
use crate::protocol::Protocol;
use crate::text;

/// Maximum number of names in one log entry.
const NAMES_SHOWN: usize = 8;

/// The value of `protocol` for Envoys that decide by themselves within their assigned quotas.
const RLQS: &str = "rlqs";

/// The counters by protocol: of requests, then of attributes. The last one counts requests that Envoys admitted by
/// themselves.
pub(super) struct Unlimited {
    counts: StripedCounters,
    without_limit: LogThrottle,
    undeclared: LogThrottle,
}

impl Unlimited {
    pub(super) fn new() -> Self {
        Self {
            counts: StripedCounters::new(2 * Protocol::ALL.len() + 1),
            without_limit: LogThrottle::default(),
            undeclared: LogThrottle::default(),
        }
    }

    #[inline]
    pub(super) fn record(
        &self,
        request: &CheckRequest<'_>,
        decision: &Decision,
        beside: &[Rule<'_>],
        protocol: Protocol,
        now: Timestamp,
    ) {
        if decision.meets_no_limit() && beside.is_empty() {
            self.without_limit(request.attributes().iter().map(|given| given.name), protocol, now);
        }
        // Attributes that Tollgate itself reads from a request were not named by a caller.
        if !protocol.reads_requests() && decision.policy().undeclared(request).next().is_some() {
            self.undeclared(request, decision, protocol, now);
        }
    }

    /// Counts a request with attributes of these names.
    #[cold]
    pub(super) fn without_limit<'n>(
        &self,
        names: impl Iterator<Item = &'n str>,
        protocol: Protocol,
        now: Timestamp,
    ) {
        self.counts.add(protocol as usize, 1);
        self.log(names, protocol.name(), now);
    }

    /// Counts requests that an Envoy admitted by itself.
    #[cold]
    pub(super) fn passed_by_envoy<'n>(
        &self,
        names: impl Iterator<Item = &'n str>,
        requests: u64,
        now: Timestamp,
    ) {
        self.counts.add(2 * Protocol::ALL.len(), requests);
        self.log(names, RLQS, now);
    }

    fn log<'n>(&self, names: impl Iterator<Item = &'n str>, protocol: &str, now: Timestamp) {
        if let Some(skipped) = self.without_limit.due(minute(now)) {
            let names = listed(names);
            tracing::info!(
                protocol,
                attributes = names,
                skipped,
                "no limit applies to a request with these attributes, so it passed uncounted; `tollgate explain` says why"
            );
        }
    }

    #[cold]
    fn undeclared(
        &self,
        request: &CheckRequest<'_>,
        decision: &Decision,
        protocol: Protocol,
        now: Timestamp,
    ) {
        let undeclared = || decision.policy().undeclared(request);
        self.counts.add(Protocol::ALL.len() + protocol as usize, undeclared().count() as u64);
        if let Some(skipped) = self.undeclared.due(minute(now)) {
            let names = listed(undeclared());
            tracing::warn!(
                wire = protocol.name(),
                attributes = names,
                skipped,
                "a caller sent attributes that the policy does not declare in `attributes`"
            );
        }
    }

    pub(super) fn show(&self, page: &mut Page) {
        for (metric, first) in [(&names::WITHOUT_LIMIT, 0), (&names::UNDECLARED, Protocol::ALL.len())] {
            for protocol in Protocol::ALL {
                let count = self.counts.sum(first + protocol as usize);
                page.number(metric, &[(label::WIRE, protocol.name())], count);
            }
        }
        let of_rlqs = self.counts.sum(2 * Protocol::ALL.len());
        page.number(&names::WITHOUT_LIMIT, &[(label::WIRE, RLQS)], of_rlqs);
    }
}

/// The minutes of an instant as seconds, for a log throttle that counts seconds.
fn minute(now: Timestamp) -> Timestamp {
    Timestamp::from_unix_seconds(now.unix_micros() / (60 * TICKS_PER_SECOND))
}

/// Names for the log, shortened and without characters that would break its lines.
fn listed<'n>(names: impl Iterator<Item = &'n str>) -> String {
    names.take(NAMES_SHOWN).map(text::shown).collect::<Vec<_>>().join(", ")
}
