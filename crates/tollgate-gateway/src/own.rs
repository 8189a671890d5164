//! Writes the gateway's own answers: as problem+json, or for a gRPC call as a status in headers alone.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use tonic::{Code, Status};

use crate::body::{Body, Limited};
use crate::problem::{Kind, Problem, problem_details};
use crate::random;

/// The longest `Retry-After` while there is no capacity.
const RETRY_SECONDS_MAX: u64 = 5;
/// The delay after which a gRPC client may retry by itself. A negative value forbids the retry.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The protocol of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientProtocol {
    Http,
    Grpc,
}

impl ClientProtocol {
    /// Reads it from the fields of the request.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        match headers.get(CONTENT_TYPE) {
            Some(kind) if kind.as_bytes().starts_with(b"application/grpc") => ClientProtocol::Grpc,
            _ => ClientProtocol::Http,
        }
    }
}

/// Marks the gateway's own answers to requests that reach no limit.
#[derive(Clone, Copy)]
pub(crate) struct GatewayAnswer;

/// Answers a request that reaches no limit.
pub(crate) fn answer(problem: &Problem, asker: ClientProtocol) -> Response<Limited> {
    let mut response = refused(problem, asker).map(Limited::from);
    response.extensions_mut().insert(GatewayAnswer);
    response
}

/// Turns a problem into an answer.
pub(crate) fn refused(problem: &Problem, asker: ClientProtocol) -> Response<Body> {
    let mut response = match asker {
        ClientProtocol::Http => problem_details(problem).map(Body::Text),
        ClientProtocol::Grpc => call(problem),
    };
    let headers = response.headers_mut();
    if problem.kind.problem_type().status == 503 {
        // Jitter: clients that come back at one instant would be refused together.
        let seconds = 1 + random::next() % RETRY_SECONDS_MAX;
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        if asker == ClientProtocol::Grpc {
            headers.insert(PUSHBACK, HeaderValue::from(seconds * 1_000));
        }
    } else if asker == ClientProtocol::Grpc && problem.kind != Kind::Unreachable {
        // The server may have processed the request, or never will.
        headers.insert(PUSHBACK, HeaderValue::from_static("-1"));
    }
    response
}

fn call(problem: &Problem) -> Response<Body> {
    let mut response = empty(StatusCode::OK);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    // `add_header` omits a text that is not valid in a header, and writes its status instead.
    let _ = Status::new(code(problem.kind), problem.detail.as_str()).add_header(response.headers_mut());
    response
}

/// The gRPC code of a problem.
const fn code(kind: Kind) -> Code {
    match kind {
        Kind::NoRoute | Kind::UnknownProtocol | Kind::MethodNotAllowed(_) => Code::Unimplemented,
        Kind::Late | Kind::BodyTooSlow => Code::DeadlineExceeded,
        Kind::Loop => Code::FailedPrecondition,
        Kind::NoUpstream | Kind::Busy | Kind::Share | Kind::Unreachable | Kind::Lost | Kind::CompatRules => {
            Code::Unavailable
        }
        _ => Code::InvalidArgument,
    }
}

/// An answer with a status and no body.
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::default());
    *response.status_mut() = status;
    response
}
