//! Sends an admitted request on: its route, its upstream, a retry at another upstream where that is safe, and the
//! answer.

use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderValue;
use http::{Request, Response, StatusCode, Version, request};
use hyper::body::Body as _;
use tollgate::{Clock, Timestamp};
use tollgate_overload::Ending;
use tollgate_tower::{InFlight, Unanswered};

use crate::arrival::{Arrival, ReadSettings, Taking};
use crate::body::{Body, Download};
use crate::buffer_pool;
use crate::failure::{Scarce, UpstreamFailure};
use crate::field_rules::FieldRules;
use crate::fields;
use crate::listen::Pace;
use crate::log_throttle::LogThrottle;
use crate::metrics::Slow;
use crate::outgoing::Outgoing;
use crate::own::{ClientProtocol, empty, refused};
use crate::problem::{Kind, Problem};
use crate::request_body::RequestBody;
use crate::shares::ShareOwner;
use crate::table::{Route, RouteTable};
use crate::trailers::Trailers;
use crate::tunnel::{Tunnel, TunnelHandoff, UpgradeRequest};
use crate::upload::{Fault, Unbegun, Unsent, Upload};
use crate::upstream::{IdleConnections, Upstream, UpstreamAnswer};

/// Sends requests on.
pub(crate) struct Proxy {
    pub(crate) table: RouteTable,
    pub(crate) reading: ReadSettings,
    trailers: Arc<Trailers>,
    clock: Clock,
    failing: LogThrottle,
    unsent: Unsent,
    pub(crate) slow: Arc<Slow>,
}

impl Proxy {
    pub(crate) fn new(table: RouteTable, taking: Taking, clock: Clock) -> Self {
        let rules = FieldRules::new(&taking.reader, taking.header_names);
        let trailers = Arc::new(Trailers::new(rules));
        let reading = ReadSettings::new(taking, &table.sticky);
        let (failing, unsent, slow) = (LogThrottle::default(), Unsent::default(), Arc::default());
        Self { reading, table, trailers, clock, failing, unsent, slow }
    }

    /// Waits until the body of a request has begun, so that a client that sends nothing holds neither an upstream's
    /// slot nor capacity.
    ///
    /// # Errors
    /// When the body does not come. The answer says why.
    pub(crate) async fn begun(
        &self,
        request: Request<RequestBody>,
    ) -> Result<Request<Upload>, Response<Body>> {
        let (parts, body) = request.into_parts();
        if body.is_end_stream() {
            return Ok(Request::from_parts(parts, Upload::empty()));
        }
        let asker = ClientProtocol::of(&parts.headers);
        let arrival = parts.extensions.get::<Arrival>();
        let found =
            arrival.and_then(|arrival| Some((arrival, self.table.find(&arrival.host, parts.uri.path())?)));
        let Some((arrival, route)) = found else {
            // The request is refused, and its body is not read.
            let upload = Upload::new(body, None, Pace::idle(Duration::ZERO));
            return Ok(Request::from_parts(parts, upload));
        };
        let is_held = matches!(body, RequestBody::Held(_));
        let trailers = may_trail(arrival, &body).then(|| Arc::clone(&self.trailers));
        let upload = match asker {
            ClientProtocol::Http => Upload::new(body, trailers, route.pace),
            // A gRPC call may be a stream that is idle by nature, and its server may speak first. Its slot counts
            // towards the client's share.
            ClientProtocol::Grpc => Upload::new(body, trailers, Pace::idle(route.timeouts.idle)),
        };
        // If no upstream is available, the request is refused without its body.
        let is_awaited = asker == ClientProtocol::Http
            && !is_held
            && route.choose(arrival, &[], self.clock.now()).is_some();
        let begun = if is_awaited {
            upload.begin(&self.unsent, ShareOwner::of(arrival, &self.reading.reader)).await
        } else {
            Ok(())
        };
        match begun {
            Ok(()) => Ok(Request::from_parts(parts, upload)),
            Err(Unbegun::Fault(fault)) => Err(answered(&cut_off(fault, &self.slow), asker)),
            Err(Unbegun::Full(full)) => {
                let failure = UpstreamFailure::full(full, Scarce::Uploads);
                Err(answered(&unanswered(route, &failure), asker))
            }
        }
    }

