//! The layer: what is decided about, by whom, and what callers get to see. One made it; all services share it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, InvalidHeaderName};
use http::request::Parts;
use http::{Response, response};
use tollgate::headers::HeaderPolicy;
use tollgate::store::Store;
use tollgate::{Clock, Engine, Ticks};
use tower_layer::Layer;

use crate::attributes::address::{Network, Trusted};
use crate::attributes::callers::LiveCallers;
use crate::attributes::credential::Credentials;
use crate::attributes::path::PathMatch;
use crate::attributes::source::Source;
use crate::attributes::{Mapped, Reader};
use crate::decide::{Decide, Own};
use crate::service::RateLimit;
use crate::settle::{Ending, Settle};
use crate::shared::{Refused, Settings, Shared};

/// Limits what passes through. Copies share everything, so that one limit is one limit however often a server clones it.
///
/// ```
/// use tollgate::{Clock, Engine, Policy};
/// use tollgate_tower::RateLimitLayer;
/// use tollgate_tower::attributes::source::{Source, header_of_client};
/// let (policy, _) = Policy::compile("policy.yaml", b"limits: [{name: per-tenant, by: [tenant], rate: 100/s}]")?;
/// let engine = Engine::new(policy, Clock::precise().now());
/// let layer = RateLimitLayer::new(engine)
///     .behind(["10.0.0.0/8"])?
///     .attribute("tenant", header_of_client("x-tenant")?.or(Source::Client))
///     .skip(|request| request.uri.path() == "/healthz");
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RateLimitLayer<D> {
    pub(crate) shared: Arc<Shared<D>>,
}

impl<S: Store + Send + Sync + 'static> RateLimitLayer<Own<S>> {
    /// Limits by this engine.
    pub fn new(engine: impl Into<Arc<Engine<S>>>) -> Self {
        Self::deciding(Own::new(engine.into(), Clock::precise()))
    }

    /// The same at the times of another clock; of one that tests move, for example.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        let engine = Arc::clone(self.shared.decide.shared_engine());
        let settings = self.shared.settings.clone();
        Self { shared: Arc::new(Shared::new(Arc::new(Own::new(engine, clock)), settings)) }
    }
}

impl<D: Decide> RateLimitLayer<D> {
    /// Limits by whoever decides.
    pub fn deciding(decide: impl Into<Arc<D>>) -> Self {
        Self { shared: Arc::new(Shared::new(decide.into(), Settings::default())) }
    }

    fn with(self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = self.shared.settings.clone();
        change(&mut settings);
        Self { shared: Arc::new(Shared::new(Arc::clone(&self.shared.decide), settings)) }
    }

    /// Reads requests this way.
    #[must_use]
    pub fn reader(self, reader: Reader) -> Self {
        self.with(|settings| settings.reader = reader)
    }

    /// Takes the word of these proxies about who sent a request: `X-Forwarded-For` is walked from the right, and the first address
    /// that is not theirs is the client. Without any, the client is the peer.
    ///
    /// # Errors
    /// When one is neither an address nor a network.
    pub fn behind<'n>(self, proxies: impl IntoIterator<Item = &'n str>) -> Result<Self, String> {
        let networks = proxies.into_iter().map(str::parse::<Network>).collect::<Result<_, _>>()?;
        Ok(self.with(|settings| settings.reader.trusted = Trusted::new(networks)))
    }

    /// How paths are compared with what limits and templates name; [`PathMatch::Loose`] unless said.
    #[must_use]
    pub fn match_paths(self, paths: PathMatch) -> Self {
        self.with(|settings| settings.reader.paths = paths)
    }

    /// Tells the policy an attribute beside the built-in ones, or instead of one of them.
    #[must_use]
    pub fn attribute(self, name: &str, source: Source) -> Self {
        self.with(|settings| {
            settings.reader.mapped.retain(|mapped| mapped.name != name);
            settings.reader.mapped.push(Mapped { name: name.to_owned(), source });
        })
    }

    /// Where clients of the service put their credential, which is the attribute `api_key`; `X-API-Key` and the bearer token unless said. A
    /// request with two that differ is refused.
    #[must_use]
    pub fn credentials(self, credentials: Credentials) -> Self {
        self.with(|settings| settings.reader.credentials = credentials)
    }

    /// Which credentials are known, and what is known of their callers. An unknown one is no identity: without an `api_key` the request
    /// counts by its address. [`LiveCallers::replace`] puts others in their place while requests are served.
    #[must_use]
    pub fn callers(self, callers: LiveCallers) -> Self {
        self.with(|settings| settings.reader.callers = Some(callers))
    }

    /// Lets requests pass unasked, such as those for a health check.
    #[must_use]
    pub fn skip(self, test: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.skipped.push(Arc::new(test)))
    }

    /// What a request costs, where that is not 1.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// Settles what a request cost by its response.
    #[must_use]
    pub fn settle(self, by: impl Fn(&response::Parts) -> Settle + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.settling.by_response(by))
    }

    /// Counts only requests that fail, as a limit of wrong passwords does. A gRPC call fails by its own status, which mostly comes at its end.
    #[must_use]
    pub fn count_failures(self) -> Self {
        self.with(|settings| {
            settings.settling.by_ending(|ending| match ending {
                Ending::Success => Settle::Refund,
                Ending::ClientError | Ending::ServerError => Settle::Keep,
            });
        })
    }

    /// Gives back what a request cost that the service failed to serve: 5xx, or a status of a gRPC call that stands for one.
    #[must_use]
    pub fn refund_server_errors(self) -> Self {
        self.with(|settings| {
            settings.settling.by_ending(|ending| match ending {
                Ending::ServerError => Settle::Refund,
                Ending::Success | Ending::ClientError => Settle::Keep,
            });
        })
    }

    /// Gives back what a request was charged that a service behind did nothing for, as [`crate::Unserved`] in its response says: to the
    /// counters that were charged, and as far as they still count it.
    #[must_use]
    pub fn refund_unserved(self) -> Self {
        self.with(|settings| settings.settling.refunds_unserved = true)
    }

    /// Settles at the cost that a header of the response tells, or a trailer of that name. One that tells none costs its estimate.
    ///
    /// # Errors
    /// When no header can have that name.
    pub fn cost_from(self, name: &str) -> Result<Self, InvalidHeaderName> {
        let name: HeaderName = name.parse()?;
        Ok(self.with(|settings| settings.settling.told_by(name)))
    }

    /// How long a request may wait for its turn where a limit shapes; unless said, as long as the limit's `queue` is. One that would wait
    /// longer is refused at once, and so is a gRPC call whose own deadline (`grpc-timeout`) is earlier.
    #[must_use]
    pub fn wait_at_most(self, wait: Duration) -> Self {
        self.with(|settings| settings.wait_max = Some(Ticks::ceil_from(wait)))
    }

    /// How answers are written. By default every caller sees the limits that it owns, those with `by`; with
    /// [`tollgate::headers::Exposure::RetryAfter`] for anonymous callers these are told only when to come back.
    #[must_use]
    pub fn headers(self, headers: HeaderPolicy) -> Self {
        self.with(|settings| settings.headers = headers)
    }

    /// Whose requests are authenticated, by what an outer layer found out; they see their quotas.
    #[must_use]
    pub fn authenticated(self, test: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.authenticated = Some(Arc::new(test)))
    }

    /// Writes refusals another way, or leaves one as it is. The headers that say when to come back are added to whatever it writes.
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
