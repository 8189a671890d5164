//! The limits, and the service behind them. The type of the program's decider ends here, so that all other code of the
//! gateway is compiled once, in this crate.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tollgate_tower::{Decide, RateLimitLayer};
use tower_layer::Layer;
use tower_service::Service;

use crate::body::Limited;
use crate::overload::UpstreamService;
use crate::request_body::RequestBody;

type LimitedFuture = Pin<Box<dyn Future<Output = Result<Response<Limited>, Infallible>> + Send>>;

/// The service behind the limits.
#[derive(Clone)]
pub(crate) struct LimitedService(Arc<dyn Fn(Request<RequestBody>) -> LimitedFuture + Send + Sync>);

impl LimitedService {
    /// Limits the requests that are sent on.
    pub(crate) fn new<D: Decide>(layer: &RateLimitLayer<D>, behind: &UpstreamService) -> Self {
        let limited = layer.layer(behind.clone());
        Self(Arc::new(move |request| Box::pin(limited.clone().call(request))))
    }

    /// Answers one request.
    pub(crate) async fn answer(&self, request: Request<RequestBody>) -> Response<Limited> {
        match (self.0)(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

impl Service<Request<RequestBody>> for LimitedService {
    type Response = Response<Limited>;
    type Error = Infallible;
    type Future = LimitedFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        (self.0)(request)
    }
}
