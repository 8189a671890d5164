//! `POST /v1/check`: one decision, or those of a batch.

use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use tollgate::engine::Prepared;
use tollgate::store::{Store, TOGETHER_MAX, together};
use tollgate::{CheckRequest, Decision, Timestamp};
use tollgate_compat::ActiveConfig;
use tollgate_compat::plain::Checked;

use super::handler::{CompatAnswer, HttpAnswer};
use crate::decision_json::{DECISION_BYTES, Decided};
use crate::identity::Identified;
use crate::problem::Problem;
use crate::protocol::Protocol;
use crate::request_body::{self, BODY_BYTES_MAX};
use crate::request_json::JsonRequest;
use crate::rls::{self, Unanswerable};
use crate::service::{Service, compat};
use crate::telemetry::Stopwatch;

/// Answers one check.
pub(super) async fn check<S: Store>(
    service: &Service<S>,
    request: Request<Incoming>,
) -> Result<HttpAnswer, Problem> {
    let body = request_body::read(request, BODY_BYTES_MAX).await?;
    answer(service, &JsonRequest::check(&body)?).await
}

/// Answers one check that was read.
pub(super) async fn answer<S: Store>(
    service: &Service<S>,
    json_request: &JsonRequest<'_>,
) -> Result<HttpAnswer, Problem> {
    if let Some(compat) = service.compat() {
        return Box::pin(answer_compat(service, &compat, &json_request.request()?)).await;
    }
    let known = json_request.known(&service.identity);
    let request = json_request.request_of(&known)?;
    has_addresses(service, &request)?;
    let mut text = Vec::with_capacity(DECISION_BYTES);
    match decide(service, &request, service.now(), Some(Stopwatch::start()), &mut text).await {
        Some(compat) => Box::pin(answer_compat(service, &compat, &json_request.request()?)).await,
        None => Ok(HttpAnswer::Decision(text)),
    }
}

/// Refuses a text where an address belongs: it would have a counter of its own.
pub(super) fn has_addresses<S: Store>(
    service: &Service<S>,
    request: &CheckRequest<'_>,
) -> Result<(), Problem> {
    let problem = service.engine.policy().address_problem(request);
    problem.map_or(Ok(()), |problem| Err(Problem::invalid(problem.to_string())))
}

async fn answer_compat<S: Store>(
    service: &Service<S>,
    compat: &ActiveConfig,
    request: &CheckRequest<'_>,
) -> Result<HttpAnswer, Problem> {
    let answers = check_compat(service, compat, std::slice::from_ref(request), service.now()).await;
    let mut answers = answers.map_err(|(_, error)| Problem::invalid(error.to_string()))?;
    Ok(CompatAnswer::document(answers.pop().unwrap_or_default()))
}

