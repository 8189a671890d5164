//! One API that is called: its limits, and the service that sends calls to it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response};
use tollgate::host::Host;
use tollgate::{Engine, MemoryStore, Secret};
use tollgate_gateway::listen::UpstreamBudget;
use tollgate_gateway::{ClientFailure, ClientRequestBody, ClientResponseBody, UpstreamClient};
use tollgate_outbound::{
    BoxError, BucketReport, CopyBody, Outbound, OutboundBody, OutboundLayer, OutboundService, Settings,
};
use tower_layer::Layer;
use tower_service::Service;

use super::document::{PROVIDER, ProviderPlan};
use super::usage;
use crate::service::Service as TollgateService;
use crate::store::Stores;

/// Bytes for the counters of one provider, unless they are in a shared store.
const COUNTER_BYTES: u64 = 64 << 20;

/// The body of a provider's answer.
pub(super) type ProviderBody = OutboundBody<ClientResponseBody>;

/// An API, and the calls to it.
pub(crate) struct Provider {
    pub(crate) plan: ProviderPlan,
    /// Its host, as the limits and the calls name it.
    pub(super) host: HeaderValue,
    /// The same in the spelling of reports.
    pub(super) host_name: String,
    /// Its name as a label of metrics.
    pub(super) label: &'static str,
    client: UpstreamClient,
    pub(super) outbound: Outbound<Stores>,
    pub(super) service: OutboundService<SendService, Stores, RequestCopy>,
}

impl Provider {
    /// Opens its policy, and makes ready to connect. Limits and freezes are in the shared store of the server, if it has
    /// one.
    ///
    /// # Errors
    /// When a file that the config names cannot be used.
    pub(super) fn new(
        plan: ProviderPlan,
        connections: &UpstreamBudget,
        server: &TollgateService,
    ) -> Result<Self, String> {
        let failed = |problem: String| format!("outbound.providers.{}: {problem}", plan.name);
        let engine = engine(&plan, server).map_err(failed)?;
        let mut settings = plan.preset.map_or_else(Settings::default, |preset| preset.settings());
        settings.max_wait = plan.max_wait;
        // APIs behind one host and credential refuse calls each for itself.
        settings.identity.push(PROVIDER.to_owned());
        let outbound = Outbound::new(engine, settings);
        let client = UpstreamClient::new(&plan.client, connections).map_err(failed)?;
        let unit = plan.unit;
        let layer = OutboundLayer::builder(outbound.clone())
            .copy_body(RequestCopy)
            .usage(move |call, head| usage::reader(call, head, unit))
            .unsent(|error| matches!(error.downcast_ref(), Some(ClientFailure::NotSent(_))))
            .build();
        let authority = plan.client.target.authority();
        let host_name = Host::parse(&authority).map(|host| host.as_str().to_owned()).unwrap_or_default();
        let host = HeaderValue::from_str(&authority).map_err(|error| failed(format!("url: {error}")))?;
        // The few names of the config live as long as the process.
        let label = plan.name.clone().leak();
        let service = layer.layer(SendService(client.clone()));
        Ok(Self { service, host, host_name, label, client, outbound, plan })
    }

    /// Hashes keys with a secret that is derived from the server's.
    pub(super) fn rekey(&self, server: &Engine<Stores>) {
        let secret = secret_of(&self.plan.name, server);
        self.outbound.engine().maintenance().siblings().rekey(secret);
    }

    /// Closes connections that were idle too long.
    pub(super) fn tidy(&self) {
        self.client.tidy();
    }

    /// Its frozen buckets: a shared store brings freezes of other providers as well.
    pub(crate) fn freezes(&self) -> Vec<BucketReport> {
        let mut frozen = self.outbound.freezes();
        frozen.retain(|bucket| bucket.owner == self.host_name);
        frozen
    }

    /// Ends its freezes, in every process on the same store, and returns them as they were.
    pub(crate) fn thaw(&self) -> Vec<BucketReport> {
        self.outbound.thaw(|bucket| bucket.owner == self.host_name)
    }

    /// The rest of a path that is this provider's.
    pub(super) fn rest<'p>(&self, path: &'p str) -> Option<&'p str> {
        let rest = path.strip_prefix(self.plan.prefix.as_str())?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    }
}

/// The engine of a provider's policy.
fn engine(plan: &ProviderPlan, server: &TollgateService) -> Result<Engine<Stores>, String> {
    let policy = plan.policy().map_err(|error| format!("policy: {error}"))?;
    let builder = Engine::builder().policy(policy);
    let clock = server.clock().clone();
    let Some(fleet) = server.engine.store().fleet() else {
        let store = Stores::Memory(MemoryStore::new(COUNTER_BYTES, clock.now()));
        return Ok(builder.store(store).clock(clock).build());
    };
    // Not a random secret: the store would keep the names of its counters.
    let secret = secret_of(&plan.name, &server.engine);
    Ok(builder.secret(secret).store(Stores::Redis(Arc::clone(fleet))).clock(clock).build())
}

/// The secret of a provider's counters: proxies that share a store have the same, and neither another provider nor the
/// server's own policy has a counter of the same key, whatever their limits are called.
fn secret_of(provider: &str, server: &Engine<Stores>) -> Secret {
    let words = server.ledger().key_family(&format!("outbound {provider}"));
    // The lower half has no bit that is always the same.
    let low = |word: u128| u64::try_from(word & u128::from(u64::MAX)).unwrap_or_default();
    Secret::of_words(|number| low(words.hash(&number.to_le_bytes())))
}

/// Keeps the bodies that are here as a whole for another attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestCopy;

impl CopyBody<ClientRequestBody> for RequestCopy {
    fn copy(&self, body: &ClientRequestBody) -> Option<ClientRequestBody> {
        match body {
            ClientRequestBody::Whole(bytes) => Some(ClientRequestBody::Whole(bytes.clone())),
            ClientRequestBody::Stream(_) => None,
        }
    }
}

/// Sends one attempt of a call.
#[derive(Clone)]
pub(super) struct SendService(UpstreamClient);

impl Service<Request<ClientRequestBody>> for SendService {
    type Response = Response<ClientResponseBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ClientRequestBody>) -> Self::Future {
        let client = self.0.clone();
        Box::pin(async move { client.send(request).await.map_err(Into::into) })
    }
}
