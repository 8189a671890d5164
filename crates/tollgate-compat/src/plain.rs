//! A plain request of `/v1/check` to a compat configuration: its attributes, in their order, form one descriptor. The
//! attribute `domain` names the domain, where there is more than one.

use serde::Serialize;
use tollgate::{CheckRequest, Source, Ticks};

use crate::active::ActiveConfig;
use crate::rls::{Answer, Code, CurrentLimit, Descriptor, Refusal, RlsRequest, Status, Unanswerable};

/// The attribute that names a domain.
const DOMAIN: &str = "domain";

/// The answer of `/v1/check` under a compat configuration.
#[derive(Debug, Serialize)]
pub struct Checked {
    /// Whether the request may pass.
    pub allowed: bool,
    /// The verdict as a word.
    pub verdict: &'static str,
    /// The name of the rule that refused the request, or the name that all blocks have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Why, in the same words as other decisions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// More about the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// When a refused request may be sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The result of each rule.
    pub limits: Vec<CheckedLimit>,
    /// Headers for the client.
    pub headers: serde_json::Map<String, serde_json::Value>,
}

/// The result of one rule.
#[derive(Debug, Serialize)]
pub struct CheckedLimit {
    name: String,
    allowed: bool,
    limit: u64,
    remaining: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    source: &'static str,
    mode: &'static str,
}

impl Checked {
    /// Builds the answer to a plain request from the answer to the question that it was turned into.
    pub fn new(rls_request: &RlsRequest, answer: Answer) -> Self {
        let is_allowed = answer.overall == Code::Ok;
        let limits = answer.statuses.iter().filter_map(|status| limit(rls_request, status)).collect();
        let retry_after_ms = answer.retry_after().map(Ticks::ceil_millis).filter(|_| !is_allowed);
        let mut headers: serde_json::Map<_, _> =
            answer.headers.into_iter().map(|(name, value)| (name, value.into())).collect();
        if let Some(wait) = retry_after_ms {
            headers.insert("Retry-After".to_owned(), wait.div_ceil(1_000).to_string().into());
        }
        let verdict = if is_allowed { "allow" } else { "deny" };
        let refusal =
            answer.refusal.or_else(|| refusal(rls_request, &answer.statuses)).filter(|_| !is_allowed);
        let (cause, reason, detail) = match refusal {
            Some(Refusal { cause, reason, detail }) => (Some(cause), Some(reason), detail),
            None => (None, None, None),
        };
        Self { allowed: is_allowed, verdict, cause, reason, detail, retry_after_ms, limits, headers }
    }
}

impl ActiveConfig {
    /// Turns a plain request into a question.
    ///
    /// # Errors
    /// When it names no domain, and the configuration does not have exactly one.
    pub fn rls_request(&self, request: &CheckRequest<'_>) -> Result<RlsRequest, Unanswerable> {
        let domains = self.rules.domains();
        let mut given = None;
        let mut entries = Vec::new();
        for attribute in request.attributes() {
            let value = attribute.value.to_string();
            if attribute.name == DOMAIN {
                given = Some(value);
            } else {
                entries.push((attribute.name.to_owned(), value));
            }
        }
        let domain = match (given, domains.as_slice()) {
            (Some(domain), _) => domain,
            (None, [only]) => (*only).to_owned(),
            (None, _) => {
                let text = "attributes.domain: is missing, and the configuration does not have exactly one; accepted: the name of a domain";
                return Err(Unanswerable::Invalid(text.to_owned()));
            }
        };
        let descriptor = Descriptor { entries, hits_addend: Some(request.units()), ..Descriptor::default() };
        let hits_addend = u32::try_from(request.units()).unwrap_or(u32::MAX);
        Ok(RlsRequest { domain, descriptors: vec![descriptor], hits_addend })
    }
}

/// The rule that refuses the request for longest, and what it admits.
fn refusal(rls_request: &RlsRequest, statuses: &[Status]) -> Option<Refusal> {
    let refusing = statuses.iter().filter(|status| status.code == Code::OverLimit);
    let (status, current) = refusing
        .filter_map(|status| Some((status, status.current_limit.as_ref()?)))
        .max_by_key(|(status, _)| status.until_reset)?;
    let requests = current.requests_per_unit;
    let plural = if requests == 1 { "" } else { "s" };
    let mut reason = match current.unit {
        Some(unit) => format!("{requests} request{plural} per {}", unit.name()),
        None => format!("{requests} request{plural}"),
    };
    if status.source == Source::Overflow {
        reason.push_str("; memory is full, so this key shares a counter with other new keys");
    }
    Some(Refusal { cause: name(rls_request, current), reason, detail: None })
}

/// The name of a rule; without one, its domain.
fn name(rls_request: &RlsRequest, current: &CurrentLimit) -> String {
    if current.name.is_empty() { rls_request.domain.clone() } else { current.name.clone() }
}

fn limit(rls_request: &RlsRequest, status: &Status) -> Option<CheckedLimit> {
    let current = status.current_limit.as_ref()?;
    let reset_after_ms = status.until_reset.map_or(0, Ticks::ceil_millis);
    let is_allowed = status.code == Code::Ok;
    Some(CheckedLimit {
        name: name(rls_request, current),
        allowed: is_allowed,
        limit: u64::from(current.requests_per_unit),
        remaining: u64::from(status.limit_remaining),
        retry_after_ms: (!is_allowed).then_some(reset_after_ms),
        reset_after_ms,
        source: status.source.name(),
        mode: "enforce",
    })
}
