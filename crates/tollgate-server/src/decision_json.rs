//! A decision as JSON, for the HTTP protocol and for `decide --json`.

use std::borrow::Cow;

use tollgate::credential::CREDENTIAL;
use tollgate::headers::{Caller, HeaderList};
use tollgate::policy::source::quoted;
use tollgate::request::Descriptor;
use tollgate::{
    Answer, Audience, CheckRequest, Decision, HeaderPolicy, LimitStatus, Reason, Ticks, Timestamp, Verdict,
};

/// The permit or reservation that a decision gave to its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Nothing.
    None,
    /// A permit of a concurrency limit.
    Permit {
        /// Its id in the protocol.
        id: String,
    },
    /// Reserved units.
    Reservation {
        /// Its id in the protocol.
        id: String,
        /// How long it can be settled.
        lifetime: Ticks,
    },
}

/// A decision with the headers for the client that made the request.
#[derive(Debug)]
pub(crate) struct Decided<'d> {
    decision: &'d Decision,
    headers: HeaderList,
    hold: Hold,
    report: Option<String>,
    hint: Option<String>,
}

impl<'d> Decided<'d> {
    /// Adds the headers for the client that made the request. The service that asks gets all numbers of `limits`.
    pub(crate) fn new(
        decision: &'d Decision,
        hold: Hold,
        policy: &HeaderPolicy,
        request: &CheckRequest<'_>,
        now: Timestamp,
    ) -> Self {
        let caller = caller(request);
        let audience = Audience { caller, cost: Some(request.units()), ..Audience::default() };
        let headers = Answer::headers_of(decision, policy, audience, now);
        Self { decision, headers, hold, report: None, hint: hint(decision, request) }
    }

    /// Adds the id by which the end of the request is reported.
    pub(crate) fn awaiting(self, report: Option<String>) -> Self {
        Self { report, ..self }
    }
}

/// The caller of a request: a request with a credential in any descriptor is authenticated.
pub(crate) fn caller(request: &CheckRequest<'_>) -> Caller {
    let mut attributes = request.descriptors().flat_map(Descriptor::attributes);
    if attributes.any(|given| given.name == CREDENTIAL) { Caller::Authenticated } else { Caller::Anonymous }
}

/// The attribute that a caller probably meant by one that no limit reads. Names in capitals are rare, so others cost nothing
/// where a limit applies.
fn hint(decision: &Decision, request: &CheckRequest<'_>) -> Option<String> {
    let has_capitals = |name: &str| name.bytes().any(|byte| byte.is_ascii_uppercase());
    let mut names = request.descriptors().flat_map(Descriptor::attributes).map(|given| given.name);
    if !decision.meets_no_limit() && !names.any(has_capitals) {
        return None;
    }
    let (given, meant) = decision.policy().miscased(request)?;
    Some(format!("no limit reads {}; did you mean {meant}?", quoted(given)))
}

/// The reason of a request that passes because no limit applies to it.
const NO_LIMIT: &str = "no limit applies to these attributes";

/// Initial capacity, enough for a decision by one or two limits, so that writing one allocates once.
pub(crate) const DECISION_BYTES: usize = 768;

/// The name of a verdict.
pub(crate) const fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Wait(_) => "wait",
        Verdict::Deny { .. } | Verdict::Forbidden => "deny",
        Verdict::Never => "never",
    }
}

/// Why a request was refused, or passes because no limit applies to it. Four reasons are words that programs act on,
/// and `detail` has the sentence. Every other reason is a sentence itself.
#[derive(Debug, Default)]
pub(crate) struct RefusalText<'d> {
    pub(crate) reason: Option<Cow<'d, str>>,
    pub(crate) detail: Option<Cow<'d, str>>,
}

impl<'d> RefusalText<'d> {
    /// Empty for a request that limits admitted.
    pub(crate) fn of(decision: &'d Decision) -> Self {
        match decision.reason().map(Reason::word) {
            None if decision.meets_no_limit() => Self { reason: Some(Cow::Borrowed(NO_LIMIT)), detail: None },
            None => Self::default(),
            Some(Some(word)) => Self { reason: Some(Cow::Borrowed(word)), detail: decision.explanation() },
            Some(None) => Self { reason: decision.explanation(), detail: None },
        }
    }
}

