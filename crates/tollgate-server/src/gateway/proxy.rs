//! A request's way through the gateway once it may pass: its route, its upstream, another one where that is safe, and the answer.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode, Version, request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use tollgate::overload::Ending;
use tollgate::{Clock, Timestamp};

use super::arrival::{Arrival, Reading, Taking};
use super::body::{Body, Download, Fault, Upload};
use super::fields;
use super::refusal::Turned;
use super::table::{Route, Table};
use super::tunnel::{self, Handed, Tunnel};
use super::upstream::{Answer, Failure, Outgoing, Upstream};
use crate::http::{Kind, Problem, problem_details};
use crate::seldom::Seldom;

/// Sends requests on.
pub(super) struct Proxy {
    pub(super) table: Table,
    pub(super) reading: Reading,
    clock: Clock,
    failing: Seldom,
}

impl Proxy {
    pub(super) fn new(table: Table, taking: Taking, clock: Clock) -> Self {
        Self { reading: Reading::new(taking, &table.sticky), table, clock, failing: Seldom::default() }
    }

    /// Sends a request on that has arrived and may pass, and gives back its answer.
    pub(super) async fn forward(&self, request: Request<Incoming>) -> Response<Body> {
        match self.answer(request).await {
            Ok(response) => response,
            Err(problem) => {
                let mut response = refused(&problem);
                response.extensions_mut().insert(ending(problem.kind));
                response
            }
        }
    }

