//! The layer that computes the cost of GraphQL requests. It buffers the whole body, up to a bound.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body as HttpBody;
use tower_layer::Layer;
use tower_service::Service;

use super::cost::CostModel;
use super::persisted::Persisted;
use super::{GraphqlProblem, request};
use crate::attributes::path::may_be_at;
use crate::body::Body;
use crate::refusal::is_preflight;

/// By default the largest body, in bytes.
pub const BODY_BYTES_MAX: usize = 64 << 10;

/// The path of GraphQL by default.
const PATH: &str = "/graphql";

type GraphqlTest = dyn Fn(&Parts) -> bool + Send + Sync;

/// Computes the cost of GraphQL requests.
#[derive(Clone)]
pub struct GraphqlLayer {
    settings: Arc<GraphqlSettings>,
}

#[derive(Clone)]
struct GraphqlSettings {
    model: CostModel,
    persisted: Persisted,
    body_bytes_max: usize,
    is_graphql: Arc<GraphqlTest>,
}

impl GraphqlLayer {
    /// Computes the cost of requests for `/graphql` and below, in every spelling that a server may take for it.
    #[must_use]
    pub fn new(model: CostModel) -> Self {
        let settings = GraphqlSettings {
            model,
            persisted: Persisted::default(),
            body_bytes_max: BODY_BYTES_MAX,
            is_graphql: Arc::new(|parts: &Parts| may_be_at(PATH, parts.uri.path())),
        };
        Self { settings: Arc::new(settings) }
    }

    /// Uses this path and the paths below instead, in every spelling that a server may take for it, as the gateway does:
    /// `/GraphQL`, `//graphql`, `/graphql/`, `/graphql;x`, `/graphql.json`.
    #[must_use]
    pub fn at(self, path: impl Into<String>) -> Self {
        let path = path.into();
        self.when(move |parts| may_be_at(&path, parts.uri.path()))
    }

    fn with(self, change: impl FnOnce(&mut GraphqlSettings)) -> Self {
        let mut settings = Arc::unwrap_or_clone(self.settings);
        change(&mut settings);
        Self { settings: Arc::new(settings) }
    }

    /// Selects GraphQL requests by a test instead of a path. The test sees the path as the client spelled it.
    #[must_use]
    pub fn when(self, test: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.is_graphql = Arc::new(test))
    }

    /// Sets the operations that clients may send by their hash.
    #[must_use]
    pub fn persisted(self, persisted: Persisted) -> Self {
        self.with(|settings| settings.persisted = persisted)
    }

    /// Sets the largest body, in bytes.
    #[must_use]
    pub fn body_at_most(self, bytes: usize) -> Self {
        self.with(|settings| settings.body_bytes_max = bytes)
    }
}

impl<I> Layer<I> for GraphqlLayer {
    type Service = Graphql<I>;

    fn layer(&self, inner: I) -> Graphql<I> {
        Graphql { inner, settings: Arc::clone(&self.settings) }
    }
}

/// A service behind a [`GraphqlLayer`].
#[derive(Clone)]
pub struct Graphql<I> {
    inner: I,
    settings: Arc<GraphqlSettings>,
}

/// The response of a service behind a [`GraphqlLayer`].
pub type GraphqlFuture<R, E> = Pin<Box<dyn Future<Output = Result<Response<Body<R>>, E>> + Send>>;

impl<I, B, R> Service<Request<B>> for Graphql<I>
where
    I: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    I::Future: Send + 'static,
    B: HttpBody + From<Bytes> + Send + 'static,
    B::Data: Send,
{
    type Response = Response<Body<R>>;
    type Error = I::Error;
    type Future = GraphqlFuture<R, I::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let settings = Arc::clone(&self.settings);
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let is_preflight =
                || is_preflight(&parts.method, &parts.headers) && !request::is_other_protocol(&parts);
            let body = if (settings.is_graphql)(&parts) && !is_preflight() {
                match settings.compute_cost(&mut parts, body).await {
                    Ok(bytes) => B::from(bytes),
                    Err(GraphqlRefusal(response)) => return Ok(response.map(Body::refused)),
                }
            } else {
                body
            };
            let response = inner.call(Request::from_parts(parts, body)).await?;
            Ok(response.map(|body| Body::served(body, None)))
        })
    }
}

/// The response to a refused request.
struct GraphqlRefusal(Response<Bytes>);

impl GraphqlSettings {
    /// Reads a body, and puts the cost of its operations into the extensions.
    async fn compute_cost<B: HttpBody>(&self, parts: &mut Parts, body: B) -> Result<Bytes, GraphqlRefusal> {
        let too_large = || {
            let message = format!("body: more than {} bytes", self.body_bytes_max);
            GraphqlRefusal(refusal(
                StatusCode::PAYLOAD_TOO_LARGE,
                &GraphqlProblem::new("PAYLOAD_TOO_LARGE", message),
            ))
        };
        if request::is_other_protocol(parts) {
            let message =
                "upgrade: operations inside of another protocol have no cost; accepted: requests of HTTP";
            return Err(GraphqlRefusal(refusal(
                StatusCode::BAD_REQUEST,
                &GraphqlProblem::new("BAD_REQUEST", message),
            )));
        }
        let length =
            parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length > self.body_bytes_max) {
            return Err(too_large());
        }
        let bytes = match collected(body, self.body_bytes_max).await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Err(too_large()),
            Err(()) => {
                let broken = GraphqlProblem::new("BAD_REQUEST", "body: ended before its end");
                return Err(GraphqlRefusal(refusal(StatusCode::BAD_REQUEST, &broken)));
            }
        };
        let cost = request::cost(parts, &bytes, &self.model, &self.persisted);
        let cost = cost.map_err(|problem| GraphqlRefusal(refusal(StatusCode::BAD_REQUEST, &problem)))?;
        parts.extensions.insert(cost);
        Ok(bytes)
    }
}

/// Collects a body. Returns `Ok(None)` if it is larger than `most` bytes.
async fn collected<B: HttpBody>(body: B, most: usize) -> Result<Option<Bytes>, ()> {
    let mut body = std::pin::pin!(body);
    let mut whole = BytesMut::new();
    loop {
        let frame = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await;
        let Some(frame) = frame else { return Ok(Some(whole.freeze())) };
        if let Ok(chunk) = frame.map_err(|_| ())?.into_data() {
            if chunk.remaining() > most.saturating_sub(whole.len()) {
                return Ok(None);
            }
            whole.put(chunk);
        }
    }
}

/// A refusal as GraphQL clients read it.
fn refusal(status: StatusCode, problem: &GraphqlProblem) -> Response<Bytes> {
    let body = serde_json::json!({
        "errors": [{"message": problem.message, "extensions": {"code": problem.code}}]
    });
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
