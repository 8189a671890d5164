//! Which function answers which route, and what it answers. Each reads the time once, and passes it down.

use std::net::IpAddr;

use hyper::Request;
use hyper::body::Incoming;
use hyper::header::HeaderName;
use tollgate::engine::Settled;

use super::authz::Verified;
use super::root::RootForm;
use super::route::HttpRoute;
use super::{access, authz, check, held, limitador, rls_json};
use crate::control::ControlPlane;
use crate::control::admin::Admin;
use crate::problem::Problem;
use crate::readiness::{Audience, ReadinessReport};
use crate::request_body::{self, BATCH_BYTES_MAX, BODY_BYTES_MAX};
use crate::request_json::{self, JsonRequest};

/// Prefixes of the headers in which a proxy describes the request that it asks about.
const PROXY_FIELDS: [&str; 2] = ["x-forwarded-", "x-original-"];

/// The answer to a request.
#[derive(Debug)]
pub(super) enum HttpAnswer {
    /// The server is alive.
    Healthy,
    /// The running program.
    Root(RootForm),
    /// The description of the interface.
    OpenApi,
    /// Whether requests should come here, and the state that the operator should know.
    Ready { is_ready: bool, report: Box<ReadinessReport> },
    /// The metrics, in Prometheus format.
    Metrics(String),
    /// One decision, or those of a batch, as JSON. They are large, so they are serialized where they are made.
    Decision(Vec<u8>),
    /// The answer to a proxy.
    Verified(Box<Verified>),
    /// The result of settling a reservation.
    Settled(Settled),
    /// Success without content.
    Done,
    /// The answer of another program's interface.
    Compat(CompatAnswer),
}

/// An answer whose status, headers and body another program's interface prescribes.
#[derive(Debug, Default)]
pub(super) struct CompatAnswer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: CompatBody,
}

/// The body of such an answer.
#[derive(Debug)]
pub(super) enum CompatBody {
    Json(serde_json::Value),
    Text(&'static str),
}

impl CompatAnswer {
    /// A document, where all is well.
    pub(super) fn document(document: serde_json::Value) -> HttpAnswer {
        HttpAnswer::Compat(Self { status: 200, body: CompatBody::Json(document), ..Self::default() })
    }
}

impl Default for CompatBody {
    fn default() -> Self {
        CompatBody::Json(serde_json::Value::Null)
    }
}

/// Refuses pages of other sites. Probes charge nothing, so any client may send them. A proxy that asks about a
/// browser's request passes on that browser's headers. It is recognized by headers that a page cannot send to another
/// site without a preflight request, which is refused.
fn refuse_other_sites<B>(
    admin: &Admin,
    route: &Result<HttpRoute, Problem>,
    request: &Request<B>,
) -> Result<(), Problem> {
    let is_of_proxy = |name: &HeaderName| PROXY_FIELDS.iter().any(|start| name.as_str().starts_with(start));
    match route {
        Ok(HttpRoute::Health | HttpRoute::Ready) => Ok(()),
        Ok(HttpRoute::Authz(_)) if request.headers().keys().any(is_of_proxy) => {
            admin.refuse_other_names(request)
        }
        _ => admin.refuse_other_sites(request),
    }
}

/// Answers one request of a peer.
///
/// # Errors
/// When no decision could be made because of the request, or a reservation cannot be settled.
pub(super) async fn answer(
    control: &ControlPlane,
    request: Request<Incoming>,
    peer: IpAddr,
) -> Result<HttpAnswer, Problem> {
    let route = HttpRoute::of(request.method(), request.uri().path());
    refuse_other_sites(&control.admin, &route, &request)?;
    let is_admitted = access::is_admitted(&control.service.auth, request.headers());
    // Probes need no token. Every other request does, and is checked first, so that a client without a token does not
    // even learn which paths exist.
    if !is_admitted && !matches!(route, Ok(HttpRoute::Health | HttpRoute::Ready)) {
        return Err(access::refusal());
    }
    let service = &*control.service;
    let audience = if is_admitted { Audience::Admitted } else { Audience::Anybody };
    match route? {
        HttpRoute::Check => check::check(service, request).await,
        // Frequent routes are answered above. The futures of the others are boxed, so they take no space in this one.
        route => Box::pin(answer_any(control, route, request, peer, audience)).await,
    }
}

async fn answer_any(
    control: &ControlPlane,
    route: HttpRoute,
    request: Request<Incoming>,
    peer: IpAddr,
    audience: Audience,
) -> Result<HttpAnswer, Problem> {
    let service = &*control.service;
    match route {
        HttpRoute::Check => check::check(service, request).await,
        HttpRoute::Batch => {
            let body = request_body::read(request, BATCH_BYTES_MAX).await?;
            check::batch(service, &JsonRequest::batch(&body)?).await
        }
        HttpRoute::Health => Ok(HttpAnswer::Healthy),
        HttpRoute::Ready => Ok(ready(control, audience)),
        HttpRoute::Root => Ok(HttpAnswer::Root(RootForm::of(request.headers()))),
        HttpRoute::OpenApi => Ok(HttpAnswer::OpenApi),
        HttpRoute::Metrics => Ok(HttpAnswer::Metrics(control.metrics().await)),
        HttpRoute::Authz(proxy) => {
            let verified = authz::authorize(service, peer, &request.into_parts().0, proxy).await;
            Ok(HttpAnswer::Verified(Box::new(verified)))
        }
        HttpRoute::Reserve => {
            let body = request_body::read(request, BODY_BYTES_MAX).await?;
            held::reserve(service, &JsonRequest::reservation(&body)?).await
        }
        HttpRoute::Commit(id) => {
            let body = request_body::read(request, BODY_BYTES_MAX).await?;
            held::commit(service, id, request_json::settlement(&body)?).await
        }
        HttpRoute::Report(id) => {
            let body = request_body::read(request, BODY_BYTES_MAX).await?;
            held::report(service, id, request_json::ended(&body)?).await
        }
        HttpRoute::Cancel(id) => held::cancel(service, id).await,
        HttpRoute::Release(id) => held::release(service, id).await,
        HttpRoute::Rls => {
            let body = request_body::read_any(request, BATCH_BYTES_MAX).await?;
            rls_json::answer(service, &body).await
        }
        HttpRoute::Limitador(action) => {
            let body = request_body::read_any(request, BODY_BYTES_MAX).await?;
            limitador::answer(service, action, &body).await
        }
        HttpRoute::LimitadorStatus => limitador::status(service, &control.reloader),
        HttpRoute::LimitadorLimits => limitador::limits(service, request.uri().path()),
        HttpRoute::LimitadorCounters => limitador::counters(service, request.uri().path()).await,
    }
}

fn ready(control: &ControlPlane, audience: Audience) -> HttpAnswer {
    let report = Box::new(control.report(audience));
    HttpAnswer::Ready { is_ready: control.readiness.is_ready(), report }
}