    /// Sends on an admitted request, and returns its answer.
    pub(crate) async fn forward(&self, request: Request<Upload>) -> Response<Body> {
        let asker = ClientProtocol::of(request.headers());
        match self.answer(request).await {
            Ok(response) => response,
            Err(Undone { problem, delivery }) => {
                let mut response = answered(&problem, asker);
                if delivery == Delivery::Possible {
                    response.extensions_mut().insert(Unanswered);
                }
                response
            }
        }
    }

    async fn answer(&self, mut request: Request<Upload>) -> Result<Response<Body>, Undone> {
        let Some(arrival) = request.extensions_mut().remove::<Arrival>() else {
            // The caller puts it there. This arm is here so that a mistake fails one request instead of the process.
            return Err(Problem::invalid("nothing is known about the request").into());
        };
        let path = request.uri().path();
        if path == "*" {
            let mut response = empty(StatusCode::NO_CONTENT); // The gateway speaks for itself.
            response.extensions_mut().insert(Ending::Ignored);
            return Ok(response);
        }
        let Some(route) = self.table.find(&arrival.host, path) else {
            return Err(turned(
                Kind::NoRoute,
                "no route is for this host and path; look at routes in the config",
            )
            .into());
        };
        let upgrade = UpgradeRequest::of(&mut request);
        let held = request.extensions().get::<InFlight>().map(InFlight::hold);
        let (mut parts, upload) = request.into_parts();
        parts.extensions.clear(); // They are ours, and copied with each attempt.
        fields::of_request(&mut parts.headers, &arrival, &self.reading);
        if let Some(upgrade) = &upgrade {
            parts.headers.insert(http::header::CONNECTION, HeaderValue::from_static("upgrade"));
            parts.headers.insert(http::header::UPGRADE, upgrade.protocol.clone());
        }
        let client = ShareOwner::of(&arrival, &self.reading.reader);
        let outgoing = Outgoing { parts, upload, is_upgrade: upgrade.is_some(), client, held };
        let (answer, upstream) = self.sent(route, &arrival, &outgoing).await?;
        outgoing.upload.answered();
        buffer_pool::give_fields(outgoing.parts.headers);
        buffer_pool::give_extensions(outgoing.parts.extensions);
        handed_on(answer, route, &upstream, upgrade).map_err(Undone::seen)
    }

    /// Sends a request to one upstream after the other, as far as retries are safe.
    async fn sent(
        &self,
        route: &Route,
        arrival: &Arrival,
        outgoing: &Outgoing,
    ) -> Result<(UpstreamAnswer, Arc<Upstream>), Undone> {
        route.budget.earn();
        let mut tried = Vec::new();
        let mut again = None;
        let mut delivery = Delivery::None;
        loop {
            let now = self.clock.now();
            let idle = if again.is_some() { IdleConnections::Skipped } else { IdleConnections::Allowed };
            // When all were tried, one that is not down may have failed only for a moment.
            let other = || route.choose(arrival, &tried, now).or_else(|| route.choose(arrival, &[], now));
            let chosen = again.take().or_else(other);
            let Some(upstream) = chosen.and_then(|place| route.upstreams.get(place)) else {
                return Err(Undone { problem: no_upstream(route), delivery });
            };
            if !tried.is_empty() {
                upstream.numbers.retried();
            }
            tried.extend(chosen);
            let failure = match upstream.send(outgoing, idle).await {
                Ok(answer) => {
                    upstream.health.answered();
                    upstream.numbers.answered(answer.0.status());
                    return Ok((answer, Arc::clone(upstream)));
                }
                Err(failure) => failure,
            };
            if let Some(fault) = outgoing.upload.fault() {
                return Err(Undone::seen(cut_off(fault, &self.slow)));
            }
            delivery = delivery.max(Delivery::of(&failure));
            self.note(route, upstream, &failure, now);
            let retries = u32::try_from(tried.len()).unwrap_or(u32::MAX) - 1;
            // A request that has waited for a slot here does not wait for it again.
            let has_waited = matches!(failure, UpstreamFailure::Busy(_) | UpstreamFailure::Share(_));
            let is_over = has_waited && route.choose(arrival, &tried, now).is_none();
            if is_over
                || retries >= route.retries
                || !is_safe(&failure, &outgoing.parts, &outgoing.upload)
                || !route.budget.spend()
            {
                return Err(Undone { problem: unanswered(route, &failure), delivery });
            }
            // Only the connection was stale, so the same upstream is tried again.
            again = chosen.filter(|_| matches!(failure, UpstreamFailure::Stale));
        }
    }

