//! Finds the provider of a request, turns the request into a call, and the provider's answer into the response.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, HOST, HeaderName};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body as _, Incoming};
use tollgate_gateway::ClientRequestBody;
use tollgate_gateway::listen::UpstreamBudget;
use tollgate_outbound::{BucketReport, Call, CallError, Freeze, Outbound, Priority, RefusedBody, Report};
use tower_service::Service as _;

use super::document::{MAX_WAIT_MAX, OutboundPlan};
use super::estimate::{BodySummary, CostUnit};
use super::freeze_news::FreezeNews;
use super::graphql;
use super::own_answer::{AnswerKind, OwnAnswer, SHOULD_RETRY};
use super::provider::{Provider, ProviderBody};
use super::response_urls;
use crate::service::Service as TollgateService;
use crate::shutdown::{Stop, stopped};
use crate::store::Stores;
use crate::telemetry::{Meter, Sample, names};
use crate::time_text;

/// How long the call may wait, how urgent it is, and what it costs.
const MAX_WAIT: HeaderName = HeaderName::from_static("tollgate-max-wait");
const PRIORITY: HeaderName = HeaderName::from_static("tollgate-priority");
const COST: HeaderName = HeaderName::from_static("tollgate-cost");

/// Larger bodies, and those of unknown length, are passed on as they come, and their calls are attempted once.
const WHOLE_BYTES_MAX: u64 = 8 << 20;
/// How often connections are closed that were idle too long.
const TIDY_EVERY: Duration = Duration::from_secs(5);
/// How often new freezes are written to the log.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// The body of a response: the proxy's own, or the provider's, whether it came as a response or in an error.
pub(super) type ProxyBody = Either<Full<Bytes>, Either<ProviderBody, RefusedBody>>;

/// The proxy.
pub(crate) struct OutboundProxy {
    providers: Vec<Provider>,
}

impl OutboundProxy {
    /// Opens the policies of all providers, and makes ready to connect.
    ///
    /// # Errors
    /// When a file that the config names cannot be used.
    pub(crate) fn new(
        plan: OutboundPlan,
        connections: &UpstreamBudget,
        server: &TollgateService,
    ) -> Result<Self, String> {
        let providers = plan.providers.into_iter().map(|plan| Provider::new(plan, connections, server));
        let providers = providers.collect::<Result<Vec<_>, _>>()?;
        if server.engine.store().fleet().is_some() {
            let handles = providers.iter().map(|provider| &provider.outbound);
            let shared = Outbound::share_freezes(handles, |stores: &Stores| Some(stores.fleet()?.redis()));
            shared.map_err(|error| format!("outbound: {error}"))?;
        }
        Ok(Self { providers })
    }

    /// The APIs that are called.
    pub(crate) fn providers(&self) -> &[Provider] {
        &self.providers
    }

    /// Counts in the store of the server under the fleet's secret, also when the server learns that late.
    pub(crate) fn follow_secret(self: &Arc<Self>, server: &TollgateService) {
        let proxy = Arc::clone(self);
        server
            .follow_secret(move |engine| proxy.providers.iter().for_each(|provider| provider.rekey(engine)));
    }

    /// Shows its numbers in the metrics.
    pub(crate) fn show(self: &Arc<Self>, meter: &Meter) {
        let proxy = Arc::clone(self);
        meter.probe(move |_| proxy.providers.iter().flat_map(samples).collect());
    }

    /// Closes connections that were idle too long, and tells the log of long freezes, until the server stops.
    pub(crate) fn maintain(self: &Arc<Self>, stop: &Stop) {
        let (proxy, mut stop) = (Arc::clone(self), stop.clone());
        tokio::spawn(async move {
            let (mut due, mut telling) =
                (tokio::time::interval(TIDY_EVERY), tokio::time::interval(TELL_EVERY));
            let mut news = FreezeNews::default();
            loop {
                tokio::select! {
                    _ = due.tick() => proxy.providers.iter().for_each(Provider::tidy),
                    _ = telling.tick() => proxy.providers.iter().for_each(|provider| news.tell(provider)),
                    () = stopped(&mut stop) => return,
                }
            }
        });
    }

