//! All attempts of one call: wait, send, read the response, settle, and perhaps again.

use std::pin::pin;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, response};
use http_body::Body;
use tollgate::store::Store;
use tollgate::{RequestError, Ticks, Timestamp};

use super::body::{CallHold, OutboundBody, UsageReader};
use super::copy::CopyBody;
use super::describe;
use super::error::{BoxError, CallError, RefusedBody, failure_of};
use crate::call::{Call, Repeatable};
use crate::dialect::ResponseView;
use crate::guard::{Failure, Guard};
use crate::outbound::Outbound;
use crate::queue::Arrival;
use crate::race::{First, first_of, until};
use crate::refusal::Refusal;
use crate::retry::{self, AttemptEnd, Retry};

/// Maximum number of bytes of a body that are read before its reader gets it, and how long that may take.
const AHEAD_BYTES_MAX: usize = 64 * 1_024;
const AHEAD_TIMEOUT: Ticks = Ticks::from_secs(1);

type Describe = dyn Fn(&Parts, Call) -> Result<Call, RequestError> + Send + Sync;
type ReadUsage = dyn Fn(&Call, &http::response::Parts) -> Option<UsageReader> + Send + Sync;
type Unsent = dyn Fn(&BoxError) -> bool + Send + Sync;

/// The parts that all services of a layer share.
pub(crate) struct LayerState<S> {
    pub(crate) outbound: Outbound<S>,
    pub(crate) describe: Option<Box<Describe>>,
    pub(crate) usage: Option<Box<ReadUsage>>,
    pub(crate) unsent: Option<Box<Unsent>>,
}

/// Sends one attempt of a call.
pub(crate) trait Attempt<B> {
    type Body: Body<Data = Bytes, Error: Into<BoxError> + Send> + Send + 'static;
    fn send(&self, request: Request<B>) -> impl Future<Output = Sent<Self::Body>> + Send;
}

/// A call on its way.
struct Exchange<'s, S> {
    state: &'s LayerState<S>,
    call: Call,
    arrival: Arrival,
    interface: Interface,
    attempts: u32,
}

/// Makes a call: one attempt, or several.
pub(crate) async fn exchange<S, B, A, C>(
    state: &LayerState<S>,
    copy: &C,
    attempt: A,
    request: Request<B>,
) -> Result<Response<OutboundBody<A::Body>>, CallError>
where
    S: Store + Send + Sync + 'static,
    A: Attempt<B>,
    C: CopyBody<B>,
{
    let (mut parts, mut body) = request.into_parts();
    let outbound = &state.outbound;
    let now = outbound.engine().now();
    let mut call = describe::call_of(&parts, outbound.settings(), now).map_err(Refusal::from)?;
    if let Some(describe) = &state.describe {
        call = describe(&parts, call).map_err(Refusal::from)?;
    }
    if retry::is_repeatable(&parts.method, &parts.headers) {
        call = call.repeatable();
    }
    let (arrival, interface) = (outbound.arrive(&call), Interface::of(&parts));
    let mut exchange = Exchange { state, call, arrival, interface, attempts: 0 };
    let mut last = None;
    loop {
        let guard = match exchange.leave().await {
            Ok(guard) => guard,
            Err(refusal) => return without_attempt(refusal, last),
        };
        drop(last.take());
        let deadline = exchange.call.deadline_at();
        describe::propagate_deadline(&mut parts.headers, deadline, outbound.engine().now());
        let is_last = exchange.is_last_attempt();
        let next = if is_last { None } else { copy.copy(&body).map(|body| (parts.clone(), body)) };
        let sent = attempt.send(Request::from_parts(parts, body));
        // It is sent if it is polled.
        let hedge = next.as_ref().filter(|_| exchange.hedge_after().is_some());
        let hedge = hedge.and_then(|(parts, body)| Some((parts.clone(), copy.copy(body)?)));
        let hedge = hedge.map(|(parts, body)| attempt.send(Request::from_parts(parts, body)));
        let Some((retry, result)) = exchange.response_to(guard, sent, hedge).await else {
            // The time was up for the caller. It says nothing about the server.
            return Err(CallError::DeadlineExceeded);
        };
        match next {
            Some(next) if exchange.may_retry(retry, &result) => {
                last = Some(exchange.kept(result).await);
                exchange.pause(retry).await;
                (parts, body) = next;
            }
            _ => return exchange.end(result).await,
        }
    }
}

/// A response with the end of the freeze that it caused, or that its buckets are in.
struct AttemptResponse<R: Body<Data = Bytes>> {
    response: Response<OutboundBody<R>>,
    /// When its buckets take calls again.
    open_at: Option<Timestamp>,
    /// Why the call may not leave again, if the server refused it.
    refusal: Option<Refusal>,
}

/// The response to an attempt, or its error.
type Sent<R> = Result<Response<R>, BoxError>;

type AttemptResult<R> = Result<AttemptResponse<R>, CallError>;

