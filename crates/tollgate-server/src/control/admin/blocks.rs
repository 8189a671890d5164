//! `block` and `unblock`.

use serde_json::json;
use tollgate::engine::BlockError;

use super::act::{Act, AdminAnswer};
use super::attribute_checks;
use super::form::{BlockForm, KeyForm};
use super::view::BlockView;
use super::wording::{joined, remarked, texts, unknown_credential};
use crate::problem::{AdminProblem, Problem};

pub(super) fn block(act: &Act<'_>, form: &BlockForm<'_>) -> Result<AdminAnswer, Problem> {
    let given = form.attributes.given();
    attribute_checks::spelled_rightly(act.service(), &given)?;
    attribute_checks::nameable(act.service(), &given)?;
    let known = form.attributes.known(&act.service().identity).alone().map_err(unknown_credential)?;
    let (request, until, note) = (form.attributes.request_of(&known)?, form.until(act.now)?, form.note()?);
    if let Some(doubt) = attribute_checks::doubt(act.service(), &given).filter(|_| !form.anyway) {
        return Err(Problem::invalid(format!(
            "{doubt}; nothing was blocked; accepted: a name that requests have, or `--anyway` (\"anyway\": true)"
        )));
    }
    let block = act.service().engine.operator().block(&request, until, act.now);
    let block = block.map_err(|error| match error {
        BlockError::Value { .. } => Problem::invalid(error.to_string()),
        _ => Problem::of_admin(AdminProblem::Conflict, error.to_string()),
    })?;
    act.audit(&joined(&request), &remarked(&format!("until {}", act.shown(until).text()), note));
    AdminAnswer::json(&BlockView::from(&*block))
}

pub(super) fn unblock(act: &Act<'_>, form: &KeyForm<'_>) -> Result<AdminAnswer, Problem> {
    let known = form.attributes.known(&act.service().identity).in_any_case();
    let request = form.attributes.request_of(&known)?;
    let unblocked = act.service().engine.operator().unblock(&request, act.now);
    act.audit(&joined(&request), if unblocked { "unblocked" } else { "there was no such block" });
    // Another block may deny the same request. For instance, an address may be inside a blocked network.
    let pairs = texts(&request);
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let held = act.service().engine.operator().blocked(&pairs, act.now);
    let still: Vec<BlockView<'_>> = held.iter().map(|block| BlockView::from(&**block)).collect();
    AdminAnswer::json(&json!({ "unblocked": unblocked, "still_blocked_by": still }))
}
