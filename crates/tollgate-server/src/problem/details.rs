//! From a problem to a response of HTTP.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;
use hyper::header::{ALLOW, CONNECTION, HeaderValue, WWW_AUTHENTICATE};

use super::{Kind, Problem};

/// The response that describes a problem.
pub(crate) fn problem_details(problem: &Problem) -> Response<Full<Bytes>> {
    let mut response = problem.kind.problem_type().response(&problem.detail);
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
    problem.kind.problem_type().json(&problem.detail)
}
