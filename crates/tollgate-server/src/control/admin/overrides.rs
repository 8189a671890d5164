//! Changes of an operator over the policy: blocks, and overrides of limits (`kill`, `shadow` and `percent`, and
//! `restore`, which ends them). Overrides of overload controllers are in `overload`.

use serde_json::json;
use tollgate::engine::{BlockError, OverrideError};
use tollgate::{ExpiringOverride, LimitOverride, Scope};

use super::act::{Act, AdminAnswer};
use super::attribute_checks;
use super::form::{BlockForm, KeyForm, OverrideEffect, OverrideForm};
use super::overload;
use super::route::Verb;
use super::token::Role;
use super::view::{BlockView, OtherView, OverrideView};
use super::wording::{joined, remarked, texts, unknown_credential, unknown_limit};
use crate::problem::{AdminProblem, Problem};

pub(super) fn block(act: &Act<'_>, form: &BlockForm<'_>) -> Result<AdminAnswer, Problem> {
    let service = act.service();
    let given = form.attributes.given();
    attribute_checks::spelled_rightly(service, &given)?;
    attribute_checks::nameable(service, &given)?;
    let known = form.attributes.known(&service.identity).alone().map_err(unknown_credential)?;
    let (request, until, note) = (form.attributes.request_of(&known)?, form.until(act.now)?, form.note()?);
    if let Some(doubt) = attribute_checks::doubt(service, &given).filter(|_| !form.anyway) {
        return Err(Problem::invalid(format!(
            "{doubt}; nothing was blocked; accepted: a name that requests have, or `--anyway` (\"anyway\": true)"
        )));
    }
    let block = service.engine.operator().block(&request, until, act.now);
    let block = block.map_err(|error| match error {
        BlockError::Value { .. } => Problem::invalid(error.to_string()),
        _ => Problem::of_admin(AdminProblem::Conflict, error.to_string()),
    })?;
    act.audit(&joined(&request), &remarked(&format!("until {}", act.shown(until).text()), note));
    AdminAnswer::json(&BlockView::from(&*block))
}

pub(super) fn unblock(act: &Act<'_>, form: &KeyForm<'_>) -> Result<AdminAnswer, Problem> {
    let service = act.service();
    let known = form.attributes.known(&service.identity).in_any_case();
    let request = form.attributes.request_of(&known)?;
    let unblocked = service.engine.operator().unblock(&request, act.now);
    act.audit(&joined(&request), if unblocked { "unblocked" } else { "there was no such block" });
    // Another block may deny the same request. For instance, an address may be inside a blocked network.
    let pairs = texts(&request);
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let held = service.engine.operator().blocked(&pairs, act.now);
    let still: Vec<BlockView<'_>> = held.iter().map(|block| BlockView::from(&**block)).collect();
    let mut answer = json!({ "unblocked": unblocked, "still_blocked_by": still });
    if let Some(doubt) = attribute_checks::doubt(service, &form.attributes.given()).filter(|_| !unblocked) {
        answer["doubt"] = doubt.into();
    }
    AdminAnswer::json(&answer)
}

/// Kill, shadow and percent.
pub(super) fn rule(act: &Act<'_>, form: &OverrideForm) -> Result<AdminAnswer, Problem> {
    if let Some(name) = form.overload()? {
        return overload::rule(act, form, name);
    }
    let (kind, effect) = match (act.verb, form.percent) {
        (Verb::Kill, None) => (LimitOverride::Off, OverrideEffect::Open),
        (Verb::Shadow, None) => (LimitOverride::Shadow, OverrideEffect::Open),
        (Verb::Percent, Some(percent)) => (LimitOverride::Percent(percent), OverrideEffect::Share),
        (Verb::Percent, None) => return Err(Problem::invalid("percent: missing; accepted: 0 to 100")),
        _ => return Err(Problem::invalid("percent: only the path percent takes it")),
    };
    let scope = scope(act, form)?;
    let (until, note) = (form.until(effect, act.now)?, form.note()?);
    let expiring = ExpiringOverride { kind, until };
    act.service().engine.operator().set_override(scope, expiring, act.now).map_err(|error| match error {
        OverrideError::UnknownLimit(name) => unknown_limit(&name, &act.service().engine.policy()),
        OverrideError::Percent(_) => Problem::invalid(format!("percent: {error}")),
        _ => Problem::of_admin(AdminProblem::Conflict, error.to_string()),
    })?;
    let what = match kind {
        LimitOverride::Percent(percent) => format!("{percent} % until {}", act.shown(until).text()),
        LimitOverride::Off | LimitOverride::Shadow => format!("until {}", act.shown(until).text()),
    };
    act.audit(name_of(scope), &remarked(&what, note));
    let milder = others(act, scope, |other| *other != expiring);
    AdminAnswer::json(&OverrideView { expiring: act.expiring(expiring), milder })
}

/// The limits that an override is about. Overriding all of them needs the role admin.
fn scope<'f>(act: &Act<'_>, form: &'f OverrideForm) -> Result<Scope<'f>, Problem> {
    match (&form.limit, form.all) {
        (Some(limit), false) => act.needs_policy().map(|()| Scope::Limit(limit)),
        (None, true) => act.allow(Role::Admin, "all limits").map(|()| Scope::All),
        _ => Err(Problem::invalid("name one limit with \"limit\", or all of them with \"all\": true")),
    }
}

/// The other overrides that apply in this scope, beside those of the scope itself.
fn others(act: &Act<'_>, scope: Scope<'_>, is_other: impl Fn(&ExpiringOverride) -> bool) -> Vec<OtherView> {
    let (policy, overrides) =
        (act.service().engine.policy(), act.service().engine.operator().overrides(act.now));
    let (all, single) = overrides.list();
    let effective = |name: &str| {
        let limit = policy.limits().iter().find(|limit| limit.name() == name)?;
        overrides.of(limit).filter(&is_other)
    };
    match scope {
        Scope::Limit(name) => effective(name)
            .filter(|expiring| all == Some(*expiring))
            .map(|expiring| OtherView::about_all(act.expiring(expiring)))
            .into_iter()
            .collect(),
        Scope::All => single
            .into_iter()
            .filter_map(|(name, own)| {
                let expiring = effective(&name).filter(|expiring| *expiring == own)?;
                Some(OtherView::about(name, act.expiring(expiring)))
            })
            .collect(),
    }
}

pub(super) fn restore(act: &Act<'_>, form: &OverrideForm) -> Result<AdminAnswer, Problem> {
    if let Some(name) = form.overload()? {
        return overload::restore(act, name);
    }
    let scope = scope(act, form)?;
    let engine = &act.service().engine;
    let restored = engine.operator().lift_override(scope, act.now);
    // An override of a limit that has left the policy can be lifted, so the name is checked only after that.
    if let (false, Scope::Limit(name)) = (restored, scope) {
        let policy = engine.policy();
        if !policy.limits().iter().any(|limit| limit.name() == name) {
            return Err(unknown_limit(name, &policy));
        }
    }
    act.audit(name_of(scope), if restored { "restored" } else { "there was no override" });
    AdminAnswer::json(&json!({ "restored": restored, "still_overridden": others(act, scope, |_| true) }))
}

const fn name_of<'s>(scope: Scope<'s>) -> &'s str {
    match scope {
        Scope::Limit(name) => name,
        Scope::All => "all limits",
    }
}
