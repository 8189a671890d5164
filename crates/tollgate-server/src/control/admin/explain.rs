//! `get` and `explain`: what would be decided about the attributes that an operator names, and why.

use tollgate_tower::attributes::Spelled;

use super::act::{Act, AdminAnswer};
use super::attribute_checks;
use super::view::{AsGivenView, Depth, ExplainedRequest, ExplanationView, LastDeniedView};
use crate::identity::{AttributeOrigin, Identified};
use crate::problem::Problem;
use crate::readiness::PolicyReport;
use crate::request_json::JsonRequest;
use crate::service::Service;
use crate::service::throttle::{self, ThrottledKey};

/// An attribute as it was given.
type GivenPair<'a> = (&'a str, tollgate::Value<'a>);

pub(super) async fn explain(act: &Act<'_>, body: &[u8], depth: Depth) -> Result<AdminAnswer, Problem> {
    let question = JsonRequest::check(body)?;
    let given = question.given();
    attribute_checks::spelled_rightly(act.service(), &given)?;
    let known = question.known(&act.service().identity);
    let request = question.request_of(&known)?;
    attribute_checks::single(act.service(), &request)?;
    // Attributes that a gateway derives itself, such as the template of the path.
    let derived = act.service().reader.derived(&given);
    let (complete, complete_known) = completed(act.service(), &given, &derived);
    let complete = question.priced(complete_known.request(complete.iter().copied())?)?;
    let spelled = Spelled::by(&act.service().reader, &complete);
    let read = match spelled.request(&complete)? {
        None if !derived.is_empty() => Some(Spelled::as_given(&complete)?),
        read => read,
    };
    let operator = act.service().engine.operator();
    let as_given = operator.explain(&request, act.now).await;
    let as_read = match &read {
        Some(read) => Some(operator.explain(read, act.now).await),
        None => None,
    };
    let throttled = throttle::state(act.service(), &request, act.now);
    let mut view = ExplanationView::new(as_read.as_ref().unwrap_or(&as_given), depth, &throttled, act.wall);
    view.policy = Some(act.policy_report()).filter(PolicyReport::has_error);
    view.is_stranger = known.is_stranger();
    view.digests = attribute_checks::digests(act.service(), &given, &request);
    view.doubt = attribute_checks::doubt(act.service(), &given);
    let given = ExplainedRequest { request: &request, explanation: &as_given };
    match read.as_ref().zip(as_read.as_ref()) {
        Some((read, explanation)) => {
            let read = ExplainedRequest { request: read, explanation };
            supplement(act, &mut view, &read, &throttled);
            view.as_given = AsGivenView::beside(&read, &given, &act.service().engine.policy());
        }
        None => supplement(act, &mut view, &given, &throttled),
    }
    AdminAnswer::json(&view)
}

/// The attributes with those derived from them, and the caller that they identify.
pub(super) fn completed<'a>(
    service: &Service,
    given: &[GivenPair<'a>],
    derived: &'a [(&'a str, String)],
) -> (Vec<GivenPair<'a>>, Identified) {
    let derived = derived.iter().map(|(name, value)| (*name, value.into()));
    let complete: Vec<GivenPair<'a>> = given.iter().copied().chain(derived).collect();
    let known = service.identity.identify(complete.iter().copied(), AttributeOrigin::Trusted);
    (complete, known)
}

/// Adds to an explanation which limits may apply with further attributes, and the latest denials.
fn supplement<'a>(
    act: &Act<'_>,
    view: &mut ExplanationView<'a>,
    asked: &ExplainedRequest<'a, '_>,
    throttled: &ThrottledKey,
) {
    let (meter, policy) = (&act.service().meter, act.service().engine.policy());
    // No limit of the policy applies to a call that carries its limit.
    if !throttled.is_call {
        view.doubt_missing(asked, &policy);
    }
    let last = |name: &str| {
        let limit = policy.limits().iter().find(|limit| limit.name() == name)?;
        let last = meter.last_denial(limit, asked.request, act.now)?;
        Some(LastDeniedView::new(last, meter.top_since(act.now), act.now, act.wall))
    };
    view.remember(last, meter.denials_forgotten_until().map(|at| act.shown(at)));
}
