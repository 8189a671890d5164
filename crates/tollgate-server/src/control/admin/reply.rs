//! Converts answers to HTTP. The statuses of problems are chosen in `problem`, as for every protocol.

use std::net::IpAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{HeaderMap, Request, Response};

use super::act::AdminAnswer;
use super::guard::NodeRequest;
use super::tail::EventBody;
use super::verbs;
use crate::control::ControlPlane;
use crate::fleet::{NODE_HEADER, NodeKey, NodeSignature, PROOF_HEADER, StreamProofs};
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
    let asking = control.admin.node_request(&request, &control.fleet);
    let answered = match control.admin.admit(&request, asking.as_ref(), asker.peer, &control.fleet) {
        Ok(sender) => verbs::operate(control, &sender, request, asker).await,
        Err(problem) => Err(problem),
    };
    let mut response = match answered {
        Ok(AdminAnswer::Json(text)) => typed(Either::Left(Full::new(text)), "application/json"),
        Ok(AdminAnswer::Lines(lines)) => typed(Either::Right(lines), "application/x-ndjson"),
        Err(problem) => refused(&problem).map(Either::Left),
    };
    guarded(response.headers_mut());
    insert(response.headers_mut(), NODE_HEADER, control.fleet.id());
    match asking {
        Some(NodeRequest::Signed(question, token)) => proven(response, &question, &token.key).await,
        _ => response,
    }
}

/// Proves an answer to the node that asked for it: its status and its body, or each of its lines.
async fn proven(
    response: Response<AdminBody>,
    question: &NodeSignature,
    key: &NodeKey,
) -> Response<AdminBody> {
    let (mut head, body) = response.into_parts();
    let (proof, body) = match body {
        Either::Left(document) => {
            let bytes = document.collect().await.unwrap_or_default().to_bytes();
            (question.proof(key, head.status.as_u16(), &bytes), Either::Left(Full::new(bytes)))
        }
        Either::Right(lines) => {
            let proofs = StreamProofs::new(key.clone(), question);
            (question.proof_of_lines(key), Either::Right(lines.with_proofs(proofs)))
        }
    };
    insert(&mut head.headers, PROOF_HEADER, Some(&proof));
    Response::from_parts(head, body)
}

fn insert(headers: &mut HeaderMap, name: &'static str, value: Option<&str>) {
    if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
        headers.insert(name, value);
    }
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
