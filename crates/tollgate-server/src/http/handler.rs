//! Executes each route on the service. The time is read here, once for each request, and passed down.

use std::net::IpAddr;
use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use hyper::header::HeaderName;
use tollgate::engine::{Prepared, Settled};
use tollgate::store::Store;
use tollgate::store::{TOGETHER_MAX, together};
use tollgate::{CheckRequest, Decision, Timestamp};
use tollgate_compat::ActiveConfig;
use tollgate_compat::plain::Checked;

use super::access;
use super::authz::Verified;
use super::root::RootForm;
use super::route::HttpRoute;
use crate::control::ControlPlane;
use crate::control::admin::Admin;
use crate::decision_json::{DECISION_BYTES, Decided};
use crate::identity::Identified;
use crate::problem::Problem;
use crate::protocol::Protocol;
use crate::readiness::{Audience, ReadinessReport};
use crate::request_body::{self, BATCH_BYTES_MAX, BODY_BYTES_MAX};
use crate::request_json::{self, JsonRequest};
use crate::rls::{self, Unanswerable};
use crate::service::{Service, compat};
use crate::telemetry::Stopwatch;

/// Prefixes of the headers in which a proxy describes the request that it asks about.
const PROXY_FIELDS: [&str; 2] = ["x-forwarded-", "x-original-"];

/// The answer to a request.
#[derive(Debug)]
pub(super) enum HttpAnswer {
    /// The server is alive.
    Healthy,
    /// The running program.
    Root(RootForm),
    /// The description of the interface.
    OpenApi,
    /// Whether requests should come here, and the state that the operator should know.
    Ready { is_ready: bool, report: Box<ReadinessReport> },
    /// The metrics, in Prometheus format.
    Metrics(String),
    /// One decision, or those of a batch, as JSON. They are large, so they are serialized where they are made.
    Decision(Vec<u8>),
    /// The answer to a proxy.
    Verified(Box<Verified>),
    /// The result of settling a reservation.
    Settled(Settled),
    /// Success without content.
    Done,
    /// The answer of another program's interface.
    Compat(CompatAnswer),
}

/// An answer whose status, headers and body another program's interface prescribes.
#[derive(Debug, Default)]
pub(super) struct CompatAnswer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: CompatBody,
}

