//! From a problem to a response of HTTP.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use serde::Serialize;

use super::{Kind, Problem};

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Problem details, as RFC 9457 writes them.
#[derive(Serialize)]
struct ProblemDetails<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

/// The response that tells a problem.
pub(crate) fn problem_details(problem: &Problem) -> Response<Full<Bytes>> {
    let kind = problem.kind;
    let details = ProblemDetails {
        r#type: kind.urn(),
        title: kind.title(),
        status: kind.status(),
        detail: &problem.detail,
        reason: kind.reason(),
    };
    let status = StatusCode::from_u16(kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = response(status, Some(PROBLEM_JSON), serde_json::to_vec(&details).unwrap_or_default());
    match kind {
        Kind::MethodNotAllowed(accepted) => {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(accepted));
        }
        Kind::Unauthorized => {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // What is left of the body is not read, so the connection is of no further use.
        Kind::BodyTooSlow | Kind::BodyTooLarge => {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        _ => {}
    }
    response
}

/// A response that no cache keeps.
pub(crate) fn response(
    status: StatusCode,
    content_type: Option<HeaderValue>,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    // A decision is about one instant, and so is every problem.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(content_type) = content_type {
        headers.insert(CONTENT_TYPE, content_type);
    }
    response
}
