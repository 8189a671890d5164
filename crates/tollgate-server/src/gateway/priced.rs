//! GraphQL at the gateway: requests for the paths that a route names are priced by `tollgate-tower`'s layer, which reads their bodies, before
//! the limits are asked. All other requests never come here.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use tokio::sync::Semaphore;
use tollgate_tower::graphql::{Graphql, GraphqlLayer, Persisted, points};
use tollgate_tower::{RateLimit, RateLimitLayer};
use tower_layer::Layer;
use tower_service::Service;

use super::body::{Body, Limited, Upload};
use super::carried::Carried;
use super::decide::Deciding;
use super::graphql::{GraphqlPlan, PersistedPlan};
use super::overload::Behind;
use super::own::{self, Asker};
use super::plan::RoutePlan;
use super::refusal::Turned;
use super::table::Table;
use super::{Own, proxy};
use crate::http::{Kind, Problem};

/// Largest file of known operations.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Most KiB of bodies that one route holds, and how long the next body waits for room.
const HELD_KIB_MAX: usize = 256 << 10;
const ROOM_TIMEOUT: Duration = Duration::from_secs(5);

/// The GraphQL of one route.
pub(super) struct Priced {
    route: String,
    paths: Vec<String>,
    body_bytes_max: usize,
    /// Room for bodies, by the KiB.
    room: Semaphore,
    service: Graphql<RateLimit<Behind, Deciding>>,
}

impl Priced {
    /// The GraphQL of all routes that have any, limited by this layer and sent on by what is behind it.
    ///
    /// # Errors
    /// When a file of known operations is not what it should be.
    pub(super) fn all(
        routes: &[RoutePlan],
        limits: &RateLimitLayer<Deciding>,
        behind: &Behind,
    ) -> Result<Vec<Self>, String> {
        let plans = routes.iter().filter_map(|route| Some((route, route.graphql.as_ref()?)));
        let priced = plans.map(|(route, plan)| {
            Self::new(&route.name, plan, limits.clone(), behind)
                .map_err(|problem| format!("route {:?}: graphql.{problem}", route.name))
        });
        priced.collect()
    }

    fn new(
        route: &str,
        plan: &GraphqlPlan,
        limits: RateLimitLayer<Deciding>,
        behind: &Behind,
    ) -> Result<Self, String> {
        let limits = limits.cost(points);
        let limits = match &plan.cost_from {
            None => limits,
            Some(name) => limits.cost_from(name.as_str()).map_err(|error| format!("cost_from: {error}"))?,
        };
        let persisted = plan.persisted.as_ref().map_or_else(|| Ok(Persisted::default()), known);
        let layer = GraphqlLayer::new(plan.pricing.clone())
            .when(|_| true)
            .persisted(persisted?)
            .body_at_most(plan.body_bytes_max);
        Ok(Self {
            route: route.to_owned(),
            paths: plan.paths.clone(),
            body_bytes_max: plan.body_bytes_max,
            room: Semaphore::new(HELD_KIB_MAX),
            service: layer.layer(limits.layer(behind.clone())),
        })
    }

    /// The one that a request is for, by its path first: nearly all are for none.
    pub(super) fn find<'p>(
        all: &'p [Self],
        table: &Table,
        host: Option<&str>,
        path: &str,
    ) -> Option<&'p Self> {
        let mut fit = all.iter().filter(|priced| priced.paths.iter().any(|above| is_below(above, path)));
        fit.find(|priced| table.find(host, path).is_some_and(|route| route.name == priced.route))
    }

    /// Answers a request that has arrived.
    pub(super) async fn answer(&self, parts: Parts, body: Carried) -> Response<Limited> {
        // A body is in memory from here until the upstream answers.
        let size = kib(&parts, &body, self.body_bytes_max);
        let Ok(Ok(_held)) = tokio::time::timeout(ROOM_TIMEOUT, self.room.acquire_many(size)).await else {
            let detail = format!(
                "route {:?}: as many bodies wait to be priced as may be; try again later",
                self.route
            );
            return own::refused(&Problem::new(Kind::Gateway(Turned::Busy), detail), Asker::Http)
                .map(Limited::from);
        };
        let upload = Upload::new(body, None);
        let request = Request::from_parts(parts, Carried::Awaited(Box::new(upload.lend())));
        let answered = self.service.clone().call(request).await;
        match (upload.fault(), answered) {
            (Some(fault), _) => {
                let mut response = own::refused(&proxy::cut_off(fault), Asker::Http).map(Limited::from);
                response.extensions_mut().insert(Own);
                response
            }
            (None, Ok(response)) => response.map(|body| Limited::from(Body::Boxed(body.boxed_unsync()))),
            (None, Err(never)) => match never {},
        }
    }
}

/// How much room a body takes that is no larger than it may be: what it says, or all that it could.
fn kib(parts: &Parts, body: &Carried, most: usize) -> u32 {
    if body.is_end_stream() {
        return 0;
    }
    let length =
        parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let bytes = length.map_or(most, |length| length.min(most));
    u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX)
}

/// Whether a path is another one or below it. Many servers take small and large letters for one another, leave out what follows a
/// semicolon, or take an escaped slash for one: nobody gets around the price by that.
fn is_below(above: &str, path: &str) -> bool {
    let start = path.get(..above.len()).filter(|start| start.eq_ignore_ascii_case(above));
    let rest = start.and_then(|start| path.get(start.len()..));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', ';', '%']))
}

/// The operations of a file.
fn known(plan: &PersistedPlan) -> Result<Persisted, String> {
    let told = |problem: String| format!("persisted.file: {}: {problem}", plan.file.display());
    let bytes = read(&plan.file).map_err(told)?;
    let persisted = Persisted::read(&bytes).map_err(told)?;
    if plan.is_closed && persisted.is_empty() {
        return Err(told("no operation is in it, and no other would be accepted".to_owned()));
    }
    Ok(if plan.is_closed { persisted.only() } else { persisted })
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    match read {
        Err(error) => Err(format!("{error}; name a file that can be read")),
        Ok(read) if u64::try_from(read).unwrap_or(u64::MAX) > FILE_BYTES_MAX => {
            Err(format!("more than {FILE_BYTES_MAX} bytes; accepted: as many"))
        }
        Ok(_) => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No spelling that a server may take for the path gets around its price.
    #[test]
    fn paths_and_what_is_below() {
        for path in ["/graphql", "/graphql/", "/graphql/x", "/GraphQL", "/graphql;v=1", "/graphql%2Fx"] {
            assert!(is_below("/graphql", path), "{path}");
        }
        for path in ["/", "/graphqlx", "/graph", "/graphq\u{e9}", "/x/graphql"] {
            assert!(!is_below("/graphql", path), "{path}");
        }
        assert!(is_below("", "/anything"));
    }
}
