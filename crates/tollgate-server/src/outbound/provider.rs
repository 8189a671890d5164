//! One API that is called: its limits, and the service that sends calls to it.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response};
use serde::Deserialize;
use tollgate::request::VALUE_BYTES_MAX;
use tollgate::{Engine, Policy};
use tollgate_gateway::listen::UpstreamBudget;
use tollgate_gateway::{ClientFailure, ClientRequestBody, ClientResponseBody, UpstreamClient};
use tollgate_outbound::{
    BoxError, Call, CopyBody, Outbound, OutboundBody, OutboundLayer, OutboundService, Settings,
};
use tower_layer::Layer;
use tower_service::Service;

use super::document::ProviderPlan;

/// The attribute that has the name of the provider.
const PROVIDER: &str = "provider";
/// The attribute that has the model that a call names.
const MODEL: &str = "model";

/// A policy with which only the limits of the provider hold.
const NO_LIMITS: &str = "limits: []";

/// The body of a provider's answer.
pub(super) type ProviderBody = OutboundBody<ClientResponseBody>;

/// An API, and the calls to it.
pub(super) struct Provider {
    pub(super) plan: ProviderPlan,
    /// Its host, as the limits and the calls name it.
    pub(super) host: HeaderValue,
    /// Its name as a label of metrics.
    pub(super) label: &'static str,
    client: UpstreamClient,
    pub(super) outbound: Outbound,
    pub(super) service: OutboundService<SendService, tollgate::MemoryStore, KeepWhole>,
}

impl Provider {
    /// Opens its policy, and makes ready to connect.
    ///
    /// # Errors
    /// When a file that the config names cannot be used.
    pub(super) fn new(plan: ProviderPlan, links: &UpstreamBudget) -> Result<Self, String> {
        let failed = |problem: String| format!("outbound.providers.{}: {problem}", plan.name);
        let engine = match &plan.policy {
            Some(path) => Engine::open(path).map_err(|error| failed(format!("policy: {error}")))?,
            None => {
                let text = plan.preset.map_or(NO_LIMITS, |preset| preset.policy_text());
                let policy = text.parse::<Policy>().map_err(|error| failed(format!("preset: {error}")))?;
                Engine::builder().policy(policy).build()
            }
        };
        let mut settings = plan.preset.map_or_else(Settings::default, |preset| preset.settings());
        settings.max_wait = plan.max_wait;
        let outbound = Outbound::new(engine, settings);
        let client = UpstreamClient::new(&plan.client, links).map_err(failed)?;
        let name = plan.name.clone();
        let layer = OutboundLayer::builder(outbound.clone())
            .copy_body(KeepWhole)
            .describe(move |_, call| call.with(PROVIDER, name.as_str()))
            .unsent(|error| matches!(error.downcast_ref(), Some(ClientFailure::NotSent(_))))
            .build();
        let host = HeaderValue::from_str(&plan.client.target.authority());
        let host = host.map_err(|error| failed(format!("url: {error}")))?;
        // The few names of the config live as long as the process.
        let label = plan.name.clone().leak();
        Ok(Self { service: layer.layer(SendService(client.clone())), host, label, client, outbound, plan })
    }

    /// Closes connections that were idle too long.
    pub(super) fn tidy(&self) {
        self.client.tidy();
    }

    /// The rest of a path that is this provider's.
    pub(super) fn rest<'p>(&self, path: &'p str) -> Option<&'p str> {
        let rest = path.strip_prefix(self.plan.prefix.as_str())?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    }
}

/// Keeps the bodies that are here as a whole for another attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeepWhole;

impl CopyBody<ClientRequestBody> for KeepWhole {
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

/// What a body of JSON says about its call.
#[derive(Deserialize)]
struct NamedModel<'b> {
    #[serde(borrow)]
    model: Option<Cow<'b, str>>,
}

/// The model that a body names, if it is JSON and names one.
fn model(body: &[u8]) -> Option<String> {
    let named: NamedModel<'_> = serde_json::from_slice(body).ok()?;
    named.model.filter(|model| !model.is_empty() && model.len() <= VALUE_BYTES_MAX).map(Cow::into_owned)
}

/// Adds the model to a call.
pub(super) fn with_model(call: Call, body: &ClientRequestBody) -> Call {
    let ClientRequestBody::Whole(bytes) = body else { return call };
    match model(bytes) {
        // Its length was checked, and its name is not given otherwise.
        Some(model) => call.clone().with(MODEL, model).unwrap_or(call),
        None => call,
    }
}
