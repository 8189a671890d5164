//! From a problem to a response of HTTP.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;
use hyper::header::{ALLOW, CONNECTION, HeaderValue, WWW_AUTHENTICATE};
use tollgate_gateway::problem::ProblemDetails;

use super::{Kind, Problem};

/// The response that tells a problem.
pub(crate) fn problem_details(problem: &Problem) -> Response<Full<Bytes>> {
    let mut response = details_of(problem).response();
    match problem.kind {
        Kind::MethodNotAllowed(accepted) => {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(accepted));
        }
        Kind::Unauthorized => {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // The rest of the body is not read, so the connection cannot be reused.
        Kind::BodyTooSlow | Kind::BodyTooLarge => {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        _ => {}
    }
    response
}

/// The body of that response.
pub(crate) fn problem_text(problem: &Problem) -> String {
    serde_json::to_string(&details_of(problem)).unwrap_or_default()
}

const fn details_of(problem: &Problem) -> ProblemDetails<'_> {
    let kind = problem.kind;
    ProblemDetails {
        r#type: kind.urn(),
        title: kind.title(),
        status: kind.status(),
        detail: problem.detail.as_str(),
        reason: None,
    }
}
