//! The active routes: which one a request takes, and which of its upstreams.

use std::sync::Arc;

use tollgate::Timestamp;

use crate::arrival::Arrival;
use crate::health::RetryBudget;
use crate::listen::{Pace, UpstreamBudget};
use crate::metrics::UpstreamSeries;
use crate::paths::Paths;
use crate::plan::{HealthPlan, Host, RoutePlan, Timeouts};
use crate::rendezvous;
use crate::shares::ClientShares;
use crate::upstream::Upstream;

/// The share of the descriptors for connections to upstreams that one client may use, in per cent.
const LINKS_PER_CLIENT: u32 = 50;

/// A route.
pub(crate) struct Route {
    pub(crate) name: String,
    host: Host,
    paths: Paths,
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    pub(crate) timeouts: Timeouts,
    /// The minimum rate of a request's body.
    pub(crate) pace: Pace,
    pub(crate) health: Option<HealthPlan>,
    pub(crate) retries: u32,
    pub(crate) budget: RetryBudget,
    sticky: Vec<String>,
}

impl Route {
    fn new(
        plan: &RoutePlan,
        budget: &UpstreamBudget,
        shares: Option<&Arc<ClientShares>>,
    ) -> Result<Self, String> {
        let upstream = |upstream| Upstream::new(upstream, plan, budget, shares.cloned()).map(Arc::new);
        let upstreams = plan.upstreams.iter().map(upstream);
        Ok(Self {
            name: plan.name.clone(),
            host: plan.host.clone(),
            paths: plan.paths.clone(),
            upstreams: upstreams.collect::<Result<_, _>>()?,
            timeouts: plan.timeouts,
            pace: plan.pace,
            health: plan.health.clone(),
            retries: plan.retries,
            budget: RetryBudget::default(),
            sticky: plan.sticky.clone(),
        })
    }

    fn is_for(&self, host: &str) -> bool {
        // A route without a port matches all ports.
        let is_one = |is_its: &dyn Fn(&str) -> bool| is_its(host) || is_its(name_of(host));
        match &self.host {
            Host::Any => true,
            Host::Exactly(name) => is_one(&|host| host == name),
            Host::Below(name) => is_one(&|host| {
                let rest = host.strip_suffix(name.as_str());
                rest.is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }),
        }
    }

    fn matches(&self, host: &str, path: &str) -> bool {
        self.is_for(host) && self.paths.matches(path)
    }

    /// Matches the loose form of a path.
    fn matches_loosely(&self, host: &str, loose: &str) -> bool {
        self.is_for(host) && self.paths.matches_loosely(loose)
    }

    /// Chooses the upstream for a request, other than those that were tried. Resting upstreams are used when there is
    /// no other: a request that may fail is better than one that must.
    pub(crate) fn choose(&self, arrival: &Arrival, tried: &[usize], now: Timestamp) -> Option<usize> {
        let key = self.key(arrival);
        let pick = |is_fit: &dyn Fn(&Upstream) -> bool| {
            let fit = self.upstreams.iter().enumerate().filter(|(place, upstream)| {
                upstream.health.is_up() && !tried.contains(place) && is_fit(upstream)
            });
            let shares = fit.map(|(place, upstream)| (place, &upstream.share));
            match key {
                Some(key) => rendezvous::of_key(key, shares),
                None => rendezvous::any(shares),
            }
        };
        pick(&|upstream| !upstream.health.is_ejected(now)).or_else(|| pick(&|_| true))
    }

    /// The hash that chooses the upstream. A request without any of the attributes uses its client's address.
    fn key(&self, arrival: &Arrival) -> Option<u64> {
        if self.sticky.is_empty() {
            return None;
        }
        let known = |name: &String| arrival.keys.iter().find(|(known, _)| known == name);
        let value = self.sticky.iter().find_map(known).map(|(_, value)| value.as_str());
        Some(value.map_or_else(
            || rendezvous::hash(arrival.client.to_canonical().to_string().as_bytes()),
            |value| rendezvous::hash(value.as_bytes()),
        ))
    }
}

/// A host in its one spelling, without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, _)) if !host.ends_with(']') => name,
        _ => host,
    }
}

/// All routes, the most specific first.
pub(crate) struct RouteTable {
    pub(crate) routes: Vec<Route>,
    /// The attributes by which any route chooses an upstream.
    pub(crate) sticky: Vec<String>,
    /// The descriptors for connections to all upstreams.
    pub(crate) budget: UpstreamBudget,
}

/// Each client's share of the connections to all upstreams; `None` if its shares of the single upstreams do not exceed
/// that.
fn shares(plans: &[&RoutePlan], budget: &UpstreamBudget) -> Option<Arc<ClientShares>> {
    let of_one = |plan: &RoutePlan| {
        let slots = [plan.connections, plan.tunnels].map(|slots| ClientShares::part(slots, plan.per_client));
        slots.iter().sum::<usize>().saturating_mul(plan.upstreams.len())
    };
    let wanted = plans.iter().map(|plan| of_one(plan)).fold(0, usize::saturating_add);
    let share = ClientShares::part(budget.most(), LINKS_PER_CLIENT);
    (wanted > share).then(|| ClientShares::of_each_client(share))
}