/// The body of such an answer.
#[derive(Debug)]
pub(super) enum CompatBody {
    Json(serde_json::Value),
    Text(&'static str),
}

impl CompatAnswer {
    /// A document, where all is well.
    pub(super) fn document(document: serde_json::Value) -> HttpAnswer {
        HttpAnswer::Compat(Self { status: 200, body: CompatBody::Json(document), ..Self::default() })
    }
}

impl Default for CompatBody {
    fn default() -> Self {
        CompatBody::Json(serde_json::Value::Null)
    }
}

/// Refuses pages of other sites. Probes charge nothing, so any client may send them. A proxy that asks about a
/// browser's request passes on that browser's headers. It is recognized by headers that a page cannot send to another
/// site without a preflight request, which is refused.
fn refuse_other_sites<B>(
    admin: &Admin,
    route: &Result<HttpRoute, Problem>,
    request: &Request<B>,
) -> Result<(), Problem> {
    let is_of_proxy = |name: &HeaderName| PROXY_FIELDS.iter().any(|start| name.as_str().starts_with(start));
    match route {
        Ok(HttpRoute::Health | HttpRoute::Ready) => Ok(()),
        Ok(HttpRoute::Authz(_)) if request.headers().keys().any(is_of_proxy) => {
            admin.refuse_other_names(request)
        }
        _ => admin.refuse_other_sites(request),
    }
}

/// Answers one request of a peer.
///
/// # Errors
/// When no decision could be made because of the request, or a reservation cannot be settled.
pub(super) async fn answer(
    control: &ControlPlane,
    request: Request<Incoming>,
    peer: IpAddr,
) -> Result<HttpAnswer, Problem> {
    let route = HttpRoute::of(request.method(), request.uri().path());
    refuse_other_sites(&control.admin, &route, &request)?;
    let is_admitted = access::is_admitted(&control.service.auth, request.headers());
    // Probes need no token. Every other request does, and is checked first, so that a client without a token does not
    // even learn which paths exist.
    if !is_admitted && !matches!(route, Ok(HttpRoute::Health | HttpRoute::Ready)) {
        return Err(access::refusal());
    }
    let handler = Handler { service: &control.service };
    let audience = if is_admitted { Audience::Admitted } else { Audience::Anybody };
    match route? {
        HttpRoute::Check => handler.check_of(request).await,
        // Frequent routes are answered above. The futures of the others are boxed, so they take no space in this one.
        route => Box::pin(answer_any(control, route, request, peer, audience)).await,
    }
}

async fn answer_any(
    control: &ControlPlane,
    route: HttpRoute,
    request: Request<Incoming>,
    peer: IpAddr,
    audience: Audience,
) -> Result<HttpAnswer, Problem> {
    let handler = Handler { service: &control.service };
    match route {
        HttpRoute::Check => handler.check_of(request).await,
        HttpRoute::Batch => {
            let body = request_body::read(request, BATCH_BYTES_MAX).await?;
            handler.batch(&JsonRequest::batch(&body)?).await
        }
        HttpRoute::Health => Ok(HttpAnswer::Healthy),
        HttpRoute::Ready => Ok(ready(control, audience)),
        HttpRoute::Root => Ok(HttpAnswer::Root(RootForm::of(request.headers()))),
        HttpRoute::OpenApi => Ok(HttpAnswer::OpenApi),
        HttpRoute::Metrics => Ok(HttpAnswer::Metrics(control.metrics().await)),
        HttpRoute::Authz(proxy) => {
            let verified = handler.authorize(peer, &request.into_parts().0, proxy).await;
            Ok(HttpAnswer::Verified(Box::new(verified)))
        }
        HttpRoute::Reserve => {
            let body = request_body::read(request, BODY_BYTES_MAX).await?;
            handler.answer_reserve(&JsonRequest::reservation(&body)?).await
        }
        HttpRoute::Commit(id) => {
            let body = request_body::read(request, BODY_BYTES_MAX).await?;
            handler.commit(id, request_json::settlement(&body)?).await
        }
        HttpRoute::Report(id) => {
            let body = request_body::read(request, BODY_BYTES_MAX).await?;
            handler.report(id, request_json::ended(&body)?).await
        }
        HttpRoute::Cancel(id) => handler.cancel(id).await,
        HttpRoute::Release(id) => handler.release(id).await,
        HttpRoute::Rls => {
            let body = request_body::read_any(request, BATCH_BYTES_MAX).await?;
            handler.rls_json(&body).await
        }
        HttpRoute::Limitador(action) => {
            let body = request_body::read_any(request, BODY_BYTES_MAX).await?;
            handler.limitador(action, &body).await
        }
        HttpRoute::LimitadorStatus => handler.limitador_status(&control.reloader),
        HttpRoute::LimitadorLimits => handler.limitador_limits(request.uri().path()),
        HttpRoute::LimitadorCounters => handler.limitador_counters(request.uri().path()).await,
    }
}

fn ready(control: &ControlPlane, audience: Audience) -> HttpAnswer {
    let report = Box::new(control.report(audience));
    HttpAnswer::Ready { is_ready: control.readiness.is_ready(), report }
}

/// The problem of one request of a batch.
fn wrong(index: usize, error: &impl std::fmt::Display) -> Problem {
    Problem::invalid(format!("[{index}]: {error}"))
}

/// Answers requests with the service.
pub(super) struct Handler<'a, S> {
    pub(super) service: &'a Service<S>,
}

