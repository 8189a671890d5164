//! What a refused caller is sent: the one place where a decision becomes a response.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCESS_CONTROL_REQUEST_METHOD, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
    RETRY_AFTER,
};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use smallvec::SmallVec;
use tollgate::headers::{Accepts, Caller, Exposure, HeaderList, HeaderPolicy};
use tollgate::{Answer, Audience, Decision, Reason, Ticks, Timestamp};

use crate::grpc::{self, Code};

/// What the answer depends on beside the decision: who reads it, and in which form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) audience: Audience,
    pub(crate) is_call: bool,
}

impl Reading {
    /// Who reads the answer to a request.
    pub(crate) fn of(parts: &Parts, caller: Caller, cost: u64) -> Self {
        let audience = Audience { caller, accepts: accepts(&parts.headers), cost: Some(cost) };
        Self { audience, is_call: grpc::is_call(&parts.headers) }
    }

    fn is_shown(&self, policy: &HeaderPolicy) -> bool {
        self.audience.caller == Caller::Authenticated || policy.anonymous == Exposure::Full
    }
}

/// What the sender of a request can read.
pub(crate) fn accepts(headers: &HeaderMap) -> Accepts {
    let Some(accept) = headers.get(ACCEPT) else { return Accepts::Json };
    // What most callers send needs no reading.
    if accept.as_bytes() == b"application/json" || accept.as_bytes() == b"*/*" {
        return Accepts::Json;
    }
    accept.to_str().map_or(Accepts::Json, Accepts::from_header)
}

/// The response to a refused request.
pub(crate) fn response(
    decision: &Decision,
    policy: &HeaderPolicy,
    reading: &Reading,
    now: Timestamp,
) -> Response<Bytes> {
    let mut answer = Answer::of(decision, policy, reading.audience, now);
    let mut response = Response::new(Bytes::new());
    add(response.headers_mut(), &mut answer.headers);
    if reading.is_call {
        let reason = decision.reason().unwrap_or(Reason::Unavailable);
        let title = title(reason);
        // The name of a limit without `by`, which is the platform's, is not for callers.
        let is_callers = decision.cause().is_none_or(|status| !status.limit.by().is_empty());
        let cause = decision.cause_name().filter(|_| is_callers && reading.is_shown(policy));
        grpc::write(response.headers_mut(), Code::of(reason), title, decision.retry_after(), cause);
        return response;
    }
    said(&mut response, answer);
    response
}

/// Whether the request is a CORS preflight. A browser sends it by itself, and its response says nothing about quotas.
pub(crate) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Says what an answer says instead of the response that the caller did not get.
fn said(response: &mut Response<Bytes>, answer: Answer) {
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    if let Some(body) = answer.body {
        response.headers_mut().insert(CONTENT_TYPE, content_type(body.content_type));
        *response.body_mut() = match body.text {
            Cow::Borrowed(text) => Bytes::from_static(text.as_bytes()),
            Cow::Owned(text) => Bytes::from(text),
        };
    }
}

/// The response to whom there is no capacity for.
pub(crate) fn unavailable(mut answer: Answer, is_call: bool) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let retry =
        answer.headers.get("Retry-After").and_then(|seconds| seconds.parse().ok()).map(Ticks::from_secs);
    add(response.headers_mut(), &mut answer.headers);
    if is_call {
        grpc::write(response.headers_mut(), Code::Unavailable, "no capacity now", retry, None);
        return response;
    }
    said(&mut response, answer);
    response
}

/// The response to a request that cannot be read in one way only.
pub(crate) fn unreadable(problem: &str, is_call: bool) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    if is_call {
        grpc::write(response.headers_mut(), Code::InvalidArgument, problem, None, None);
        return response;
    }
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    let mut text = String::from(
        r#"{"type":"urn:tollgate:problem:invalid-request","title":"Request cannot be read in one way only","status":400,"detail":"#,
    );
    quoted(&mut text, problem);
    text.push_str(r#","retryable":false}"#);
    *response.body_mut() = Bytes::from(text);
    response
}

