//! The service: the path of one request from its head to its response.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body as HttpBody;
use tollgate::{Answer, Audience, CheckRequest, Decision, Reservation, Ticks, Timestamp, Verdict};
use tower_service::Service;

use crate::attributes::{Attributes, Unreadable};
use crate::body::Body;
use crate::decide::Decide;
use crate::future::{AsyncOutcome, ResponseFuture, is_cached};
use crate::grpc::{self, Protocol};
use crate::hold::{Finish, Hold, PendingCheck};
use crate::layer::{RateLimitState, Refused};
use crate::refusal::{self, AnswerContext, is_preflight};
use crate::settle::Unserved;
use crate::{hold, peer};

/// How long a request waited in the queue, in milliseconds.
const WAITED: HeaderName = HeaderName::from_static("tollgate-waited-ms");
/// Units in the queue when the request arrived, its own included.
const DEPTH: HeaderName = HeaderName::from_static("tollgate-queue-depth");

/// In the extensions of a request that reaches a service after a wait in a queue: the length of the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited(pub Ticks);

/// A service behind limits.
pub struct RateLimit<I, D> {
    inner: I,
    shared: Arc<RateLimitState<D>>,
}

impl<I, D: Decide> RateLimit<I, D> {
    pub(crate) fn new(inner: I, shared: Arc<RateLimitState<D>>) -> Self {
        Self { inner, shared }
    }
}

impl<I: Clone, D> Clone for RateLimit<I, D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

/// What is left to do with the response of an admitted request.
pub(crate) struct Admitted<D: Decide> {
    follow_up: Option<FollowUp<D>>,
    /// The decision, if there is a follow-up.
    decision: Option<Decision>,
    waited: Option<(Ticks, u64)>,
    hold: Option<Box<Hold<D>>>,
}

/// How the response uses the decision: for headers, or for a refund if the request was not served.
struct FollowUp<D> {
    shared: Arc<RateLimitState<D>>,
    /// The audience of the headers; `None` writes none.
    audience: Option<Audience>,
    at: Timestamp,
}

/// A decision with its permit and reservations. Dropping it releases them.
struct Decided<D: Decide> {
    decision: Decision,
    at: Timestamp,
    hold: Option<Box<Hold<D>>>,
}

/// The result of the fast path, which does not await.
enum FastPath<D: Decide> {
    /// The request is admitted; `None` if its response is not touched.
    Admitted(Option<Box<Admitted<D>>>),
    Refused(Response<Bytes>),
    /// The request is admitted after a wait.
    Waits(Box<Decided<D>>),
    /// The slow path must decide: it asks the store, or reserves a cost to settle later.
    Unknown,
}

impl<I, D, B, R> Service<Request<B>> for RateLimit<I, D>
where
    I: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    I::Future: Send + 'static,
    I::Error: Send + 'static,
    D: Decide,
    B: Send + 'static,
    R: HttpBody + Send + 'static,
    R::Data: From<Bytes>,
{
    type Response = Response<Body<R>>;
    type Error = I::Error;
    type Future = ResponseFuture<I::Future, D>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        if self.shared.skips(&parts) {
            return ResponseFuture::passing(self.inner.call(Request::from_parts(parts, body)));
        }
        let fast_path = RateLimitState::try_decide(&self.shared, &parts);
        let decided = match fast_path {
            FastPath::Admitted(admitted) => {
                if let Some(hold) = admitted.as_ref().and_then(|admitted| admitted.hold.as_ref()) {
                    hold.announce(&mut parts.extensions);
                }
                let served = self.inner.call(Request::from_parts(parts, body));
                return ResponseFuture::admitted(served, admitted);
            }
            FastPath::Refused(response) => return ResponseFuture::refused(response),
            FastPath::Waits(decided) => Some(decided),
            FastPath::Unknown => None,
        };
        // The service that was polled ready serves this request. Its clone serves the next.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        ResponseFuture::awaiting(slow_path(Arc::clone(&self.shared), inner, (parts, body), decided))
    }
}

/// Units in the longest queue that a request waits in, its own included.
fn depth(decision: &Decision) -> u64 {
    let waits = decision.limits().filter(|status| matches!(status.outcome.verdict, Verdict::Wait(_)));
    waits.map(|status| status.outcome.limit.saturating_sub(status.outcome.remaining)).max().unwrap_or(0)
}

