//! Wires the gateway (`tollgate-gateway`) to the server: the service decides for it, as for every other protocol, so that
//! each decision is counted, compared and overridden exactly once; the meter counts what the gateway does.

#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;

use tollgate::engine::Prepared;
use tollgate::{CheckRequest, Clock, Decision, Engine, Reservation, Ticks, Timestamp};
use tollgate_gateway::listen::UpstreamBudget;
use tollgate_gateway::{Capacity, Gateway, Metrics, Program, RequestSettings, RoutePlan, Settings};
use tollgate_tower::Decide;

use crate::protocol::Protocol;
use crate::service::Service;
use crate::store::Stores;
use crate::telemetry::{Sample, Stopwatch, names};

/// Builds the gateway of a service, and shows its numbers in the metrics.
///
/// # Errors
/// When a file that a route names is missing or invalid.
pub(crate) fn build(
    routes: &[RoutePlan],
    taking: RequestSettings,
    service: &Arc<Service>,
    budget: &UpstreamBudget,
) -> Result<Arc<Gateway>, String> {
    let settings = Settings {
        taking,
        headers: service.headers.clone(),
        shedder: service.overload.as_ref().map(|overload| Arc::clone(&overload.shedder)),
    };
    let gateway = Gateway::new(routes, settings, Arc::new(ServiceDecider(Arc::clone(service))), budget)?;
    let metrics = gateway.metrics();
    let shown = metrics.clone();
    service.meter.show_gateway(move || shown.upstreams());
    service.meter.probe(move |_| slow_clients(&metrics));
    Ok(Arc::new(gateway))
}

fn slow_clients(metrics: &Metrics) -> Vec<Sample> {
    let sample = |(reason, value)| Sample {
        metric: &names::GATEWAY_SLOW,
        label: Some((names::label::REASON, reason)),
        value,
    };
    metrics.slow_clients().map(sample).into()
}

/// The service, as the middleware calls it.
struct ServiceDecider(Arc<Service>);

impl Decide for ServiceDecider {
    type Store = Stores;

    fn engine(&self) -> &Engine<Stores> {
        &self.0.engine
    }

    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn clock(&self) -> &Clock {
        self.0.clock()
    }

    fn try_check(&self, request: &CheckRequest<'_>, now: Timestamp) -> Result<Decision, Prepared> {
        let watch = self.0.meter.sampled_watch();
        let decision = self.0.try_check(request, now, Protocol::Gateway)?;
        if let Some(watch) = watch {
            self.0.meter.took(Protocol::Gateway, watch.elapsed());
        }
        Ok(decision)
    }

    async fn check_prepared(
        &self,
        prepared: Prepared,
        request: &CheckRequest<'_>,
        now: Timestamp,
    ) -> Decision {
        let watch = Stopwatch::start();
        let decision = self.0.check_prepared(prepared, request, now, Protocol::Gateway).await;
        self.0.meter.took(Protocol::Gateway, watch.elapsed());
        decision
    }

    fn reserve(
        &self,
        request: &CheckRequest<'_>,
        lifetime: Ticks,
        now: Timestamp,
    ) -> impl Future<Output = (Decision, Option<Reservation>)> + Send {
        self.0.reserve(request, lifetime, now, Protocol::Gateway)
    }

    fn began_waiting(&self, wait: Ticks) {
        self.0.meter.began_waiting(wait);
    }

    fn ended_waiting(&self) {
        self.0.meter.ended_waiting();
    }
}

impl Program for ServiceDecider {
    fn opened(&self) -> Box<dyn Send> {
        Box::new(self.0.meter.opened(Protocol::Gateway))
    }

    fn wall_now(&self) -> Timestamp {
        self.0.on_wall(self.0.now())
    }

    fn refuses(&self) -> Option<String> {
        let compat = self.0.compat()?;
        let format = compat.rules.format().name();
        Some(format!("the active configuration is {format}; the gateway needs a Tollgate policy"))
    }

    fn record_capacity(&self, capacity: Capacity) {
        self.0.meter.record_capacity(capacity);
    }
}
