//! Live views as JSON: the busiest keys, and single decisions.

use std::collections::BTreeMap;

use serde::Serialize;
use tollgate::Timestamp;
use tollgate::time::WallOffset;

use super::view::{DenialView, Instant, Pairs};
use crate::readiness::PolicyReport;
use crate::telemetry::names::SOURCES;
use crate::telemetry::{Event, TOP_WINDOW_SECONDS, TopKey};

#[derive(Serialize)]
struct TopKeyView<'a> {
    limit: &'a str,
    key: &'a str,
    decisions: u64,
    denied: u64,
    /// How often the limit, in shadow, would have denied it.
    would_deny: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_denied: Option<DenialView>,
    /// The number of its answers by source. Empty if that is unknown.
    sources: BTreeMap<&'static str, u64>,
    /// Whether the numbers are extrapolated from sampled decisions.
    #[serde(rename = "estimated", skip_serializing_if = "std::ops::Not::not")]
    is_estimated: bool,
}

/// The keys with the most decisions.
#[derive(Serialize)]
pub(super) struct TopView<'a> {
    at: Instant,
    /// The decisions are those of at most the last so many seconds.
    window_seconds: u64,
    /// The instant since which decisions are counted.
    since: Instant,
    policy: PolicyReport,
    keys: Vec<TopKeyView<'a>>,
}

impl<'a> TopView<'a> {
    pub(super) fn new(
        keys: &'a [TopKey],
        since: Timestamp,
        policy: PolicyReport,
        now: Timestamp,
        wall: WallOffset,
    ) -> Self {
        let view = |key: &'a TopKey| TopKeyView {
            limit: &key.limit,
            key: &key.key,
            decisions: key.decisions,
            denied: key.denied,
            would_deny: key.would_deny,
            last_denied: key.last_denial.map(|denial| DenialView::new(denial, wall)),
            is_estimated: key.is_estimated,
            sources: SOURCES
                .into_iter()
                .zip(key.sources)
                .filter(|(_, count)| *count > 0)
                .map(|(source, count)| (source.name(), count))
                .collect(),
        };
        Self {
            at: Instant::new(now, wall),
            window_seconds: TOP_WINDOW_SECONDS,
            since: Instant::new(since, wall),
            policy,
            keys: keys.iter().map(view).collect(),
        }
    }
}

/// One decision, for the live view.
#[derive(Serialize)]
pub(super) struct EventView<'a> {
    at: Instant,
    wire: &'static str,
    allowed: bool,
    verdict: &'static str,
    limit: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    would_deny: &'a [String],
    attributes: Pairs<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    source: &'static str,
}

impl<'a> EventView<'a> {
    pub(super) fn new(event: &'a Event, wall: WallOffset) -> Self {
        Self {
            at: Instant::new(event.at, wall),
            wire: event.protocol.name(),
            allowed: event.allowed,
            verdict: event.verdict,
            limit: &event.limit,
            would_deny: &event.would_deny,
            attributes: Pairs(&event.attributes),
            retry_after_ms: event.retry_after_ms,
            reason: event.reason.as_deref(),
            source: event.source,
        }
    }
}
