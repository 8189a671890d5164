//! The layer: sets how requests are read, decided and answered, and wraps services. All of them share its `state`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, InvalidHeaderName};
use http::request::Parts;
use http::{Response, response};
use tollgate::headers::HeaderPolicy;
use tollgate::policy::{Limit, Problem};
use tollgate::store::Store;
use tollgate::{Engine, MemoryStore, Policy, PolicyError, Quota, QuotaError, Ticks};
use tower_layer::Layer;

use crate::attributes::address::{Network, Trusted};
use crate::attributes::callers::ActiveCallers;
use crate::attributes::credential::Credentials;
use crate::attributes::path::PathMatch;
use crate::attributes::source::Source;
use crate::attributes::{Mapped, Reader};
use crate::decide::{Decide, EngineDecider};
use crate::service::RateLimit;
use crate::settle::{Ending, Settle};
use crate::state::{RateLimitSettings, RateLimitState, Refused};

/// Limits the requests to a service. Clones share all state, so a server may clone the layer for each connection.
///
/// ```
/// use tollgate::Engine;
/// use tollgate_tower::RateLimitLayer;
/// use tollgate_tower::attributes::source::{Source, header_of_client};
/// let engine = Engine::builder().policy("limits: [{name: per-tenant, by: [tenant], rate: 100/s}]".parse()?).build();
/// let layer = RateLimitLayer::new(engine)
///     .behind(["10.0.0.0/8"])?
///     .attribute("tenant", header_of_client("x-tenant")?.or(Source::Client))
///     .skip(|request| request.uri.path() == "/healthz");
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RateLimitLayer<D = EngineDecider<MemoryStore>> {
    pub(crate) shared: Arc<RateLimitState<D>>,
}

impl RateLimitLayer {
    /// Limits each client address, in memory: by a text such as `"100/s burst 200"`, a [`Rate`](tollgate::Rate) or a
    /// [`Quota`]. IPv6 counts by /64. Behind a proxy, add [`RateLimitLayer::behind`].
    ///
    /// ```
    /// use tollgate_tower::RateLimitLayer;
    /// let layer = RateLimitLayer::per_ip("100/s burst 200")?;
    /// # let _ = layer;
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    ///
    /// # Errors
    /// The text is not a rate, or the numbers are out of range.
    pub fn per_ip<Q>(quota: Q) -> Result<Self, PolicyError>
    where
        Q: TryInto<Quota, Error: Into<QuotaError>>,
    {
        let quota: Quota = quota.try_into().map_err(Into::into)?;
        let policy = Policy::new(vec![Limit::new("per-ip", quota).by(["ip"])])?;
        Ok(Self::new(Engine::builder().policy(policy).build()))
    }
}

impl<S: Store + Send + Sync + 'static> RateLimitLayer<EngineDecider<S>> {
    /// Limits requests by an engine.
    pub fn new(engine: impl Into<Arc<Engine<S>>>) -> Self {
        Self::deciding(EngineDecider::new(engine.into()))
    }
}

impl<D: Decide> RateLimitLayer<D> {
    /// Limits requests by a decider.
    pub fn deciding(decide: impl Into<Arc<D>>) -> Self {
        Self { shared: Arc::new(RateLimitState::new(decide.into(), RateLimitSettings::default())) }
    }

    fn with(self, change: impl FnOnce(&mut RateLimitSettings)) -> Self {
        let mut settings = self.shared.settings.clone();
        change(&mut settings);
        Self { shared: Arc::new(RateLimitState::new(Arc::clone(&self.shared.decide), settings)) }
    }

    /// Sets how requests are read.
    #[must_use]
    pub fn reader(self, reader: Reader) -> Self {
        self.with(|settings| settings.reader = reader)
    }

