//! The layer and the service that shed load.

use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use tollgate::Ticks;
use tollgate::headers::HeaderPolicy;
use tollgate_overload::{Priority, Refusal};
use tower_layer::Layer;
use tower_service::Service;

use super::future::{QueuedOutcome, ShedFuture};
use super::gate::{Entry, Shedder};
use crate::attributes::address::Trusted;
use crate::attributes::{CLIENT, Reader};
use crate::body::Body;
use crate::refusal::{self, AnswerContext};
use crate::settle::Unserved;
use crate::{grpc, peer};
use tollgate::address::Prefixes;

/// By default the longest time that a request waits in the queue.
const WAIT_MAX: Ticks = Ticks::from_secs(10);

/// The action for each refused request.
type RefusalHook = dyn Fn(&Parts) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// Sheds requests that a service has no capacity for. Clones share the controllers.
///
/// The controllers learn from every response. A service that answers without its backend, or that knows better how a
/// request ended, puts a [`tollgate_overload::Ending`] into the extensions of its response.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::Clock;
/// use tollgate_overload::Plan;
/// use tollgate_tower::shed::{ShedLayer, Shedder};
/// let (plan, _) = Plan::compile("overload.yaml", b"overload: {worker: , concurrency: , queue: }")?;
/// let shedder = Arc::new(Shedder::new(plan, Clock::precise())?);
/// let layer = ShedLayer::new(Arc::clone(&shedder));
/// assert_eq!(shedder.reports().len(), 3);
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ShedLayer {
    shared: Arc<ShedState>,
}

#[derive(Clone)]
struct ShedState {
    shedder: Arc<Shedder>,
    reader: Reader,
    headers: HeaderPolicy,
    wait_max: Ticks,
    /// The attribute that identifies callers; by default their address does.
    identified_by: Option<String>,
    identities: RandomState,
    hook: Option<Arc<RefusalHook>>,
}

impl ShedLayer {
    /// Sheds requests by a shedder.
    #[must_use]
    pub fn new(shedder: Arc<Shedder>) -> Self {
        let shared = ShedState {
            shedder,
            reader: Reader { trusted: Trusted::new(Vec::new()), ..Reader::default() },
            headers: HeaderPolicy::default(),
            wait_max: WAIT_MAX,
            identified_by: None,
            identities: RandomState::new(),
            hook: None,
        };
        Self { shared: Arc::new(shared) }
    }

    fn with(self, change: impl FnOnce(&mut ShedState)) -> Self {
        let mut shared = Arc::unwrap_or_clone(self.shared);
        change(&mut shared);
        Self { shared: Arc::new(shared) }
    }

    /// Sets how the attributes that priorities depend on are read.
    #[must_use]
    pub fn reader(self, reader: Reader) -> Self {
        self.with(|shared| shared.reader = reader)
    }

    /// Identifies callers by an attribute instead of their address, if a request has it. The identity decides which callers
    /// are shed while a part of a priority is. So use an attribute that callers cannot choose, such as a verified tenant: a
    /// caller that may send any key would try until one passes.
    #[must_use]
    pub fn identified_by(self, attribute: &str) -> Self {
        self.with(|shared| shared.identified_by = Some(attribute.to_owned()))
    }

    /// Sets the headers of refusals.
    #[must_use]
    pub fn headers(self, headers: HeaderPolicy) -> Self {
        self.with(|shared| shared.headers = headers)
    }

    /// Sets how long a request may wait in the queue; a shorter `grpc-timeout` of a call takes precedence.
    #[must_use]
    pub fn wait_at_most(self, wait_max: Duration) -> Self {
        self.with(|shared| shared.wait_max = Ticks::ceil_from(wait_max))
    }
}

