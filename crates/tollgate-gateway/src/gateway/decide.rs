//! What the gateway needs of the program around it, and the service behind the decision.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::{Request, Response};
use tollgate::Timestamp;
use tollgate_tower::Decide;

use super::body::Body;
use super::proxy::Proxy;
use super::request_body::RequestBody;

/// The program around the gateway: it decides, and counts what the gateway does.
pub trait Program: Decide {
    /// Exists while a client's connection is open.
    type Open: Send + 'static;

    /// A client has connected.
    fn opened(&self) -> Self::Open;

    /// The wall clock's time now.
    fn wall_now(&self) -> Timestamp;

    /// Why no request can be decided now, if so.
    fn refuses(&self) -> Option<String>;

    /// Whether there was capacity for a request that the limits admitted.
    fn record_capacity(&self, capacity: Capacity);
}

/// The result of the capacity check for a request that limits admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// There was capacity.
    Passed,
    /// There was capacity, after a wait in the queue of a limit.
    PassedLate,
    /// There was no capacity.
    Shed,
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
