//! JSON bodies that say why a call was refused, and how many points GraphQL leaves.

use http::StatusCode;
use serde_json::Value;
use tollgate::Ticks;

use super::value;
use super::{BODY_BYTES_MAX, ResponseView};
use crate::signal::{ThrottleKind, ThrottleScope, Window, WindowUnit};

/// A successful response without any of these says nothing about limits.
const LIMIT_WORDS: [&[u8]; 5] =
    [b"throttleStatus", b"RATE_LIMIT", b"THROTTLED", b"ratelimited", b"secondary rate limit"];

/// The body of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The call met a limit of this kind.
    Limit(ThrottleKind, ThrottleScope),
    /// The call met a lock of the object that it is about, and no limit.
    Lock,
}

/// The body of a refusal, or of an answer to GraphQL.
pub(super) struct Body {
    json: Value,
}

impl Body {
    pub(super) fn of(response: &ResponseView<'_>) -> Option<Self> {
        let bytes = response.body.filter(|bytes| bytes.len() <= BODY_BYTES_MAX)?;
        let matters = |needle: &[u8]| bytes.windows(needle.len()).any(|part| part == needle);
        let is_refused = response.status.is_client_error() || response.status.is_server_error();
        if !is_refused && !LIMIT_WORDS.into_iter().any(matters) {
            return None;
        }
        match serde_json::from_slice(bytes).ok()? {
            // Gemini's streams wrap an error in a list.
            Value::Array(mut list) if list.len() == 1 => list.pop(),
            json => Some(json),
        }
        .map(|json| Self { json })
    }

    fn text(&self, pointer: &str) -> Option<&str> {
        self.json.pointer(pointer)?.as_str()
    }

    fn number(&self, pointer: &str) -> Option<String> {
        self.json.pointer(pointer)?.as_number().map(ToString::to_string)
    }

    fn list(&self, pointer: &str) -> impl Iterator<Item = &Value> {
        self.json.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
    }

    /// The error's texts that providers put a code into.
    fn codes(&self) -> impl Iterator<Item = &str> {
        let pointers = ["/error/code", "/error/type", "/error/status", "/error", "/code", "/type", "/__type"];
        let reasons = self.list("/error/errors").filter_map(|error| error.get("reason")?.as_str());
        let graphql = self.list("/errors").filter_map(|error| {
            error.pointer("/extensions/code").or_else(|| error.get("type")).and_then(Value::as_str)
        });
        pointers.into_iter().filter_map(|pointer| self.text(pointer)).chain(reasons).chain(graphql)
    }

    fn message(&self) -> &str {
        self.text("/error/message").or_else(|| self.text("/message")).unwrap_or_default()
    }

    /// The refusal that the body describes, if it does.
    pub(super) fn cause(&self, status: StatusCode) -> Option<Cause> {
        let bucket = |kind| Cause::Limit(kind, ThrottleScope::Bucket);
        let of_code = self.codes().find_map(|code| match code {
            "lock_timeout" => Some(Cause::Lock),
            "insufficient_quota" | "billing_hard_limit_reached" | "billing_not_active" => {
                Some(bucket(ThrottleKind::Money))
            }
            "overloaded_error" => Some(Cause::Limit(ThrottleKind::Overload, ThrottleScope::Everything)),
            "quotaExceeded" | "dailyLimitExceeded" => Some(bucket(ThrottleKind::Day)),
            _ => None,
        });
        let message = self.message();
        if of_code.is_some() {
            return of_code;
        }
        if message.contains("credit balance is too low") {
            return Some(bucket(ThrottleKind::Money)); // Anthropic, with status 400.
        }
        // With another status the words may be about the object of the call.
        let is_refusal = [StatusCode::TOO_MANY_REQUESTS, StatusCode::FORBIDDEN].contains(&status);
        if self.quota_ids().any(|id| id.contains("PerDay")) || (is_refusal && message.contains("per day")) {
            return Some(bucket(ThrottleKind::Day));
        }
        let in_graphql =
            |error: &Value| error.get("message").and_then(Value::as_str).is_some_and(is_secondary);
        if is_secondary(message) || self.list("/errors").any(in_graphql) {
            return Some(Cause::Limit(ThrottleKind::Rate, ThrottleScope::Everything)); // GitHub
        }
        if self.codes().any(|code| code == "ratelimited") {
            return Some(Cause::Limit(ThrottleKind::Rate, ThrottleScope::Route)); // Slack
        }
        let is_rate = |code: &str| {
            let known = ["THROTTLED", "RATE_LIMITED", "RATE_LIMIT", "RESOURCE_EXHAUSTED"];
            let known =
                known.contains(&code) || ["rateLimitExceeded", "userRateLimitExceeded"].contains(&code);
            known || is_aws_throttling(code)
        };
        self.codes().any(is_rate).then_some(bucket(ThrottleKind::Rate))
    }

