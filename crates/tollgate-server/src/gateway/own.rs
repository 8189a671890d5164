//! How the gateway's own answers are written: as problem+json, or for a call of gRPC as a status in headers alone.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use tonic::{Code, Status};

use super::body::Body;
use crate::problem::Turned;
use crate::problem::{Kind, Problem, problem_details};
use crate::random;

/// The longest that a client is asked to stay away while there is no capacity.
const RETRY_SECONDS_MAX: u64 = 5;
/// When a client of gRPC that retries by itself may do so; negative: not at all.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// What the client of a request speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    Http,
    Grpc,
}

impl Asker {
    /// By the fields of the request.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        match headers.get(CONTENT_TYPE) {
            Some(kind) if kind.as_bytes().starts_with(b"application/grpc") => Asker::Grpc,
            _ => Asker::Http,
        }
    }
}

/// A problem as an answer.
pub(super) fn refused(problem: &Problem, asker: Asker) -> Response<Body> {
    let mut response = match asker {
        Asker::Http => problem_details(problem).map(Body::Own),
        Asker::Grpc => call(problem),
    };
    let headers = response.headers_mut();
    if problem.kind.status() == 503 {
        // Not all at one instant: whoever comes back together is refused together.
        let seconds = 1 + random::next() % RETRY_SECONDS_MAX;
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        if asker == Asker::Grpc {
            headers.insert(PUSHBACK, HeaderValue::from(seconds * 1_000));
        }
    } else if asker == Asker::Grpc && problem.kind != Kind::Gateway(Turned::Unreachable) {
        // The server may have acted on it, or never will.
        headers.insert(PUSHBACK, HeaderValue::from_static("-1"));
    }
    response
}

fn call(problem: &Problem) -> Response<Body> {
    let mut response = empty(StatusCode::OK);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    // A text that cannot stand in a header is left out by whoever writes it, with the status in its place.
    let _ = Status::new(code(problem.kind), problem.detail.as_str()).add_header(response.headers_mut());
    response
}

/// What gRPC calls a problem.
const fn code(kind: Kind) -> Code {
    match kind {
        Kind::Gateway(Turned::NoRoute | Turned::UnknownProtocol) | Kind::MethodNotAllowed(_) => {
            Code::Unimplemented
        }
        Kind::Gateway(Turned::Late) | Kind::BodyTooSlow => Code::DeadlineExceeded,
        Kind::Gateway(Turned::Loop) => Code::FailedPrecondition,
        Kind::Gateway(
            Turned::NoUpstream
            | Turned::Busy
            | Turned::Share
            | Turned::Unreachable
            | Turned::Lost
            | Turned::ForeignRules,
        ) => Code::Unavailable,
        _ => Code::InvalidArgument,
    }
}

/// An answer that says no more than its status.
pub(super) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::default());
    *response.status_mut() = status;
    response
}
