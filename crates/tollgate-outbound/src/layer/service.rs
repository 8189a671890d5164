//! The service that a layer makes.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tollgate::MemoryStore;
use tollgate::store::Store;
use tower_service::Service;

use super::body::OutboundBody;
use super::copy::{CloneBody, CopyBody};
use super::error::{BoxError, CallError};
use super::exchange::{Attempt, LayerState, exchange};

/// A service behind the limits of the servers that it calls. Its clones share everything.
///
/// Each call waits in its future, not in `poll_ready`: calls to different servers do not wait for each other.
pub struct OutboundService<I, S = MemoryStore, C = CloneBody> {
    inner: I,
    state: Arc<LayerState<S>>,
    copy: C,
}

impl<I, S, C> OutboundService<I, S, C> {
    pub(crate) const fn new(inner: I, state: Arc<LayerState<S>>, copy: C) -> Self {
        Self { inner, state, copy }
    }
}

impl<I: Clone, S, C: Clone> Clone for OutboundService<I, S, C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), state: Arc::clone(&self.state), copy: self.copy.clone() }
    }
}

impl<I, S, C> std::fmt::Debug for OutboundService<I, S, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutboundService").finish_non_exhaustive()
    }
}

/// Attempts by a tower service.
struct ServiceAttempt<I>(I);

impl<I, B, R> Attempt<B> for ServiceAttempt<I>
where
    I: Service<Request<B>, Response = Response<R>> + Clone + Send,
    I::Future: Send,
    I::Error: Into<BoxError>,
    B: Send,
    R: Body<Data = Bytes, Error: Into<BoxError> + Send> + Send + 'static,
{
    type Body = R;

    fn send(&self, request: Request<B>) -> impl Future<Output = Result<Response<R>, BoxError>> + Send {
        let mut inner = self.0.clone();
        async move {
            poll_fn(|context| inner.poll_ready(context)).await.map_err(Into::into)?;
            inner.call(request).await.map_err(Into::into)
        }
    }
}

impl<I, S, C, B, R> Service<Request<B>> for OutboundService<I, S, C>
where
    I: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    I::Future: Send,
    I::Error: Into<BoxError>,
    S: Store + Send + Sync + 'static,
    C: CopyBody<B> + Clone,
    B: Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError> + Send,
{
    type Response = Response<OutboundBody<R>>;
    type Error = CallError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, CallError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { inner, state, copy } = self.clone();
        Box::pin(async move { exchange(&state, &copy, ServiceAttempt(inner), request).await })
    }
}