    /// Records a failure in the counters, in the upstream's health and in the log.
    fn note(&self, route: &Route, upstream: &Upstream, failure: &UpstreamFailure, now: Timestamp) {
        upstream.numbers.failed(failure);
        // An upstream that is late has taken the request and sent nothing; any answer in between shows that it is only
        // slow at times. A request is left only when the upstream has also ended a connection of its own while the
        // request was on it.
        let is_its_fault = matches!(
            failure,
            UpstreamFailure::Connect(..)
                | UpstreamFailure::Left
                | UpstreamFailure::Lost(..)
                | UpstreamFailure::Late
        );
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
                %failure,
                skipped,
                "a request got no answer"
            );
        }
    }
}

/// Whether a request without an answer may have had an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Delivery {
    /// No upstream has processed it.
    None,
    /// An upstream may have processed it.
    Possible,
}

impl Delivery {
    const fn of(failure: &UpstreamFailure) -> Self {
        match failure {
            UpstreamFailure::Connect(..)
            | UpstreamFailure::Busy(_)
            | UpstreamFailure::Share(_)
            | UpstreamFailure::Unsent => Delivery::None,
            UpstreamFailure::Refused | UpstreamFailure::Left => Delivery::None,
            UpstreamFailure::Stale | UpstreamFailure::Lost(..) | UpstreamFailure::Late => Delivery::Possible,
        }
    }
}

/// A request without an answer.
struct Undone {
    problem: Problem,
    delivery: Delivery,
}

impl Undone {
    /// An upstream may have processed it.
    const fn seen(problem: Problem) -> Self {
        Self { problem, delivery: Delivery::Possible }
    }
}

impl From<Problem> for Undone {
    fn from(problem: Problem) -> Self {
        Self { problem, delivery: Delivery::None }
    }
}

/// Turns a problem into the answer to an admitted request.
fn answered(problem: &Problem, asker: ClientProtocol) -> Response<Body> {
    let mut response = refused(problem, asker);
    response.extensions_mut().insert(ending(problem.kind));
    response
}

/// What the gateway's own answer means for the controllers of overload: a drop, if upstreams are down or slow, or
/// nothing, if the request itself was at fault.
const fn ending(kind: Kind) -> Ending {
    match kind {
        Kind::NoUpstream | Kind::Busy | Kind::Unreachable | Kind::Lost | Kind::Late => Ending::Dropped,
        _ => Ending::Ignored,
    }
}

/// Whether a request may be retried: no upstream can have processed it, or it is idempotent; and its whole body is
/// still here.
fn is_safe(failure: &UpstreamFailure, parts: &request::Parts, upload: &Upload) -> bool {
    upload.is_whole()
        && match failure {
            UpstreamFailure::Stale => parts.method.is_idempotent(),
            _ => Delivery::of(failure) == Delivery::None,
        }
}

/// Whether trailers may come. In HTTP/1 they follow only chunks.
fn may_trail(arrival: &Arrival, body: &RequestBody) -> bool {
    !body.is_end_stream() && (arrival.version == Version::HTTP_2 || body.size_hint().exact().is_none())
}

