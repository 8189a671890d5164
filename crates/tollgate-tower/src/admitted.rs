//! An admitted request: what is left to do with its response.

use std::sync::Arc;

use http::Response;
use http::header::{AGE, HeaderName, HeaderValue};
use http::request::Parts;
use tollgate::{Answer, Audience, Decision, Ticks, Timestamp};

use crate::body::Body;
use crate::decide::Decide;
use crate::hold::{Finish, Hold};
use crate::refusal::{self, is_preflight};
use crate::settle::Unserved;
use crate::state::RateLimitState;

/// How long a request waited in the queue, in milliseconds.
const WAITED: HeaderName = HeaderName::from_static("tollgate-waited-ms");
/// Units in the queue when the request arrived, its own included.
const DEPTH: HeaderName = HeaderName::from_static("tollgate-queue-depth");

/// The remaining work on the response of an admitted request.
pub(crate) struct Admitted<D: Decide> {
    follow_up: Option<FollowUp<D>>,
    /// The decision, if there is a follow-up.
    decision: Option<Decision>,
    pub(crate) waited: Option<(Ticks, u64)>,
    pub(crate) hold: Option<Box<Hold<D>>>,
}

/// How the response uses the decision: for headers, or for a refund if the request was not served.
struct FollowUp<D> {
    shared: Arc<RateLimitState<D>>,
    /// The audience of the headers; `None` writes none.
    audience: Option<Audience>,
    at: Timestamp,
}

impl<D: Decide> Admitted<D> {
    /// The remaining work on the response, if there is any.
    pub(crate) fn new(
        shared: &Arc<RateLimitState<D>>,
        parts: &Parts,
        mut decision: Decision,
        at: Timestamp,
    ) -> Option<Box<Self>> {
        let hold = decision.take_permit().and_then(|permit| {
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
            admitted.decision = Some(decision);
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
            hold.report_by_head(&head, unserved);
        }
        if let (Some(FollowUp { shared, audience, at }), Some(decision)) = (&self.follow_up, &self.decision) {
            // Nor an answer to a request whose charge is given back: the numbers would be those before that.
            let is_given_back = unserved.is_some() && shared.settings.settling.refunds_unserved;
            if let Some(audience) = audience.filter(|_| !is_cached && !is_given_back) {
                let wall = shared.decide.on_wall(*at);
                let mut list = Answer::headers_of(decision, &shared.settings.headers, audience, wall);
                refusal::add(&mut head.headers, &mut list);
            }
            if unserved.is_some() {
                shared.refund(decision, *at);
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

/// Whether a response comes from a cache or may be cached. It shows no quota.
fn is_cached<B>(response: &Response<B>) -> bool {
    response.status().is_redirection() || response.headers().contains_key(AGE)
}
