//! How a Tollgate policy answers Envoy. The entries of each descriptor become attributes. A limit applies at most once,
//! to the first descriptor that has the attributes it needs. All limits that apply form one decision.

use arc_swap::ArcSwapOption;
use smallvec::SmallVec;
use tollgate::engine::Prepared;
use tollgate::headers::{Dialect, Dialects};
use tollgate::request::COST_MAX;
use tollgate::store::Store;
use tollgate::{Audience, CheckRequest, Decision, HeaderPolicy, RequestError, Ticks, Timestamp};
use tollgate_compat::REQUEST_LIMIT;
use tollgate_compat::counters::Tallies;

use crate::decision_json::caller;
use crate::identity::{AttributeOrigin, Identified};
use crate::log_throttle::LogThrottle;
use crate::protocol::Protocol;
use crate::rls::{Answer, Code, Descriptor, RlsRequest, refusal};
use crate::service::Service;
use crate::telemetry::{Key, RuleVerdict};

mod request_limits;
mod status;
#[cfg(test)]
mod tests;

use request_limits::RequestLimits;

/// How long before its negative hits Envoy may have sent the hits that they give back. The protocol does not carry that
/// time. The value is Envoy's default request timeout.
const NEGATIVE_HITS_WITHIN: Ticks = Ticks::from_secs(15);

/// State for answering Envoy, beside the engine.
#[derive(Debug)]
pub(crate) struct Envoy {
    headers: HeaderPolicy,
    refused: LogThrottle,
    not_given_back: LogThrottle,
    /// Windows of the limits that descriptors carry. Created for the first such descriptor.
    tallies: ArcSwapOption<Tallies>,
}

impl Envoy {
    /// The policy's headers without `x-ratelimit-*`: Envoy builds its own from the statuses, and would send both.
    pub(crate) fn new(headers: &HeaderPolicy) -> Self {
        let ours = |dialect: &Dialect| !matches!(dialect, Dialect::XRateLimit | Dialect::XRateLimitDelta);
        let dialects = Dialects::new(headers.dialects.iter().filter(ours)).unwrap_or_default();
        let headers = HeaderPolicy { dialects, ..headers.clone() };
        let (refused, not_given_back, tallies) = Default::default();
        Self { headers, refused, not_given_back, tallies }
    }

    /// Resets the windows after the engine changed its hashing secret. They are created again when they are next
    /// needed.
    pub(crate) fn rekeyed(&self) {
        self.tallies.store(None);
    }
}

/// Answers a request by the active policy. An answer that need not wait avoids the slow path's future, which is large.
pub(super) async fn answer<S: Store>(
    service: &Service<S>,
    rls_request: &RlsRequest,
    now: Timestamp,
) -> Answer {
    match try_answer(service, rls_request, now) {
        Ok(answer) => answer,
        Err(prepared) => Box::pin(answer_slowly(service, rls_request, prepared, now)).await,
    }
}

/// The fast path: a typical request on a store that answers without waiting. The error is what the slow path starts
/// with: nothing for an unusual request.
fn try_answer<S: Store>(
    service: &Service<S>,
    rls_request: &RlsRequest,
    now: Timestamp,
) -> Result<Answer, Option<Prepared>> {
    let descriptors = &rls_request.descriptors;
    let is_usual =
        descriptors.iter().all(|descriptor| descriptor.limit.is_none() && !descriptor.is_negative_hits);
    if !is_usual || service.engine.policy().domain().is_some_and(|domain| domain != rls_request.domain) {
        return Err(None);
    }
    let known = known(service, rls_request);
    let requests = requests(rls_request, &known).map_err(|_| None)?;
    let request = one_request(requests);
    let decision = service.try_check(&request, now, Protocol::Rls)?;
    Ok(answer_of(service, rls_request, &request, &decision, &RequestLimits::default(), now))
}

