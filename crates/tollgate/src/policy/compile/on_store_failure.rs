//! `on_store_failure`: a word, or a table of stages.

use crate::policy::document::{Node, Tree};
use crate::policy::fields::Fields;
use crate::policy::finding::{Problem, Report, quoted};
use crate::policy::on_store_failure::{DENY_AFTER_MAX, OPEN_BUDGET, OPEN_UP_TO_MAX, OnStoreFailure, Stages};
use crate::rate_text;
use crate::time::Ticks;

const WORDS: [(&str, OnStoreFailure); 3] =
    [("allow", OnStoreFailure::Allow), ("local", OnStoreFailure::Local), ("deny", OnStoreFailure::Deny)];
const STAGES: [&str; 5] = ["first", "for", "up_to", "then", "deny_after"];
const EXAMPLE: &str =
    "allow, local, deny, or a table such as {first: allow, for: 1s, then: local, deny_after: 60s}";

#[derive(Clone, Copy, PartialEq, Eq)]
enum FailureWord {
    Allow,
    Local,
    Deny,
}

const FIRSTS: [(&str, FailureWord); 2] = [("allow", FailureWord::Allow), ("local", FailureWord::Local)];
const THENS: [(&str, FailureWord); 2] = [("local", FailureWord::Local), ("deny", FailureWord::Deny)];

/// Reads the field of a limit, if it has it.
pub(super) fn read(fields: Fields<'_>, report: &mut Report) -> Option<OnStoreFailure> {
    let node = fields.get("on_store_failure")?;
    match &node.tree {
        Tree::Table(_) => staged(node, report).map(OnStoreFailure::Staged),
        Tree::Text(_) => fields.choice("on_store_failure", &WORDS, report),
        Tree::Empty | Tree::List(_) => {
            let message = format!("is {}", node.kind());
            report.error(node.at, "on_store_failure", Problem::new(message, EXAMPLE));
            None
        }
    }
}

fn staged(node: &Node, report: &mut Report) -> Option<Stages> {
    let fields = Fields::of(node, "on_store_failure", EXAMPLE, report)?.within("on_store_failure");
    fields.only(&STAGES, report);
    if !fields.has("first") {
        let problem = Problem::new("missing: what it does first", "allow or local");
        report.error(fields.place("first"), &fields.path("first"), problem);
    }
    let first = fields.choice("first", &FIRSTS, report);
    let then = fields.choice("then", &THENS, report).unwrap_or(FailureWord::Local);
    let open_for = time(fields, "for", OPEN_BUDGET, "as long as limits may be open in 10 minutes", report);
    let deny_after = time(fields, "deny_after", DENY_AFTER_MAX, "a day", report);
    let up_to = up_to(fields, report);
    let first = first?;
    if first == FailureWord::Local {
        return local(fields, deny_after, report);
    }
    let mut stages = Stages { deny_after, open_up_to: up_to?, ..Stages::ALLOW };
    stages.open_for = open_for.unwrap_or(stages.open_for);
    if then == FailureWord::Deny {
        unused(fields, "deny_after", "nothing comes after `then: deny`", report);
        stages.deny_after = Some(stages.open_for);
    } else if deny_after.is_some_and(|after| after <= stages.open_for) {
        let accepted = "a longer time than `for`, or `then: deny`";
        let problem = Problem::new("it would close before it has counted by its share", accepted);
        report.error(fields.place("deny_after"), &fields.path("deny_after"), problem);
    }
    Some(stages)
}

/// A limit that is never open.
fn local(fields: Fields<'_>, deny_after: Option<Ticks>, report: &mut Report) -> Option<Stages> {
    for field in ["for", "up_to", "then"] {
        unused(fields, field, "it says how a limit is open, which this one never is", report);
    }
    Some(Stages { deny_after, ..Stages::LOCAL })
}

fn unused(fields: Fields<'_>, field: &str, why: &str, report: &mut Report) {
    if fields.has(field) {
        let accepted = "no such field here, or `first: allow`";
        let accepted = if field == "deny_after" { "no such field here, or `then: local`" } else { accepted };
        report.error(fields.key_position(field), &fields.path(field), Problem::new(why, accepted));
    }
}

fn time(fields: Fields<'_>, field: &str, most: Ticks, because: &str, report: &mut Report) -> Option<Ticks> {
    let accepted = format!("a time such as 1s, up to {} s: {because}", most.ceil_seconds());
    let written = fields.text(field, &accepted, report)?;
    let problem = match rate_text::period(written.trim()).map(rate_text::Period::ticks) {
        Ok(ticks) if ticks <= most => return Some(ticks),
        Ok(_) => Problem::new(format!("{} is too long", quoted(written)), accepted),
        Err(problem) => problem,
    };
    report.error(fields.place(field), &fields.path(field), problem);
    None
}

/// How far a limit is open: a multiple of this node's share, or without a bound. The outer option is `None` for an invalid
/// value.
fn up_to(fields: Fields<'_>, report: &mut Report) -> Option<Option<u32>> {
    let accepted = format!("how many times this node's share, 1 to {OPEN_UP_TO_MAX}, or unlimited");
    if !fields.has("up_to") {
        return Some(Stages::ALLOW.open_up_to);
    }
    let written = fields.text("up_to", &accepted, report)?;
    if written.trim() == "unlimited" {
        return Some(None);
    }
    let times = rate_text::count(written.trim()).ok().and_then(|times| u32::try_from(times).ok());
    let times = times.filter(|times| (1..=OPEN_UP_TO_MAX).contains(times));
    if times.is_none() {
        let message = format!("{} is not how far a limit may be open", quoted(written));
        report.error(fields.place("up_to"), &fields.path("up_to"), Problem::new(message, accepted));
    }
    times.map(Some)
}