impl Decided<'_> {
    /// The JSON text.
    pub(crate) fn text(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(DECISION_BYTES);
        self.write(&mut text);
        text
    }

    /// Appends the JSON text. Written by hand: each key with its punctuation is one constant, which halves the work of
    /// an answer.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let verdict = self.decision.verdict();
        let wait = if let Verdict::Wait(wait) = verdict { Some(wait) } else { None };
        let why = RefusalText::of(self.decision);
        raw(out, if verdict.is_allowed() { "{\"allowed\":true" } else { "{\"allowed\":false" });
        name(out, ",\"verdict\":\"", verdict_name(verdict));
        text(out, ",\"cause\":", self.decision.refused_by());
        text(out, ",\"reason\":", why.reason.as_deref());
        text(out, ",\"detail\":", why.detail.as_deref());
        if self.decision.meets_no_limit() {
            raw(out, ",\"no_limit_applies\":true");
        }
        text(out, ",\"hint\":", self.hint.as_deref());
        number(out, ",\"retry_after_ms\":", self.decision.retry_advice().map(Ticks::ceil_millis));
        number(out, ",\"wait_ms\":", wait.map(Ticks::ceil_millis));
        text(out, ",\"fault\":", self.decision.fault().map(ToString::to_string).as_deref());
        match &self.hold {
            Hold::None => {}
            Hold::Permit { id } => text(out, ",\"permit\":", Some(id)),
            Hold::Reservation { id, lifetime } => {
                text(out, ",\"reservation\":", Some(id));
                number(out, ",\"expires_after_ms\":", Some(lifetime.ceil_millis()));
            }
        }
        text(out, ",\"report\":", self.report.as_deref());
        raw(out, ",\"limits\":[");
        for (index, status) in self.decision.limits().enumerate() {
            raw(out, if index == 0 { "" } else { "," });
            limit(out, &status);
        }
        raw(out, "],\"headers\":{");
        for (index, (header, value)) in self.headers.iter().enumerate() {
            // Names are constants of the core, made of letters and hyphens.
            name(out, if index == 0 { "\"" } else { ",\"" }, header);
            out.push(b':');
            string(out, value);
        }
        raw(out, "}}");
    }
}

fn limit(out: &mut Vec<u8>, status: &LimitStatus<'_>) {
    let outcome = &status.outcome;
    raw(out, "{\"name\":");
    string(out, status.limit.name());
    raw(out, if outcome.is_allowed() { ",\"allowed\":true" } else { ",\"allowed\":false" });
    // If no counter decides, there is no number.
    let counter = Some(outcome).filter(|_| status.source.has_numbers());
    number(out, ",\"limit\":", counter.map(|outcome| outcome.limit));
    number(out, ",\"remaining\":", counter.map(|outcome| outcome.remaining));
    raw(out, if counter.is_none() && outcome.is_allowed() { ",\"unlimited\":true" } else { "" });
    number(out, ",\"retry_after_ms\":", outcome.verdict.retry_after().map(Ticks::ceil_millis));
    number(out, ",\"reset_after_ms\":", counter.map(|outcome| outcome.reset_after.ceil_millis()));
    name(out, ",\"source\":\"", status.source.name());
    name(out, ",\"mode\":\"", status.enforcement.name());
    out.push(b'}');
}

/// Appends text that is JSON already.
fn raw(out: &mut Vec<u8>, json: &str) {
    out.extend_from_slice(json.as_bytes());
}

/// Appends a member with a number, if there is one.
fn number(out: &mut Vec<u8>, before: &str, number: Option<u64>) {
    if let Some(number) = number {
        raw(out, before);
        raw(out, itoa::Buffer::new().format(number));
    }
}

/// Appends a constant that needs no escapes, with a closing quote. `before` has the opening quote.
fn name(out: &mut Vec<u8>, before: &str, name: &str) {
    raw(out, before);
    raw(out, name);
    out.push(b'"');
}

/// Appends a member with a text, if there is one.
fn text(out: &mut Vec<u8>, before: &str, text: Option<&str>) {
    if let Some(text) = text {
        raw(out, before);
        string(out, text);
    }
}

/// Appends a string in quotes, with JSON escapes.
fn string(out: &mut Vec<u8>, text: &str) {
    // Writing to memory cannot fail.
    let _ = serde_json::to_writer(out, text);
}
