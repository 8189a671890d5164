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

/// The registered type of a problem that is over when there is capacity again.
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// The facts that all problems of one kind share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProblemType {
    /// The status.
    pub status: u16,
    /// The name that stays: the end of its URN, or the reason of a registered type, which several kinds share.
    pub name: &'static str,
    /// The title.
    pub title: &'static str,
    registered: Option<&'static str>,
}

impl ProblemType {
    /// A type of Tollgate's own.
    #[must_use]
    pub const fn new(status: u16, name: &'static str, title: &'static str) -> Self {
        Self { status, name, title, registered: None }
    }

    /// The registered type for a lack of capacity, for this reason.
    pub(super) const fn reduced_capacity(reason: &'static str) -> Self {
        let title = "Request cannot be satisfied due to temporary server capacity constraints";
        Self { status: 503, name: reason, title, registered: Some(REDUCED_CAPACITY) }
    }

    /// A problem of this type as JSON.
    #[must_use]
    pub fn json(self, detail: &str) -> String {
        serde_json::to_string(&self.details(detail)).unwrap_or_default()
    }

    /// The response that describes a problem of this type.
    #[must_use]
    pub fn response(self, detail: &str) -> Response<Full<Bytes>> {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response(status, Some(PROBLEM_JSON), self.json(detail))
    }

    fn details(self, detail: &str) -> ProblemDetails<'_> {
        ProblemDetails {
            r#type: self
                .registered
                .map_or_else(|| format!("urn:tollgate:problem:{}", self.name), str::to_owned),
            title: self.title,
            status: self.status,
            detail,
            reason: self.registered.map(|_| self.name),
        }
    }
}

/// Problem details, as RFC 9457 writes them.
#[derive(Debug, Serialize)]
struct ProblemDetails<'a> {
    r#type: String,
    title: &'static str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
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
    let mut response = problem.kind.problem_type().response(&problem.detail);
    match problem.kind {
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