/// Turns an upstream's answer into the one for the client.
fn handed_on(
    (mut response, place): UpstreamAnswer,
    route: &Route,
    upstream: &Upstream,
    upgrade: Option<UpgradeRequest>,
) -> Result<Response<Body>, Problem> {
    let is_switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let protocol = response.headers().get(http::header::UPGRADE).cloned();
    // The version belongs to one hop: an upstream that speaks HTTP/1.0 does not end the client's connection.
    *response.version_mut() = Version::HTTP_11;
    if upgrade
        .as_ref()
        .and_then(|upgrade| upgrade.extended.as_ref())
        .is_some_and(|asked| asked.is_misled(&response))
    {
        let detail = format!("route {:?}: no WebSocket is there", route.name);
        return Err(turned(Kind::NotSwitched, detail));
    }
    if fields::of_response(response.headers_mut()).is_none() {
        return Err(turned(Kind::Lost, "the upstream's answer is framed in a way that is not read here"));
    }
    match (is_switched, upgrade) {
        (true, Some(upgrade)) => {
            let tunnel = Tunnel {
                client: upgrade.client,
                upstream: hyper::upgrade::on(&mut response),
                _place: place,
                _counted: upstream.numbers.tunnel(),
                held: None,
            };
            let mut response = response.map(|_| Body::default());
            TunnelHandoff::granted(tunnel, &mut response, protocol.unwrap_or(upgrade.protocol));
            Ok(response)
        }
        (true, None) => {
            Err(turned(Kind::Lost, "the upstream switched to a protocol that the request did not ask for"))
        }
        (false, _) => {
            let idle = route.timeouts.idle;
            Ok(response.map(|body| Body::Download(Download { body, idle, waiting: None, _place: place })))
        }
    }
}

fn turned(kind: Kind, detail: impl Into<String>) -> Problem {
    Problem::new(kind, detail)
}

fn no_upstream(route: &Route) -> Problem {
    turned(
        Kind::NoUpstream,
        format!("route {:?}: no upstream passes its health checks; try again later", route.name),
    )
}

/// The problem that a client gets for a request without an answer. The details are in the log only.
fn unanswered(route: &Route, failure: &UpstreamFailure) -> Problem {
    let name = &route.name;
    match failure {
        UpstreamFailure::Connect(cause, _) => {
            turned(Kind::Unreachable, format!("route {name:?}: {}", cause.text()))
        }
        UpstreamFailure::Busy(scarce) => {
            let detail = format!("route {name:?}: as many {scarce} are there as may be; try again later");
            turned(Kind::Busy, detail)
        }
        UpstreamFailure::Share(scarce) => {
            let detail = format!(
                "route {name:?}: your address has as many {scarce} as one client may; wait for some of them to end"
            );
            turned(Kind::Share, detail)
        }
        UpstreamFailure::Refused | UpstreamFailure::Left | UpstreamFailure::Unsent => {
            turned(Kind::Lost, format!("route {name:?}: the server refused it unseen; try again"))
        }
        UpstreamFailure::Stale => {
            let detail = format!(
                "route {name:?}: the connection ended as the request was sent; the server may have acted on it or not"
            );
            turned(Kind::Lost, detail)
        }
        UpstreamFailure::Lost(cause, _) => turned(Kind::Lost, format!("route {name:?}: {}", cause.text())),
        UpstreamFailure::Late => {
            let detail = format!(
                "route {name:?}: no answer in {:?}; timeouts.response in the config allows more",
                route.timeouts.response
            );
            turned(Kind::Late, detail)
        }
    }
}

/// The problem that a client gets when its body did not come. A body that was too slow is counted.
pub(crate) fn cut_off(fault: Fault, slow: &Slow) -> Problem {
    match fault {
        Fault::TooSlow => {
            slow.upload();
            Problem::new(Kind::BodyTooSlow, "the body came too slowly; send it faster")
        }
        Fault::CutOff => {
            Problem::new(Kind::BodyCutOff, "the body is cut off, or its chunks are not as they should be")
        }
    }
}
