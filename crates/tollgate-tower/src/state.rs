//! State that all services of a layer share: the settings, the decider and the renewal of permits. It reads and checks
//! requests and writes refusals; the path of a request is in `service`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use tollgate::engine::Prepared;
use tollgate::headers::{Caller, Exposure, HeaderPolicy};
use tollgate::{Answer, CheckRequest, Decision, Reservation, Ticks, Timestamp, Verdict};

use crate::attributes::address::Trusted;
use crate::attributes::needs::BITS;
use crate::attributes::{Attributes, Needs, Reader, Unreadable};
use crate::decide::Decide;
use crate::grpc::{self, Protocol};
use crate::permits::PermitRenewer;
use crate::refusal::{self, AnswerContext};
use crate::settle::Settling;
use crate::{hold, peer};

/// How long a request may take if its cost is settled at its end.
const SETTLED_WITHIN: Ticks = Ticks::from_secs(600);

type RequestTest = dyn Fn(&Parts) -> bool + Send + Sync;
type RequestCost = dyn Fn(&Parts) -> u64 + Send + Sync;
type RefusalWriter = dyn Fn(&Refused<'_>) -> Option<Response<Bytes>> + Send + Sync;

/// A refused request.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    /// The request, without its body.
    pub request: &'a Parts,
    /// The decision: which limit refuses it, and when to retry.
    pub decision: &'a Decision,
    /// The status that is sent if the response does not set another one.
    pub status: StatusCode,
}

/// How requests are read and answered.
#[derive(Clone)]
pub(crate) struct RateLimitSettings {
    pub(crate) reader: Reader,
    pub(crate) skipped: Vec<Arc<RequestTest>>,
    pub(crate) cost: Option<Arc<RequestCost>>,
    pub(crate) settling: Settling,
    pub(crate) settled_within: Ticks,
    pub(crate) wait_max: Option<Ticks>,
    pub(crate) headers: HeaderPolicy,
    pub(crate) authenticated: Option<Arc<RequestTest>>,
    pub(crate) refuse: Option<Arc<RefusalWriter>>,
}

impl Default for RateLimitSettings {
    fn default() -> Self {
        Self {
            // By default no proxy is trusted.
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

impl RateLimitSettings {
    /// Whether the caller is authenticated. If anonymous callers see everything, the test is not run.
    pub(crate) fn caller(&self, parts: &Parts) -> Caller {
        match &self.authenticated {
            _ if self.headers.anonymous == Exposure::Full => Caller::Anonymous,
            Some(is_authenticated) if is_authenticated(parts) => Caller::Authenticated,
            _ => Caller::Anonymous,
        }
    }
}

/// The state that all services of a layer share.
pub(crate) struct RateLimitState<D> {
    pub(crate) decide: Arc<D>,
    pub(crate) renewer: Arc<PermitRenewer<D>>,
    pub(crate) settings: RateLimitSettings,
    /// Which attributes are needed, in the lower bits, and since which change of the decider, in the others.
    needed: AtomicU64,
}

impl<D: Decide> RateLimitState<D> {
    pub(crate) fn new(decide: Arc<D>, settings: RateLimitSettings) -> Self {
        let renewer = Arc::new(PermitRenewer::new(Arc::clone(&decide)));
        Self { decide, renewer, settings, needed: AtomicU64::new(u64::MAX) }
    }

    /// The attributes that decisions depend on.
    #[inline]
    fn needs(&self) -> Needs {
        let Some(changes) = self.decide.changes() else { return Needs::ALL };
        // Relaxed is enough: one number holds both parts, and an old number only repeats the lookup.
        let cached = self.needed.load(Ordering::Relaxed);
        if cached >> BITS == changes & (u64::MAX >> BITS) {
            return Needs::from_bits(cached);
        }
        let needs = Needs::of(&self.settings.reader, |name| self.decide.engine().maintenance().uses(name));
        self.needed.store(changes << BITS | needs.bits(), Ordering::Relaxed);
        needs
    }

    pub(crate) fn skips(&self, parts: &Parts) -> bool {
        self.settings.skipped.iter().any(|skips| skips(parts))
    }

    pub(crate) fn cost(&self, parts: &Parts) -> u64 {
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

    /// Builds the check request and calls a closure with it. Returns a refusal if the request cannot be read.
    pub(crate) fn with_request<T>(
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

    /// Decides, and reserves the cost if the response settles it. `prepared` is the request, if the fast path has
    /// prepared it.
    pub(crate) async fn check(
        &self,
        parts: &Parts,
        prepared: Option<Prepared>,
        at: Timestamp,
    ) -> Result<(Decision, Option<Reservation>), Box<Response<Bytes>>> {
        let refused = |problem: &str| Box::new(refusal::unreadable(problem, Protocol::of(&parts.headers)));
        let attributes = self.attributes(parts).map_err(|problem| refused(&problem.0))?;
        let request = attributes.request().and_then(|request| request.cost(self.cost(parts)));
        let request = request.map_err(|problem| refused(&problem.to_string()))?;
        // A request that cannot wait must not take a queue slot to find out.
        if let Some(wait_max) = self.wait_max(parts)
            && self.decide.engine().policy().shapes()
        {
            let foreseen = self.decide.engine().reservations().forecast(&request, at).await;
            if matches!(foreseen.verdict(), Verdict::Wait(wait) if wait > wait_max) {
                return Ok((foreseen.impatient(wait_max), None));
            }
        }
        match prepared {
            Some(prepared) => Ok((self.decide.check_prepared(prepared, &request, at).await, None)),
            None => Ok(self.decide.reserve(&request, self.settings.settled_within, at).await),
        }
    }

    pub(crate) fn answer_context(&self, parts: &Parts) -> AnswerContext {
        AnswerContext::of(parts, self.settings.caller(parts), self.cost(parts))
    }

    /// The response to a refused request.
    pub(crate) fn refuse(
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
    pub(crate) fn wait_max(&self, parts: &Parts) -> Option<Ticks> {
        // Only gRPC calls have a deadline. In other requests the header has no meaning.
        let own = grpc::timeout(&parts.headers).filter(|_| grpc::is_call(&parts.headers));
        [own, self.settings.wait_max].into_iter().flatten().min()
    }

    /// The reservation of a decision, so that leaving the queue refunds it.
    pub(crate) fn set_aside(&self, decision: &Decision, at: Timestamp) -> Reservation {
        self.decide.engine().reservations().of_decision(decision, self.settings.settled_within, at)
    }

    /// The charge of a decision to limits that count only failures.
    pub(crate) fn awaiting(&self, decision: &Decision, at: Timestamp) -> Option<Reservation> {
        self.decide.engine().reservations().awaiting(decision, self.settings.settled_within, at)
    }

    /// Refunds the charge of a request that was not served.
    pub(crate) fn refund(&self, decision: &Decision, at: Timestamp) {
        // A charge that the response settles was refunded with its head.
        if self.settings.settling.refunds_unserved && !self.settings.settling.is_any() {
            hold::refund(&self.decide, self.set_aside(decision, at));
        }
    }
}