impl<S: Store + Send + Sync + 'static> Exchange<'_, S> {
    /// Waits until the next attempt may leave.
    async fn leave(&mut self) -> Result<Guard<S>, Refusal> {
        let guard = self.state.outbound.acquire_as(&self.call, self.arrival).await?;
        self.attempts += 1;
        let shared = &self.state.outbound.shared;
        match self.attempts {
            1 => shared.budgets().deposit(guard.host()),
            _ => _ = shared.totals.retries.fetch_add(1, Ordering::Relaxed),
        }
        Ok(guard)
    }

    fn is_last_attempt(&self) -> bool {
        self.attempts >= self.state.outbound.settings().retry.attempts_max
    }

    /// Awaits the response to an attempt, and that to a copy if one is sent beside it. The first good one wins; the other
    /// is dropped, which cancels it and frees its permit. Returns `None` at the deadline of the call.
    async fn response_to<R: Body<Data = Bytes> + Send>(
        &mut self,
        guard: Guard<S>,
        sent: impl Future<Output = Sent<R>> + Send,
        copy: Option<impl Future<Output = Sent<R>> + Send>,
    ) -> Option<(Retry, AttemptResult<R>)> {
        let (outbound, deadline) = (&self.state.outbound, self.call.deadline_at());
        let mut sent = pin!(sent);
        let Some(copy) = copy else {
            let result = until(outbound.clock(), deadline, sent).await?;
            return Some(self.ended(guard, result).await);
        };
        let first = {
            let hedge = pin!(self.hedge(&guard));
            until(outbound.clock(), deadline, first_of(sent.as_mut(), hedge)).await?
        };
        let hedge = match first {
            First::Left(result) => return Some(self.ended(guard, result).await),
            First::Right(Some(hedge)) => hedge,
            First::Right(None) => {
                let result = until(outbound.clock(), deadline, sent).await?;
                return Some(self.ended(guard, result).await);
            }
        };
        self.attempts += 1;
        let mut copy = pin!(copy);
        match until(outbound.clock(), deadline, first_of(sent.as_mut(), copy.as_mut())).await? {
            First::Left(result) => {
                let first = self.ended(guard, result).await;
                Some(self.unless_good(first, hedge, copy).await)
            }
            First::Right(result) => {
                let first = self.ended(hedge, result).await;
                Some(self.unless_good(first, guard, sent).await)
            }
        }
    }

    /// The time after which a copy of the call may be sent beside its attempt.
    fn hedge_after(&self) -> Option<Ticks> {
        let is_allowed = self.call.may_repeat() == Repeatable::Yes && !self.is_last_attempt();
        let delay = self.state.outbound.settings().retry.hedge_after.filter(|_| is_allowed);
        delay.map(Ticks::ceil_from)
    }

    /// Waits until a copy of the call may be sent beside its attempt. Returns `None` if none may.
    async fn hedge(&self, guard: &Guard<S>) -> Option<Guard<S>> {
        let outbound = &self.state.outbound;
        outbound.clock().sleep_until(outbound.engine().now() + self.hedge_after()?).await;
        if !outbound.shared.budgets().withdraw(guard.host()) {
            return None;
        }
        let hedge = outbound.acquire_hedge(guard.call(), self.arrival).await;
        if hedge.is_none() {
            outbound.shared.budgets().refund(guard.host());
        }
        hedge
    }

    /// The end of the first copy, or that of the other if the first is not good.
    async fn unless_good<R: Body<Data = Bytes> + Send>(
        &self,
        first: (Retry, AttemptResult<R>),
        guard: Guard<S>,
        other: impl Future<Output = Sent<R>> + Send,
    ) -> (Retry, AttemptResult<R>) {
        if first.0 == Retry::No {
            return first;
        }
        match until(self.state.outbound.clock(), self.call.deadline_at(), other).await {
            Some(result) => self.ended(guard, result).await,
            None => first,
        }
    }

    async fn ended<R: Body<Data = Bytes> + Send>(
        &self,
        guard: Guard<S>,
        sent: Sent<R>,
    ) -> (Retry, AttemptResult<R>) {
        match sent {
            Ok(response) => self.answered(guard, response).await,
            Err(error) => self.failed(guard, error).await,
        }
    }

    /// Reads the response, and settles the call with the end of its body.
    async fn answered<R: Body<Data = Bytes> + Send>(
        &self,
        mut guard: Guard<S>,
        response: Response<R>,
    ) -> (Retry, AttemptResult<R>) {
        let outbound = &self.state.outbound;
        let (mut head, body) = response.into_parts();
        let mut body = OutboundBody::new(body);
        let received = outbound.engine().now();
        let text = if self.interface.explains_itself(&head) {
            let timeout = outbound.clock().sleep_until(received + AHEAD_TIMEOUT);
            Some(body.read_ahead(AHEAD_BYTES_MAX, timeout).await)
        } else {
            None
        };
        let view =
            ResponseView { status: head.status, headers: &head.headers, body: text.as_deref(), received };
        let signals = guard.observe(&view).await;
        let retry = retry::decide(AttemptEnd::Response(view.outcome(), &signals), self.call.may_repeat());
        let (freeze, refusal) = (guard.freeze(), guard.refusal().cloned());
        head.extensions.insert(signals);
        if let Some(freeze) = freeze {
            head.extensions.insert(freeze);
        }
        let reader = self.state.usage.as_ref().and_then(|usage| usage(&self.call, &head));
        body.hold(Box::new(CallHold { guard, reader, usage: None }));
        let open_at = freeze.map(|freeze| freeze.until);
        (retry, Ok(AttemptResponse { response: Response::from_parts(head, body), open_at, refusal }))
    }

