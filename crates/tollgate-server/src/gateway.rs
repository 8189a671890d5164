//! The gateway: a reverse proxy in front of services that cannot be changed. The way of a request: `connection` (HTTP/1 through `strict`, which lets
//! only `framing` that nobody can read differently pass, or HTTP/2 through `frames`, which ends floods) → `arrival` (its one spelling, and who sent it) →
//! the decision → `overload` (whether there is capacity) → `proxy` (its route in the `table`, the upstream that `spread` chooses) → `fields` (what the next hop is told) → `upstream` (a connection of `link`) → `body`.
//! Routes come from the config by way of `plan`; `health` and `checks` say which upstreams are asked; `tunnel` is for what is no longer HTTP.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Request, Response};
use tollgate_tower::{RateLimit, RateLimitLayer, peer};
use tower_layer::Layer;
use tower_service::Service as _;

mod plan;
mod connection;
mod filtered;
mod entry;
mod strict;
mod framing;
mod frames;
mod streams;
mod arrival;
mod decide;
mod overload;
mod proxy;
mod table;
mod spread;
mod fields;
mod upstream;
mod link;
mod body;
mod tunnel;
mod health;
mod checks;
mod numbers;
mod refusal;

/// What the fuzz targets see of the gateway.
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use super::framing::{Found, Scanner};

    /// How many of these bytes, which come in parts, may pass, and whether more may.
    #[must_use]
    pub fn framed(parts: &[&[u8]]) -> (usize, bool) {
        let (mut scanner, mut passed) = (Scanner::new(), 0);
        for part in parts {
            match scanner.scan(part) {
                Found::Fine => passed += part.len(),
                Found::Asks(at) | Found::Broken(at) => return (passed + at, false),
            }
        }
        (passed, true)
    }
}

pub(crate) use arrival::{MethodOverride, Taking};
pub(crate) use connection::connection;
pub use plan::Target;
pub(crate) use plan::{RouteDocument, RoutePlan, compile};
pub(crate) use refusal::Turned;

use crate::http::{Kind, Problem};
use crate::listen::Links;
use crate::service::{Service, Wire};
use crate::telemetry::Open;
use arrival::{Arrival, Peer};
use body::Body;
use decide::{Deciding, Passing};
use overload::Behind;
use proxy::Proxy;
use table::Table;

/// What a connection of HTTP/1 may keep of a head, or of a body between two reads. A head may be as large on the wire; one that is
/// larger than a request may have is answered by whoever looks at it.
const HEAD_BUFFER_BYTES: usize = 64 << 10;

/// The gateway.
pub(crate) struct Gateway {
    service: Arc<Service>,
    proxy: Arc<Proxy>,
    limited: RateLimit<Behind, Deciding>,
}

/// Marks an answer of the gateway's own.
#[derive(Clone, Copy)]
struct Own;

impl Gateway {
    /// A gateway with these routes, which takes requests so, limits as the service does, and has `links` for its connections to upstreams.
    ///
    /// # Errors
    /// When a file that a route names is not what it should be.
    pub(crate) fn new(
        plans: &[RoutePlan],
        taking: Taking,
        service: Arc<Service>,
        clock: tollgate::Clock,
        links: &Links,
    ) -> Result<Self, String> {
        let reader = taking.reader.clone();
        let proxy = Arc::new(Proxy::new(Table::new(plans, links)?, taking, clock));
        let shown = Arc::clone(&proxy);
        service.meter.show_gateway(move || numbers::series(&shown.table));
        // A trusted proxy decides itself what its clients get to see.
        let is_vouched = |request: &http::request::Parts| {
            request.extensions.get::<Arrival>().is_some_and(|arrival| arrival.is_trusted)
        };
        let layer = RateLimitLayer::deciding(Deciding(Arc::clone(&service)))
            .reader(reader.clone())
            .headers(service.headers.clone())
            .authenticated(is_vouched);
        let behind = Behind::new(Passing(Arc::clone(&proxy)), service.overload.as_ref(), (&service, &reader));
        Ok(Self { limited: layer.layer(behind), service, proxy })
    }

    fn opened(&self) -> Open {
        self.service.meter.opened(Wire::Gateway)
    }

    /// Answers one request of a peer.
    async fn answer(&self, request: Request<Incoming>, peer: Peer) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        let arrived = arrival::arrive(&mut parts, peer, &self.proxy.reading);
        let arrived = arrived.and_then(|arrival| match self.service.foreign() {
            None => Ok(arrival),
            Some(foreign) => {
                let format = foreign.rules.format().name();
                let detail = format!("in force is {format}; the gateway needs a policy of Tollgate's own");
                Err(Problem::new(Kind::Gateway(Turned::ForeignRules), detail))
            }
        });
        match arrived {
            Ok(arrival) => {
                parts.extensions.insert(peer::Peer(peer.address));
                parts.extensions.insert(arrival);
                let mut limited = self.limited.clone();
                match limited.call(Request::from_parts(parts, body)).await {
                    Ok(response) => response.map(BodyExt::boxed_unsync),
                    Err(never) => match never {},
                }
            }
            Err(problem) => {
                let mut response = proxy::refused(&problem);
                response.extensions_mut().insert(Own);
                response
            }
        }
    }
}
