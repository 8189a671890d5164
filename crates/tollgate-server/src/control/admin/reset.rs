//! `reset`: clears the counters of the attributes that an operator names, here and in the leases of the other nodes.

use serde_json::json;
use tollgate::engine::Forgotten;
use tollgate_tower::attributes::Spelled;

use super::act::{Act, AdminAnswer};
use super::explain::completed;
use super::form::ResetForm;
use super::wording::{joined, not_counted, own_limits, unforgotten, unknown_limit};
use super::{attribute_checks, sharing};
use crate::problem::{Kind, Problem};
use crate::service::throttle::{self, ForgottenCalls};
use crate::text::counted;

pub(super) async fn reset(act: &Act<'_>, form: ResetForm<'_>) -> Result<AdminAnswer, Problem> {
    let given = form.attributes.given();
    attribute_checks::spelled_rightly(act.service(), &given)?;
    let known = form.attributes.known(&act.service().identity);
    let request = form.attributes.request_of(&known)?;
    attribute_checks::single(act.service(), &request)?;
    // Reset both forms: the attributes as a gateway spells and derives them, and as programs send them.
    let derived = act.service().reader.derived(&given);
    let (complete, complete_known) = completed(act.service(), &given, &derived);
    let complete = complete_known.request(complete.iter().copied())?;
    let (spelled, as_given) = (Spelled::by(&act.service().reader, &complete), Spelled::default());
    let mut readings = spelled.readings(&complete)?;
    if !derived.is_empty() {
        readings = readings.and(as_given.readings(&request)?);
    }
    let policy = act.service().engine.policy();
    let is_known = |name: &&String| policy.limits().iter().any(|limit| limit.name() == name.as_str());
    if let Some(unknown) = form.limits.iter().find(|name| !is_known(name)) {
        return Err(unknown_limit(unknown, &policy));
    }
    let named: Vec<&str> = form.limits.iter().map(String::as_str).collect();
    let names = if named.is_empty() { own_limits(&policy, &readings) } else { named.clone() };
    let (mut forgotten, mut keys) = (Forgotten::default(), Vec::new());
    if !names.is_empty() {
        let operator = act.service().engine.operator();
        forgotten = operator.reset(&readings, &names, act.now).await.map_err(|failure| {
            act.audit(&joined(&request), &format!("failed: {failure}"));
            Problem::new(Kind::StoreUnavailable, unforgotten(failure))
        })?;
        keys = operator.reset_keys(&readings, &names, act.now);
    }
    let calls = if named.is_empty() {
        throttle::forget(act.service(), &request, act.now)
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
    if let Some(doubt) = attribute_checks::doubt(act.service(), &given) {
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