    async fn failed<R: Body<Data = Bytes>>(
        &self,
        guard: Guard<S>,
        error: BoxError,
    ) -> (Retry, AttemptResult<R>) {
        let is_unsent = || self.state.unsent.as_ref().is_some_and(|unsent| unsent(&error));
        let failure = match failure_of(&error) {
            Failure::Unanswered if is_unsent() => Failure::NotSent,
            failure => failure,
        };
        let end = if failure == Failure::Unanswered { AttemptEnd::Unanswered } else { AttemptEnd::NotSent };
        guard.fail(failure).await;
        (retry::decide(end, self.call.may_repeat()), Err(CallError::Failed(error)))
    }

    /// Whether another attempt can leave in time, and the budget pays for it. A call that the server refused unseen is
    /// not paid for: it waits behind the freeze of its bucket, where one call at a time finds out whether it is over.
    fn may_retry<R: Body<Data = Bytes>>(&self, retry: Retry, result: &AttemptResult<R>) -> bool {
        let outbound = &self.state.outbound;
        let now = outbound.engine().now();
        let answered = result.as_ref().ok();
        let open_at = answered.and_then(|answered| answered.open_at).unwrap_or(now);
        let is_refused = answered.is_some_and(|answered| answered.refusal.is_some());
        let is_too_late = now >= self.arrival.leaves_until() || open_at > self.arrival.leaves_until();
        if is_refused || is_too_late || self.is_last_attempt() {
            return false;
        }
        match retry {
            Retry::No => false,
            Retry::Queue => true,
            Retry::Pause => outbound.shared.budgets().withdraw(&outbound.identity(&self.call).host),
        }
    }

    /// The end of a call whose last attempt ended so.
    async fn end<R>(&self, result: AttemptResult<R>) -> Result<Response<OutboundBody<R>>, CallError>
    where
        R: Body<Data = Bytes, Error: Into<BoxError> + Send> + Send + 'static,
    {
        let AttemptResponse { response, refusal, .. } = match result {
            Ok(AttemptResponse { refusal: Some(_), .. }) => self.kept(result).await?,
            _ => result?,
        };
        match refusal {
            None => Ok(response),
            Some(refusal) => {
                let response = Some(Box::new(response.map(RefusedBody::new)));
                Err(CallError::Refused { refusal, response })
            }
        }
    }

    /// Keeps the end of an attempt for the case that no other leaves. Its permit is free, and its connection too unless
    /// the body is long or slow.
    async fn kept<R: Body<Data = Bytes> + Send>(&self, mut result: AttemptResult<R>) -> AttemptResult<R> {
        if let Ok(answered) = &mut result {
            let outbound = &self.state.outbound;
            let timeout = outbound.clock().sleep_until(outbound.engine().now() + AHEAD_TIMEOUT);
            answered.response.body_mut().detach(AHEAD_BYTES_MAX, timeout).await;
        }
        result
    }

    async fn pause(&self, retry: Retry) {
        if retry == Retry::Pause {
            let outbound = &self.state.outbound;
            let settings = &outbound.settings().retry;
            let pause = settings.pause(self.attempts, &mut outbound.shared.queues().random);
            outbound.clock().sleep_until(outbound.engine().now() + pause).await;
        }
    }
}

/// The end of a call whose next attempt cannot leave: that of its last attempt, except that a quota of a day or of money
/// says more.
fn without_attempt<R: Body<Data = Bytes>>(
    refusal: Refusal,
    last: Option<AttemptResult<R>>,
) -> Result<Response<OutboundBody<R>>, CallError> {
    match last {
        Some(last) if !matches!(refusal, Refusal::Exhausted { .. }) => last.map(|answered| answered.response),
        _ => Err(refusal.into()),
    }
}

/// Where a server says that it refused a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interface {
    /// In the status.
    Plain,
    /// GraphQL, in the body of a 200.
    GraphQl,
}

impl Interface {
    /// GitHub's path ends with `/graphql`, Shopify's with `/graphql.json`.
    fn of(parts: &Parts) -> Self {
        match parts.uri.path().rsplit('/').next() {
            Some("graphql" | "graphql.json") => Interface::GraphQl,
            _ => Interface::Plain,
        }
    }

    /// Whether the body of a response may say which limit refused the call, or what is left. Streams are not JSON.
    fn explains_itself(self, head: &response::Parts) -> bool {
        match head.status.as_u16() {
            // AWS, and Anthropic without money, answer 400.
            400 | 402 | 403 | 429 | 503 | 529 => true,
            200 if self == Interface::GraphQl => {
                let kind = head.headers.get(http::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
                kind.and_then(|kind| kind.split(';').next())
                    .is_some_and(|kind| kind.trim_end().ends_with("json"))
            }
            _ => false,
        }
    }
}
