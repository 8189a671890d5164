//! The effect that a candidate policy would have had on the last hour.

use serde::Serialize;
use tollgate::time::WallOffset;
use tollgate::{Quota, Timestamp};

use super::Pair;
use super::tally::{Tallied, Tally};
use crate::service::request_ring::{KeptPart, PastRequests};
use crate::time_text::rfc3339_millis;

/// The effect that a candidate policy would have had on the last hour.
#[derive(Debug, Serialize)]
pub(crate) struct PastComparison {
    /// When the first of the requests came, and the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<String>,
    #[serde(flatten)]
    pub(crate) kept: KeptPart,
    /// The limits of these numbers, in sentences.
    pub(crate) notes: Vec<String>,
    #[serde(flatten)]
    pub(crate) tallied: Tallied,
}

/// Lets two policies decide about past requests, in virtual time. The counters of both start empty with the first one, and
/// the overrides of operators do not apply.
pub(crate) fn past_comparison(pair: &Pair, past: &PastRequests, wall: WallOffset) -> PastComparison {
    let tally = Tally::default();
    for (at, request) in past.each() {
        pair.ask(&request, at, &tally);
    }
    let (from, to) = past.ends().unzip();
    let shown = |at: Timestamp| rfc3339_millis(at.on_wall(wall));
    PastComparison {
        from: from.map(shown),
        to: to.map(shown),
        notes: notes(pair, past),
        kept: past.kept.clone(),
        tallied: tally.tallied(),
    }
}

/// The requests that were not kept, which the numbers therefore leave out.
fn notes(pair: &Pair, past: &PastRequests) -> Vec<String> {
    let (kept, mut notes) = (&past.kept, Vec::new());
    if past.ends().is_none() {
        return vec!["no request came in that time".to_owned()];
    }
    let policies = [pair.old.policy(), pair.new.policy()];
    let limits = || policies.iter().flat_map(|policy| policy.limits());
    if kept.one_client_in > 1 {
        let client = kept.client.clone().unwrap_or_default();
        let counts_otherwise = limits().filter(|limit| !limit.by().iter().any(|by| by.to_string() == client));
        let mut names: Vec<&str> = counts_otherwise.map(|limit| limit.name()).collect();
        names.sort_unstable();
        names.dedup();
        notes.push(format!(
            "the requests of 1 in {} clients (by {client}) were kept, each with all its requests",
            kept.one_client_in
        ));
        if !names.is_empty() {
            notes.push(format!(
                "these limits count otherwise, and see only that part of the requests: {}",
                names.join(", ")
            ));
        }
    }
    if kept.cut_minutes > 0 {
        notes.push(format!(
            "in {} minutes only the first requests were kept: there were too many for the memory, from too few clients",
            kept.cut_minutes
        ));
    }
    let mut missing: Vec<&str> = policies.iter().flat_map(|policy| policy.attributes_used()).collect();
    missing.retain(|name| !kept.names.iter().any(|known| known == name));
    missing.sort_unstable();
    missing.dedup();
    if !missing.is_empty() {
        notes.push(format!(
            "not kept, because the active policy did not read it all the time: {}; limits that read it see requests without it",
            missing.join(", ")
        ));
    }
    let in_flight = |quota: &Quota| matches!(quota, Quota::Concurrency(_));
    if limits().any(|limit| limit.quotas().iter().any(in_flight)) {
        notes.push("limits of requests in flight are left out".to_owned());
    }
    notes
}