    /// Answers one request. `scheme` is how the client reaches the proxy.
    pub(super) async fn answer(&self, request: Request<Incoming>, scheme: &str) -> Response<ProxyBody> {
        let path = request.uri().path();
        let found = self.providers.iter().find_map(|provider| Some((provider, provider.rest(path)?)));
        let Some((provider, rest)) = found else {
            return own(OwnAnswer::wrong(AnswerKind::NoProvider, self.no_provider(path)));
        };
        let target = target(provider, rest, request.uri().query());
        let public = public_origin(&request, scheme);
        let call = match call_of(provider.plan.base_call.clone(), request.headers()) {
            Ok(call) => call,
            Err(problem) => return own(OwnAnswer::wrong(AnswerKind::Invalid, problem)),
        };
        let request = match prepared(request, target, provider, call).await {
            Ok(request) => request,
            Err(problem) => return own(OwnAnswer::wrong(AnswerKind::Invalid, problem)),
        };
        let answered = match provider.service.clone().call(request).await {
            Ok(response) => response.map(Either::Left),
            // The clients of APIs read what the provider says.
            Err(CallError::Refused { response: Some(response), .. }) => response.map(Either::Right),
            Err(error) => {
                let now = provider.outbound.engine().now();
                return own(OwnAnswer::of(&error, &provider.plan.name, now));
            }
        };
        handed_on(answered, provider, public.as_deref())
    }

    fn no_provider(&self, path: &str) -> String {
        let known = self.providers.iter().map(|provider| format!("{}/", provider.plan.prefix));
        let known: Vec<String> = known.collect();
        format!("{path}: accepted are paths that begin with {}", known.join(", "))
    }
}

/// The number of calls by what became of them, and what waits, is under way and is frozen now.
fn samples(provider: &Provider) -> Vec<Sample> {
    let Report { totals, buckets } = provider.outbound.report();
    // A call waits for one bucket at a time.
    let waiting = buckets.iter().map(|bucket| bucket.waiting as u64).sum();
    let of_all_calls = buckets.iter().filter(|bucket| bucket.counts_all_calls);
    let in_flight = of_all_calls.map(|bucket| bucket.in_flight).sum();
    // A shared store brings freezes of other providers as well.
    let is_frozen = |bucket: &&BucketReport| bucket.frozen.is_some() && bucket.owner == provider.host_name;
    let numbers = [
        (&names::OUTBOUND_CALLS, totals.calls),
        (&names::OUTBOUND_WAITED, totals.waited),
        (&names::OUTBOUND_WAIT_SECONDS, totals.waited_for.as_micros() / 1_000_000),
        (&names::OUTBOUND_REFUSED, totals.refused),
        (&names::OUTBOUND_THROTTLED, totals.throttled),
        (&names::OUTBOUND_FAILED, totals.failed),
        (&names::OUTBOUND_RETRIES, totals.retries),
        (&names::OUTBOUND_WAITING, waiting),
        (&names::OUTBOUND_IN_FLIGHT, in_flight),
        (&names::OUTBOUND_FROZEN, buckets.iter().filter(is_frozen).count() as u64),
    ];
    let label = Some((names::label::PROVIDER, provider.label));
    numbers.map(|(metric, value)| Sample { metric, label, value }).into()
}

fn own(answer: OwnAnswer<'_>) -> Response<ProxyBody> {
    answer.into_response().map(Either::Left)
}

/// The path and query at the provider.
fn target(provider: &Provider, rest: &str, query: Option<&str>) -> String {
    let (base, query) = (&provider.plan.base, query.map(|query| format!("?{query}")));
    let rest = if base.is_empty() && rest.is_empty() { "/" } else { rest };
    format!("{base}{rest}{}", query.unwrap_or_default())
}

