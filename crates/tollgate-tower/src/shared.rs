//! What all services of a layer share: how requests are read and answered, and who decides about them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use tollgate::headers::{Caller, Exposure, HeaderPolicy};
use tollgate::{Answer, CheckRequest, Decision, Reservation, Ticks, Timestamp, Verdict};

use crate::attributes::address::Trusted;
use crate::attributes::needs::BITS;
use crate::attributes::{Attributes, Needs, Reader, Unreadable};
use crate::decide::Decide;
use crate::keep::Keeper;
use crate::refusal::{self, Reading};
use crate::settle::Settling;
use crate::{grpc, hold, peer};

/// How long a request may take whose cost is settled when it is over.
const SETTLED_WITHIN: Ticks = Ticks::from_secs(600);

type Test = dyn Fn(&Parts) -> bool + Send + Sync;
type Cost = dyn Fn(&Parts) -> u64 + Send + Sync;
type Refuse = dyn Fn(&Refused<'_>) -> Option<Response<Bytes>> + Send + Sync;

/// A request that is refused.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    /// The request, without its body.
    pub request: &'a Parts,
    /// Why: which limit, and when to come back.
    pub decision: &'a Decision,
    /// The status that is sent unless the response says otherwise.
    pub status: StatusCode,
}

/// How requests are read and answered.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) reader: Reader,
    pub(crate) skipped: Vec<Arc<Test>>,
    pub(crate) cost: Option<Arc<Cost>>,
    pub(crate) settling: Settling,
    pub(crate) settled_within: Ticks,
    pub(crate) wait_max: Option<Ticks>,
    pub(crate) headers: HeaderPolicy,
    pub(crate) authenticated: Option<Arc<Test>>,
    pub(crate) refuse: Option<Arc<Refuse>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // Nobody's word is taken until somebody is named.
            reader: Reader { trusted: Trusted::new(Vec::new()), ..Reader::default() },
            skipped: Vec::new(),
            cost: None,
            settling: Settling::default(),
            settled_within: SETTLED_WITHIN,
            wait_max: None,
            headers: HeaderPolicy::default(),
            authenticated: None,
            refuse: None,
        }
    }
}

impl Settings {
    /// Whether the sender of a request has an identity, as far as anything depends on it.
    pub(crate) fn caller(&self, parts: &Parts) -> Caller {
        match &self.authenticated {
            _ if self.headers.anonymous == Exposure::Full => Caller::Anonymous,
            Some(is_authenticated) if is_authenticated(parts) => Caller::Authenticated,
            _ => Caller::Anonymous,
        }
    }
}

/// What all services of a layer share.
pub(crate) struct Shared<D> {
    pub(crate) decide: Arc<D>,
    pub(crate) keeper: Arc<Keeper<D>>,
    pub(crate) settings: Settings,
    /// Which attributes are needed, in the lower bits, and since which change of whoever decides.
    needed: AtomicU64,
}

impl<D: Decide> Shared<D> {
    pub(crate) fn new(decide: Arc<D>, settings: Settings) -> Self {
        let keeper = Arc::new(Keeper::new(Arc::clone(&decide)));
        Self { decide, keeper, settings, needed: AtomicU64::new(u64::MAX) }
    }

    /// Which attributes decisions depend on.
    #[inline]
    pub(crate) fn needs(&self) -> Needs {
        let Some(changes) = self.decide.changes() else { return Needs::ALL };
        // Relaxed: the number says all there is to know. One that is late is as if the request had come a moment earlier.
        let known = self.needed.load(Ordering::Relaxed);
        if known >> BITS == changes & (u64::MAX >> BITS) {
            return Needs::from_bits(known);
        }
        let needs = Needs::of(&self.settings.reader, |name| self.decide.engine().uses(name));
        self.needed.store(changes << BITS | needs.bits(), Ordering::Relaxed);
        needs
    }

    pub(crate) fn skips(&self, parts: &Parts) -> bool {
        self.settings.skipped.iter().any(|skips| skips(parts))
    }

    pub(crate) fn cost(&self, parts: &Parts) -> u64 {
        self.settings.cost.as_ref().map_or(1, |cost| cost(parts)).min(tollgate::COST_MAX)
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

    /// Asks something about a request that can be read.
    pub(crate) fn question<T>(
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

    /// Decides, and sets aside what is to be settled.
    pub(crate) async fn decided(
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

    pub(crate) fn reading(&self, parts: &Parts) -> Reading {
        Reading::of(parts, self.settings.caller(parts), self.cost(parts))
    }

    /// The response to a refused request.
    pub(crate) fn refuse(
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
    pub(crate) fn patience(&self, parts: &Parts) -> Option<Ticks> {
        // Only a gRPC call has a deadline of its own; whatever else has such a header means nothing by it.
        let own = grpc::timeout(&parts.headers).filter(|_| grpc::is_call(&parts.headers));
        [own, self.settings.wait_max].into_iter().flatten().min()
    }

    /// What a decision took that lets a request wait, so that it can step back from the line.
    pub(crate) fn set_aside(&self, parts: &Parts, decision: &Decision, at: Timestamp) -> Option<Reservation> {
        let attributes = self.attributes(parts).ok()?;
        let request = attributes.request().and_then(|request| request.cost(self.cost(parts))).ok()?;
        Some(self.decide.engine().set_aside(&request, decision, self.settings.settled_within, at))
    }

    /// What a decision took of limits that count only failures.
    pub(crate) fn awaiting(&self, parts: &Parts, decision: &Decision, at: Timestamp) -> Option<Reservation> {
        if !decision.awaits_its_end() {
            return None;
        }
        let attributes = self.attributes(parts).ok()?;
        let request = attributes.request().and_then(|request| request.cost(self.cost(parts))).ok()?;
        self.decide.engine().awaiting(&request, decision, self.settings.settled_within, at)
    }

    /// Gives back what a decision took of a request that was not served.
    pub(crate) fn give_back(&self, parts: &Parts, decision: &Decision, at: Timestamp) {
        // What is settled by its response was given back with the head of it.
        if self.settings.settling.refunds_unserved
            && !self.settings.settling.is_any()
            && let Some(reservation) = self.set_aside(parts, decision, at)
        {
            hold::give_back(&self.decide, reservation);
        }
    }
}