/// Answers all requests of a batch, or none if one of them is invalid.
pub(super) async fn batch<S: Store>(
    service: &Service<S>,
    json_requests: &[JsonRequest<'_>],
) -> Result<HttpAnswer, Problem> {
    let now = service.now();
    if let Some(compat) = service.compat() {
        let asked = json_requests.iter().enumerate();
        let plain =
            asked.map(|(index, json_request)| json_request.request().map_err(|error| wrong(index, &error)));
        let answers = check_compat(service, &compat, &plain.collect::<Result<Vec<_>, _>>()?, now).await;
        return Ok(CompatAnswer::document(answers.map_err(|(index, error)| wrong(index, &error))?.into()));
    }
    let known: Vec<Identified> =
        json_requests.iter().map(|json_request| json_request.known(&service.identity)).collect();
    let mut requests = Vec::with_capacity(json_requests.len());
    for (index, (json_request, known)) in json_requests.iter().zip(&known).enumerate() {
        let request = json_request.request_of(known).map_err(|error| wrong(index, &error))?;
        has_addresses(service, &request).map_err(|problem| wrong(index, &problem.detail))?;
        requests.push(request);
    }
    if !service.engine.store().never_waits() {
        return batch_together(service, json_requests, &requests, now).await;
    }
    // Serialized one by one, so that a batch needs only the memory of its answer.
    let mut text = Vec::with_capacity(2 + requests.len() * DECISION_BYTES);
    text.push(b'[');
    for (index, (request, json_request)) in requests.iter().zip(json_requests).enumerate() {
        if index > 0 {
            text.push(b',');
        }
        let start = text.len();
        let watch = service.meter.sampled_watch();
        if let Some(compat) = decide(service, request, now, watch, &mut text).await {
            text.truncate(start);
            check_overtaken(service, &compat, json_request, index, now, &mut text).await?;
        }
    }
    text.push(b']');
    Ok(HttpAnswer::Decision(text))
}

/// Answers a batch whose decisions wait for a store: concurrently, so that they share its calls and wait together.
async fn batch_together<S: Store>(
    service: &Service<S>,
    json_requests: &[JsonRequest<'_>],
    requests: &[CheckRequest<'_>],
    now: Timestamp,
) -> Result<HttpAnswer, Problem> {
    let mut text = Vec::with_capacity(2 + requests.len() * DECISION_BYTES);
    text.push(b'[');
    let chunks = requests.chunks(TOGETHER_MAX).zip(json_requests.chunks(TOGETHER_MAX));
    for (chunk, (requests, json_requests)) in chunks.enumerate() {
        let checks = requests.iter().map(|request| service.check(request, now, Protocol::Http));
        let decisions = together(service.engine.store(), checks.collect()).await;
        let decided = requests.iter().zip(json_requests).zip(decisions);
        for (index, ((request, json_request), mut decision)) in decided.enumerate() {
            if chunk + index > 0 {
                text.push(b',');
            }
            let start = text.len();
            if let Some(compat) = write(service, &mut decision, request, now, &mut text) {
                text.truncate(start);
                let place = chunk * TOGETHER_MAX + index;
                check_overtaken(service, &compat, json_request, place, now, &mut text).await?;
            }
        }
    }
    text.push(b']');
    Ok(HttpAnswer::Decision(text))
}

/// Writes the answer to one request of a batch by compat rules that became active meanwhile.
async fn check_overtaken<S: Store>(
    service: &Service<S>,
    compat: &ActiveConfig,
    json_request: &JsonRequest<'_>,
    index: usize,
    now: Timestamp,
    text: &mut Vec<u8>,
) -> Result<(), Problem> {
    let request = json_request.request().map_err(|error| wrong(index, &error))?;
    let answers = check_compat(service, compat, std::slice::from_ref(&request), now).await;
    let answer = answers.map_err(|(_, error)| wrong(index, &error))?.pop().unwrap_or_default();
    text.extend_from_slice(answer.to_string().as_bytes());
    Ok(())
}

/// Decides, and writes the answer. If compat rules became active meanwhile, they must be evaluated instead.
async fn decide<S: Store>(
    service: &Service<S>,
    request: &CheckRequest<'_>,
    now: Timestamp,
    watch: Option<Stopwatch>,
    text: &mut Vec<u8>,
) -> Option<Arc<ActiveConfig>> {
    // A decision is large, and each future that it passes through would reserve space for it and copy it.
    let overtaken = match service.try_check(request, now, Protocol::Http) {
        Ok(mut decision) => write(service, &mut decision, request, now, text),
        Err(prepared) => Box::pin(decide_prepared(service, prepared, request, now, text)).await,
    };
    if let Some(watch) = watch.filter(|_| overtaken.is_none()) {
        service.meter.took(Protocol::Http, watch.elapsed());
    }
    overtaken
}

async fn decide_prepared<S: Store>(
    service: &Service<S>,
    prepared: Prepared,
    request: &CheckRequest<'_>,
    now: Timestamp,
    text: &mut Vec<u8>,
) -> Option<Arc<ActiveConfig>> {
    let mut decision = service.check_prepared(prepared, request, now, Protocol::Http).await;
    write(service, &mut decision, request, now, text)
}

fn write<S: Store>(
    service: &Service<S>,
    decision: &mut Decision,
    request: &CheckRequest<'_>,
    now: Timestamp,
    text: &mut Vec<u8>,
) -> Option<Arc<ActiveConfig>> {
    let overtaken = service.overtaken(decision);
    let holds = &service.holds;
    let hold = holds.keep_permit(decision, now);
    let report = holds.await_report(&service.engine, decision, now);
    let decided = Decided::new(decision, hold, &service.headers, request, service.on_wall(now));
    decided.awaiting(report).write(text);
    overtaken
}

/// Answers plain checks by a compat configuration: all of them, or none if one of them is invalid.
async fn check_compat<S: Store>(
    service: &Service<S>,
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
    let document = |rls_request| compat_document(service, compat, rls_request, now);
    let documents: Vec<_> = rls_requests.iter().map(document).collect();
    Ok(together(service.engine.store(), documents).await)
}

async fn compat_document<S: Store>(
    service: &Service<S>,
    compat: &ActiveConfig,
    rls_request: &rls::RlsRequest,
    now: Timestamp,
) -> serde_json::Value {
    let answer = compat::answer(service, compat, rls_request, Protocol::Http, now).await;
    // Text and numbers always have a form in JSON.
    serde_json::to_value(Checked::new(rls_request, answer)).unwrap_or_default()
}

/// The problem of one request of a batch.
fn wrong(index: usize, error: &impl std::fmt::Display) -> Problem {
    Problem::invalid(format!("[{index}]: {error}"))
}
