//! From a problem to a response of HTTP.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;

use super::{Kind, Problem};

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
/// Maximum length of an explanation, in characters. It may quote the request.
const DETAIL_CHARS_MAX: usize = 500;

/// Problem details, as RFC 9457 writes them.
#[derive(Debug, Serialize)]
pub struct ProblemDetails<'a> {
    /// The problem type: a name that stays.
    pub r#type: &'static str,
    /// The title of all problems of this type.
    pub title: &'static str,
    /// The status.
    pub status: u16,
    /// The accepted values.
    pub detail: &'a str,
    /// Which of several kinds with one type it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
}

impl ProblemDetails<'_> {
    /// The response that tells a problem.
    #[must_use]
    pub fn response(&self) -> Response<Full<Bytes>> {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response(status, Some(PROBLEM_JSON), serde_json::to_vec(self).unwrap_or_default())
    }
}

/// An explanation, shortened.
#[must_use]
pub fn detail_text(detail: impl Into<String>) -> String {
    let mut detail = detail.into();
    if let Some((end, _)) = detail.char_indices().nth(DETAIL_CHARS_MAX) {
        detail.truncate(end);
        detail.push('…');
    }
    detail
}

/// The response to a problem of the gateway.
pub(crate) fn problem_details(problem: &Problem) -> Response<Full<Bytes>> {
    let kind = problem.kind;
    let details = ProblemDetails {
        r#type: kind.urn(),
        title: kind.title(),
        status: kind.status(),
        detail: &problem.detail,
        reason: kind.reason(),
    };
    let mut response = details.response();
    match kind {
        Kind::MethodNotAllowed(accepted) => {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(accepted));
        }
        // The rest of the body is not read, so the connection cannot be reused.
        Kind::BodyTooSlow => {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        _ => {}
    }
    response
}

/// A response that no cache keeps.
pub fn response(
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