    /// The quotas of `google.rpc.QuotaFailure` and `google.rpc.ErrorInfo`.
    fn quota_ids(&self) -> impl Iterator<Item = &str> {
        let details = || self.list("/error/details");
        let violations = details().filter_map(|detail| detail.get("violations")?.as_array()).flatten();
        let failed = violations.filter_map(|violation| violation.get("quotaId")?.as_str());
        failed.chain(details().filter_map(|detail| detail.pointer("/metadata/quota_limit")?.as_str()))
    }

    /// Whether all servers of the provider refuse: `global` of Discord.
    pub(super) fn is_global(&self) -> bool {
        self.json.get("global").and_then(Value::as_bool) == Some(true)
    }

    /// Whether another attempt can succeed and does no harm, if it says so. GraphQL that has data and errors has executed
    /// a part of the request.
    pub(super) fn is_retryable(&self) -> Option<bool> {
        let is_partly_done = self.json.get("data").is_some_and(|result| !result.is_null());
        let is_partial = is_partly_done && self.list("/errors").next().is_some();
        self.json.get("retryable").and_then(Value::as_bool).or_else(|| is_partial.then_some(false))
    }

    /// When the server takes calls again: `retry_after` of Discord, `retryDelay` of Google, or the points that
    /// Shopify's GraphQL still has to restore.
    pub(super) fn retry_after(&self) -> Option<Ticks> {
        if let Some(wait) = self.number("/retry_after") {
            return value::seconds(&wait);
        }
        let delay = self.list("/error/details").find_map(|detail| detail.get("retryDelay")?.as_str());
        delay.and_then(value::go_duration).or_else(|| self.restores_in())
    }

    fn restores_in(&self) -> Option<Ticks> {
        let points = |name| value::count(&self.number(&format!("/extensions/cost/{name}"))?);
        let needed = points("requestedQueryCost")?;
        let (available, rate) =
            (points("throttleStatus/currentlyAvailable")?, points("throttleStatus/restoreRate")?);
        (rate > 0).then(|| Ticks::from_secs(needed.saturating_sub(available).div_ceil(rate)))
    }

    /// The points of Shopify's GraphQL API.
    pub(super) fn points(&self) -> Option<Window> {
        let points = |name| value::count(&self.number(&format!("/extensions/cost/throttleStatus/{name}"))?);
        let (limit, remaining, rate) =
            (points("maximumAvailable")?, points("currentlyAvailable")?, points("restoreRate")?);
        let missing = u128::from(limit.saturating_sub(remaining)) * 1_000_000;
        let restored = missing.checked_div(u128::from(rate)).and_then(|micros| u64::try_from(micros).ok());
        Some(Window {
            limit: Some(limit),
            remaining: Some(remaining),
            resets_in: restored.map(|micros| Ticks::from_micros(micros + 1).min(super::WAIT_MAX)),
            ..Window::named("points", WindowUnit::Cost)
        })
    }
}

/// Whether GitHub means a secondary limit.
fn is_secondary(message: &str) -> bool {
    message.contains("secondary rate limit") || message.contains("abuse detection")
}

/// Whether AWS means a limit with this code, whatever the status.
pub(super) fn is_aws_throttling(code: &str) -> bool {
    let code = code.rsplit('#').next().unwrap_or(code);
    let code = code.split(':').next().unwrap_or(code);
    let code = code.strip_suffix("Exception").unwrap_or(code);
    matches!(
        code,
        "Throttling"
            | "Throttled"
            | "RequestThrottled"
            | "TooManyRequests"
            | "ProvisionedThroughputExceeded"
            | "RequestLimitExceeded"
            | "BandwidthLimitExceeded"
            | "LimitExceeded"
            | "SlowDown"
            | "EC2Throttled"
    )
}
