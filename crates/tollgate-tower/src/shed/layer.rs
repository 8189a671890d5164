//! The layer and the service.

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
use tollgate::headers::HeaderPolicy;
use tollgate::overload::{Priority, Refusal};
use tollgate::{Answer, Ticks};
use tower_layer::Layer;
use tower_service::Service;

use super::future::{Late, ShedFuture};
use super::gate::{Shedder, Way};
use crate::attributes::address::Trusted;
use crate::attributes::{CLIENT, Reader};
use crate::body::Body;
use crate::refusal::{self, Reading};
use crate::settle::Unserved;
use crate::{grpc, peer};
use tollgate::address::Prefixes;

/// Longest time that a request waits in line unless said otherwise.
const PATIENCE: Ticks = Ticks::from_secs(10);

/// Something that is done for a request that is refused.
type Consequence = dyn Fn(&Parts) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// Sheds what a service has no capacity for. Copies share the controllers.
///
/// The controllers learn from every response but those that say otherwise: a service that answers for itself, or knows better how a request
/// ended, puts a [`tollgate::overload::Ending`] into the extensions of its response.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::Clock;
/// use tollgate::overload::Plan;
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
    shared: Arc<Shared>,
}

#[derive(Clone)]
struct Shared {
    shedder: Arc<Shedder>,
    reader: Reader,
    headers: HeaderPolicy,
    patience: Ticks,
    /// The attribute by which callers are told apart; their address where there is none.
    known_by: Option<String>,
    identities: RandomState,
    consequence: Option<Arc<Consequence>>,
}

impl ShedLayer {
    /// Sheds by these controllers.
    #[must_use]
    pub fn new(shedder: Arc<Shedder>) -> Self {
        let shared = Shared {
            shedder,
            reader: Reader { trusted: Trusted::new(Vec::new()), ..Reader::default() },
            headers: HeaderPolicy::default(),
            patience: PATIENCE,
            known_by: None,
            identities: RandomState::new(),
            consequence: None,
        };
        Self { shared: Arc::new(shared) }
    }

    fn with(self, change: impl FnOnce(&mut Shared)) -> Self {
        let mut shared = Arc::unwrap_or_clone(self.shared);
        change(&mut shared);
        Self { shared: Arc::new(shared) }
    }

    /// Reads this way what priorities depend on.
    #[must_use]
    pub fn reader(self, reader: Reader) -> Self {
        self.with(|shared| shared.reader = reader)
    }

    /// Tells callers apart by an attribute instead of their address, where a request has it. While some of a class are shed, it says who: it must
    /// be one that callers cannot choose, such as a tenant that was verified. Whoever may send any key would try until one passes.
    #[must_use]
    pub fn known_by(self, attribute: &str) -> Self {
        self.with(|shared| shared.known_by = Some(attribute.to_owned()))
    }

    /// How refusals are written.
    #[must_use]
    pub fn headers(self, headers: HeaderPolicy) -> Self {
        self.with(|shared| shared.headers = headers)
    }

    /// How long a request may wait in line; a call's own `grpc-timeout` counts where it is shorter.
    #[must_use]
    pub fn wait_at_most(self, patience: Duration) -> Self {
        self.with(|shared| shared.patience = Ticks::ceil_from(patience))
    }
}

impl ShedLayer {
    /// Does this for each request that is refused, such as to count it. It is begun before the answer is given, and waited for only as far as
    /// it does not wait itself. What a layer of limits before this one has charged it gives back, if told [`crate::RateLimitLayer::refund_unserved`].
    #[must_use]
    pub fn when_refused<F>(self, consequence: impl Fn(&Parts) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.with(|shared| shared.consequence = Some(Arc::new(move |parts| Box::pin(consequence(parts)))))
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
    shared: Arc<Shared>,
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
        let way = match self.shared.shedder.enter_at_once(priority, identity) {
            Ok(Way::Pass(admission)) => {
                return ShedFuture::passing(self.inner.call(Request::from_parts(parts, body)), admission);
            }
            Ok(way) => way,
            Err(refusal) => return ShedFuture::refused(self.shared.refuse(parts, &refusal, identity)),
        };
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let shared = Arc::clone(&self.shared);
        ShedFuture::late(async move {
            // Only a gRPC call has a deadline of its own; whatever else has such a header means nothing by it.
            let own = grpc::timeout(&parts.headers).filter(|_| grpc::is_call(&parts.headers));
            let patience = own.map_or(shared.patience, |own| own.min(shared.patience));
            match shared.shedder.enter(way, priority, identity, patience).await {
                Ok(admission) => Late::Served(inner.call(Request::from_parts(parts, body)).await, admission),
                Err(refusal) => Late::Refused(shared.refuse(parts, &refusal, identity)),
            }
        })
    }
}

impl Shared {
    /// How much a request matters, and a number for who sent it.
    fn classify(&self, parts: &Parts) -> (Priority, u64) {
        let rules = &self.shedder.controllers().rules;
        let peer = peer::of(&parts.extensions);
        let attributes = self.reader.of_request(peer, parts).ok();
        let request = attributes.as_ref().and_then(|attributes| attributes.request().ok());
        // What cannot be read in one way only is refused by limits. Here it matters least, so that no spelling leaves its class.
        let (Some(attributes), Some(request)) = (&attributes, request) else {
            return (Priority::Test, self.identities.hash_one(peer));
        };
        let name = self.known_by.as_deref().and_then(|known_by| attributes.get(known_by));
        // An address is known by its network, as limits count it: a client has as many IPv6 addresses as it likes.
        let known = name.map(str::to_owned).or_else(|| {
            let client = attributes.get(CLIENT)?;
            let network = Prefixes::default().network(client);
            Some(network.map_or_else(|| client.to_owned(), |network| network.to_string()))
        });
        (rules.classify(&request), self.identities.hash_one(known.unwrap_or_default()))
    }

    /// The response to whom there is no capacity for: a 503, and over gRPC `UNAVAILABLE`.
    fn refuse(&self, parts: Parts, refusal: &Refusal, identity: u64) -> Response<Bytes> {
        self.shedder.note(refusal);
        if let Some(consequence) = &self.consequence {
            crate::background::run(consequence(&parts));
        }
        let reading = Reading::of(&parts, tollgate::headers::Caller::Anonymous, 1);
        let answer =
            Answer::of_refusal(refusal, &self.headers, reading.audience, identity, self.shedder.now());
        let mut response = refusal::unavailable(answer, reading.is_call);
        // A layer of limits before this one may have charged it.
        response.extensions_mut().insert(Unserved::new(parts));
        response
    }
}
