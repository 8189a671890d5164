//! The service: one request from its head to its response.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use tollgate::{Decision, Reservation, Ticks, Timestamp, Verdict};
use tower_service::Service;

use crate::admitted::Admitted;
use crate::body::Body;
use crate::decide::Decide;
use crate::future::{Late, ResponseFuture};
use crate::hold::{Asking, Hold};
use crate::shared::Shared;

/// In the extensions of a request that reaches a service after a wait: how long it waited for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited(pub Ticks);

/// A service behind limits.
pub struct RateLimit<I, D> {
    inner: I,
    shared: Arc<Shared<D>>,
}

impl<I, D: Decide> RateLimit<I, D> {
    pub(crate) fn new(inner: I, shared: Arc<Shared<D>>) -> Self {
        Self { inner, shared }
    }
}

impl<I: Clone, D> Clone for RateLimit<I, D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

/// A decision, and all that it took. Whoever drops it, on whatever way, gives that back.
struct Taken<D: Decide> {
    decision: Decision,
    at: Timestamp,
    hold: Option<Box<Hold<D>>>,
}

/// What is known of a request without waiting for anybody.
enum Looked<D: Decide> {
    /// It passes; none if its response is not touched.
    Admitted(Option<Box<Admitted<D>>>),
    Refused(Response<Bytes>),
    /// It passes, after its turn has come.
    Waits(Box<Taken<D>>),
    /// Only the store knows, or the request is to be settled when it is over.
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
        let looked = look(&self.shared, &parts);
        let decided = match looked {
            Looked::Admitted(admitted) => {
                if let Some(hold) = admitted.as_ref().and_then(|admitted| admitted.hold.as_ref()) {
                    hold.tell(&mut parts.extensions);
                }
                let served = self.inner.call(Request::from_parts(parts, body));
                return ResponseFuture::admitted(served, admitted);
            }
            Looked::Refused(response) => return ResponseFuture::refused(response),
            Looked::Waits(taken) => Some(taken),
            Looked::Unknown => None,
        };
        // The one that was told to be ready serves; its copy gets ready for the next.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        ResponseFuture::late(later(Arc::clone(&self.shared), inner, (parts, body), decided))
    }
}

/// How many units stand in the line that a request is told to wait in, with its own; of several, in the longest.
fn depth(decision: &Decision) -> u64 {
    let waits = decision.limits().filter(|status| matches!(status.outcome.verdict, Verdict::Wait(_)));
    waits.map(|status| status.outcome.limit.saturating_sub(status.outcome.remaining)).max().unwrap_or(0)
}

/// A request that somebody has to be waited for.
async fn later<I, D, B, R>(
    shared: Arc<Shared<D>>,
    mut inner: I,
    (parts, body): (Parts, B),
    decided: Option<Box<Taken<D>>>,
) -> Late<Result<Response<R>, I::Error>, D>
where
    I: Service<Request<B>, Response = Response<R>>,
    D: Decide,
{
    let (taken, mut parts) = match decided {
        Some(taken) => (*taken, parts),
        None => match Asking::new(ask(Arc::clone(&shared), parts)).await {
            Ok((taken, parts)) => (taken, parts),
            Err(refused) => return Late::Refused(*refused),
        },
    };
    let Taken { mut decision, at, mut hold } = taken;
    if let (Verdict::Wait(wait), Some(patience)) = (decision.verdict(), shared.patience(&parts))
        && wait > patience
    {
        decision = decision.impatient(patience);
    }
    if !decision.is_allowed() {
        // Before anybody is told: nothing of what was taken for it stays taken.
        drop(hold);
        return Late::Refused(shared.refuse(&parts, &decision, &shared.reading(&parts), at));
    }
    let (verdict, depth) = (decision.verdict(), depth(&decision));
    let mut admitted = Admitted::new(&shared, &parts, &mut Some(decision), at).unwrap_or_default();
    admitted.hold = hold.take();
    if let Verdict::Wait(wait) = verdict {
        shared.decide.began_waiting(wait);
        let _waiting = Waiting(&*shared.decide);
        match admitted.hold.as_mut().and_then(|hold| hold.take_turn()) {
            Some(turn) => turn.await,
            None => shared.decide.sleep_until(at + wait).await,
        }
        if let Some(hold) = &mut admitted.hold {
            hold.go();
        }
        // Less than it was told, if others have left the line.
        let waited = wait.min(shared.decide.now().since(at));
        admitted.waited = Some((waited, depth));
        parts.extensions.insert(Waited(waited));
    }
    if let Some(hold) = &admitted.hold {
        hold.tell(&mut parts.extensions);
    }
    let served = inner.call(Request::from_parts(parts, body)).await;
    match served {
        Ok(response) => {
            let (head, body) = response.into_parts();
            if let Some(hold) = &mut admitted.hold {
                hold.settle_by_head(&head).await;
            }
            Late::Served(Ok(Response::from_parts(head, body)), admitted)
        }
        Err(error) => Late::Served(Err(error), admitted),
    }
}

/// Somebody who waits.
struct Waiting<'d, D: Decide>(&'d D);

impl<D: Decide> Drop for Waiting<'_, D> {
    fn drop(&mut self) {
        self.0.ended_waiting();
    }
}

/// What can be said without waiting.
fn look<D: Decide>(shared: &Arc<Shared<D>>, parts: &Parts) -> Looked<D> {
    if shared.settings.settling.is_any() {
        return Looked::Unknown;
    }
    let at = shared.decide.now();
    let mut decided = None;
    match shared.question(parts, |request| shared.decide.decide_at_once(request, at, &mut decided)) {
        Ok(()) => judge(shared, parts, &mut decided, at),
        Err(refused) => Looked::Refused(*refused),
    }
}

/// What follows from a decision, if there is one.
fn judge<D: Decide>(
    shared: &Arc<Shared<D>>,
    parts: &Parts,
    decided: &mut Option<Decision>,
    at: Timestamp,
) -> Looked<D> {
    let Some(decision) = decided else { return Looked::Unknown };
    match decision.verdict() {
        Verdict::Allow => {
            let awaiting = shared.awaiting(parts, decision, at);
            let mut admitted = Admitted::new(shared, parts, decided, at);
            if let Some(awaiting) = awaiting {
                let empty = || Box::new(Hold::empty(&shared.decide, &shared.settings.settling));
                let hold = &mut admitted.get_or_insert_default().hold;
                hold.get_or_insert_with(empty).await_its_end(awaiting);
            }
            Looked::Admitted(admitted)
        }
        Verdict::Wait(_) => match decided.take() {
            Some(decision) => Looked::Waits(Box::new(Taken::new(shared, parts, decision, None, at))),
            None => Looked::Unknown,
        },
        Verdict::Deny { .. } | Verdict::Never | Verdict::Forbidden => {
            Looked::Refused(shared.refuse(parts, decision, &shared.reading(parts), at))
        }
    }
}

/// Decides, and takes care of what that takes.
async fn ask<D: Decide>(
    shared: Arc<Shared<D>>,
    parts: Parts,
) -> Result<(Taken<D>, Parts), Box<Response<Bytes>>> {
    let at = shared.decide.now();
    let (decision, reservation) = shared.decided(&parts, at).await?;
    let taken = Taken::new(&shared, &parts, decision, reservation, at);
    Ok((taken, parts))
}

impl<D: Decide> Taken<D> {
    fn new(
        shared: &Shared<D>,
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
            Hold::new(&shared.keeper, &shared.settings.settling, permit, reservation).map(Box::new);
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