    /// Trusts these proxies to name the client: in `X-Forwarded-For`, the first address from the right that is not one of
    /// theirs. Without trusted proxies the client is the peer.
    ///
    /// # Errors
    /// One of them is neither an address nor a network.
    pub fn behind<'n>(self, proxies: impl IntoIterator<Item = &'n str>) -> Result<Self, Problem> {
        let networks = proxies.into_iter().map(str::parse::<Network>).collect::<Result<_, _>>()?;
        Ok(self.with(|settings| settings.reader.trusted = Trusted::new(networks)))
    }

    /// Sets how paths are compared with those of limits and templates; by default [`PathMatch::Loose`].
    #[must_use]
    pub fn match_paths(self, paths: PathMatch) -> Self {
        self.with(|settings| settings.reader.paths = paths)
    }

    /// Adds an attribute to the built-in ones, or replaces one of them.
    #[must_use]
    pub fn attribute(self, name: &str, source: Source) -> Self {
        self.with(|settings| {
            settings.reader.mapped.retain(|mapped| mapped.name != name);
            settings.reader.mapped.push(Mapped { name: name.to_owned(), source });
        })
    }

    /// Sets where clients send their credential, which is the attribute `api_key`; by default `X-API-Key` and the bearer
    /// token. A request with two different credentials is refused.
    #[must_use]
    pub fn credentials(self, credentials: Credentials) -> Self {
        self.with(|settings| settings.reader.credentials = credentials)
    }

    /// Sets the registered credentials and the attributes of their callers. A request with an unknown credential has no
    /// `api_key` and counts by its address. [`ActiveCallers::replace`] replaces them while requests are served.
    #[must_use]
    pub fn callers(self, callers: ActiveCallers) -> Self {
        self.with(|settings| settings.reader.callers = Some(callers))
    }

    /// Lets requests pass without a decision, such as health checks.
    #[must_use]
    pub fn skip(self, test: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.skipped.push(Arc::new(test)))
    }

    /// Sets the cost of a request; by default 1.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// Settles the cost of a request by its response.
    #[must_use]
    pub fn settle(self, by: impl Fn(&response::Parts) -> Settle + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.settling.by_response(by))
    }

    /// Counts only requests that fail, as a limit on wrong passwords does. A gRPC call fails by its own status, usually in
    /// its trailers.
    #[must_use]
    pub fn count_failures(self) -> Self {
        self.with(|settings| {
            settings.settling.by_ending(|ending| match ending {
                Ending::Success => Settle::Refund,
                Ending::ClientError | Ending::ServerError => Settle::Keep,
            });
        })
    }

    /// Refunds requests that the service failed to serve: a 5xx, or the gRPC status that stands for one.
    #[must_use]
    pub fn refund_server_errors(self) -> Self {
        self.with(|settings| {
            settings.settling.by_ending(|ending| match ending {
                Ending::ServerError => Settle::Refund,
                Ending::Success | Ending::ClientError => Settle::Keep,
            });
        })
    }

    /// Refunds requests that an inner service did not serve, as [`crate::Unserved`] in the response says. The refund goes to
    /// the charged counters, as far as they still count the charge.
    #[must_use]
    pub fn refund_unserved(self) -> Self {
        self.with(|settings| settings.settling.refunds_unserved = true)
    }

    /// Settles at the cost in a header or trailer of the response. Without it the request costs its estimate.
    ///
    /// # Errors
    /// The name is not a valid header name.
    pub fn cost_from(self, name: &str) -> Result<Self, InvalidHeaderName> {
        let name: HeaderName = name.parse()?;
        Ok(self.with(|settings| settings.settling.cost_header(name)))
    }

    /// Sets how long a request may wait in the queue of a shaping limit; by default as long as the `queue` of the limit is.
    /// A request that would wait longer is refused immediately, and so is a gRPC call with an earlier deadline
    /// (`grpc-timeout`).
    #[must_use]
    pub fn wait_at_most(self, wait: Duration) -> Self {
        self.with(|settings| settings.wait_max = Some(Ticks::ceil_from(wait)))
    }

    /// Sets the headers of answers. By default every caller sees its own limits, those with `by`. With
    /// [`tollgate::headers::Exposure::RetryAfter`] for anonymous callers, these see only when to retry.
    #[must_use]
    pub fn headers(self, headers: HeaderPolicy) -> Self {
        self.with(|settings| settings.headers = headers)
    }

    /// Sets the test for authenticated requests, whose callers see their quotas. It usually checks what an outer layer found.
    #[must_use]
    pub fn authenticated(self, test: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.authenticated = Some(Arc::new(test)))
    }

    /// Writes the response to refused requests; `None` keeps the default one. The layer adds the headers that say when to
    /// retry.
    #[must_use]
    pub fn refuse_with(
        self,
        refuse: impl Fn(&Refused<'_>) -> Option<Response<Bytes>> + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| settings.refuse = Some(Arc::new(refuse)))
    }
}

impl<D> Clone for RateLimitLayer<D> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<I, D: Decide> Layer<I> for RateLimitLayer<D> {
    type Service = RateLimit<I, D>;

    fn layer(&self, inner: I) -> Self::Service {
        RateLimit::new(inner, Arc::clone(&self.shared))
    }
}
