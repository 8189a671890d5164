//! Health checks. A route's `health` section names a path, which the gateway requests from each upstream at an
//! interval. An answer of 2xx or 3xx in time means that the upstream is healthy.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use crate::health::CheckResult;
use crate::plan::HealthPlan;
use crate::proxy::Proxy;
use crate::shutdown::{Stop, stopped};
use crate::upstream::Upstream;

/// Interval at which idle connections are closed.
const TIDY_EVERY: Duration = Duration::from_secs(5);

/// Checks upstreams and closes connections that were idle too long, until the server stops.
pub(crate) fn maintain(proxy: &Arc<Proxy>, stop: &Stop) {
    for route in &proxy.table.routes {
        for upstream in &route.upstreams {
            if let Some(plan) = &route.health {
                tokio::spawn(check(Arc::clone(upstream), route.name.clone(), plan.clone(), stop.clone()));
            }
        }
    }
    let (proxy, mut stop) = (Arc::clone(proxy), stop.clone());
    tokio::spawn(async move {
        let mut due = tokio::time::interval(TIDY_EVERY);
        loop {
            let table = &proxy.table;
            let upstreams = table.routes.iter().flat_map(|route| &route.upstreams);
            tokio::select! {
                _ = due.tick() => upstreams.for_each(|upstream| upstream.tidy()),
                () = table.budget.wanted() => upstreams.for_each(|upstream| upstream.make_room()),
                () = stopped(&mut stop) => return,
            }
        }
    });
}

async fn check(upstream: Arc<Upstream>, route: String, plan: HealthPlan, mut stop: Stop) {
    let mut due = tokio::time::interval(plan.interval);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = due.tick() => {}
            () = stopped(&mut stop) => return,
        }
        let asked = tokio::time::timeout(plan.timeout, upstream.check_health(&plan.path)).await;
        let result = match asked {
            Ok(Some(status)) if status.is_success() || status.is_redirection() => CheckResult::Healthy,
            _ => CheckResult::Unhealthy,
        };
        match upstream.health.checked(result, plan.thresholds) {
            Some(true) => {
                tracing::info!(route, upstream = upstream.name, "upstream is healthy and gets requests again")
            }
            Some(false) => {
                tracing::warn!(route, upstream = upstream.name, "upstream is unhealthy and gets no requests")
            }
            None => {}
        }
    }
}