async fn answer_slowly<S: Store>(
    service: &Service<S>,
    rls_request: &RlsRequest,
    prepared: Option<Prepared>,
    now: Timestamp,
) -> Answer {
    let descriptors = &rls_request.descriptors;
    if service.engine.policy().domain().is_some_and(|domain| domain != rls_request.domain) {
        return of_another_domain(service, rls_request, now);
    }
    let known = known(service, rls_request);
    let mut requests = match requests(rls_request, &known) {
        Ok(requests) => requests,
        Err(error) => return refused(service, rls_request, &error, now),
    };
    if let Some(prepared) = prepared {
        let request = one_request(requests);
        let decision = service.check_prepared(prepared, &request, now, Protocol::Rls).await;
        return answer_of(service, rls_request, &request, &decision, &RequestLimits::default(), now);
    }
    if descriptors.iter().any(|descriptor| descriptor.is_negative_hits) {
        give_back(service, rls_request, &mut requests, now).await;
    }
    let request = one_request(requests);
    let mut request_limits = RequestLimits::charge(service, rls_request, now).await;
    let only_gives_back = descriptors.iter().all(|descriptor| descriptor.is_negative_hits);
    if only_gives_back || request_limits.refuses() {
        return answer_read_only(service, rls_request, request, &request_limits, now).await;
    }
    let decision =
        service.check_beside(&request, &request_limits.rules(rls_request), now, Protocol::Rls).await;
    if !decision.is_allowed() {
        request_limits.give_back(service, rls_request, now).await;
    }
    answer_of(service, rls_request, &request, &decision, &request_limits, now)
}

/// The answer if the policy is for another domain: the policy has no limit for the request.
fn of_another_domain<S: Store>(service: &Service<S>, rls_request: &RlsRequest, now: Timestamp) -> Answer {
    let asking = rls_request.descriptors.iter().filter(|descriptor| !descriptor.is_negative_hits);
    let keys: Vec<Key<'_>> = asking.map(|descriptor| Key::unmet(&descriptor.entries)).collect();
    if keys.is_empty() {
        return Answer::blank(Code::Ok, rls_request.descriptors.len()); // No descriptor asks for admission.
    }
    let verdict = RuleVerdict {
        is_allowed: true,
        is_blocked: false,
        limit: "",
        retry_after: None,
        keys: &keys,
        rules: &[],
    };
    service.meter.record_compat(&verdict, Protocol::Rls, now);
    Answer::of_no_limit(rls_request.descriptors.len())
}

/// The answer when the policy's limits are only read. Either no descriptor asks for admission, so there is no decision
/// and the statuses show the current state; or a limit that the request carries refuses it, and nothing is charged.
async fn answer_read_only<S: Store>(
    service: &Service<S>,
    rls_request: &RlsRequest,
    request: CheckRequest<'_>,
    request_limits: &RequestLimits,
    now: Timestamp,
) -> Answer {
    let decision = service.engine.check(&request.looking(), now).await;
    let statuses = status::statuses(rls_request, &decision, request_limits, now);
    if !request_limits.refuses() {
        return Answer { statuses, ..Answer::blank(Code::Ok, 0) };
    }
    let keys = rls_request.descriptors.iter().map(|descriptor| Key::unmet(&descriptor.entries));
    let (keys, rules) = (keys.collect::<Vec<_>>(), request_limits.rules(rls_request));
    let verdict = RuleVerdict {
        is_allowed: false,
        is_blocked: false,
        limit: REQUEST_LIMIT,
        retry_after: request_limits.retry_after(),
        keys: &keys,
        rules: &rules,
    };
    service.meter.record_compat(&verdict, Protocol::Rls, now);
    let mut headers = vec![("Cache-Control".to_owned(), "no-store".to_owned())];
    let retry = request_limits.retry_after().map(|retry| retry.ceil_seconds().to_string());
    headers.extend(retry.map(|retry| ("Retry-After".to_owned(), retry)));
    Answer { statuses, headers, ..Answer::blank(Code::OverLimit, 0) }
}

/// Refuses a request with an invalid value that a client sent. An error would not do, because Envoy lets a request pass
/// that is answered with an error.
fn refused<S: Store>(
    service: &Service<S>,
    rls_request: &RlsRequest,
    error: &RequestError,
    now: Timestamp,
) -> Answer {
    if let Some(skipped) = service.envoy.refused.due(now) {
        tracing::warn!(%error, skipped, "a descriptor cannot be counted, so the request is over the limit");
    }
    service.meter.record_fault(Protocol::Rls);
    Answer::blank(Code::OverLimit, rls_request.descriptors.len())
}