/// The slow path of a request: awaits the decision, or the wait of a decision, and then the service.
async fn slow_path<I, D, B, R>(
    shared: Arc<RateLimitState<D>>,
    mut inner: I,
    (parts, body): (Parts, B),
    decided: Option<Box<Decided<D>>>,
) -> AsyncOutcome<Result<Response<R>, I::Error>, D>
where
    I: Service<Request<B>, Response = Response<R>>,
    D: Decide,
{
    let (decided, mut parts) = match decided {
        Some(decided) => (*decided, parts),
        None => match PendingCheck::new(RateLimitState::check_and_hold(Arc::clone(&shared), parts)).await {
            Ok((decided, parts)) => (decided, parts),
            Err(refused) => return AsyncOutcome::Refused(*refused),
        },
    };
    let Decided { mut decision, at, mut hold } = decided;
    if let (Verdict::Wait(wait), Some(wait_max)) = (decision.verdict(), shared.wait_max(&parts))
        && wait > wait_max
    {
        decision = decision.impatient(wait_max);
    }
    if !decision.is_allowed() {
        // Release before answering, so that the caller can retry immediately.
        drop(hold);
        return AsyncOutcome::Refused(shared.refuse(&parts, &decision, &shared.answer_context(&parts), at));
    }
    let (verdict, depth) = (decision.verdict(), depth(&decision));
    let mut admitted = Admitted::new(&shared, &parts, &mut Some(decision), at).unwrap_or_default();
    admitted.hold = hold.take();
    if let Verdict::Wait(wait) = verdict {
        shared.decide.began_waiting(wait);
        let _guard = WaitGuard(&*shared.decide);
        match admitted.hold.as_mut().and_then(|hold| hold.take_turn()) {
            Some(turn) => turn.await,
            None => shared.decide.sleep_until(at + wait).await,
        }
        if let Some(hold) = &mut admitted.hold {
            hold.go();
        }
        // The wait is shorter than announced if others have left the queue.
        let waited = wait.min(shared.decide.now().since(at));
        admitted.waited = Some((waited, depth));
        parts.extensions.insert(Waited(waited));
    }
    if let Some(hold) = &admitted.hold {
        hold.announce(&mut parts.extensions);
    }
    let served = inner.call(Request::from_parts(parts, body)).await;
    match served {
        Ok(response) => {
            let (head, body) = response.into_parts();
            if let Some(hold) = &mut admitted.hold {
                hold.settle_by_head(&head).await;
            }
            AsyncOutcome::Served(Ok(Response::from_parts(head, body)), admitted)
        }
        Err(error) => AsyncOutcome::Served(Err(error), admitted),
    }
}

/// Reports the end of a wait when it is dropped.
struct WaitGuard<'d, D: Decide>(&'d D);

impl<D: Decide> Drop for WaitGuard<'_, D> {
    fn drop(&mut self) {
        self.0.ended_waiting();
    }
}

impl<D: Decide> RateLimitState<D> {
    fn skips(&self, parts: &Parts) -> bool {
        self.settings.skipped.iter().any(|skips| skips(parts))
    }

    fn cost(&self, parts: &Parts) -> u64 {
        self.settings.cost.as_ref().map_or(1, |cost| cost(parts)).min(tollgate::request::COST_MAX)
    }

    fn attributes<'r>(&'r self, parts: &'r Parts) -> Result<Attributes<'r>, Unreadable> {
        let mut attributes = Attributes::default();
        self.read(parts, &mut attributes)?;
        Ok(attributes)
    }

