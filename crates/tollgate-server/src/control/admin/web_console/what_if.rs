//! The effect that a policy would have had on the last hour: the answer to a pasted candidate, or about the last change of the
//! policy.

use std::sync::Arc;

use tollgate::Policy;

use super::super::act::Act;
use super::super::diff::CANDIDATE;
use super::super::fleet;
use super::super::form::ViewScope;
use super::super::past_hour::{self, LAST_MAX, PastView};
use super::super::route::Verb;
use super::act::Acted;
use super::form::FormFields;
use super::panel::{Panel, PanelEntry, PanelField, Tone};
use super::sentence::Sentences;
use super::session::ConsoleSession;
use crate::control::ControlPlane;
use crate::problem::{AdminProblem, Problem};
use crate::service::comparison::ChangedCount;
use crate::text::counted;

/// The command that does the same.
const COMMAND: &str = "tollgate policy diff candidate.yaml --live --last 1h";

/// Compares the policy of a form with the active one, or the active one with that before the last change.
pub(super) async fn what_if(
    control: &ControlPlane,
    session: &ConsoleSession,
    fields: &FormFields,
) -> Result<Acted, Problem> {
    let act = Act::begin(control, &session.who, Verb::Diff)?;
    let active = control.service.engine.policy();
    let (title, policies, command) = match (fields.get("change"), fields.get("policy")) {
        (None, Some(text)) => {
            let credentials = control.service.identity.credentials();
            let candidate = Policy::compile_for(CANDIDATE, text.as_bytes(), credentials)
                .map_err(|findings| Problem::of_findings(AdminProblem::WrongPolicy, findings.to_string()))?;
            ("The candidate, on the requests of the last hour", [active, Arc::new(candidate)], Some(COMMAND))
        }
        (Some("last"), _) => {
            let previous =
                control.web_console.recorder().as_ref().and_then(|recorder| recorder.previous.clone());
            let previous = previous.ok_or_else(|| {
                Problem::of_admin(AdminProblem::Unknown, "the policy has not changed since the start")
            })?;
            ("The last change of the policy, on the requests of the last hour", [previous, active], None)
        }
        _ => return Err(Problem::invalid("policy: paste the text of a policy, or choose a file")),
    };
    let nodes = fleet::meant(&control.fleet, &ViewScope::Auto).await?;
    let view = past_hour::compared(control, policies, LAST_MAX, &nodes, session.key()).await?;
    act.audit("the last requests", &format!("{} of them compared", view.comparison.tallied.decisions));
    Ok(answer(title, &view, command))
}

fn answer(title: &str, view: &PastView, command: Option<&str>) -> Acted {
    let (past, tallied) = (&view.comparison, &view.comparison.tallied);
    let first = format!(
        "{} of {} decisions would have been others: {} newly denied, {} newly allowed",
        tallied.changed, tallied.decisions, tallied.newly_denied, tallied.newly_allowed
    );
    let tone = match (tallied.decisions, tallied.newly_denied) {
        (0, _) => Tone::Plain,
        (_, 0) => Tone::Good,
        _ => Tone::Warn,
    };
    let ends = past.from.as_deref().zip(past.to.as_deref());
    let nodes = if view.nodes.is_empty() {
        String::new()
    } else {
        format!(", of {}", counted(view.nodes.len(), "node"))
    };
    let when = ends.map(|(from, to)| format!("requests from {from} to {to}{nodes}; counters start empty"));
    let more = when.into_iter().chain(past.notes.iter().cloned()).collect();
    Acted {
        title: title.to_owned(),
        sentences: Sentences { first, tone, more },
        command: command.map(str::to_owned),
        panels: if tallied.changed > 0 { vec![limits(view), keys(view)] } else { Vec::new() },
    }
}

fn counts(count: ChangedCount) -> [PanelField; 2] {
    let denied_tone = if count.newly_denied > 0 { Tone::Bad } else { Tone::Plain };
    [PanelField::toned(count.newly_denied.to_string(), denied_tone), PanelField::count(count.newly_allowed)]
}

fn limits(view: &PastView) -> Panel {
    let entry = |(limit, count): (&String, &ChangedCount)| {
        PanelEntry::new([limit.clone().into()].into_iter().chain(counts(*count)))
    };
    Panel {
        id: "what-if-limits",
        title: "By limit",
        note: String::new(),
        columns: &["limit", "newly denied", "newly allowed"],
        entries: view.comparison.tallied.by_limit.iter().map(entry).collect(),
        empty: "",
    }
}

fn keys(view: &PastView) -> Panel {
    let tallied = &view.comparison.tallied;
    let entries = tallied.keys.iter().map(|key| {
        let names: [PanelField; 2] = [key.limit.clone().into(), key.key.clone().into()];
        PanelEntry::new(names.into_iter().chain(counts(key.count)))
    });
    Panel {
        id: "what-if-keys",
        title: "Keys most affected",
        note: format!(
            "{} in all.",
            counted(usize::try_from(tallied.keys_changed).unwrap_or(usize::MAX), "key")
        ),
        columns: &["limit", "key", "newly denied", "newly allowed"],
        entries: entries.collect(),
        empty: "",
    }
}
