//! All attempts of one call: wait, send, read the response, settle, and perhaps again.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::Poll;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, response};
use http_body::Body;
use tollgate::store::Store;
use tollgate::{RequestError, Ticks, Timestamp};

use super::body::{CallHold, OutboundBody, UsageReader};
use super::copy::CopyBody;
use super::describe;
use super::error::{BoxError, CallError, failure_of};
use crate::call::Call;
use crate::dialect::ResponseView;
use crate::guard::{Failure, Guard};
use crate::outbound::Outbound;
use crate::refusal::Refusal;
use crate::retry::{self, AttemptEnd, Repeatable, Retry};
use crate::waiting::Arrival;

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
    type Body: Body<Data = Bytes> + Send;
    fn send(
        &mut self,
        request: Request<B>,
    ) -> impl Future<Output = Result<Response<Self::Body>, BoxError>> + Send;
}

/// A call on its way.
struct Exchange<'s, S> {
    state: &'s LayerState<S>,
    call: Call,
    arrival: Arrival,
    repeatable: Repeatable,
    interface: Interface,
    attempts: u32,
}

/// Makes a call: one attempt, or several.
pub(crate) async fn exchange<S, B, A, C>(
    state: &LayerState<S>,
    copy: &C,
    mut attempt: A,
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
    let repeatable = match call.may_repeat() || retry::is_repeatable(&parts.method, &parts.headers) {
        true => Repeatable::Yes,
        false => Repeatable::No,
    };
    let (arrival, interface) = (outbound.arrive(&call), Interface::of(&parts));
    let mut exchange = Exchange { state, call, arrival, repeatable, interface, attempts: 0 };
    let mut last = None;
    loop {
        let guard = match exchange.leave().await {
            Ok(guard) => guard,
            Err(refusal) => return without_attempt(refusal, last),
        };
        drop(last.take());
        let deadline = exchange.call.deadline_at();
        describe::propagate_deadline(&mut parts.headers, deadline, outbound.engine().now());
        let is_last = exchange.attempts >= outbound.settings().retry.attempts_max;
        let next = if is_last { None } else { copy.copy(&body).map(|body| (parts.clone(), body)) };
        let sent = attempt.send(Request::from_parts(parts, body));
        let result = until(outbound, deadline, sent).await;
        let (retry, result) = match result {
            Some(Ok(response)) => exchange.answered(guard, response).await,
            Some(Err(error)) => exchange.failed(guard, error).await,
            None => {
                // The time was up for the caller. It says nothing about the server.
                guard.finish(None).await;
                return Err(CallError::DeadlineExceeded);
            }
        };
        match next {
            Some(next) if exchange.may_retry(retry, &result) => {
                last = Some(exchange.kept(result).await);
                exchange.pause(retry).await;
                (parts, body) = next;
            }
            _ => return result.map(|answered| answered.response),
        }
    }
}

/// A response with the end of the freeze that it caused, or that its buckets are in.
struct AttemptResponse<R: Body<Data = Bytes>> {
    response: Response<OutboundBody<R>>,
    /// When its buckets take calls again.
    open_at: Option<Timestamp>,
}

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
        let retry = retry::decide(AttemptEnd::Response(view.outcome(), &signals), self.repeatable);
        let freeze = guard.freeze();
        head.extensions.insert(signals);
        if let Some(freeze) = freeze {
            head.extensions.insert(freeze);
        }
        let reader = self.state.usage.as_ref().and_then(|usage| usage(&self.call, &head));
        body.hold(Box::new(CallHold { guard, reader, usage: None }));
        let open_at = freeze.map(|freeze| freeze.until);
        (retry, Ok(AttemptResponse { response: Response::from_parts(head, body), open_at }))
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
        (retry::decide(end, self.repeatable), Err(CallError::Failed(error)))
    }

    /// Whether another attempt can leave in time, and the budget pays for it. A call that the server refused unseen is
    /// not paid for: it waits behind the freeze of its bucket, where one call at a time finds out whether it is over.
    fn may_retry<R: Body<Data = Bytes>>(&self, retry: Retry, result: &AttemptResult<R>) -> bool {
        let outbound = &self.state.outbound;
        let now = outbound.engine().now();
        let open_at = result.as_ref().ok().and_then(|answered| answered.open_at).unwrap_or(now);
        if now >= self.arrival.leaves_until() || open_at > self.arrival.leaves_until() {
            return false;
        }
        match retry {
            Retry::No => false,
            Retry::Queue => true,
            Retry::Pause => outbound.shared.budgets().withdraw(&outbound.identity(&self.call).host),
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

/// The result of a future, or `None` when the deadline comes first.
async fn until<S, T>(
    outbound: &Outbound<S>,
    deadline: Option<Timestamp>,
    future: impl Future<Output = T>,
) -> Option<T>
where
    S: Store + Send + Sync + 'static,
{
    let Some(deadline) = deadline else { return Some(future.await) };
    let (mut future, mut sleep) = (pin!(future), pin!(outbound.clock().sleep_until(deadline)));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => sleep.as_mut().poll(context).map(|()| None),
    })
    .await
}
