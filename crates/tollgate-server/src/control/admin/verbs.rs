//! Executes each verb. Every change is audited, and so is every attempt that the role did not permit.

use std::collections::HashMap;

use hyper::Request;
use hyper::body::Incoming;
use tollgate::ExpiringOverride;
use tollgate::policy::Limit;

use super::act::{Act, AdminAnswer, body};
use super::form::{self, Query};
use super::guard::Sender;
use super::past_hour::LAST_MAX;
use super::reply::AdminClient;
use super::route::Verb;
use super::token::TokenHolder;
use super::view::{Depth, LimitFooting, LimitsView};
use super::web_console::{self, FormFields};
use super::wording::not_with_a_body;
use super::{
    attribute_checks, counters, diff, fleet, outbound, overload, overrides, past_hour, reload, sharing,
};
use crate::control::ControlPlane;
use crate::problem::{AdminProblem, Problem};

/// Executes an operator's request.
///
/// # Errors
/// When the operator may not do it, or it cannot be done. The message says what would be accepted.
pub(super) async fn operate(
    control: &ControlPlane,
    sender: &Sender<'_>,
    request: Request<Incoming>,
    asker: AdminClient,
) -> Result<AdminAnswer, Problem> {
    let verb = Verb::of(request.method(), request.uri().path())?;
    let act = Act::begin(control, sender.who, verb)?;
    if sender.question.is_some() && !verb.is_for_nodes() {
        let detail = format!("nodes ask each other for views, and {} is none", verb.name());
        return Err(Problem::of_admin(AdminProblem::NotAllowed, detail));
    }
    match verb {
        Verb::Limits => limits(&act),
        Verb::Get | Verb::Explain | Verb::Top | Verb::Tail | Verb::Audit => {
            fleet::view(&act, sender, request, asker).await
        }
        Verb::Fleet => AdminAnswer::json(&control.fleet.roster().await),
        Verb::Outbound => outbound::list(&act),
        Verb::Diff => diff::diff(&act, sender, request).await,
        Verb::Numbers => web_console::own_numbers(control),
        Verb::History => {
            let fields = FormFields::read(request.uri().query().unwrap_or_default().as_bytes())?;
            AdminAnswer::json(&web_console::history(control, fields.get("limit"))?)
        }
        Verb::Requests => {
            let last = Query::read(request.uri().query(), &["last"])?.last()?;
            past_hour::kept(&act, last.unwrap_or(LAST_MAX)).await
        }
        Verb::Compared(id) => diff::standing(act.service().comparison.standing(id, act.now)),
        Verb::Stop(id) => {
            act.audit(&id.to_string(), "stopped");
            diff::standing(act.service().comparison.stop(id, act.now))
        }
        _ => carry_out(&act, &body(request).await?).await,
    }
}

/// Executes a verb whose body is a JSON document, for an operator who was admitted.
///
/// # Errors
/// As [`operate`].
pub(super) async fn perform(
    control: &ControlPlane,
    who: &TokenHolder,
    verb: Verb,
    body: &[u8],
) -> Result<AdminAnswer, Problem> {
    let act = Act::begin(control, who, verb)?;
    carry_out(&act, body).await
}

async fn carry_out(act: &Act<'_>, body: &[u8]) -> Result<AdminAnswer, Problem> {
    match act.verb {
        Verb::Get => counters::explain(act, body, Depth::State).await,
        Verb::Explain => counters::explain(act, body, Depth::Reasons).await,
        Verb::Reset => counters::reset(act, form::read(body)?).await,
        Verb::Block | Verb::Unblock | Verb::Kill | Verb::Shadow | Verb::Percent | Verb::Restore => {
            sharing::changed(act.control, || change(act, body)).await
        }
        Verb::Thaw => outbound::thaw(act, &form::read(body)?),
        Verb::Reload => reload::reload(act, &form::read(body)?).await,
        Verb::Limits | Verb::Top | Verb::Tail | Verb::Audit | Verb::Fleet => Err(not_with_a_body(act.verb)),
        Verb::Outbound => Err(not_with_a_body(act.verb)),
        Verb::Diff | Verb::Requests | Verb::Numbers | Verb::History => Err(not_with_a_body(act.verb)),
        Verb::Compared(_) | Verb::Stop(_) => Err(not_with_a_body(act.verb)),
    }
}

/// Changes the operator state of this node.
fn change(act: &Act<'_>, body: &[u8]) -> Result<AdminAnswer, Problem> {
    match act.verb {
        Verb::Block => overrides::block(act, &form::read(body)?),
        Verb::Unblock => overrides::unblock(act, &form::read(body)?),
        Verb::Restore => overrides::restore(act, &form::read(body)?),
        _ => overrides::rule(act, &form::read(body)?),
    }
}

fn limits(act: &Act<'_>) -> Result<AdminAnswer, Problem> {
    let service = act.service();
    let (policy, operator) = (service.engine.policy(), service.engine.operator());
    let (overrides, blocks) = (operator.overrides(act.now), operator.blocks(act.now));
    let (all, single) = overrides.list();
    let single: HashMap<String, ExpiringOverride> = single.into_iter().collect();
    let holding = |limit: &Limit| LimitFooting {
        footing: overrides.mode_of(limit),
        own_override: single.get(limit.name()).copied(),
        effective_override: overrides.of(limit),
        applied: service.meter.has_applied(limit),
    };
    let mut view = LimitsView::new(
        (&policy, attribute_checks::known_attributes(service)),
        act.policy_report(),
        all,
        holding,
        &blocks,
        act.wall,
    );
    view.overload = overload::shown(act);
    match service.compat() {
        // In that case the engine's own policy is only a guard, so it is not shown.
        Some(compat) => AdminAnswer::json(&view.of_compat(&compat.rules)),
        None => AdminAnswer::json(&view),
    }
}
