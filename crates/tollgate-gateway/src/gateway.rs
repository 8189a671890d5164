//! The reverse proxy itself.
//!
//! A request passes these modules, in this order:
//! 1. `connection`: HTTP/1 by `http1::server`, which accepts a request only if every server reads it alike, or HTTP/2
//!    through `frames`, which ends floods;
//! 2. `arrival`: the one spelling of the request, and its client;
//! 3. `priced`: the cost of a GraphQL request, for the paths that a route's `graphql` names;
//! 4. `limited`: the decision;
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
use tollgate::HeaderPolicy;
use tollgate_tower::graphql::points;
use tollgate_tower::shed::Shedder;
use tollgate_tower::{Decide, RateLimitLayer, peer};

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
mod program;
mod limited;
mod overload;
mod proxy;
mod table;
mod rendezvous;
mod fields;
mod upstream;
mod shares;
mod leaving;
mod dialer;
mod shared;
mod body_budget;
mod answer;
mod cause;
mod own;
mod buffer_pool;
mod body;
mod upload;
mod request_body;
mod trailers;
mod tunnel;
mod websocket;
mod health;
mod checks;
mod metrics;

/// The parts of the gateway that the fuzz targets call.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing {
    use super::http1::framing::Reader;

    /// Feeds bytes in parts. Returns how many of them were read as requests, and whether more may follow.
    #[must_use]
    pub fn framed(parts: &[&[u8]]) -> (usize, bool) {
        let mut reader = Reader::new();
        parts.iter().for_each(|part| reader.feed(part));
        (reader.taken, !reader.is_broken && !reader.has_asked)
    }
}

pub use arrival::Taking;
pub use connection::connection;
pub use fields::HeaderNames;
pub use metrics::{CLASSES, FAILURES, UpstreamSeries};
pub use plan::{RouteDocument, RoutePlan, compile};
pub use program::{Capacity, Program};
pub use target::Target;

use crate::listen::UpstreamBudget;
use crate::problem::{Kind, Problem};
use arrival::Peer;
use body::Limited;
use graphql::GraphqlPlan;
use limited::LimitedService;
use overload::UpstreamService;
use priced::Priced;
use proxy::Proxy;
use request_body::RequestBody;
use shares::ShareOwner;
use table::RouteTable;

/// The gateway.
pub struct Gateway {
    program: Arc<dyn Program>,
    proxy: Arc<Proxy>,
    limited: LimitedService,
    priced: Vec<Priced>,
}

/// How a gateway reads requests, writes answers and sheds load.
pub struct Settings {
    /// How it reads requests.
    pub taking: Taking,
    /// The headers of denials.
    pub headers: HeaderPolicy,
    /// The controllers of overload, if there are any.
    pub shedder: Option<Arc<Shedder>>,
}

/// Numbers of a gateway, read at each scrape.
#[derive(Clone)]
pub struct Metrics(Arc<Proxy>);

impl Metrics {
    /// The numbers of each upstream.
    #[must_use]
    pub fn upstreams(&self) -> Vec<UpstreamSeries> {
        metrics::series(&self.0.table)
    }

    /// Clients that were disconnected because they were too slow, by reason.
    #[must_use]
    pub fn slow_clients(&self) -> [(&'static str, u64); 2] {
        self.0.slow.counts()
    }
}

/// Marks the gateway's own answers.
#[derive(Clone, Copy)]
struct Own;

impl Gateway {
    /// Builds a gateway with these routes. `links` limits its connections to upstreams.
    ///
    /// # Errors
    /// When a file that a route names is missing or invalid.
    pub fn new<D: Decide + Program>(
        plans: &[RoutePlan],
        settings: Settings,
        program: Arc<D>,
        links: &UpstreamBudget,
    ) -> Result<Self, String> {
        let Settings { taking, headers, shedder } = settings;
        let reader = taking.reader.clone();
        let proxy = Arc::new(Proxy::new(RouteTable::new(plans, links)?, taking, program.clock().clone()));
        let identified = reader.clone();
        let layer = RateLimitLayer::<D>::deciding(Arc::clone(&program))
            .reader(reader)
            .headers(headers.clone())
            .authenticated(move |request| identified.identifies(request));
        let layer = if shedder.is_some() { layer.refund_unserved() } else { layer };
        let program: Arc<dyn Program> = program;
        let behind = UpstreamService::new(&proxy, shedder.as_ref(), &program, &headers);
        let by_points = |plan: &GraphqlPlan| {
            let layer = layer.clone().cost(points);
            let layer = match &plan.cost_from {
                None => layer,
                Some(name) => {
                    layer.cost_from(name.as_str()).map_err(|error| format!("cost_from: {error}"))?
                }
            };
            Ok(LimitedService::new(&layer, &behind))
        };
        let priced = Priced::all(plans, &by_points, &proxy.slow)?;
        Ok(Self { limited: LimitedService::new(&layer, &behind), priced, program, proxy })
    }

    /// Its numbers.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        Metrics(Arc::clone(&self.proxy))
    }

    /// Answers one request of a peer.
    async fn answer(&self, request: Request<RequestBody>, peer: Peer) -> Response<Limited> {
        let (mut parts, body) = request.into_parts();
        let arrived = arrival::arrive(&mut parts, peer, &self.proxy.reading);
        let arrived = arrived.and_then(|arrival| match self.program.refuses() {
            None => Ok(arrival),
            Some(detail) => Err(Problem::new(Kind::CompatRules, detail)),
        });
        match arrived {
            Ok(arrival) => {
                let path = parts.uri.path();
                let priced = Priced::find(&self.priced, &self.proxy.table, &arrival.host, path);
                let client = ShareOwner::of(&arrival, &self.proxy.reading.reader);
                parts.extensions.insert(peer::Peer(peer.address));
                parts.extensions.insert(arrival);
                if let Some(priced) = priced {
                    return priced.answer(parts, body, client).await;
                }
                self.limited.answer(Request::from_parts(parts, body)).await
            }
            Err(problem) => {
                let mut response =
                    own::refused(&problem, own::ClientProtocol::of(&parts.headers)).map(Limited::from);
                response.extensions_mut().insert(Own);
                response
            }
        }
    }
}
