//! Overrides of limits: `kill`, `shadow` and `percent`, and `restore`, which ends them. Those of overload controllers are in
//! `overload`.

use serde_json::json;
use tollgate::engine::OverrideError;
use tollgate::{ExpiringOverride, LimitOverride, Scope};

use super::act::{Act, AdminAnswer};
use super::form::{OverrideEffect, OverrideForm};
use super::overload;
use super::route::Verb;
use super::token::Role;
use super::view::{OtherView, OverrideView};
use super::wording::{remarked, unknown_limit};
use crate::problem::{AdminProblem, Problem};

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
    let restored = act.service().engine.operator().lift_override(scope, act.now);
    act.audit(name_of(scope), if restored { "restored" } else { "there was no override" });
    AdminAnswer::json(&json!({ "restored": restored, "still_overridden": others(act, scope, |_| true) }))
}

const fn name_of<'s>(scope: Scope<'s>) -> &'s str {
    match scope {
        Scope::Limit(name) => name,
        Scope::All => "all limits",
    }
}