impl<S: Store> Handler<'_, S> {
    async fn check_of(&self, request: Request<Incoming>) -> Result<HttpAnswer, Problem> {
        let body = request_body::read(request, BODY_BYTES_MAX).await?;
        self.answer_check(&JsonRequest::check(&body)?).await
    }

    pub(super) async fn answer_check(&self, json_request: &JsonRequest<'_>) -> Result<HttpAnswer, Problem> {
        if let Some(compat) = self.service.compat() {
            return Box::pin(self.answer_check_compat(&compat, &json_request.request()?)).await;
        }
        let known = json_request.known(&self.service.identity);
        let request = json_request.request_of(&known)?;
        self.has_addresses(&request)?;
        let mut text = Vec::with_capacity(DECISION_BYTES);
        match self.decide(&request, self.service.now(), Some(Stopwatch::start()), &mut text).await {
            Some(compat) => Box::pin(self.answer_check_compat(&compat, &json_request.request()?)).await,
            None => Ok(HttpAnswer::Decision(text)),
        }
    }

    /// Refuses a text where an address belongs: it would have a counter of its own.
    pub(super) fn has_addresses(&self, request: &CheckRequest<'_>) -> Result<(), Problem> {
        let problem = self.service.engine.policy().address_problem(request);
        problem.map_or(Ok(()), |problem| Err(Problem::invalid(problem.to_string())))
    }

    async fn answer_check_compat(
        &self,
        compat: &ActiveConfig,
        request: &CheckRequest<'_>,
    ) -> Result<HttpAnswer, Problem> {
        let answers = self.check_compat(compat, std::slice::from_ref(request), self.service.now()).await;
        let mut answers = answers.map_err(|(_, error)| Problem::invalid(error.to_string()))?;
        Ok(CompatAnswer::document(answers.pop().unwrap_or_default()))
    }

    /// Answers all requests of a batch, or none if one of them is invalid.
    async fn batch(&self, json_requests: &[JsonRequest<'_>]) -> Result<HttpAnswer, Problem> {
        let now = self.service.now();
        if let Some(compat) = self.service.compat() {
            let asked = json_requests.iter().enumerate();
            let plain = asked
                .map(|(index, json_request)| json_request.request().map_err(|error| wrong(index, &error)));
            let answers = self.check_compat(&compat, &plain.collect::<Result<Vec<_>, _>>()?, now).await;
            return Ok(CompatAnswer::document(
                answers.map_err(|(index, error)| wrong(index, &error))?.into(),
            ));
        }
        let known: Vec<Identified> =
            json_requests.iter().map(|json_request| json_request.known(&self.service.identity)).collect();
        let mut requests = Vec::with_capacity(json_requests.len());
        for (index, (json_request, known)) in json_requests.iter().zip(&known).enumerate() {
            let request = json_request.request_of(known).map_err(|error| wrong(index, &error))?;
            self.has_addresses(&request).map_err(|problem| wrong(index, &problem.detail))?;
            requests.push(request);
        }
        if !self.service.engine.store().never_waits() {
            return self.batch_together(json_requests, &requests, now).await;
        }
        // Serialized one by one, so that a batch needs only the memory of its answer.
        let mut text = Vec::with_capacity(2 + requests.len() * DECISION_BYTES);
        text.push(b'[');
        for (index, (request, json_request)) in requests.iter().zip(json_requests).enumerate() {
            if index > 0 {
                text.push(b',');
            }
            let start = text.len();
            let watch = self.service.meter.sampled_watch();
            if let Some(compat) = self.decide(request, now, watch, &mut text).await {
                text.truncate(start);
                self.check_overtaken(&compat, json_request, index, now, &mut text).await?;
            }
        }
        text.push(b']');
        Ok(HttpAnswer::Decision(text))
    }

    /// Answers a batch whose decisions wait for a store: concurrently, so that they share its calls and wait together.
    async fn batch_together(
        &self,
        json_requests: &[JsonRequest<'_>],
        requests: &[CheckRequest<'_>],
        now: Timestamp,
    ) -> Result<HttpAnswer, Problem> {
        let mut text = Vec::with_capacity(2 + requests.len() * DECISION_BYTES);
        text.push(b'[');
        let chunks = requests.chunks(TOGETHER_MAX).zip(json_requests.chunks(TOGETHER_MAX));
        for (chunk, (requests, json_requests)) in chunks.enumerate() {
            let checks = requests.iter().map(|request| self.service.check(request, now, Protocol::Http));
            let decisions = together(self.service.engine.store(), checks.collect()).await;
            let decided = requests.iter().zip(json_requests).zip(decisions);
            for (index, ((request, json_request), mut decision)) in decided.enumerate() {
                if chunk + index > 0 {
                    text.push(b',');
                }
                let start = text.len();
                if let Some(compat) = self.write(&mut decision, request, now, &mut text) {
                    text.truncate(start);
                    let place = chunk * TOGETHER_MAX + index;
                    self.check_overtaken(&compat, json_request, place, now, &mut text).await?;
                }
            }
        }
        text.push(b']');
        Ok(HttpAnswer::Decision(text))
    }

    /// Writes the answer to one request of a batch by compat rules that became active meanwhile.
    async fn check_overtaken(
        &self,
        compat: &ActiveConfig,
        json_request: &JsonRequest<'_>,
        index: usize,
        now: Timestamp,
        text: &mut Vec<u8>,
    ) -> Result<(), Problem> {
        let request = json_request.request().map_err(|error| wrong(index, &error))?;
        let answers = self.check_compat(compat, std::slice::from_ref(&request), now).await;
        let answer = answers.map_err(|(_, error)| wrong(index, &error))?.pop().unwrap_or_default();
        text.extend_from_slice(answer.to_string().as_bytes());
        Ok(())
    }

    /// Decides, and writes the answer. If compat rules became active meanwhile, they must be evaluated instead.
    async fn decide(
        &self,
        request: &CheckRequest<'_>,
        now: Timestamp,
        watch: Option<Stopwatch>,
        text: &mut Vec<u8>,
    ) -> Option<Arc<ActiveConfig>> {
        // A decision is large, and each future that it passes through would reserve space for it and copy it.
        let overtaken = match self.service.try_check(request, now, Protocol::Http) {
            Ok(mut decision) => self.write(&mut decision, request, now, text),
            Err(prepared) => Box::pin(self.decide_prepared(prepared, request, now, text)).await,
        };
        if let Some(watch) = watch.filter(|_| overtaken.is_none()) {
            self.service.meter.took(Protocol::Http, watch.elapsed());
        }
        overtaken
    }

    async fn decide_prepared(
        &self,
        prepared: Prepared,
        request: &CheckRequest<'_>,
        now: Timestamp,
        text: &mut Vec<u8>,
    ) -> Option<Arc<ActiveConfig>> {
        let mut decision = self.service.check_prepared(prepared, request, now, Protocol::Http).await;
        self.write(&mut decision, request, now, text)
    }

    fn write(
        &self,
        decision: &mut Decision,
        request: &CheckRequest<'_>,
        now: Timestamp,
        text: &mut Vec<u8>,
    ) -> Option<Arc<ActiveConfig>> {
        let overtaken = self.service.overtaken(decision);
        let holds = &self.service.holds;
        let hold = holds.keep_permit(decision, now);
        let report = holds.await_report(&self.service.engine, decision, now);
        let decided = Decided::new(decision, hold, &self.service.headers, request, self.service.on_wall(now));
        decided.awaiting(report).write(text);
        overtaken
    }

    /// Answers plain checks by a compat configuration: all of them, or none if one of them is invalid.
    async fn check_compat(
        &self,
        compat: &ActiveConfig,
        requests: &[CheckRequest<'_>],
        now: Timestamp,
    ) -> Result<Vec<serde_json::Value>, (usize, Unanswerable)> {
        let mut rls_requests = Vec::with_capacity(requests.len());
        for (index, request) in requests.iter().enumerate() {
            let rls_request =
                compat.rls_request(request).and_then(|rls_request| rls_request.check().map(|()| rls_request));
            rls_requests.push(rls_request.map_err(|error| (index, error))?);
        }
        let document = |rls_request| self.compat_document(compat, rls_request, now);
        let documents: Vec<_> = rls_requests.iter().map(document).collect();
        Ok(together(self.service.engine.store(), documents).await)
    }

    async fn compat_document(
        &self,
        compat: &ActiveConfig,
        rls_request: &rls::RlsRequest,
        now: Timestamp,
    ) -> serde_json::Value {
        let answer = compat::answer(self.service, compat, rls_request, Protocol::Http, now).await;
        // Text and numbers always have a form in JSON.
        serde_json::to_value(Checked::new(rls_request, answer)).unwrap_or_default()
    }
}