impl ShedLayer {
    /// Runs a future for each refused request, for example to count it. It is polled once before the answer; if it is not
    /// ready, a task continues it. A rate-limit layer outside of this one refunds the request with
    /// [`crate::RateLimitLayer::refund_unserved`].
    #[must_use]
    pub fn when_refused<F>(self, hook: impl Fn(&Parts) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.with(|shared| shared.hook = Some(Arc::new(move |parts| Box::pin(hook(parts)))))
    }
}

impl<I> Layer<I> for ShedLayer {
    type Service = Shed<I>;

    fn layer(&self, inner: I) -> Shed<I> {
        Shed { inner, shared: Arc::clone(&self.shared) }
    }
}

/// A service that sheds.
#[derive(Clone)]
pub struct Shed<I> {
    inner: I,
    shared: Arc<ShedState>,
}

impl<I, B, R> Service<Request<B>> for Shed<I>
where
    I: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    I::Future: Send + 'static,
    I::Error: Send + 'static,
    B: Send + 'static,
    R: HttpBody + Send + 'static,
    R::Data: From<Bytes>,
{
    type Response = Response<Body<R>>;
    type Error = I::Error;
    type Future = ShedFuture<I::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let (priority, identity) = self.shared.classify(&parts);
        let entry = match self.shared.shedder.try_enter(priority, identity) {
            Ok(Entry::Pass(admission)) => {
                return ShedFuture::passing(self.inner.call(Request::from_parts(parts, body)), admission);
            }
            Ok(entry) => entry,
            Err(refusal) => return ShedFuture::refused(self.shared.refuse(&parts, &refusal, identity)),
        };
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let shared = Arc::clone(&self.shared);
        ShedFuture::queued(async move {
            // Only gRPC calls have a deadline. In other requests the header has no meaning.
            let own = grpc::timeout(&parts.headers).filter(|_| grpc::is_call(&parts.headers));
            let wait_max = own.map_or(shared.wait_max, |own| own.min(shared.wait_max));
            match shared.shedder.enter(entry, priority, identity, wait_max).await {
                Ok(admission) => {
                    QueuedOutcome::Served(inner.call(Request::from_parts(parts, body)).await, admission)
                }
                Err(refusal) => QueuedOutcome::Refused(shared.refuse(&parts, &refusal, identity)),
            }
        })
    }
}

impl ShedState {
    /// The priority of a request, and the hash of its caller.
    fn classify(&self, parts: &Parts) -> (Priority, u64) {
        let rules = &self.shedder.controllers().rules;
        let peer = peer::of(&parts.extensions);
        let attributes = self.reader.of_request(peer, parts).ok();
        let request = attributes.as_ref().and_then(|attributes| attributes.request().ok());
        // Limits refuse an ambiguous request. Here it gets the lowest priority, so that no spelling gains a higher one.
        let (Some(attributes), Some(request)) = (&attributes, request) else {
            return (Priority::Test, self.identities.hash_one(peer));
        };
        let value = self.identified_by.as_deref().and_then(|name| attributes.get(name));
        // An address counts by its network, as in limits: a client can use any number of IPv6 addresses.
        let caller = value.map(str::to_owned).or_else(|| {
            let client = attributes.get(CLIENT)?;
            let network = Prefixes::default().network(client);
            Some(network.map_or_else(|| client.to_owned(), |network| network.to_string()))
        });
        (rules.classify(&request), self.identities.hash_one(caller.unwrap_or_default()))
    }

    /// The response to a shed request: a 503, and over gRPC `UNAVAILABLE`.
    fn refuse(&self, parts: &Parts, refusal: &Refusal, identity: u64) -> Response<Bytes> {
        self.shedder.count_refusal(refusal);
        if let Some(hook) = &self.hook {
            crate::background::run(hook(parts));
        }
        let context = AnswerContext::of(parts, tollgate::headers::Caller::Anonymous, 1);
        let answer = refusal.answer(&self.headers, context.audience, identity, self.shedder.now());
        let mut response = refusal::unavailable(answer, context.protocol);
        // A rate-limit layer outside of this one may have charged it.
        response.extensions_mut().insert(Unserved);
        response
    }
}
