//! GraphQL at the gateway. `tollgate-tower`'s layer reads the body of a request for one of a route's GraphQL paths and
//! computes its cost, before the limits decide. Other requests do not pass here.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, SizeHint};
use tollgate::path::loose_path;
use tollgate_tower::attributes::path::usual;
use tollgate_tower::graphql::{Graphql, GraphqlLayer, Persisted};
use tower_layer::Layer;
use tower_service::Service;

use crate::body::{Body, Limited};
use crate::body_budget::{BodyBudget, BodyReservation};
use crate::cause::{BodyError, FramePoll};
use crate::disk;
use crate::graphql::{GraphqlPlan, PersistedPlan};
use crate::limited::LimitedService;
use crate::listen::Pace;
use crate::metrics::Slow;
use crate::own::{self, ClientProtocol};
use crate::plan::RoutePlan;
use crate::problem::{Kind, Problem};
use crate::proxy;
use crate::request_body::RequestBody;
use crate::shares::ShareOwner;
use crate::table::RouteTable;
use crate::upload::{Upload, UploadBody};

/// Largest file of known operations.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The GraphQL settings of one route.
pub(crate) struct Priced {
    route: String,
    /// In their loose form, without a slash at their end.
    paths: Vec<String>,
    room: Arc<BodyBudget>,
    /// The minimum rate of their bodies.
    pace: Pace,
    slow: Arc<Slow>,
    service: Graphql<LimitedService>,
}

/// Makes the service behind the limits that charge the cost of requests.
type LimitByPoints<'l> = &'l dyn Fn(&GraphqlPlan) -> Result<LimitedService, String>;

impl Priced {
    /// Builds the GraphQL service of each route that has one, in front of these limits.
    ///
    /// # Errors
    /// When a file of known operations cannot be read or is invalid.
    pub(crate) fn all(
        routes: &[RoutePlan],
        limits: LimitByPoints<'_>,
        slow: &Arc<Slow>,
    ) -> Result<Vec<Self>, String> {
        let plans = routes.iter().filter_map(|route| Some((route, route.graphql.as_ref()?)));
        let priced = plans.map(|(route, plan)| {
            Self::new(route, plan, limits, slow)
                .map_err(|problem| format!("route {:?}: graphql.{problem}", route.name))
        });
        priced.collect()
    }

    fn new(
        route: &RoutePlan,
        plan: &GraphqlPlan,
        limits: LimitByPoints<'_>,
        slow: &Arc<Slow>,
    ) -> Result<Self, String> {
        let limited = limits(plan)?;
        let persisted = plan.persisted.as_ref().map_or_else(|| Ok(Persisted::default()), known);
        let layer = GraphqlLayer::new(plan.cost_model.clone())
            .when(|_| true)
            .persisted(persisted?)
            .body_at_most(plan.body_bytes_max);
        Ok(Self {
            route: route.name.clone(),
            paths: plan.paths.iter().map(|path| loose_path(path).trim_end_matches('/').to_owned()).collect(),
            room: BodyBudget::new(),
            pace: route.pace,
            slow: Arc::clone(slow),
            service: layer.layer(limited),
        })
    }

    /// Finds the GraphQL service for a request, by its path first, since nearly all requests have none. The upstream
    /// may treat another spelling of a path as the path itself, even where that spelling has another route here. Such a
    /// request takes its own route, and is still priced.
    pub(crate) fn find<'p>(all: &'p [Self], table: &RouteTable, host: &str, path: &str) -> Option<&'p Self> {
        if all.is_empty() {
            return None;
        }
        let loose = loose_path(path);
        let usual = |priced: &'p Self| {
            let usual = priced.paths.iter().find_map(|above| usual(above, &loose))?;
            Some((priced, usual))
        };
        let mut fit = all.iter().filter_map(usual).peekable();
        fit.peek()?;
        let own = table.find(host, path).map(|route| &route.name);
        let is_usual = |priced: &Self, usual: &str| {
            table.find_loosely(host, usual).is_some_and(|route| route.name == priced.route)
        };
        let of_own = fit.clone().find(|(priced, _)| own == Some(&priced.route));
        of_own.or_else(|| fit.find(|(priced, usual)| is_usual(priced, usual))).map(|(priced, _)| priced)
    }

    /// Answers a request.
    pub(crate) async fn answer(
        &self,
        parts: Parts,
        body: RequestBody,
        client: ShareOwner,
    ) -> Response<Limited> {
        // The bytes of the body stay in memory until the upstream answers.
        let stay = self.room.enter(client);
        let upload = Upload::new(body, None, self.pace);
        let body = BudgetedBody { body: upload.only_attempt_body(), stay: Arc::clone(&stay) };
        let request = Request::from_parts(parts, RequestBody::Boxed(body.boxed_unsync()));
        let answered = self.service.clone().call(request).await;
        let refused = |problem: &Problem| own::answer(problem, ClientProtocol::Http);
        if stay.is_refused() {
            let detail = format!(
                "route {:?}: as many bodies are held to be priced, in all or of one client, as may be; try again later",
                self.route
            );
            return refused(&Problem::new(Kind::Busy, detail));
        }
        match (upload.fault(), answered) {
            (Some(fault), _) => refused(&proxy::cut_off(fault, &self.slow)),
            (None, Ok(response)) => response.map(|body| Limited::from(Body::Boxed(body.boxed_unsync()))),
            (None, Err(never)) => match never {},
        }
    }
}

/// A body that takes memory from the budget as it comes.
struct BudgetedBody {
    body: UploadBody,
    stay: Arc<BodyReservation>,
}

impl HttpBody for BudgetedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> FramePoll {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(bytes) = frame.data_ref()
            && !this.stay.take(bytes.len())
        {
            return Poll::Ready(Some(Err("there is no room for the body".into())));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Reads the operations of a file.
pub(crate) fn known(plan: &PersistedPlan) -> Result<Persisted, String> {
    let problem_of = |problem: String| format!("persisted.file: {}: {problem}", plan.file.display());
    let bytes = read(&plan.file).map_err(problem_of)?;
    let persisted = Persisted::read(&bytes).map_err(problem_of)?;
    if plan.is_closed && persisted.is_empty() {
        return Err(problem_of("no operation is in it, and no other would be accepted".to_owned()));
    }
    Ok(if plan.is_closed { persisted.only() } else { persisted })
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    match disk::read(path, FILE_BYTES_MAX) {
        Err(error) => {
            let (cause, cure) = disk::refusal(&error);
            Err(format!("{cause}; {cure}"))
        }
        Ok(bytes) if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > FILE_BYTES_MAX => {
            Err(format!("more than {FILE_BYTES_MAX} bytes; accepted: as many"))
        }
        Ok(bytes) => Ok(bytes),
    }
}
