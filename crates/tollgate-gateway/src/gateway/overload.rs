//! Overload at the gateway: sheds requests that the limits admit but for which there is no capacity. It runs after the
//! limits, so a request that a quota denies takes neither a permit nor a slot in the queue, and does not train the
//! controllers. A request that is shed here is refunded by the limits.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::BodyExt;
use hyper::{Request, Response};
use tollgate::HeaderPolicy;
use tollgate_tower::Waited;
use tollgate_tower::attributes::Reader;
use tollgate_tower::shed::{Shed, ShedLayer, Shedder};
use tower_layer::Layer;

use super::body::Body;
use super::decide::{Capacity, Program, ProxyService};
use super::proxy::Proxy;
use super::request_body::RequestBody;

/// The service behind the limits.
pub(super) enum UpstreamService<D> {
    /// Every admitted request is sent on.
    Open(ProxyService),
    /// An admitted request is sent on if there is capacity for it.
    Shed(Shed<CountedService<D>>, Arc<Proxy>),
}

impl<D> Clone for UpstreamService<D> {
    fn clone(&self) -> Self {
        match self {
            UpstreamService::Open(passing) => UpstreamService::Open(passing.clone()),
            UpstreamService::Shed(shed, proxy) => UpstreamService::Shed(shed.clone(), Arc::clone(proxy)),
        }
    }
}

/// The service behind the shedding. A request that reaches it has capacity, so its admission by the limits is counted
/// here.
pub(super) struct CountedService<D> {
    passing: ProxyService,
    program: Arc<D>,
}

impl<D> Clone for CountedService<D> {
    fn clone(&self) -> Self {
        Self { passing: self.passing.clone(), program: Arc::clone(&self.program) }
    }
}

impl<D: Program> tower_service::Service<Request<RequestBody>> for CountedService<D> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = <ProxyService as tower_service::Service<Request<RequestBody>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.passing.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let is_late = request.extensions().get::<Waited>().is_some();
        self.program.record_capacity(if is_late { Capacity::PassedLate } else { Capacity::Passed });
        self.passing.call(request)
    }
}

impl<D: Program> UpstreamService<D> {
    /// Makes the service that leads to the upstreams, with these controllers if there are any.
    pub(super) fn new(
        passing: ProxyService,
        shedder: Option<&Arc<Shedder>>,
        program: &Arc<D>,
        (reader, headers): (&Reader, &HeaderPolicy),
    ) -> Self {
        let Some(shedder) = shedder else { return UpstreamService::Open(passing) };
        let counting = Arc::clone(program);
        let layer = ShedLayer::new(Arc::clone(shedder))
            .reader(reader.clone())
            .headers(headers.clone())
            .when_refused(move |_| {
                counting.record_capacity(Capacity::Shed);
                std::future::ready(())
            });
        let proxy = Arc::clone(&passing.0);
        UpstreamService::Shed(layer.layer(CountedService { passing, program: Arc::clone(program) }), proxy)
    }
}

impl<D: Program> tower_service::Service<Request<RequestBody>> for UpstreamService<D> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        match self {
            UpstreamService::Open(passing) => passing.poll_ready(context),
            UpstreamService::Shed(shed, _) => shed.poll_ready(context),
        }
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        match self {
            UpstreamService::Open(passing) => {
                let proxy = Arc::clone(&passing.0);
                Box::pin(async move {
                    Ok(match proxy.begun(request).await {
                        Ok(request) => proxy.forward(request).await,
                        Err(response) => response,
                    })
                })
            }
            UpstreamService::Shed(shed, proxy) => {
                // Capacity is reserved only for requests that have something to send.
                let (mut shed, proxy) = (shed.clone(), Arc::clone(proxy));
                Box::pin(async move {
                    match proxy.begun(request).await {
                        Ok(request) => {
                            Ok(shed.call(request).await?.map(|body| Body::Boxed(body.boxed_unsync())))
                        }
                        Err(response) => Ok(response),
                    }
                })
            }
        }
    }
}