    /// Reads the attributes in place.
    #[inline]
    fn read<'r>(&'r self, parts: &'r Parts, attributes: &mut Attributes<'r>) -> Result<(), Unreadable> {
        self.settings.reader.read_request(peer::of(&parts.extensions), parts, self.needs(), attributes)
    }

    /// The fast path.
    fn try_decide(shared: &Arc<Self>, parts: &Parts) -> FastPath<D> {
        if shared.settings.settling.is_any() {
            return FastPath::Unknown;
        }
        let at = shared.decide.now();
        let mut decided = None;
        match shared.with_request(parts, |request| shared.decide.try_check_into(request, at, &mut decided)) {
            Ok(()) => Self::judge(shared, parts, &mut decided, at),
            Err(refused) => FastPath::Refused(*refused),
        }
    }

    /// Turns a decision into the result of the fast path.
    fn judge(
        shared: &Arc<Self>,
        parts: &Parts,
        decided: &mut Option<Decision>,
        at: Timestamp,
    ) -> FastPath<D> {
        let Some(decision) = decided else { return FastPath::Unknown };
        match decision.verdict() {
            Verdict::Allow => {
                let awaiting = shared.awaiting(parts, decision, at);
                let mut admitted = Admitted::new(shared, parts, decided, at);
                if let Some(awaiting) = awaiting {
                    let empty = || Box::new(Hold::empty(&shared.decide, &shared.settings.settling));
                    let hold = &mut admitted.get_or_insert_default().hold;
                    hold.get_or_insert_with(empty).await_its_end(awaiting);
                }
                FastPath::Admitted(admitted)
            }
            Verdict::Wait(_) => match decided.take() {
                Some(decision) => FastPath::Waits(Box::new(Decided::new(shared, parts, decision, None, at))),
                None => FastPath::Unknown,
            },
            Verdict::Deny { .. } | Verdict::Never | Verdict::Forbidden => {
                FastPath::Refused(shared.refuse(parts, decision, &shared.answer_context(parts), at))
            }
        }
    }

    /// Builds the check request and calls a closure with it. Returns a refusal if the request cannot be read.
    fn with_request<T>(
        &self,
        parts: &Parts,
        ask: impl FnOnce(&CheckRequest<'_>) -> T,
    ) -> Result<T, Box<Response<Bytes>>> {
        let refused = |problem: &str| Box::new(refusal::unreadable(problem, Protocol::of(&parts.headers)));
        let mut attributes = Attributes::default();
        self.read(parts, &mut attributes).map_err(|problem| refused(&problem.0))?;
        let mut request = CheckRequest::new();
        let built = attributes.write_to(&mut request).and_then(|()| request.set_cost(self.cost(parts)));
        built.map_err(|problem| refused(&problem.to_string()))?;
        Ok(ask(&request))
    }

    /// Decides, and holds the permit and the reservations of the decision.
    async fn check_and_hold(
        shared: Arc<Self>,
        parts: Parts,
    ) -> Result<(Decided<D>, Parts), Box<Response<Bytes>>> {
        let at = shared.decide.now();
        let (decision, reservation) = shared.check(&parts, at).await?;
        let decided = Decided::new(&shared, &parts, decision, reservation, at);
        Ok((decided, parts))
    }

    /// Decides, and reserves the cost if the response settles it.
    async fn check(
        &self,
        parts: &Parts,
        at: Timestamp,
    ) -> Result<(Decision, Option<Reservation>), Box<Response<Bytes>>> {
        let refused = |problem: &str| Box::new(refusal::unreadable(problem, Protocol::of(&parts.headers)));
        let attributes = self.attributes(parts).map_err(|problem| refused(&problem.0))?;
        let request = attributes.request().and_then(|request| request.cost(self.cost(parts)));
        let request = request.map_err(|problem| refused(&problem.to_string()))?;
        // A request that cannot wait must not take a queue slot to find out.
        if let Some(wait_max) = self.wait_max(parts)
            && self.decide.engine().shapes()
        {
            let foreseen = self.decide.engine().foresee(&request, at).await;
            if matches!(foreseen.verdict(), Verdict::Wait(wait) if wait > wait_max) {
                return Ok((foreseen.impatient(wait_max), None));
            }
        }
        if self.settings.settling.is_any() {
            return Ok(self.decide.reserve(&request, self.settings.settled_within, at).await);
        }
        Ok((self.decide.check(&request, at).await, None))
    }

    fn answer_context(&self, parts: &Parts) -> AnswerContext {
        AnswerContext::of(parts, self.settings.caller(parts), self.cost(parts))
    }

    /// The response to a refused request.
    fn refuse(
        &self,
        parts: &Parts,
        decision: &Decision,
        context: &AnswerContext,
        at: Timestamp,
    ) -> Response<Bytes> {
        let usual = refusal::response(decision, &self.settings.headers, context, self.decide.on_wall(at));
        let Some(refuse) = self.settings.refuse.as_ref().filter(|_| context.protocol == Protocol::Http)
        else {
            return usual;
        };
        let refused = Refused { request: parts, decision, status: usual.status() };
        let Some(mut response) = refuse(&refused) else { return usual };
        if response.status() == StatusCode::OK {
            *response.status_mut() = usual.status();
        }
        let at = self.decide.on_wall(at);
        let mut headers = Answer::headers_of(decision, &self.settings.headers, context.audience, at);
        refusal::add(response.headers_mut(), &mut headers);
        response
    }

    /// How long a request waits at most; `None` is unbounded.
    fn wait_max(&self, parts: &Parts) -> Option<Ticks> {
        // Only gRPC calls have a deadline. In other requests the header has no meaning.
        let own = grpc::timeout(&parts.headers).filter(|_| grpc::is_call(&parts.headers));
        [own, self.settings.wait_max].into_iter().flatten().min()
    }

    /// The reservation of a decision that makes a request wait, so that leaving the queue refunds it.
    fn set_aside(&self, parts: &Parts, decision: &Decision, at: Timestamp) -> Option<Reservation> {
        let attributes = self.attributes(parts).ok()?;
        let request = attributes.request().and_then(|request| request.cost(self.cost(parts))).ok()?;
        Some(self.decide.engine().set_aside(&request, decision, self.settings.settled_within, at))
    }

    /// The charge of a decision to limits that count only failures.
    fn awaiting(&self, parts: &Parts, decision: &Decision, at: Timestamp) -> Option<Reservation> {
        if !decision.awaits_its_end() {
            return None;
        }
        let attributes = self.attributes(parts).ok()?;
        let request = attributes.request().and_then(|request| request.cost(self.cost(parts))).ok()?;
        self.decide.engine().awaiting(&request, decision, self.settings.settled_within, at)
    }

    /// Refunds the charge of a request that was not served.
    fn refund(&self, parts: &Parts, decision: &Decision, at: Timestamp) {
        // A charge that the response settles was refunded with its head.
        if self.settings.settling.refunds_unserved
            && !self.settings.settling.is_any()
            && let Some(reservation) = self.set_aside(parts, decision, at)
        {
            hold::refund(&self.decide, reservation);
        }
    }
}

