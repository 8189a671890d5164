//! The response to a refused request. Only this module turns a decision into a response.

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

use crate::grpc::{self, Code, Protocol};

/// The audience and the protocol of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerContext {
    pub(crate) audience: Audience,
    pub(crate) protocol: Protocol,
}

impl AnswerContext {
    /// The context of the answer to a request.
    pub(crate) fn of(parts: &Parts, caller: Caller, cost: u64) -> Self {
        let audience = Audience { caller, accepts: accepts(&parts.headers), cost: Some(cost) };
        Self { audience, protocol: Protocol::of(&parts.headers) }
    }

    fn is_shown(&self, policy: &HeaderPolicy) -> bool {
        self.audience.caller == Caller::Authenticated || policy.anonymous == Exposure::Full
    }
}

/// The body format that the caller accepts.
pub(crate) fn accepts(headers: &HeaderMap) -> Accepts {
    let Some(accept) = headers.get(ACCEPT) else { return Accepts::Json };
    // The values of most callers need no parsing.
    if accept.as_bytes() == b"application/json" || accept.as_bytes() == b"*/*" {
        return Accepts::Json;
    }
    accept.to_str().map_or(Accepts::Json, Accepts::from_header)
}

/// The response to a refused request.
pub(crate) fn response(
    decision: &Decision,
    policy: &HeaderPolicy,
    context: &AnswerContext,
    now: Timestamp,
) -> Response<Bytes> {
    let mut answer = Answer::of(decision, policy, context.audience, now);
    let mut response = Response::new(Bytes::new());
    add(response.headers_mut(), &mut answer.headers);
    if context.protocol == Protocol::Grpc {
        let reason = decision.reason().unwrap_or(Reason::Unavailable);
        let title = title(reason);
        // A limit without `by` belongs to the platform, so callers do not see its name.
        let is_callers = decision.cause().is_none_or(|status| !status.limit.by().is_empty());
        let cause = decision.cause_name().filter(|_| is_callers && context.is_shown(policy));
        grpc::write(response.headers_mut(), Code::of(reason), title, decision.retry_after(), cause);
        return response;
    }
    write_answer(&mut response, answer);
    response
}

/// Whether the request is a CORS preflight. A browser sends it on its own, so its response shows no quota.
pub(crate) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Writes the status and the body of an answer.
fn write_answer(response: &mut Response<Bytes>, answer: Answer) {
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    if let Some(body) = answer.body {
        response.headers_mut().insert(CONTENT_TYPE, content_type(body.content_type));
        *response.body_mut() = match body.text {
            Cow::Borrowed(text) => Bytes::from_static(text.as_bytes()),
            Cow::Owned(text) => Bytes::from(text),
        };
    }
}

/// The response to a request that is shed for lack of capacity.
pub(crate) fn unavailable(mut answer: Answer, protocol: Protocol) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let retry =
        answer.headers.get("Retry-After").and_then(|seconds| seconds.parse().ok()).map(Ticks::from_secs);
    add(response.headers_mut(), &mut answer.headers);
    if protocol == Protocol::Grpc {
        grpc::write(response.headers_mut(), Code::Unavailable, "no capacity now", retry, None);
        return response;
    }
    write_answer(&mut response, answer);
    response
}

/// The response to an ambiguous request.
pub(crate) fn unreadable(problem: &str, protocol: Protocol) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    if protocol == Protocol::Grpc {
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

/// Appends text as a JSON string.
fn quoted(out: &mut String, text: &str) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            // A message may quote the request, so control characters become spaces.
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
        Reason::Unavailable => "limits cannot be counted now",
    }
}

/// The prefix that related headers share: `X-RateLimit-` of `X-RateLimit-Limit`.
fn family(name: &str) -> Option<&str> {
    let word = b"ratelimit-";
    let at = name.as_bytes().windows(word.len()).position(|part| part.eq_ignore_ascii_case(word))?;
    name.get(..at + word.len())
}

/// The families of the headers that a service sets itself.
struct Families(SmallVec<[String; 2]>);

impl Families {
    fn of(headers: &HeaderMap) -> Self {
        let names = headers.keys().filter(|name| **name != RATE_LIMIT_POLICY);
        Self(names.filter_map(|name| family(name.as_str())).map(str::to_owned).collect())
    }

    /// Whether a header belongs to one of them.
    fn has(&self, name: &str) -> bool {
        !self.0.is_empty()
            && family(name).is_some_and(|ours| self.0.iter().any(|own| own.eq_ignore_ascii_case(ours)))
    }
}

/// Adds headers to a response. List headers are appended to those of the service. Other headers of the service stay, and
/// keep out the rest of their family: mixed numbers of two limits would be wrong for both.
pub(crate) fn add(headers: &mut HeaderMap, list: &mut HeaderList) {
    headers.reserve(list.len() + OTHERS);
    let own = Families::of(headers);
    let (text, entries) = list.take_text();
    // One allocation for all values.
    let text = Bytes::from(text);
    for (name, range) in entries {
        let is_list = matches!(name, "RateLimit" | "RateLimit-Policy");
        if !is_list && own.has(name) {
            continue;
        }
        // Names are constants and values are printable, so both are always valid.
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

/// Headers of a refusal besides those of the list: the content type.
const OTHERS: usize = 1;
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const X_USED: HeaderName = HeaderName::from_static("x-ratelimit-used");
const X_RESOURCE: HeaderName = HeaderName::from_static("x-ratelimit-resource");

pub(crate) const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The content type of a body. The usual one needs no parsing.
fn content_type(name: &'static str) -> HeaderValue {
    match name {
        "application/problem+json" => PROBLEM,
        other => HeaderValue::from_static(other),
    }
}

/// The name of a header. The usual ones need no parsing.
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

    /// Text from a request cannot break the JSON of the answer.
    #[test]
    fn quotes_and_control_characters_are_escaped() {
        let mut text = String::new();
        quoted(&mut text, "a\"b\\c\nd");
        assert_eq!(text, r#""a\"b\\c d""#);
    }
}