    async fn answer(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Problem> {
        let Some(arrival) = request.extensions_mut().remove::<Arrival>() else {
            // Whoever calls puts it there; this arm is here so that a mistake costs one answer, not the process.
            return Err(Problem::invalid("nothing is known about the request"));
        };
        let path = request.uri().path();
        if path == "*" {
            let mut response = empty(StatusCode::NO_CONTENT); // The gateway speaks for itself.
            response.extensions_mut().insert(Ending::Ignored);
            return Ok(response);
        }
        let Some(route) = self.table.find(arrival.host.as_deref(), path) else {
            return Err(turned(
                Turned::NoRoute,
                "no route is for this host and path; look at routes in the config",
            ));
        };
        let protocol = tunnel::wanted(&request);
        let client = protocol.as_ref().and_then(|_| request.extensions_mut().remove::<OnUpgrade>());
        let (mut parts, body) = request.into_parts();
        parts.extensions.clear(); // They are ours, and copied with each attempt.
        fields::of_request(&mut parts.headers, &arrival, &self.reading.reader);
        let upgrade = protocol.zip(client);
        if let Some((protocol, _)) = &upgrade {
            parts.headers.insert(http::header::CONNECTION, HeaderValue::from_static("upgrade"));
            parts.headers.insert(http::header::UPGRADE, protocol.clone());
        }
        let outgoing = Outgoing { parts, upload: Upload::new(body), is_upgrade: upgrade.is_some() };
        let (answer, upstream) = self.sent(route, &arrival, &outgoing).await?;
        outgoing.upload.answered();
        Ok(handed_on(answer, route, &upstream, upgrade))
    }

    /// Sends a request to one upstream after the other, as far as that is safe.
    async fn sent(
        &self,
        route: &Route,
        arrival: &Arrival,
        outgoing: &Outgoing,
    ) -> Result<(Answer, Arc<Upstream>), Problem> {
        route.budget.earn();
        let mut tried = Vec::new();
        loop {
            let now = self.clock.now();
            // When all were tried, one that is not broken itself may have had a bad moment.
            let chosen = route.choose(arrival, &tried, now).or_else(|| route.choose(arrival, &[], now));
            let Some(upstream) = chosen.and_then(|place| route.upstreams.get(place)) else {
                return Err(no_upstream(route));
            };
            if !tried.is_empty() {
                upstream.numbers.retried();
            }
            tried.extend(chosen);
            let failure = match upstream.send(outgoing).await {
                Ok(answer) => {
                    upstream.health.answered();
                    upstream.numbers.answered(answer.0.status());
                    return Ok((answer, Arc::clone(upstream)));
                }
                Err(failure) => failure,
            };
            if let Some(fault) = outgoing.upload.fault() {
                return Err(cut_off(fault));
            }
            self.note(route, upstream, &failure, now);
            let retries = u32::try_from(tried.len()).unwrap_or(u32::MAX) - 1;
            if retries >= route.retries
                || !is_safe(&failure, &outgoing.parts, &outgoing.upload)
                || !route.budget.spend()
            {
                return Err(unanswered(route, &failure));
            }
        }
    }

    /// Tells whoever counts, chooses and reads the log.
    fn note(&self, route: &Route, upstream: &Upstream, failure: &Failure, now: Timestamp) {
        upstream.numbers.failed(failure);
        let is_its_fault = matches!(failure, Failure::Connect(_) | Failure::Lost(_) | Failure::Stale);
        let rests = is_its_fault && upstream.health.failed(now);
        if rests {
            tracing::warn!(
                route = route.name,
                upstream = upstream.name,
                "an upstream fails, and is left alone for a while"
            );
        } else if let Some(skipped) = self.failing.due(now) {
            tracing::warn!(
                route = route.name,
                upstream = upstream.name,
                ?failure,
                skipped,
                "a request got no answer"
            );
        }
    }
}

/// What an answer of the gateway's own says about capacity: that upstreams are away or slow, or nothing, where the request itself was at
/// fault.
const fn ending(kind: Kind) -> Ending {
    match kind {
        Kind::Gateway(
            Turned::NoUpstream | Turned::Busy | Turned::Unreachable | Turned::Lost | Turned::Late,
        ) => Ending::Dropped,
        _ => Ending::Ignored,
    }
}

/// Whether a request may be sent again: the upstream cannot have acted on it, or doing it twice is doing it once; and no part of its
/// body is gone.
fn is_safe(failure: &Failure, parts: &request::Parts, upload: &Upload) -> bool {
    upload.is_whole()
        && match failure {
            Failure::Connect(_) | Failure::Busy => true, // Nothing was sent.
            Failure::Refused => parts.method.is_idempotent(),
            Failure::Stale | Failure::Lost(_) | Failure::Late => false,
        }
}

/// The answer as it goes to the client.
fn handed_on(
    (mut response, place): Answer,
    route: &Route,
    upstream: &Upstream,
    upgrade: Option<(HeaderValue, OnUpgrade)>,
) -> Response<Body> {
    let is_switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let protocol = response.headers().get(http::header::UPGRADE).cloned();
    // Each hop has a version of its own: an upstream of HTTP/1.0 does not end the client's connection.
    *response.version_mut() = Version::HTTP_11;
    fields::of_response(response.headers_mut());
    match (is_switched, upgrade) {
        (true, Some((asked, client))) => {
            let tunnel = Tunnel {
                client,
                upstream: hyper::upgrade::on(&mut response),
                _place: place,
                _counted: upstream.numbers.tunnel(),
                held: None,
            };
            let mut response = response.map(|_| nothing());
            Handed::granted(tunnel, &mut response, protocol.unwrap_or(asked));
            response
        }
        (true, None) => {
            refused(&turned(Turned::Lost, "the upstream switched to a protocol that nobody asked for"))
        }
        (false, _) => {
            let idle = route.timeouts.idle;
            response.map(|body| Download { body, idle, waiting: None, _place: place }.boxed_unsync())
        }
    }
}

fn turned(kind: Turned, detail: impl Into<String>) -> Problem {
    Problem::new(Kind::Gateway(kind), detail)
}

fn no_upstream(route: &Route) -> Problem {
    turned(
        Turned::NoUpstream,
        format!("route {:?}: no upstream passes its health checks; try again later", route.name),
    )
}

/// What a client is told about a request without an answer. Addresses of upstreams are in the log, not here.
fn unanswered(route: &Route, failure: &Failure) -> Problem {
    let name = &route.name;
    match failure {
        Failure::Connect(cause) => {
            let detail = format!(
                "route {name:?}: {cause}; the server behind the gateway does not run, or is not there"
            );
            turned(Turned::Unreachable, detail)
        }
        Failure::Busy => {
            let detail = format!("route {name:?}: as many requests are there as may be; try again later");
            turned(Turned::Busy, detail)
        }
        Failure::Refused | Failure::Stale => {
            turned(Turned::Lost, format!("route {name:?}: the server refused it unseen; try again"))
        }
        Failure::Lost(cause) => {
            let detail = format!("route {name:?}: {cause}; the server may have acted on the request or not");
            turned(Turned::Lost, detail)
        }
        Failure::Late => {
            let detail = format!(
                "route {name:?}: no answer in {:?}; timeouts.response in the config allows more",
                route.timeouts.response
            );
            turned(Turned::Late, detail)
        }
    }
}

fn cut_off(fault: Fault) -> Problem {
    match fault {
        Fault::TooSlow => Problem::new(Kind::BodyTooSlow, "the body came too slowly; send it faster"),
        Fault::CutOff => {
            Problem::new(Kind::BodyCutOff, "the body is cut off, or its chunks are not as they should be")
        }
    }
}

/// A problem as an answer.
pub(super) fn refused(problem: &Problem) -> Response<Body> {
    let mut response = problem_details(problem).map(full);
    if matches!(problem.kind.status(), 503) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

fn full(body: Full<Bytes>) -> Body {
    body.map_err(|never| match never {}).boxed_unsync()
}

/// An empty body.
pub(super) fn nothing() -> Body {
    full(Full::default())
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(nothing());
    *response.status_mut() = status;
    response
}