impl RouteTable {
    /// Builds the table of these plans, with a budget of descriptors for connections.
    ///
    /// # Errors
    /// When a file that a plan names is missing or invalid.
    pub(crate) fn new(plans: &[RoutePlan], budget: &UpstreamBudget) -> Result<Self, String> {
        let mut plans: Vec<&RoutePlan> = plans.iter().collect();
        plans.sort_by_key(|plan| std::cmp::Reverse(plan.rank()));
        let mut sticky: Vec<String> = plans.iter().flat_map(|plan| plan.sticky.iter().cloned()).collect();
        sticky.sort_unstable();
        sticky.dedup();
        let shares = shares(&plans, budget);
        let routes = plans.into_iter().map(|plan| Route::new(plan, budget, shares.as_ref()));
        Ok(Self { routes: routes.collect::<Result<_, _>>()?, sticky, budget: budget.clone() })
    }

    /// The numbers of all upstreams.
    pub(crate) fn series(&self) -> Vec<UpstreamSeries> {
        let all = self.routes.iter().flat_map(|route| route.upstreams.iter().map(move |each| (route, each)));
        let series = all.map(|(route, upstream)| UpstreamSeries {
            route: route.name.clone(),
            upstream: upstream.name.clone(),
            up: u64::from(upstream.health.is_up()),
            ..upstream.metrics.series()
        });
        series.collect()
    }

    /// The route of a request.
    pub(crate) fn find(&self, host: &str, path: &str) -> Option<&Route> {
        self.routes.iter().find(|route| route.matches(host, path))
    }

    /// The route of the usual spelling of a path, found by the loose form.
    pub(crate) fn find_loosely(&self, host: &str, loose: &str) -> Option<&Route> {
        self.routes.iter().find(|route| route.matches_loosely(host, loose))
    }
}

#[cfg(test)]
mod tests {
    use tollgate::path::loose_path;

    use super::*;
    use crate::plan::{RouteDocument, compile};

    /// The most specific route is used, in any order of the config; a path is below another only at a slash.
    #[test]
    fn the_most_specific_route() {
        let text = "
- {name: rest, upstreams: ['http://h']}
- {name: v1, path: /v1, upstreams: ['http://h']}
- {name: users, path: /v1/users/, upstreams: ['http://h']}
- {name: user, path: '/v1/users/{id}', upstreams: ['http://h']}
- {name: me, path: '/v1/{what}/me', upstreams: ['http://h']}
- {name: wild, host: '*.example.com', upstreams: ['http://h']}
- {name: api, host: api.example.com, upstreams: ['http://h']}
- {name: api-v1, host: api.example.com, path: /v1, upstreams: ['http://h']}
- {name: port, host: 'api.example.com:8443', upstreams: ['http://h']}
- {name: six, host: '[::1]', upstreams: ['http://h']}
";
        let documents: Vec<RouteDocument> = serde_saphyr::from_str(text).unwrap();
        let mut problems = Vec::new();
        let table = RouteTable::new(&compile(documents, &[], &mut problems), &UpstreamBudget::of(1)).unwrap();
        assert!(problems.is_empty(), "{problems:?}");
        let found = |host, path| table.find(host, path).map(|route| route.name.as_str());
        let cases = [
            ("other.test", "/", "rest"),
            ("other.test", "/v1x", "rest"),
            ("other.test", "/v1", "v1"),
            ("other.test", "/v1/x", "v1"),
            ("other.test", "/v1/users", "users"),
            ("other.test", "/v1/users/7", "user"),
            ("other.test", "/v1/users/7/posts", "users"),
            ("other.test", "/v1/groups/me", "me"),
            ("a.example.com", "/v1", "wild"),
            ("example.com", "/", "rest"),
            ("aexample.com", "/", "rest"),
            ("api.example.com", "/", "api"),
            ("api.example.com", "/v1/users/7", "api-v1"),
            ("api.example.com:1", "/", "api"),
            ("api.example.com:8443", "/v1", "port"),
            ("a.example.com:1", "/", "wild"),
            ("[::1]", "/", "six"),
            ("[::1]:3000", "/", "six"),
        ];
        for (host, path, name) in cases {
            assert_eq!(found(host, path), Some(name), "{host:?} {path}");
        }
        let loosely =
            |path| table.find_loosely("other.test", &loose_path(path)).map(|route| route.name.as_str());
        for (path, name) in
            [("/V1;x", "v1"), ("/v1./USERS/7", "user"), ("/V1/groups/Me.", "me"), ("/v1x", "rest")]
        {
            assert_eq!(loosely(path), Some(name), "{path}");
        }
    }
}
