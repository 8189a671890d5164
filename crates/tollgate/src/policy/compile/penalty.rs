//! `block_for`: a time, or a table with a number of denials, the time within which they count, and the time of the block.

use crate::policy::document::Tree;
use crate::policy::fields::Fields;
use crate::policy::finding::{Problem, Report};
use crate::policy::penalty::{AFTER, PENALTY_AFTER_MAX, Penalty, WITHIN};
use crate::rate::QuotaError;
use crate::rate_text;
use crate::time::Ticks;

const EXAMPLE: &str = "a time such as 10m, or a table such as {after: 5, in: 1m, for: 10m}";

/// Reads the field of a limit, if it has it.
pub(super) fn read(fields: Fields<'_>, report: &mut Report) -> Option<Penalty> {
    let node = fields.get("block_for")?;
    if !fields.has("by") {
        let problem = Problem::new("a limit without `by` would block everybody at once", "`by` with it");
        report.error(fields.key_position("block_for"), "block_for", problem);
    }
    let (after, within, lasts) = if let Tree::Text(text) = &node.tree {
        (AFTER, None, time(text, report, || (node.at, "block_for".to_owned()))?)
    } else {
        let table = Fields::of(node, "block_for", EXAMPLE, report)?.within("block_for");
        table.only(&["after", "in", "for"], report);
        if !table.has("for") {
            report.error(node.at, "block_for.for", Problem::new("missing", "a time such as 10m"));
        }
        let time = |field: &str, report: &mut Report| {
            let text = table.text(field, "a time such as 10m", report)?;
            time(text, report, || (table.place(field), table.path(field)))
        };
        let after = table.count("after", PENALTY_AFTER_MAX, report).unwrap_or(AFTER);
        let (within, lasts) = (time("in", report), time("for", report));
        (after, within, lasts?)
    };
    match Penalty::new(after, within.unwrap_or(WITHIN.min(lasts)), lasts) {
        Ok(penalty) => Some(penalty),
        Err(QuotaError::Range { field, accepted, .. }) => {
            let field = format!("block_for.{field}");
            report.error(fields.place(&field), &field, Problem::new("is out of range", accepted));
            None
        }
        Err(error) => {
            report.error(node.at, "block_for", Problem::new(error.to_string(), EXAMPLE));
            None
        }
    }
}

fn time(
    text: &str,
    report: &mut Report,
    place: impl FnOnce() -> (crate::policy::finding::Position, String),
) -> Option<Ticks> {
    match rate_text::period(text.trim()) {
        Ok(period) => Some(period.ticks()),
        Err(problem) => {
            let (at, field) = place();
            report.error(at, &field, problem);
            None
        }
    }
}
