//! The gateway: a reverse proxy in front of services that cannot be changed.
//!
//! A request passes these modules, in this order:
//! 1. `connection`: HTTP/1 by `http1::server`, which accepts a request only if every server reads it alike, or HTTP/2
//!    through `frames`, which ends floods;
//! 2. `arrival`: the one spelling of the request, and its client;
//! 3. `priced`: the cost of a GraphQL request, for the paths that a route's `graphql` names;
//! 4. the decision;
//! 5. `upload`: the beginning of its body;
//! 6. `overload`: whether there is capacity;
//! 7. `proxy`: its route in the `table`, and the upstream that `spread` chooses;
//! 8. `fields`: the header fields for the next hop;
//! 9. `upstream`: a slot of the client's `shares`, and a connection of `link`, which is an `http1::client` or a `shared`
//!    one of HTTP/2;
//! 10. `answer` and `body`: the answer on its way back.
//!
//! `plan` compiles the routes of the config. `health` and `checks` decide which upstreams get requests. `tunnel`
//! carries what is no longer HTTP, and `websocket` translates WebSockets inside HTTP/2. `leaving` handles requests
//! whose client has gone. `own` writes the gateway's own answers, each of which is a `problem`. About a failed
//! upstream a client learns only a `cause`.

use std::sync::Arc;

use hyper::{Request, Response};
use tollgate::Timestamp;
use tollgate_tower::{RateLimit, RateLimitLayer, peer};
use tower_layer::Layer;
use tower_service::Service as _;

mod plan;
mod target;
mod graphql;
mod connection;
mod http1;
mod filtered;
mod entry;
mod frames;
mod streams;
mod arrival;
mod priced;
mod decide;
mod overload;
mod proxy;
mod table;
mod spread;
mod fields;
mod upstream;
mod shares;
mod leaving;
mod link;
mod shared;
mod room;
mod answer;
mod cause;
mod own;
mod spare;
mod body;
mod upload;
mod carried;
mod trailers;
mod tunnel;
mod websocket;
mod health;
mod checks;
mod numbers;

/// The parts of the gateway that the fuzz targets call.
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use super::http1::framing::Reader;

    /// Feeds bytes in parts. Returns how many of them were read as requests, and whether more may follow.
    #[must_use]
    pub fn framed(parts: &[&[u8]]) -> (usize, bool) {
        let mut reader = Reader::new();
        parts.iter().for_each(|part| reader.feed(part));
        (reader.taken, !reader.is_broken && !reader.has_asked)
    }
}

pub(crate) use arrival::Taking;
pub(crate) use connection::connection;
pub(crate) use fields::HeaderNames;
pub(crate) use plan::{RouteDocument, RoutePlan, compile};
pub use target::Target;

use crate::listen::Links;
use crate::problem::{Kind, Problem, Turned};
use crate::protocol::Wire;
use crate::service::Service;
use crate::telemetry::Open;
use arrival::Peer;
use body::Limited;
use carried::Carried;
use decide::{Deciding, Passing};
use overload::Behind;
use priced::Priced;
use proxy::Proxy;
use shares::Client;
use table::Table;

/// The gateway.
pub(crate) struct Gateway {
    service: Arc<Service>,
    proxy: Arc<Proxy>,
    limited: RateLimit<Behind, Deciding>,
    priced: Vec<Priced>,
}

/// Marks the gateway's own answers.
#[derive(Clone, Copy)]
struct Own;

impl Gateway {
    /// Builds a gateway with these routes. `taking` sets how it reads requests, `service` decides, and `links` limits
    /// its connections to upstreams.
    ///
    /// # Errors
    /// When a file that a route names is missing or invalid.
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
        let identified = reader.clone();
        let layer = RateLimitLayer::deciding(Deciding(Arc::clone(&service)))
            .reader(reader.clone())
            .headers(service.headers.clone())
            .authenticated(move |request| identified.identifies(request));
        let layer = if service.overload.is_some() { layer.refund_unserved() } else { layer };
        let behind = Behind::new(Passing(Arc::clone(&proxy)), service.overload.as_ref(), (&service, &reader));
        let priced = Priced::all(plans, &layer, &behind, &proxy.slow)?;
        let slow = Arc::clone(&proxy.slow);
        service.meter.probe(move |_| slow.samples());
        Ok(Self { limited: layer.layer(behind), priced, service, proxy })
    }

    fn opened(&self) -> Open {
        self.service.meter.opened(Wire::Gateway)
    }

    /// The wall clock's time now.
    fn wall_now(&self) -> Timestamp {
        self.service.on_wall(self.service.now())
    }

    /// Answers one request of a peer.
    async fn answer(&self, request: Request<Carried>, peer: Peer) -> Response<Limited> {
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
                let path = parts.uri.path();
                let priced = Priced::find(&self.priced, &self.proxy.table, &arrival.host, path);
                let client = Client::of(&arrival, &self.proxy.reading.reader);
                parts.extensions.insert(peer::Peer(peer.address));
                parts.extensions.insert(arrival);
                if let Some(priced) = priced {
                    return priced.answer(parts, body, client).await;
                }
                let mut limited = self.limited.clone();
                match limited.call(Request::from_parts(parts, body)).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
            }
            Err(problem) => {
                let mut response = own::refused(&problem, own::Asker::of(&parts.headers)).map(Limited::from);
                response.extensions_mut().insert(Own);
                response
            }
        }
    }
}
