//! The tower layer: every call of an HTTP client waits, is sent, and teaches by its response.
//!
//! The modules are in the order in which they build on each other: the error of a call, copies of request bodies, the
//! call of a request, the body that holds a call until its end, all attempts of a call, and the service.

mod error;
mod copy;
mod describe;
mod body;
mod exchange;
mod service;
#[cfg(feature = "reqwest")]
mod reqwest;

use std::sync::Arc;

use http::request::Parts;
use http::response;
use tollgate::{MemoryStore, RequestError};
use tower_layer::Layer;

use crate::call::Call;
use crate::outbound::Outbound;
use exchange::LayerState;

pub use body::{OutboundBody, UsageReader};
pub use copy::{CloneBody, CopyBody, SendOnce};
pub use error::{BoxError, CallError, RefusedBody};
#[cfg(feature = "reqwest")]
pub use reqwest::{HttpClient, OutboundMiddleware, copy_reqwest_body};
pub use service::OutboundService;

/// Puts a client of `http` requests behind the limits of the servers that it calls.
///
/// The host, the route and the digest of the credential come from the request; a [`Call`] in its extensions adds a cost,
/// a priority, a deadline, or further attributes. Responses come back unchanged: their extensions have the
/// [`Signals`](crate::Signals) and, while their bucket is frozen, the [`Freeze`](crate::Freeze) with its end. A call that
/// must not leave is [`CallError::Refused`], and so is one that the server refuses for longer than the call may wait: then
/// the error has the response of the server.
pub struct OutboundLayer<S = MemoryStore, C = CloneBody> {
    state: Arc<LayerState<S>>,
    copy: C,
}

impl<S, C: Clone> Clone for OutboundLayer<S, C> {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state), copy: self.copy.clone() }
    }
}

impl<S> OutboundLayer<S> {
    /// A layer that clones the bodies of requests for further attempts.
    pub fn new(outbound: Outbound<S>) -> Self {
        Self::builder(outbound).build()
    }

    /// A layer with options.
    pub const fn builder(outbound: Outbound<S>) -> OutboundLayerBuilder<S> {
        let state = LayerState { outbound, describe: None, usage: None, unsent: None };
        OutboundLayerBuilder { state, copy: CloneBody }
    }
}

impl<I, S, C: Clone> Layer<I> for OutboundLayer<S, C> {
    type Service = OutboundService<I, S, C>;

    fn layer(&self, inner: I) -> Self::Service {
        OutboundService::new(inner, Arc::clone(&self.state), self.copy.clone())
    }
}

/// The options of an [`OutboundLayer`].
#[must_use]
pub struct OutboundLayerBuilder<S = MemoryStore, C = CloneBody> {
    state: LayerState<S>,
    copy: C,
}

impl<S, C> OutboundLayerBuilder<S, C> {
    /// Copies bodies another way: [`SendOnce`] for bodies that are not `Clone`, or a closure.
    pub fn copy_body<D>(self, copy: D) -> OutboundLayerBuilder<S, D> {
        OutboundLayerBuilder { state: self.state, copy }
    }

    /// Changes the call of each request: adds attributes that limits count by, a cost, a priority.
    pub fn describe<F>(mut self, describe: F) -> Self
    where
        F: Fn(&Parts, Call) -> Result<Call, RequestError> + Send + Sync + 'static,
    {
        self.state.describe = Some(Box::new(describe));
        self
    }

    /// Reads what calls used out of the bodies of responses, and settles them at that.
    pub fn usage<F>(mut self, usage: F) -> Self
    where
        F: Fn(&Call, &response::Parts) -> Option<UsageReader> + Send + Sync + 'static,
    {
        self.state.usage = Some(Box::new(usage));
        self
    }

    /// Recognises further errors that prove that the server did not execute the call. The layer knows those of hyper,
    /// reqwest and h2: no address, no connection, `REFUSED_STREAM`, and a graceful `GOAWAY`.
    pub fn unsent<F>(mut self, unsent: F) -> Self
    where
        F: Fn(&BoxError) -> bool + Send + Sync + 'static,
    {
        self.state.unsent = Some(Box::new(unsent));
        self
    }

    /// The layer.
    pub fn build(self) -> OutboundLayer<S, C> {
        OutboundLayer { state: Arc::new(self.state), copy: self.copy }
    }
}
