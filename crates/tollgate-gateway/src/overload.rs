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
use tollgate_tower::shed::{Shed, ShedLayer, Shedder};
use tower_layer::Layer;
use tower_service::Service;

use crate::body::Body;
use crate::program::{Capacity, Program};
use crate::proxy::Proxy;
use crate::request_body::RequestBody;
use crate::upload::Upload;

type AnswerFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// The service behind the limits: it sends on the requests that pass.
#[derive(Clone)]
pub(crate) struct UpstreamService {
    proxy: Arc<Proxy>,
    /// Sends a request on if there is capacity for it; `None` sends on every request.
    shed: Option<Shed<CountedService>>,
}

/// The service behind the shedding. A request that reaches it has capacity, so its admission by the limits is counted
/// here.
#[derive(Clone)]
struct CountedService {
    proxy: Arc<Proxy>,
    program: Arc<dyn Program>,
}

impl Service<Request<Upload>> for CountedService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = AnswerFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Upload>) -> Self::Future {
        let is_late = request.extensions().get::<Waited>().is_some();
        self.program.record_capacity(if is_late { Capacity::PassedLate } else { Capacity::Passed });
        let proxy = Arc::clone(&self.proxy);
        Box::pin(async move { Ok(proxy.forward(request).await) })
    }
}

impl UpstreamService {
    /// Makes the service that leads to the upstreams, with these controllers if there are any.
    pub(crate) fn new(
        proxy: &Arc<Proxy>,
        shedder: Option<&Arc<Shedder>>,
        program: &Arc<dyn Program>,
        headers: &HeaderPolicy,
    ) -> Self {
        let shed = shedder.map(|shedder| {
            let counting = Arc::clone(program);
            let layer = ShedLayer::new(Arc::clone(shedder))
                .reader(proxy.reading.reader.clone())
                .headers(headers.clone())
                .when_refused(move |_| {
                    counting.record_capacity(Capacity::Shed);
                    std::future::ready(())
                });
            layer.layer(CountedService { proxy: Arc::clone(proxy), program: Arc::clone(program) })
        });
        Self { proxy: Arc::clone(proxy), shed }
    }
}

impl Service<Request<RequestBody>> for UpstreamService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = AnswerFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let Self { proxy, shed } = self.clone();
        Box::pin(async move {
            // Capacity is reserved only for requests that have something to send.
            let request = match proxy.begun(request).await {
                Ok(request) => request,
                Err(response) => return Ok(response),
            };
            match shed {
                None => Ok(proxy.forward(request).await),
                Some(mut shed) => Ok(shed.call(request).await?.map(|body| Body::Boxed(body.boxed_unsync()))),
            }
        })
    }
}
