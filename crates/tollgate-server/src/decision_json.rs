//! A decision as JSON: what the HTTP wire answers and what `decide --json` prints.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use tollgate::headers::{Caller, HeaderList};
use tollgate::{
    Answer, Audience, Block, Decision, HeaderPolicy, LimitStatus, Reason, Stance, Ticks, Timestamp, Verdict,
};

/// What a decision gave to its caller, to be given back later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Nothing.
    None,
    /// The place of a concurrency limit.
    Permit {
        /// Its name on the wire.
        id: String,
    },
    /// Units set aside.
    Reservation {
        /// Its name on the wire.
        id: String,
        /// How long it can be settled.
        lifetime: Ticks,
    },
}

/// A decision with the headers for whoever made the request.
#[derive(Debug)]
pub(crate) struct Decided {
    decision: Decision,
    headers: HeaderList,
    hold: Hold,
}

impl Decided {
    /// Adds the headers. Whoever asks is a service that speaks for its callers, so nothing is hidden from it.
    pub(crate) fn new(
        decision: Decision,
        hold: Hold,
        policy: &HeaderPolicy,
        cost: u64,
        now: Timestamp,
    ) -> Self {
        let audience = Audience { caller: Caller::Authenticated, cost: Some(cost), ..Audience::default() };
        let headers = Answer::headers_of(&decision, policy, audience, now);
        Self { decision, headers, hold }
    }

    /// Appends it as JSON.
    pub(crate) fn write(&self, text: &mut Vec<u8>) {
        // Text and numbers always have a form in JSON, and memory takes every write.
        let _ = serde_json::to_writer(text, self);
    }
}

/// Room for a decision by one or two limits, so that writing one takes memory once.
pub(crate) const DECISION_BYTES: usize = 768;

/// The name of a verdict.
pub(crate) const fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Wait(_) => "wait",
        Verdict::Deny { .. } => "deny",
        Verdict::Never => "never",
    }
}

#[derive(Serialize)]
struct Document<'a> {
    allowed: bool,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    permit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reservation: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_after_ms: Option<u64>,
    #[serde(serialize_with = "limits")]
    limits: &'a Decision,
    #[serde(serialize_with = "headers")]
    headers: &'a HeaderList,
}

#[derive(Serialize)]
struct LimitDocument<'a> {
    name: &'a str,
    allowed: bool,
    limit: u64,
    remaining: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    source: &'static str,
    mode: &'static str,
}

impl Serialize for Decided {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let verdict = self.decision.verdict();
        let wait = if let Verdict::Wait(wait) = verdict { Some(wait) } else { None };
        let (permit, reservation, lifetime) = match &self.hold {
            Hold::None => (None, None, None),
            Hold::Permit { id } => (Some(id.as_str()), None, None),
            Hold::Reservation { id, lifetime } => (None, Some(id.as_str()), Some(*lifetime)),
        };
        Document {
            allowed: verdict.is_allowed(),
            verdict: verdict_name(verdict),
            retry_after_ms: verdict.retry_after().map(Ticks::ceil_millis),
            reason: match self.decision.reason() {
                Some(Reason::Unavailable) => Some("limiter-unavailable"),
                Some(Reason::Blocked) => Some(Block::NAME),
                _ => None,
            },
            detail: self.decision.block().map(ToString::to_string),
            wait_ms: wait.map(Ticks::ceil_millis),
            fault: self.decision.fault().map(ToString::to_string),
            permit,
            reservation,
            expires_after_ms: lifetime.map(Ticks::ceil_millis),
            limits: &self.decision,
            headers: &self.headers,
        }
        .serialize(serializer)
    }
}

fn limits<S: Serializer>(decision: &Decision, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(decision.limits().map(limit))
}

fn limit(status: LimitStatus<'_>) -> LimitDocument<'_> {
    LimitDocument {
        name: status.limit.name(),
        allowed: status.outcome.is_allowed(),
        limit: status.outcome.limit,
        remaining: status.outcome.remaining,
        retry_after_ms: status.outcome.verdict.retry_after().map(Ticks::ceil_millis),
        reset_after_ms: status.outcome.reset_after.ceil_millis(),
        source: status.source.name(),
        mode: match status.stance {
            Stance::Enforced => "enforce",
            Stance::Shadow => "shadow",
        },
    }
}

fn headers<S: Serializer>(headers: &HeaderList, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(headers.len()))?;
    for (name, value) in headers.iter() {
        map.serialize_entry(name, value)?;
    }
    map.end()
}