/// Text as JSON quotes it.
fn quoted(out: &mut String, text: &str) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            // The messages are ours and may quote what was sent; what cannot be read aloud is left out.
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out.push('"');
}

const fn title(reason: Reason) -> &'static str {
    match reason {
        Reason::Quota => "quota exceeded",
        Reason::Blocked => "blocked for a while",
        Reason::Forbidden => "denied by policy",
        Reason::Penalty => "blocked for a while after too many denials",
        Reason::Cost => "the request costs more than a limit ever admits",
        Reason::Fault => "the cost of the request cannot be computed",
        Reason::Unavailable => "nobody can count now",
    }
}

/// The headers that belong together: what comes before the word that tells them apart, of names such as `X-RateLimit-Limit`.
fn family(name: &str) -> Option<&str> {
    let word = b"ratelimit-";
    let at = name.as_bytes().windows(word.len()).position(|part| part.eq_ignore_ascii_case(word))?;
    name.get(..at + word.len())
}

/// The families of which a service sends headers itself.
struct Families(SmallVec<[String; 2]>);

impl Families {
    fn of(headers: &HeaderMap) -> Self {
        let names = headers.keys().filter(|name| **name != RATE_LIMIT_POLICY);
        Self(names.filter_map(|name| family(name.as_str())).map(str::to_owned).collect())
    }

    /// Whether a header of ours belongs to one of them.
    fn has(&self, name: &str) -> bool {
        !self.0.is_empty()
            && family(name).is_some_and(|ours| self.0.iter().any(|own| own.eq_ignore_ascii_case(ours)))
    }
}

/// Adds headers to a response. Lists grow: what the service says of its own limits stays. Of the others the service's own stay, and one that
/// belongs to them comes along with none of ours: numbers of two limits side by side would say what neither does.
pub(crate) fn add(headers: &mut HeaderMap, list: &mut HeaderList) {
    headers.reserve(list.len() + OTHERS);
    let told = Families::of(headers);
    let (text, entries) = list.take_text();
    // One piece of memory for all values.
    let text = Bytes::from(text);
    for (name, range) in entries {
        let is_list = matches!(name, "RateLimit" | "RateLimit-Policy");
        if !is_list && told.has(name) {
            continue;
        }
        // Names are constants of the core and values printable, so both are always sendable.
        let (Some(name), Ok(value)) = (header_name(name), HeaderValue::from_maybe_shared(text.slice(range)))
        else {
            continue;
        };
        if is_list {
            headers.append(name, value);
        } else {
            headers.entry(name).or_insert(value);
        }
    }
}

/// Headers that a refusal has beside those of the list: the type of its body.
const OTHERS: usize = 1;
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const X_USED: HeaderName = HeaderName::from_static("x-ratelimit-used");
const X_RESOURCE: HeaderName = HeaderName::from_static("x-ratelimit-resource");

pub(crate) const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The type of a body. The usual one is known without reading it.
fn content_type(name: &'static str) -> HeaderValue {
    match name {
        "application/problem+json" => PROBLEM,
        other => HeaderValue::from_static(other),
    }
}

/// A header's name. The usual ones are known without reading them.
fn header_name(name: &'static str) -> Option<HeaderName> {
    Some(match name {
        "RateLimit" => RATE_LIMIT,
        "RateLimit-Policy" => RATE_LIMIT_POLICY,
        "X-RateLimit-Limit" => X_LIMIT,
        "X-RateLimit-Remaining" => X_REMAINING,
        "X-RateLimit-Reset" => X_RESET,
        "X-RateLimit-Used" => X_USED,
        "X-RateLimit-Resource" => X_RESOURCE,
        "Retry-After" => RETRY_AFTER,
        "Cache-Control" => CACHE_CONTROL,
        other => return HeaderName::from_bytes(other.as_bytes()).ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was sent cannot break the answer's form.
    #[test]
    fn quotes() {
        let mut text = String::new();
        quoted(&mut text, "a\"b\\c\nd");
        assert_eq!(text, r#""a\"b\\c d""#);
    }
}
