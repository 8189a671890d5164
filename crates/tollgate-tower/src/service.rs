//! The service: one request from its head to its response.

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
use crate::future::{Late, ResponseFuture, is_cached};
use crate::hold::{Asking, Finish, Hold};
use crate::layer::{Refused, Shared};
use crate::refusal::{self, Reading, is_preflight};
use crate::settle::Unserved;
use crate::{grpc, hold, peer};

/// How long a request waited for its turn, in milliseconds.
const WAITED: HeaderName = HeaderName::from_static("tollgate-waited-ms");
/// How many units stood in the line when it came, with its own.
const DEPTH: HeaderName = HeaderName::from_static("tollgate-queue-depth");

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

/// A request that passes, and what is to be done with its response.
pub(crate) struct Admitted<D: Decide> {
    /// What its caller gets to see, or gets back; none if that is nothing.
    told: Option<Told<D>>,
    /// The decision that is told of.
    decision: Option<Decision>,
    waited: Option<(Ticks, u64)>,
    hold: Option<Box<Hold<D>>>,
}

/// What is to be done with the decision that let a request pass.
struct Told<D> {
    shared: Arc<Shared<D>>,
    /// Who gets to see it; none if nobody does.
    audience: Option<Audience>,
    at: Timestamp,
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
        let looked = Shared::look(&self.shared, &parts);
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
        None => match Asking::new(Shared::ask(Arc::clone(&shared), parts)).await {
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

impl<D: Decide> Shared<D> {
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

    /// The same, written where it is needed.
    #[inline]
    fn read<'r>(&'r self, parts: &'r Parts, attributes: &mut Attributes<'r>) -> Result<(), Unreadable> {
        self.settings.reader.tell_request(peer::of(&parts.extensions), parts, self.needs(), attributes)
    }

    /// What can be said without waiting.
    fn look(shared: &Arc<Self>, parts: &Parts) -> Looked<D> {
        if shared.settings.settling.is_any() {
            return Looked::Unknown;
        }
        let at = shared.decide.now();
        let mut decided = None;
        match shared.question(parts, |request| shared.decide.decide_at_once(request, at, &mut decided)) {
            Ok(()) => Self::judge(shared, parts, &mut decided, at),
            Err(refused) => Looked::Refused(*refused),
        }
    }

    /// What follows from a decision, if there is one.
    fn judge(shared: &Arc<Self>, parts: &Parts, decided: &mut Option<Decision>, at: Timestamp) -> Looked<D> {
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

    /// Asks something about a request that can be read.
    fn question<T>(
        &self,
        parts: &Parts,
        ask: impl FnOnce(&CheckRequest<'_>) -> T,
    ) -> Result<T, Box<Response<Bytes>>> {
        let refused = |problem: &str| Box::new(refusal::unreadable(problem, grpc::is_call(&parts.headers)));
        let mut attributes = Attributes::default();
        self.read(parts, &mut attributes).map_err(|problem| refused(&problem.0))?;
        let mut request = CheckRequest::new();
        let told = attributes.tell(&mut request).and_then(|()| request.set_cost(self.cost(parts)));
        told.map_err(|problem| refused(&problem.to_string()))?;
        Ok(ask(&request))
    }

    /// Decides, and takes care of what that takes.
    async fn ask(shared: Arc<Self>, parts: Parts) -> Result<(Taken<D>, Parts), Box<Response<Bytes>>> {
        let at = shared.decide.now();
        let (decision, reservation) = shared.decided(&parts, at).await?;
        let taken = Taken::new(&shared, &parts, decision, reservation, at);
        Ok((taken, parts))
    }

    /// Decides, and sets aside what is to be settled.
    async fn decided(
        &self,
        parts: &Parts,
        at: Timestamp,
    ) -> Result<(Decision, Option<Reservation>), Box<Response<Bytes>>> {
        let refused = |problem: &str| Box::new(refusal::unreadable(problem, grpc::is_call(&parts.headers)));
        let attributes = self.attributes(parts).map_err(|problem| refused(&problem.0))?;
        let request = attributes.request().and_then(|request| request.cost(self.cost(parts)));
        let request = request.map_err(|problem| refused(&problem.to_string()))?;
        // Who cannot wait for long must not take a place in line to find out.
        if let Some(patience) = self.patience(parts)
            && self.decide.engine().shapes()
        {
            let foreseen = self.decide.engine().foresee(&request, at).await;
            if matches!(foreseen.verdict(), Verdict::Wait(wait) if wait > patience) {
                return Ok((foreseen.impatient(patience), None));
            }
        }
        if self.settings.settling.is_any() {
            return Ok(self.decide.reserve(&request, self.settings.settled_within, at).await);
        }
        Ok((self.decide.check(&request, at).await, None))
    }

    fn reading(&self, parts: &Parts) -> Reading {
        Reading::of(parts, self.settings.caller(parts), self.cost(parts))
    }

    /// The response to a refused request.
    fn refuse(
        &self,
        parts: &Parts,
        decision: &Decision,
        reading: &Reading,
        at: Timestamp,
    ) -> Response<Bytes> {
        let usual = refusal::response(decision, &self.settings.headers, reading, self.decide.on_wall(at));
        let Some(refuse) = self.settings.refuse.as_ref().filter(|_| !reading.is_call) else { return usual };
        let refused = Refused { request: parts, decision, status: usual.status() };
        let Some(mut response) = refuse(&refused) else { return usual };
        if response.status() == StatusCode::OK {
            *response.status_mut() = usual.status();
        }
        let at = self.decide.on_wall(at);
        let mut headers = Answer::headers_of(decision, &self.settings.headers, reading.audience, at);
        refusal::add(response.headers_mut(), &mut headers);
        response
    }

    /// How long a request waits at most; none if it waits as long as the line is.
    fn patience(&self, parts: &Parts) -> Option<Ticks> {
        // Only a gRPC call has a deadline of its own; whatever else has such a header means nothing by it.
        let own = grpc::timeout(&parts.headers).filter(|_| grpc::is_call(&parts.headers));
        [own, self.settings.wait_max].into_iter().flatten().min()
    }

    /// What a decision took that lets a request wait, so that it can step back from the line.
    fn set_aside(&self, parts: &Parts, decision: &Decision, at: Timestamp) -> Option<Reservation> {
        let attributes = self.attributes(parts).ok()?;
        let request = attributes.request().and_then(|request| request.cost(self.cost(parts))).ok()?;
        Some(self.decide.engine().set_aside(&request, decision, self.settings.settled_within, at))
    }

    /// What a decision took of limits that count only failures.
    fn awaiting(&self, parts: &Parts, decision: &Decision, at: Timestamp) -> Option<Reservation> {
        if !decision.awaits_its_end() {
            return None;
        }
        let attributes = self.attributes(parts).ok()?;
        let request = attributes.request().and_then(|request| request.cost(self.cost(parts))).ok()?;
        self.decide.engine().awaiting(&request, decision, self.settings.settled_within, at)
    }

    /// Gives back what a decision took of a request that was not served.
    fn give_back(&self, parts: &Parts, decision: &Decision, at: Timestamp) {
        // What is settled by its response was given back with the head of it.
        if self.settings.settling.refunds_unserved
            && !self.settings.settling.is_any()
            && let Some(reservation) = self.set_aside(parts, decision, at)
        {
            hold::give_back(&self.decide, reservation);
        }
    }
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

impl<D: Decide> Admitted<D> {
    /// What is to be done with the response; none if that is nothing.
    fn new(
        shared: &Arc<Shared<D>>,
        parts: &Parts,
        decided: &mut Option<Decision>,
        at: Timestamp,
    ) -> Option<Box<Self>> {
        let permit = decided.as_mut().and_then(Decision::take_permit);
        let hold = permit.and_then(|permit| {
            Hold::new(&shared.keeper, &shared.settings.settling, Some(permit), None).map(Box::new)
        });
        let caller = shared.settings.caller(parts);
        // What a browser asks by itself says nothing about quotas.
        let is_told =
            shared.settings.headers.tells_allowed(caller) && !is_preflight(&parts.method, &parts.headers);
        let is_kept = is_told || shared.settings.settling.refunds_unserved;
        if !is_kept && hold.is_none() {
            return None;
        }
        let mut admitted = Box::<Self>::default();
        admitted.hold = hold;
        if is_kept {
            let audience = || Audience { caller, cost: Some(shared.cost(parts)), ..Audience::default() };
            let audience = is_told.then(audience);
            admitted.told = Some(Told { shared: Arc::clone(shared), audience, at });
            admitted.decision = decided.take();
        }
        Some(admitted)
    }

    /// The response with what its caller gets to see, and with what it holds until it is over.
    pub(crate) fn finish<R>(&mut self, response: Response<R>) -> Response<Body<R>> {
        // Neither does what a cache may keep.
        let is_cached = is_cached(&response);
        let (mut head, body) = response.into_parts();
        let unserved = head.extensions.remove::<Unserved>();
        if let Some(hold) = &mut self.hold {
            hold.report_by_head(&head, unserved.as_ref());
        }
        if let (Some(Told { shared, audience, at }), Some(decision)) = (&self.told, &self.decision) {
            if let Some(audience) = audience.filter(|_| !is_cached) {
                let wall = shared.decide.on_wall(*at);
                let mut list = Answer::headers_of(decision, &shared.settings.headers, audience, wall);
                refusal::add(&mut head.headers, &mut list);
            }
            if let Some(Unserved(parts)) = unserved {
                shared.give_back(&parts, decision, *at);
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
        Self { told: None, decision: None, waited: None, hold: None }
    }
}