impl<D: Decide> Decided<D> {
    fn new(
        shared: &RateLimitState<D>,
        parts: &Parts,
        mut decision: Decision,
        reservation: Option<Reservation>,
        at: Timestamp,
    ) -> Self {
        let (permit, verdict) = (decision.take_permit(), decision.verdict());
        let awaiting = match (verdict, &reservation) {
            (Verdict::Allow, None) => shared.awaiting(parts, &decision, at),
            _ => None,
        };
        let mut hold =
            Hold::new(&shared.renewer, &shared.settings.settling, permit, reservation).map(Box::new);
        if let Verdict::Wait(_) = verdict {
            let empty = || Box::new(Hold::empty(&shared.decide, &shared.settings.settling));
            let hold = hold.get_or_insert_with(empty);
            hold.wait(|| shared.set_aside(parts, &decision, at));
        }
        if let Some(awaiting) = awaiting {
            let empty = || Box::new(Hold::empty(&shared.decide, &shared.settings.settling));
            hold.get_or_insert_with(empty).await_its_end(awaiting);
        }
        Self { decision, at, hold }
    }
}

impl<D: Decide> Admitted<D> {
    /// What is left to do with the response; `None` if that is nothing.
    fn new(
        shared: &Arc<RateLimitState<D>>,
        parts: &Parts,
        decided: &mut Option<Decision>,
        at: Timestamp,
    ) -> Option<Box<Self>> {
        let permit = decided.as_mut().and_then(Decision::take_permit);
        let hold = permit.and_then(|permit| {
            Hold::new(&shared.renewer, &shared.settings.settling, Some(permit), None).map(Box::new)
        });
        let caller = shared.settings.caller(parts);
        // A browser sends preflights on its own, so their responses show no quota.
        let shows_quota =
            shared.settings.headers.tells_allowed(caller) && !is_preflight(&parts.method, &parts.headers);
        let is_kept = shows_quota || shared.settings.settling.refunds_unserved;
        if !is_kept && hold.is_none() {
            return None;
        }
        let mut admitted = Box::<Self>::default();
        admitted.hold = hold;
        if is_kept {
            let audience = || Audience { caller, cost: Some(shared.cost(parts)), ..Audience::default() };
            let audience = shows_quota.then(audience);
            admitted.follow_up = Some(FollowUp { shared: Arc::clone(shared), audience, at });
            admitted.decision = decided.take();
        }
        Some(admitted)
    }

    /// Adds the headers to the response, and the hold to its body.
    pub(crate) fn finish<R>(&mut self, response: Response<R>) -> Response<Body<R>> {
        // A cached response would show an old quota.
        let is_cached = is_cached(&response);
        let (mut head, body) = response.into_parts();
        let unserved = head.extensions.remove::<Unserved>();
        if let Some(hold) = &mut self.hold {
            hold.report_by_head(&head, unserved.as_ref());
        }
        if let (Some(FollowUp { shared, audience, at }), Some(decision)) = (&self.follow_up, &self.decision) {
            // Nor an answer to a request whose charge is given back: the numbers would be those before that.
            let is_given_back = unserved.is_some() && shared.settings.settling.refunds_unserved;
            if let Some(audience) = audience.filter(|_| !is_cached && !is_given_back) {
                let wall = shared.decide.on_wall(*at);
                let mut list = Answer::headers_of(decision, &shared.settings.headers, audience, wall);
                refusal::add(&mut head.headers, &mut list);
            }
            if let Some(Unserved(parts)) = unserved {
                shared.refund(&parts, decision, *at);
            }
        }
        if let Some((waited, depth)) = self.waited {
            head.headers.insert(WAITED, HeaderValue::from(waited.ceil_millis()));
            head.headers.insert(DEPTH, HeaderValue::from(depth));
        }
        let hold = self.hold.take().filter(|hold| !hold.is_over());
        let hold = hold.map(|hold| hold as Box<dyn Finish>);
        Response::from_parts(head, Body::served(body, hold))
    }
}

impl<D: Decide> Default for Admitted<D> {
    fn default() -> Self {
        Self { follow_up: None, decision: None, waited: None, hold: None }
    }
}