/// Identifies the caller that each descriptor is about. Envoy passes on what clients send.
fn known<S: Store>(service: &Service<S>, rls_request: &RlsRequest) -> SmallVec<[Identified; 4]> {
    let of = |descriptor: &Descriptor| service.identity.identify(descriptor.pairs(), AttributeOrigin::Client);
    let mut known: SmallVec<[Identified; 4]> = rls_request.descriptors.iter().map(of).collect();
    Identified::agree(&mut known);
    known
}

/// One `CheckRequest` for each descriptor.
fn requests<'q>(
    rls_request: &'q RlsRequest,
    known: &'q [Identified],
) -> Result<Vec<CheckRequest<'q>>, RequestError> {
    let mut requests = Vec::with_capacity(rls_request.descriptors.len());
    for (descriptor, known) in rls_request.descriptors.iter().zip(known) {
        let hits = descriptor.hits(rls_request);
        // No counter reaches that number, so a larger refund gives everything back.
        let hits = if descriptor.is_negative_hits { hits.min(COST_MAX) } else { hits };
        requests.push(known.request(descriptor.pairs())?.cost(hits)?);
    }
    Ok(requests)
}

/// One request with all these descriptors. There is at least one.
fn one_request(requests: Vec<CheckRequest<'_>>) -> CheckRequest<'_> {
    requests.into_iter().reduce(CheckRequest::and).unwrap_or_default()
}

/// Gives back the hits of negative descriptors, each to the limits that apply to it first. Afterwards these descriptors
/// only read.
async fn give_back<S: Store>(
    service: &Service<S>,
    rls_request: &RlsRequest,
    requests: &mut [CheckRequest<'_>],
    now: Timestamp,
) {
    let looks: Vec<CheckRequest<'_>> = requests.iter().map(|request| request.clone().looking()).collect();
    let matched = service.engine.check(&one_request(looks.clone()), now).await;
    for (position, (descriptor, look)) in rls_request.descriptors.iter().zip(looks).enumerate() {
        if !descriptor.is_negative_hits {
            continue;
        }
        let Some(request) = requests.get_mut(position) else { continue };
        let limits = matched.limits().filter(|status| status.descriptor == position);
        let limits: Vec<&str> = limits.map(|status| status.limit.name()).collect();
        // An empty list would mean every limit.
        if !limits.is_empty()
            && let Err(error) =
                service.engine.ledger().refund(request, &limits, NEGATIVE_HITS_WITHIN, now).await
            && let Some(skipped) = service.envoy.not_given_back.due(now)
        {
            tracing::warn!(%error, skipped, "hits were not given back; they stay counted");
        }
        *request = look;
    }
}

/// Converts a decision into an answer for Envoy.
fn answer_of<S: Store>(
    service: &Service<S>,
    rls_request: &RlsRequest,
    request: &CheckRequest<'_>,
    decision: &Decision,
    request_limits: &RequestLimits,
    now: Timestamp,
) -> Answer {
    if let Some(fault) = decision.fault()
        && let Some(skipped) = service.envoy.refused.due(now)
    {
        tracing::warn!(%fault, skipped, "a question is at fault, so the request is over the limit");
    }
    // If descriptors differ in cost, the request has no single cost.
    let cost = request.units();
    let is_one = request.descriptors().all(|descriptor| descriptor.units() == cost);
    let cost = is_one.then_some(cost);
    let audience = Audience { caller: caller(request), cost, ..Audience::default() };
    let wall = service.on_wall(now);
    let headers = tollgate::Answer::headers_of(decision, &service.envoy.headers, audience, wall);
    Answer {
        overall: if decision.is_allowed() { Code::Ok } else { Code::OverLimit },
        statuses: status::statuses(rls_request, decision, request_limits, wall),
        headers: headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        refusal: refusal(decision),
        meets_no_limit: decision.meets_no_limit() && request_limits.is_empty(),
        is_faulty: decision.fault().is_some(),
    }
}
