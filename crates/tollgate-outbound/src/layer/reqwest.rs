//! reqwest: its client as a service of `http` requests, and the layer as middleware of reqwest-middleware.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use http::{Extensions, Request, Response};
use reqwest::{Body, Client, ResponseBuilderExt};
use reqwest_middleware::{Error, Middleware, Next};
use tollgate::MemoryStore;
use tollgate::store::Store;
use tower_service::Service;

use super::OutboundLayer;
use super::error::BoxError;
use super::exchange::{Attempt, LayerState, exchange};

/// A reqwest client as a tower service of `http` requests.
#[derive(Clone, Debug, Default)]
pub struct HttpClient(pub Client);

impl Service<Request<Body>> for HttpClient {
    type Response = Response<Body>;
    type Error = reqwest::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, reqwest::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), reqwest::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let client = self.0.clone();
        Box::pin(async move { client.execute(request.try_into()?).await.map(Response::from) })
    }
}

/// Copies a body of reqwest, unless it is a stream: for `OutboundLayer::builder(…).copy_body(copy_reqwest_body)`.
pub fn copy_reqwest_body(body: &Body) -> Option<Body> {
    body.as_bytes().map(|bytes| Body::from(bytes.to_vec()))
}

/// The layer as middleware: `reqwest_middleware::ClientBuilder::new(client).with(OutboundMiddleware::from(layer))`.
/// Place it last, next to the client: it must see every attempt, and no other middleware should retry.
pub struct OutboundMiddleware<S = MemoryStore> {
    state: Arc<LayerState<S>>,
}

impl<S, C> From<OutboundLayer<S, C>> for OutboundMiddleware<S> {
    fn from(layer: OutboundLayer<S, C>) -> Self {
        Self { state: layer.state }
    }
}

/// Attempts by the rest of the middleware.
struct NextAttempt<'n, 'e> {
    next: Next<'n>,
    /// Locked to copy them, never across an await: two copies of a call may be under way.
    extensions: Mutex<&'e mut Extensions>,
}

impl<'e> NextAttempt<'_, 'e> {
    fn extensions(&self) -> MutexGuard<'_, &'e mut Extensions> {
        self.extensions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attempt<Body> for NextAttempt<'_, '_> {
    type Body = Body;

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let mut extensions = self.extensions().clone();
        let result = self.next.clone().run(request.try_into()?, &mut extensions).await;
        **self.extensions() = extensions;
        let response = result?;
        let url = response.url().clone();
        let mut response = Response::<Body>::from(response);
        response.extensions_mut().insert(FinalUrl(url));
        Ok(response)
    }
}

/// Where redirects led. reqwest keeps it outside of what an `http::Response` carries.
#[derive(Clone)]
struct FinalUrl(reqwest::Url);

#[async_trait::async_trait]
impl<S: Store + Send + Sync + 'static> Middleware for OutboundMiddleware<S> {
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<reqwest::Response, Error> {
        let request = Request::<Body>::try_from(request).map_err(Error::Reqwest)?;
        let attempt = NextAttempt { next, extensions: Mutex::new(extensions) };
        let response = exchange(&self.state, &copy_reqwest_body, attempt, request).await;
        let (head, body) = response.map_err(unwrapped)?.into_parts();
        let mut response = Response::builder();
        if let Some(FinalUrl(url)) = head.extensions.get() {
            response = response.url(url.clone());
        }
        let mut response = response.body(Body::wrap(body)).map_err(Error::middleware)?;
        *response.status_mut() = head.status;
        *response.version_mut() = head.version;
        *response.headers_mut() = head.headers;
        response.extensions_mut().extend(head.extensions);
        Ok(response.into())
    }
}

/// An error of the client stays what it was; a refusal is an error of this middleware.
fn unwrapped(error: super::CallError) -> Error {
    match error {
        super::CallError::Failed(error) => match error.downcast::<Error>() {
            Ok(error) => *error,
            Err(error) => Error::Middleware(anyhow::Error::from_boxed(error)),
        },
        refused => Error::middleware(refused),
    }
}
