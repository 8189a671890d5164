//! Overrides of overload controllers: off or in shadow for a while, for one of them or all. They are part of the
//! operator state, which the nodes of a fleet share.

use serde_json::json;
use tollgate::policy::Mode;
use tollgate::{ExpiringOverride, LimitOverride, Timestamp};
use tollgate_overload::{Controller, Switch};
use tollgate_tower::shed::Shedder;

use super::act::{Act, AdminAnswer};
use super::form::{OverrideEffect, OverrideForm};
use super::route::Verb;
use super::token::Role;
use super::view::OverloadView;
use super::wording::remarked;
use crate::problem::{AdminProblem, Problem};
use crate::text::unknown_name;

/// The name of all controllers together.
const ALL: &str = "all";

/// Executes kill and shadow.
pub(super) fn rule(act: &Act<'_>, form: &OverrideForm, name: &str) -> Result<AdminAnswer, Problem> {
    let (until, note) = (form.until(OverrideEffect::Open, act.now)?, form.note()?);
    let kind = match act.verb {
        Verb::Kill => LimitOverride::Off,
        Verb::Shadow => LimitOverride::Shadow,
        _ => return Err(Problem::invalid("overload: only the paths kill, shadow and restore take it")),
    };
    switch(act, name, |switch| match kind {
        LimitOverride::Off => switch.kill(until),
        _ => switch.shadow(until),
    })?;
    act.audit(&about(name), &remarked(&format!("until {}", act.shown(until).text()), note));
    AdminAnswer::json(&act.expiring(ExpiringOverride { kind, until }))
}

/// Executes restore.
pub(super) fn restore(act: &Act<'_>, name: &str) -> Result<AdminAnswer, Problem> {
    let mut restored = false;
    switch(act, name, |switch| restored |= switch.revive(act.now))?;
    act.audit(&about(name), if restored { "restored" } else { "there was no override" });
    AdminAnswer::json(&json!({ "restored": restored }))
}

/// The overrides of controllers that are active now.
pub(super) fn shown(act: &Act<'_>) -> Vec<OverloadView> {
    let each = overridden(act.service().shedder(), act.now).into_iter();
    each.map(|(controller, expiring)| OverloadView {
        controller: controller.as_str(),
        expiring: act.expiring(expiring),
    })
    .collect()
}

/// The controllers with an override that is active now.
pub(super) fn overridden(shedder: Option<&Shedder>, now: Timestamp) -> Vec<(Controller, ExpiringOverride)> {
    let Some(shedder) = shedder else { return Vec::new() };
    let overridden = |controller: Controller| {
        let (mode, until) = shedder.switch(controller, |switch| switch.active_override(now))??;
        let kind = if mode == Mode::Off { LimitOverride::Off } else { LimitOverride::Shadow };
        Some((controller, ExpiringOverride { kind, until }))
    };
    Controller::ALL.into_iter().filter_map(overridden).collect()
}

/// Calls `change` on the switch of one controller, or of all of them. Changing all of them needs the role admin.
fn switch(act: &Act<'_>, name: &str, mut change: impl FnMut(&Switch)) -> Result<(), Problem> {
    if name == ALL {
        act.allow(Role::Admin, &about(name))?;
    }
    let Some(shedder) = act.service().shedder() else {
        let detail = "the server has no controllers of overload; `overload:` in its config makes some";
        return Err(Problem::of_admin(AdminProblem::Unknown, detail));
    };
    if name == ALL {
        for controller in Controller::ALL {
            let _ = shedder.switch(controller, &mut change); // A controller that is not there has no switch.
        }
        return Ok(());
    }
    let named = Controller::ALL.into_iter().find(|controller| controller.as_str() == name);
    named.and_then(|controller| shedder.switch(controller, &mut change)).ok_or_else(|| {
        let there = shedder.reports().into_iter().map(|report| report.controller.as_str());
        let known: Vec<&str> = std::iter::once(ALL).chain(there).collect();
        let detail = unknown_name(&format!("there is no controller {name:?}"), name, &known);
        Problem::of_admin(AdminProblem::Unknown, detail)
    })
}

fn about(name: &str) -> String {
    format!("overload {name}")
}
