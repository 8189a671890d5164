//! How the gateway decides: through the service, as every other protocol does, so that each decision is counted,
//! compared and overridden exactly once.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::{Request, Response};
use tollgate::engine::Prepared;
use tollgate::{CheckRequest, Clock, Decision, Engine, Reservation, Ticks, Timestamp};
use tollgate_tower::Decide;

use super::body::Body;
use super::carried::RequestBody;
use super::proxy::Proxy;
use crate::protocol::Wire;
use crate::service::Service;
use crate::store::Stores;
use crate::telemetry::Stopwatch;

/// The service, as the middleware calls it.
pub(super) struct ServiceDecider(pub(super) Arc<Service>);

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
        let decision = self.0.try_check(request, now, Wire::Gateway)?;
        if let Some(watch) = watch {
            self.0.meter.took(Wire::Gateway, watch.elapsed());
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
        let decision = self.0.check_prepared(prepared, request, now, Wire::Gateway).await;
        self.0.meter.took(Wire::Gateway, watch.elapsed());
        decision
    }

    fn reserve(
        &self,
        request: &CheckRequest<'_>,
        lifetime: Ticks,
        now: Timestamp,
    ) -> impl Future<Output = (Decision, Option<Reservation>)> + Send {
        self.0.reserve(request, lifetime, now, Wire::Gateway)
    }

    fn began_waiting(&self, wait: Ticks) {
        self.0.meter.began_waiting(wait);
    }

    fn ended_waiting(&self) {
        self.0.meter.ended_waiting();
    }
}

/// The service behind the decision: it sends on the requests that pass.
#[derive(Clone)]
pub(super) struct ProxyService(pub(super) Arc<Proxy>);

impl tower_service::Service<Request<RequestBody>> for ProxyService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let proxy = Arc::clone(&self.0);
        Box::pin(async move { Ok(proxy.forward(request).await) })
    }
}
