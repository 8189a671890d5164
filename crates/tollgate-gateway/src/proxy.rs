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

use crate::arrival::{Arrival, ReadSettings, RequestSettings};
use crate::body::{Body, Download};
use crate::buffer_pool;
use crate::failure::{ExhaustedResource, UpstreamFailure};
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
use crate::upload::{BodyNotStarted, Fault, Unsent, Upload};
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
    pub(crate) fn new(table: RouteTable, taking: RequestSettings, clock: Clock) -> Self {
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
            Err(BodyNotStarted::Fault(fault)) => Err(answered(&cut_off(fault, &self.slow), asker)),
            Err(BodyNotStarted::Full(full)) => {
                let failure = UpstreamFailure::full(full, ExhaustedResource::Uploads);
                Err(answered(&unanswered(route, &failure), asker))
            }
        }
    }

    /// Sends on an admitted request, and returns its answer.
    pub(crate) async fn forward(&self, request: Request<Upload>) -> Response<Body> {
        let asker = ClientProtocol::of(request.headers());
        match self.answer(request).await {
            Ok(response) => response,
            Err(Failed { problem, delivery }) => {
                let mut response = answered(&problem, asker);
                if delivery == Delivery::Possible {
                    response.extensions_mut().insert(Unanswered);
                }
                response
            }
        }
    }

    async fn answer(&self, mut request: Request<Upload>) -> Result<Response<Body>, Failed> {
        let Some(arrival) = request.extensions_mut().remove::<Arrival>() else {
            // The caller puts it there. This arm is here so that a mistake fails one request instead of the process.
            return Err(Problem::invalid("the request was not read (`Arrival` is missing)").into());
        };
        let path = request.uri().path();
        if path == "*" {
            let mut response = empty(StatusCode::NO_CONTENT); // The gateway speaks for itself.
            response.extensions_mut().insert(Ending::Ignored);
            return Ok(response);
        }
        let Some(route) = self.table.find(&arrival.host, path) else {
            return Err(Problem::new(
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
        let (answer, upstream) = self.send_with_retries(route, &arrival, &outgoing).await?;
        outgoing.upload.answered();
        buffer_pool::give_fields(outgoing.parts.headers);
        buffer_pool::give_extensions(outgoing.parts.extensions);
        client_response(answer, route, &upstream, upgrade).map_err(Failed::seen)
    }

    /// Sends a request to one upstream after the other, as far as retries are safe.
    async fn send_with_retries(
        &self,
        route: &Route,
        arrival: &Arrival,
        outgoing: &Outgoing,
    ) -> Result<(UpstreamAnswer, Arc<Upstream>), Failed> {
        route.budget.earn();
        let mut tried = Vec::new();
        let mut retry_same = None;
        let mut delivery = Delivery::None;
        loop {
            let now = self.clock.now();
            let idle = if retry_same.is_some() { IdleConnections::Skipped } else { IdleConnections::Allowed };
            // When all were tried, one that is not down may have failed only for a moment.
            let other = || route.choose(arrival, &tried, now).or_else(|| route.choose(arrival, &[], now));
            let chosen = retry_same.take().or_else(other);
            let Some(upstream) = chosen.and_then(|slots| route.upstreams.get(slots)) else {
                return Err(Failed { problem: no_upstream(route), delivery });
            };
            if !tried.is_empty() {
                upstream.metrics.retried();
            }
            tried.extend(chosen);
            let failure = match upstream.send(outgoing, idle).await {
                Ok(answer) => {
                    upstream.health.answered();
                    upstream.metrics.answered(answer.0.status());
                    return Ok((answer, Arc::clone(upstream)));
                }
                Err(failure) => failure,
            };
            if let Some(fault) = outgoing.upload.fault() {
                return Err(Failed::seen(cut_off(fault, &self.slow)));
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
                return Err(Failed { problem: unanswered(route, &failure), delivery });
            }
            // Only the connection was stale, so the same upstream is tried again.
            retry_same = chosen.filter(|_| matches!(failure, UpstreamFailure::Stale));
        }
    }

    /// Records a failure in the counters, in the upstream's health and in the log.
    fn note(&self, route: &Route, upstream: &Upstream, failure: &UpstreamFailure, now: Timestamp) {
        upstream.metrics.failed(failure);
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
        let ejection = is_its_fault.then(|| upstream.health.failed(now)).flatten();
        if let Some(ejection) = ejection {
            tracing::warn!(
                route = route.name,
                upstream = upstream.name,
                "upstream failed repeatedly; no requests for {} s",
                ejection.as_micros() / 1_000_000
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
struct Failed {
    problem: Problem,
    delivery: Delivery,
}

impl Failed {
    /// An upstream may have processed it.
    const fn seen(problem: Problem) -> Self {
        Self { problem, delivery: Delivery::Possible }
    }
}

impl From<Problem> for Failed {
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

/// The meaning of the gateway's own answer for the controllers of overload: a drop, if upstreams are down or slow, or
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
fn client_response(
    (mut response, slots): UpstreamAnswer,
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
        return Err(Problem::new(Kind::NotSwitched, detail));
    }
    if fields::of_response(response.headers_mut()).is_none() {
        return Err(Problem::new(Kind::Lost, "the upstream's response uses unsupported framing"));
    }
    match (is_switched, upgrade) {
        (true, Some(upgrade)) => {
            let tunnel = Tunnel {
                client: upgrade.client,
                upstream: hyper::upgrade::on(&mut response),
                _slots: slots,
                _counted: upstream.metrics.tunnel(),
                held: None,
            };
            let mut response = response.map(|_| Body::default());
            TunnelHandoff::granted(tunnel, &mut response, protocol.unwrap_or(upgrade.protocol));
            Ok(response)
        }
        (true, None) => Err(Problem::new(
            Kind::Lost,
            "the upstream switched to a protocol that the request did not ask for",
        )),
        (false, _) => {
            let idle = route.timeouts.idle;
            Ok(response.map(|body| Body::Download(Download { body, idle, waiting: None, _slots: slots })))
        }
    }
}

fn no_upstream(route: &Route) -> Problem {
    Problem::new(
        Kind::NoUpstream,
        format!("route {:?}: no upstream passes its health checks; try again later", route.name),
    )
}

/// The problem that a client gets for a request without an answer. The details are in the log only.
fn unanswered(route: &Route, failure: &UpstreamFailure) -> Problem {
    let name = &route.name;
    match failure {
        UpstreamFailure::Connect(cause, _) => {
            Problem::new(Kind::Unreachable, format!("route {name:?}: {}", cause.text()))
        }
        UpstreamFailure::Busy(resource) => {
            let detail =
                format!("route {name:?}: the upstream's limit of {resource} is reached; try again later");
            Problem::new(Kind::Busy, detail)
        }
        UpstreamFailure::Share(resource) => {
            let detail = format!(
                "route {name:?}: your address has reached its limit of {resource}; wait for some of them to end"
            );
            Problem::new(Kind::Share, detail)
        }
        UpstreamFailure::Refused | UpstreamFailure::Left | UpstreamFailure::Unsent => Problem::new(
            Kind::Lost,
            format!("route {name:?}: the upstream refused the request without processing it; try again"),
        ),
        UpstreamFailure::Stale => {
            let detail = format!(
                "route {name:?}: the connection ended as the request was sent; the server may have acted on it or not"
            );
            Problem::new(Kind::Lost, detail)
        }
        UpstreamFailure::Lost(cause, _) => {
            Problem::new(Kind::Lost, format!("route {name:?}: {}", cause.text()))
        }
        UpstreamFailure::Late => {
            let detail = format!(
                "route {name:?}: no answer in {:?}; timeouts.response in the config allows more",
                route.timeouts.response
            );
            Problem::new(Kind::Late, detail)
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