/// The origin of the URL by which the client calls the proxy, if the request names its host.
fn public_origin(request: &Request<Incoming>, scheme: &str) -> Option<String> {
    let host = request.headers().get(HOST)?.to_str().ok()?;
    Some(format!("{scheme}://{host}"))
}

/// Adds what the fields of a request say about its call.
fn call_of(mut call: Call, headers: &HeaderMap) -> Result<Call, String> {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if let Some(wait) = text(&MAX_WAIT) {
        let duration = time_text::duration(wait).map(Duration::from);
        let duration = duration.map_err(|problem| format!("{MAX_WAIT}: {problem}"))?;
        if duration > MAX_WAIT_MAX {
            return Err(format!("{MAX_WAIT}: {wait:?} is not accepted; accepted: at most 1h"));
        }
        call = call.max_wait(duration);
    }
    if let Some(priority) = text(&PRIORITY) {
        call = call.priority(match priority {
            "interactive" => Priority::Interactive,
            "normal" => Priority::Normal,
            "batch" => Priority::Batch,
            _ => return Err(format!("{PRIORITY}: accepted: interactive, normal or batch")),
        });
    }
    if let Some(cost) = text(&COST) {
        let cost = cost.parse().map_err(|_| format!("{COST}: accepted: a whole number of 0 and more"))?;
        call = call.cost(cost).map_err(|problem| format!("{COST}: {problem}"))?;
    }
    Ok(call)
}

/// The request as the provider gets it. A body of moderate size is read as a whole, so that it can be sent again.
async fn prepared(
    request: Request<Incoming>,
    target: String,
    provider: &Provider,
    mut call: Call,
) -> Result<Request<ClientRequestBody>, String> {
    let (mut parts, body) = request.into_parts();
    parts.headers.insert(HOST, provider.host.clone());
    parts.uri = Uri::try_from(target).map_err(|_| "the path is not one that can be sent on".to_owned())?;
    let states_cost = parts.headers.contains_key(&COST);
    for name in [&MAX_WAIT, &PRIORITY, &COST] {
        parts.headers.remove(name);
    }
    let body = match body.size_hint().exact() {
        Some(length) if length <= WHOLE_BYTES_MAX => {
            let read = body.collect().await.map_err(|error| format!("the body did not arrive: {error}"))?;
            ClientRequestBody::Whole(read.to_bytes())
        }
        _ => ClientRequestBody::Stream(body),
    };
    if let ClientRequestBody::Whole(bytes) = &body
        && let Some(summary) = BodySummary::of(bytes)
    {
        let unit = if states_cost { CostUnit::Calls } else { provider.plan.unit };
        call = summary.with_model(call).map_err(|problem| problem.to_string())?;
        call =
            graphql::with_operation(call, parts.uri.path(), bytes).map_err(|problem| problem.to_string())?;
        if let Some(tokens) = summary.tokens(parts.uri.path()) {
            call = tokens.describe(call, unit).map_err(|problem| problem.to_string())?;
            // What the answer says about its tokens is read as it passes.
            parts.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
    }
    parts.extensions.insert(call);
    Ok(Request::from_parts(parts, body))
}

/// Prepares a provider's answer for the client: links that lead to the provider lead through the proxy, and a refusal that
/// outlasts the wait is not tried again.
fn handed_on(
    mut response: Response<Either<ProviderBody, RefusedBody>>,
    provider: &Provider,
    public: Option<&str>,
) -> Response<ProxyBody> {
    let status = response.status();
    let is_frozen = response.extensions().get::<Freeze>().is_some();
    let headers = response.headers_mut();
    if status == StatusCode::TOO_MANY_REQUESTS && is_frozen {
        headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    }
    response_urls::rewrite(headers, &provider.plan, public);
    response.map(Either::Right)
}
