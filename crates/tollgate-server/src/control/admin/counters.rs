//! `get` and `explain`: what would be decided about the attributes that an operator names, and why. `reset`: clears the
//! counters of such attributes.

use serde_json::json;
use tollgate::engine::Forgotten;
use tollgate_tower::attributes::Spelled;

use super::act::{Act, AdminAnswer};
use super::form::ResetForm;
use super::view::{AsGivenView, Depth, ExplainedRequest, ExplanationView, LastDeniedView};
use super::wording::{joined, not_counted, own_limits, unforgotten, unknown_limit};
use super::{attribute_checks, sharing};
use crate::identity::{AttributeOrigin, Identified};
use crate::problem::{Kind, Problem};
use crate::readiness::PolicyReport;
use crate::request_json::JsonRequest;
use crate::service::Service;
use crate::service::throttle::{self, ForgottenCalls, ThrottledKey};
use crate::text::counted;

/// An attribute as it was given.
type GivenPair<'a> = (&'a str, tollgate::Value<'a>);

/// Explains what would be decided: the attributes as they are given, and as a gateway would read them.
pub(super) async fn explain(act: &Act<'_>, body: &[u8], depth: Depth) -> Result<AdminAnswer, Problem> {
    let service = act.service();
    let question = JsonRequest::check(body)?;
    let given = question.given();
    attribute_checks::spelled_rightly(service, &given)?;
    let known = question.known(&service.identity);
    let request = question.request_of(&known)?;
    attribute_checks::single(service, &request)?;
    // Attributes that a gateway derives itself, such as the template of the path.
    let derived = service.reader.derived(&given);
    let (complete, complete_known) = completed(service, &given, &derived);
    let complete = question.priced(complete_known.request(complete.iter().copied())?)?;
    let spelled = Spelled::by(&service.reader, &complete);
    let read = match spelled.request(&complete)? {
        None if !derived.is_empty() => Some(Spelled::as_given(&complete)?),
        read => read,
    };
    let operator = service.engine.operator();
    let as_given = operator.explain(&request, act.now).await;
    let as_read = match &read {
        Some(read) => Some(operator.explain(read, act.now).await),
        None => None,
    };
    let throttled = throttle::state(service, &request, act.now);
    let mut view = ExplanationView::new(as_read.as_ref().unwrap_or(&as_given), depth, &throttled, act.wall);
    view.policy = Some(act.policy_report()).filter(PolicyReport::has_error);
    view.is_stranger = known.is_stranger();
    view.digests = attribute_checks::digests(service, &given, &request);
    let throttle_doubt = || attribute_checks::throttle_doubt(service, &given, &throttled);
    view.doubt = attribute_checks::doubt(service, &given).or_else(throttle_doubt);
    let given = ExplainedRequest { request: &request, explanation: &as_given };
    match read.as_ref().zip(as_read.as_ref()) {
        Some((read, explanation)) => {
            let read = ExplainedRequest { request: read, explanation };
            supplement(act, &mut view, &read, &throttled);
            view.as_given = AsGivenView::beside(&read, &given, &service.engine.policy());
        }
        None => supplement(act, &mut view, &given, &throttled),
    }
    AdminAnswer::json(&view)
}

/// The attributes with those derived from them, and the caller that they identify.
fn completed<'a>(
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

/// Resets the counters of one request, of all its limits or of some.
pub(super) async fn reset(act: &Act<'_>, form: ResetForm<'_>) -> Result<AdminAnswer, Problem> {
    let service = act.service();
    let given = form.attributes.given();
    attribute_checks::spelled_rightly(service, &given)?;
    let known = form.attributes.known(&service.identity);
    let request = form.attributes.request_of(&known)?;
    attribute_checks::single(service, &request)?;
    // Reset both forms: the attributes as a gateway spells and derives them, and as programs send them.
    let derived = service.reader.derived(&given);
    let (complete, complete_known) = completed(service, &given, &derived);
    let complete = complete_known.request(complete.iter().copied())?;
    let (spelled, as_given) = (Spelled::by(&service.reader, &complete), Spelled::default());
    let mut readings = spelled.readings(&complete)?;
    if !derived.is_empty() {
        readings = readings.and(as_given.readings(&request)?);
    }
    let policy = service.engine.policy();
    let is_known = |name: &&String| policy.limits().iter().any(|limit| limit.name() == name.as_str());
    if let Some(unknown) = form.limits.iter().find(|name| !is_known(name)) {
        return Err(unknown_limit(unknown, &policy));
    }
    let named: Vec<&str> = form.limits.iter().map(String::as_str).collect();
    let names = if named.is_empty() { own_limits(&policy, &readings) } else { named.clone() };
    let (mut forgotten, mut keys) = (Forgotten::default(), Vec::new());
    if !names.is_empty() {
        let operator = service.engine.operator();
        forgotten = operator.reset(&readings, &names, act.now).await.map_err(|failure| {
            act.audit(&joined(&request), &format!("failed: {failure}"));
            Problem::new(Kind::StoreUnavailable, unforgotten(failure))
        })?;
        keys = operator.reset_keys(&readings, &names, act.now);
    }
    let calls = if named.is_empty() {
        throttle::forget(service, &request, act.now)
    } else {
        ForgottenCalls::default()
    };
    if names.is_empty() {
        forgotten.untouched.extend(calls.untouched.iter().map(|command| (*command).to_owned()));
    }
    let counters = forgotten.counters.len() + calls.counters;
    let mut limits = forgotten.counters;
    limits.dedup();
    let mut answer = json!({ "counters": counters, "limits": limits, "untouched": forgotten.untouched });
    if let Some(doubt) = attribute_checks::doubt(service, &given) {
        answer["doubt"] = doubt.into();
    }
    if known.is_stranger() {
        answer["unknown_credential"] = true.into();
    }
    if !forgotten.shared.is_empty() {
        answer["shared"] = json!(forgotten.shared);
    }
    let not_counted = not_counted(&policy, &named, &readings);
    if !not_counted.is_empty() {
        answer["not_counted"] = json!(not_counted);
    }
    if counters > 0 || !names.is_empty() {
        let only = if named.is_empty() { String::new() } else { format!(" only {}", named.join(", ")) };
        let outcome = format!("{} reset", counted(counters, "counter"));
        act.audit(&format!("{}{only}", joined(&request)), &outcome);
    }
    sharing::announce_reset(&act.control.fleet, AdminAnswer::json(&answer)?, keys).await
}
