//! The layer that prices GraphQL requests. It holds a body until it is whole, and no body that is larger than it may be.

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

use super::persisted::Persisted;
use super::price::Pricing;
use super::{Unpriced, question};
use crate::attributes::path::may_be_at;
use crate::body::Body;
use crate::refusal::is_preflight;

/// Largest body that is read unless said otherwise.
pub const BODY_BYTES_MAX: usize = 64 << 10;

/// The path of GraphQL by default.
const PATH: &str = "/graphql";

type Test = dyn Fn(&Parts) -> bool + Send + Sync;

/// Prices the GraphQL requests that pass.
#[derive(Clone)]
pub struct GraphqlLayer {
    settings: Arc<Settings>,
}

#[derive(Clone)]
struct Settings {
    pricing: Pricing,
    persisted: Persisted,
    body_bytes_max: usize,
    is_graphql: Arc<Test>,
}

impl GraphqlLayer {
    /// Prices requests for `/graphql` and what is below it, in every spelling that a server may take for it.
    #[must_use]
    pub fn new(pricing: Pricing) -> Self {
        let settings = Settings {
            pricing,
            persisted: Persisted::default(),
            body_bytes_max: BODY_BYTES_MAX,
            is_graphql: Arc::new(|parts: &Parts| may_be_at(PATH, parts.uri.path())),
        };
        Self { settings: Arc::new(settings) }
    }

    /// Prices requests for this path and what is below it instead, in every spelling that a server may take for it, as a gateway does:
    /// `/GraphQL`, `//graphql`, `/graphql/`, `/graphql;x`, `/graphql.json`.
    #[must_use]
    pub fn at(self, path: impl Into<String>) -> Self {
        let path = path.into();
        self.when(move |parts| may_be_at(&path, parts.uri.path()))
    }

    fn with(self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Arc::unwrap_or_clone(self.settings);
        change(&mut settings);
        Self { settings: Arc::new(settings) }
    }

    /// Which requests are GraphQL, where no path tells. The test sees the path as the client spelled it.
    #[must_use]
    pub fn when(self, test: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.is_graphql = Arc::new(test))
    }

    /// Operations that are known by their hash.
    #[must_use]
    pub fn persisted(self, persisted: Persisted) -> Self {
        self.with(|settings| settings.persisted = persisted)
    }

    /// How large a body may be.
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

/// A service whose GraphQL requests are priced.
#[derive(Clone)]
pub struct Graphql<I> {
    inner: I,
    settings: Arc<Settings>,
}

/// The response of a service whose GraphQL requests are priced.
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
                || is_preflight(&parts.method, &parts.headers) && !question::is_other_protocol(&parts);
            let body = if (settings.is_graphql)(&parts) && !is_preflight() {
                match settings.priced(&mut parts, body).await {
                    Ok(bytes) => B::from(bytes),
                    Err(Refused(response)) => return Ok(response.map(Body::refused)),
                }
            } else {
                body
            };
            let response = inner.call(Request::from_parts(parts, body)).await?;
            Ok(response.map(|body| Body::served(body, None)))
        })
    }
}

/// A request that goes no further.
struct Refused(Response<Bytes>);

impl Settings {
    /// Reads a body and leaves the price of what it asks for in the extensions.
    async fn priced<B: HttpBody>(&self, parts: &mut Parts, body: B) -> Result<Bytes, Refused> {
        let too_large = || {
            let message = format!("body: more than {} bytes", self.body_bytes_max);
            Refused(refusal(StatusCode::PAYLOAD_TOO_LARGE, &Unpriced::new("PAYLOAD_TOO_LARGE", message)))
        };
        if question::is_other_protocol(parts) {
            let message =
                "upgrade: what is asked inside of another protocol has no price; accepted: requests of HTTP";
            return Err(Refused(refusal(StatusCode::BAD_REQUEST, &Unpriced::new("BAD_REQUEST", message))));
        }
        let told =
            parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if told.is_some_and(|told| told > self.body_bytes_max) {
            return Err(too_large());
        }
        let bytes = match collected(body, self.body_bytes_max).await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Err(too_large()),
            Err(()) => {
                let broken = Unpriced::new("BAD_REQUEST", "body: ended before its end");
                return Err(Refused(refusal(StatusCode::BAD_REQUEST, &broken)));
            }
        };
        let price = question::price(parts, &bytes, &self.pricing, &self.persisted);
        let price = price.map_err(|problem| Refused(refusal(StatusCode::BAD_REQUEST, &problem)))?;
        parts.extensions.insert(price);
        Ok(bytes)
    }
}

/// All of a body, if it is not larger than it may be.
async fn collected<B: HttpBody>(body: B, most: usize) -> Result<Option<Bytes>, ()> {
    let mut body = std::pin::pin!(body);
    let mut whole = BytesMut::new();
    loop {
        let frame = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await;
        let Some(frame) = frame else { return Ok(Some(whole.freeze())) };
        if let Ok(data) = frame.map_err(|_| ())?.into_data() {
            if data.remaining() > most.saturating_sub(whole.len()) {
                return Ok(None);
            }
            whole.put(data);
        }
    }
}

/// A refusal as GraphQL clients read it.
fn refusal(status: StatusCode, problem: &Unpriced) -> Response<Bytes> {
    let body = serde_json::json!({
        "errors": [{"message": problem.message, "extensions": {"code": problem.code}}]
    });
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
