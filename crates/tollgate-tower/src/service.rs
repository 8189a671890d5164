//! The service: the path of one request from its head to its response.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use tollgate::engine::Prepared;
use tollgate::{Decision, Reservation, Ticks, Timestamp, Verdict};
use tower_service::Service;

use crate::admitted::Admitted;
use crate::body::Body;
use crate::decide::Decide;
use crate::future::{AsyncOutcome, ResponseFuture};
use crate::hold::{Hold, PendingCheck};
use crate::state::RateLimitState;

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
    /// The slow path must decide: it awaits the store for a prepared request, or reserves a cost to settle later.
    Unknown(Option<Prepared>),
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
        let fast_path = try_decide(&self.shared, &parts);
        let decided = match fast_path {
            FastPath::Admitted(admitted) => {
                if let Some(hold) = admitted.as_ref().and_then(|admitted| admitted.hold.as_ref()) {
                    hold.announce(&mut parts.extensions);
                }
                let served = self.inner.call(Request::from_parts(parts, body));
                return ResponseFuture::admitted(served, admitted);
            }
            FastPath::Refused(response) => return ResponseFuture::refused(response),
            FastPath::Waits(decided) => Ok(decided),
            FastPath::Unknown(prepared) => Err(prepared),
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
    decided: Result<Box<Decided<D>>, Option<Prepared>>,
) -> AsyncOutcome<Result<Response<R>, I::Error>, D>
where
    I: Service<Request<B>, Response = Response<R>>,
    D: Decide,
{
    let (decided, mut parts) = match decided {
        Ok(decided) => (*decided, parts),
        Err(prepared) => {
            match PendingCheck::new(check_and_hold(Arc::clone(&shared), parts, prepared)).await {
                Ok((decided, parts)) => (decided, parts),
                Err(refused) => return AsyncOutcome::Refused(*refused),
            }
        }
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
    let mut admitted = Admitted::new(&shared, &parts, decision, at).unwrap_or_default();
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

/// The fast path.
fn try_decide<D: Decide>(shared: &Arc<RateLimitState<D>>, parts: &Parts) -> FastPath<D> {
    if shared.settings.settling.is_any() {
        return FastPath::Unknown(None);
    }
    let at = shared.decide.now();
    match shared.with_request(parts, |request| shared.decide.try_check(request, at)) {
        Ok(Ok(decision)) => judge(shared, parts, decision, at),
        Ok(Err(prepared)) => FastPath::Unknown(Some(prepared)),
        Err(refused) => FastPath::Refused(*refused),
    }
}

/// Turns a decision into the result of the fast path.
fn judge<D: Decide>(
    shared: &Arc<RateLimitState<D>>,
    parts: &Parts,
    decision: Decision,
    at: Timestamp,
) -> FastPath<D> {
    match decision.verdict() {
        Verdict::Allow => {
            let awaiting = shared.awaiting(&decision, at);
            let mut admitted = Admitted::new(shared, parts, decision, at);
            if let Some(awaiting) = awaiting {
                let empty = || Box::new(Hold::empty(&shared.decide, &shared.settings.settling));
                let hold = &mut admitted.get_or_insert_default().hold;
                hold.get_or_insert_with(empty).await_its_end(awaiting);
            }
            FastPath::Admitted(admitted)
        }
        Verdict::Wait(_) => FastPath::Waits(Box::new(Decided::new(shared, decision, None, at))),
        Verdict::Deny { .. } | Verdict::Never | Verdict::Forbidden => {
            FastPath::Refused(shared.refuse(parts, &decision, &shared.answer_context(parts), at))
        }
    }
}

/// Decides, and holds the permit and the reservations of the decision.
async fn check_and_hold<D: Decide>(
    shared: Arc<RateLimitState<D>>,
    parts: Parts,
    prepared: Option<Prepared>,
) -> Result<(Decided<D>, Parts), Box<Response<Bytes>>> {
    let at = shared.decide.now();
    let (decision, reservation) = shared.check(&parts, prepared, at).await?;
    let decided = Decided::new(&shared, decision, reservation, at);
    Ok((decided, parts))
}

impl<D: Decide> Decided<D> {
    fn new(
        shared: &RateLimitState<D>,
        mut decision: Decision,
        reservation: Option<Reservation>,
        at: Timestamp,
    ) -> Self {
        let (permit, verdict) = (decision.take_permit(), decision.verdict());
        let awaiting = match (verdict, &reservation) {
            (Verdict::Allow, None) => shared.awaiting(&decision, at),
            _ => None,
        };
        let mut hold =
            Hold::new(&shared.renewer, &shared.settings.settling, permit, reservation).map(Box::new);
        if let Verdict::Wait(_) = verdict {
            let empty = || Box::new(Hold::empty(&shared.decide, &shared.settings.settling));
            let hold = hold.get_or_insert_with(empty);
            hold.wait(|| shared.set_aside(&decision, at));
        }
        if let Some(awaiting) = awaiting {
            let empty = || Box::new(Hold::empty(&shared.decide, &shared.settings.settling));
            hold.get_or_insert_with(empty).await_its_end(awaiting);
        }
        Self { decision, at, hold }
    }
}
