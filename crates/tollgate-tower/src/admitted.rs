//! A request that passes, and what is done with its response.

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
use crate::shared::Shared;

/// How long a request waited for its turn, in milliseconds.
const WAITED: HeaderName = HeaderName::from_static("tollgate-waited-ms");
/// How many units stood in the line when it came, with its own.
const DEPTH: HeaderName = HeaderName::from_static("tollgate-queue-depth");

/// A request that passes, and what is to be done with its response.
pub(crate) struct Admitted<D: Decide> {
    /// What its caller gets to see, or gets back; none if that is nothing.
    told: Option<Told<D>>,
    /// The decision that is told of.
    decision: Option<Decision>,
    /// How long it waited for its turn, and how many units stood in the line when it came.
    pub(crate) waited: Option<(Ticks, u64)>,
    pub(crate) hold: Option<Box<Hold<D>>>,
}

/// What is to be done with the decision that let a request pass.
struct Told<D> {
    shared: Arc<Shared<D>>,
    /// Who gets to see it; none if nobody does.
    audience: Option<Audience>,
    at: Timestamp,
}

impl<D: Decide> Admitted<D> {
    /// What is to be done with the response; none if that is nothing.
    pub(crate) fn new(
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

/// Whether a cache may keep a response, which then says nothing about quotas.
fn is_cached<B>(response: &Response<B>) -> bool {
    response.status().is_redirection() || response.headers().contains_key(AGE)
}
