//! Converts answers to HTTP. The statuses of problems are chosen in `problem`, as for every protocol.

use std::net::IpAddr;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{HeaderMap, Request, Response};

use super::tail::EventBody;
use super::verbs::AdminAnswer;
use crate::control::ControlPlane;
use crate::fleet::{NODE_HEADER, PROOF_HEADER};
use crate::problem::AdminProblem;
use crate::problem::{Kind, Problem, problem_details};
use crate::shutdown::Stop;

/// A complete body, or one that is streamed.
pub(crate) type AdminBody = Either<Full<Bytes>, EventBody>;

/// The peer, and the state of its connection that a long answer needs.
pub(crate) struct AdminClient {
    /// The peer's address.
    pub(crate) peer: Option<IpAddr>,
    /// Signals that the server stops.
    pub(crate) stop: Stop,
    /// Held until the answer is complete.
    pub(crate) answering: Box<dyn Send + Sync>,
}

/// Answers one request of the admin API.
pub(crate) async fn respond(
    control: &ControlPlane,
    request: Request<Incoming>,
    asker: AdminClient,
) -> Response<AdminBody> {
    let sender = control.admin.admit(&request, asker.peer, &control.fleet);
    let proof = sender.as_ref().ok().and_then(|sender| Some(sender.question.as_ref()?.proof(sender.key)));
    let answered = match sender {
        Ok(sender) => control.operate(&sender, request, asker).await,
        Err(problem) => Err(problem),
    };
    let mut response = match answered {
        Ok(AdminAnswer::Json(text)) => typed(Either::Left(Full::new(text.into())), "application/json"),
        Ok(AdminAnswer::Lines(lines)) => typed(Either::Right(lines), "application/x-ndjson"),
        Err(problem) => refused(&problem).map(Either::Left),
    };
    guarded(response.headers_mut());
    let id = control.fleet.id().map(str::to_owned);
    for (name, value) in [(NODE_HEADER, id), (PROOF_HEADER, proof)] {
        if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn typed(body: AdminBody, content_type: &'static str) -> Response<AdminBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn refused(problem: &Problem) -> Response<Full<Bytes>> {
    let mut response = problem_details(problem);
    match problem.kind {
        Kind::Admin(AdminProblem::NoToken) => {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        Kind::Admin(AdminProblem::TooManyLogins { seconds }) => {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        _ => {}
    }
    response
}

/// Sets headers so that an answer is neither cached, nor readable by other pages, nor executed.
fn guarded(headers: &mut HeaderMap) {
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.insert(
        "content-security-policy",
        HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"),
    );
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
}
