//! The reverse proxy itself.
//!
//! A request passes these modules, in this order:
//! 1. `connection`: HTTP/1 by `http1_server`, which accepts a request only if every server reads it alike, or HTTP/2
//!    through `frames`, which ends floods;
//! 2. `arrival`: the one spelling of the request, and its client;
//! 3. `priced`: the cost of a GraphQL request, for the paths that a route's `graphql` names;
//! 4. `limited`: the decision;
//! 5. `upload`: the beginning of its body;
//! 6. `overload`: whether there is capacity;
//! 7. `proxy`: its route in the `table`, and the upstream that `rendezvous` chooses;
//! 8. `fields`: the header fields for the next hop;
//! 9. `upstream`: a slot of the client's `shares`, and a connection of the `pool` or the `dialer`, which is an
//!    `http1_client` or an `http2_client`;
//! 10. `upstream_body` and `body`: the answer on its way back.
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

use crate::arrival::{self, Peer, RequestSettings};
use crate::body::Limited;
use crate::checks;
use crate::graphql::GraphqlPlan;
use crate::limited::LimitedService;
use crate::listen::UpstreamBudget;
use crate::metrics::UpstreamSeries;
use crate::overload::UpstreamService;
use crate::own;
use crate::pem;
use crate::plan::RoutePlan;
use crate::priced::{self, Priced};
use crate::problem::{Kind, Problem};
use crate::program::Program;
use crate::proxy::Proxy;
use crate::request_body::RequestBody;
use crate::shares::ShareOwner;
use crate::shutdown::Stop;
use crate::table::RouteTable;

/// The gateway.
pub struct Gateway {
    pub(crate) program: Arc<dyn Program>,
    pub(crate) proxy: Arc<Proxy>,
    limited: LimitedService,
    priced: Vec<Priced>,
}

/// How a gateway reads requests, writes answers and sheds load.
pub struct Settings {
    /// How it reads requests.
    pub taking: RequestSettings,
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
        self.0.table.series()
    }

    /// Clients that were disconnected because they were too slow, by reason.
    #[must_use]
    pub fn slow_clients(&self) -> [(&'static str, u64); 2] {
        self.0.slow.counts()
    }
}

/// The problems of the files that routes name, each of which begins with its field. A gateway cannot be built with them.
#[must_use]
pub fn file_problems(plans: &[RoutePlan]) -> Vec<String> {
    let mut problems = Vec::new();
    for (index, plan) in plans.iter().enumerate() {
        let ca = plan.ca.as_deref().filter(|_| plan.targets().any(|target| target.is_secure));
        let ca = ca.and_then(|path| pem::authorities(path).err()).map(|problem| format!("ca: {problem}"));
        let persisted = plan.graphql.as_ref().and_then(|graphql| graphql.persisted.as_ref());
        let persisted = persisted.and_then(|plan| priced::known(plan).err());
        let persisted = persisted.map(|problem| format!("graphql.{problem}"));
        problems.extend(ca.into_iter().chain(persisted).map(|problem| format!("routes[{index}].{problem}")));
    }
    problems
}

impl Gateway {
    /// Builds a gateway with these routes. `budget` limits its connections to upstreams.
    ///
    /// # Errors
    /// When a file that a route names is missing or invalid.
    pub fn new<D: Decide + Program>(
        plans: &[RoutePlan],
        settings: Settings,
        program: Arc<D>,
        budget: &UpstreamBudget,
    ) -> Result<Self, String> {
        let Settings { taking, headers, shedder } = settings;
        let reader = taking.reader.clone();
        let proxy = Arc::new(Proxy::new(RouteTable::new(plans, budget)?, taking, program.clock().clone()));
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

    /// Checks upstreams and closes connections that were idle too long, until the server stops.
    pub fn maintain(&self, stop: &Stop) {
        checks::maintain(&self.proxy, stop);
    }

    /// Answers one request of a peer.
    pub(crate) async fn answer(&self, request: Request<RequestBody>, peer: Peer) -> Response<Limited> {
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
            Err(problem) => own::answer(&problem, own::ClientProtocol::of(&parts.headers)),
        }
    }
}
