//! `defaults`: the default values of fields of limits. A default that the algorithm of a limit does not use is not applied
//! to it.

use std::borrow::Cow;

use crate::algorithm::calendar::{Calendar, CalendarUnit};
use crate::policy::compile::limit::{CONSISTENCIES, EXTRA_ATTRIBUTES, FIELDS as LIMIT_FIELDS};
use crate::policy::compile::{lease, on_store_failure, quota};
use crate::policy::document::{Entry, Node, Tree};
use crate::policy::fields::Fields;
use crate::policy::finding::{Problem, Report, nearest, quoted};
use crate::policy::limit::{Consistency, Mode};

/// Fields that make sense for every limit.
const FIELDS: [&str; 11] = [
    "extra_attributes",
    "algorithm",
    "align",
    "timezone",
    "precision",
    "estimate",
    "permit_ttl",
    "mode",
    "on_store_failure",
    "consistency",
    "lease",
];

/// The defaults. Their values are valid.
#[derive(Debug, Default)]
pub(super) struct Defaults {
    entries: Vec<Entry>,
}

/// Reads the block. A problem with a default is reported here, once, and not for each limit.
pub(super) fn read(fields: Fields<'_>, report: &mut Report) -> Defaults {
    let Some(node) = fields.get("defaults") else { return Defaults::default() };
    let accepted = format!("a table with some of {}", FIELDS.join(", "));
    let Some(fields) = Fields::of(node, "defaults", &accepted, report) else { return Defaults::default() };
    report.enter("defaults".to_owned(), None);
    let mut entries = Vec::new();
    for entry in fields.iter() {
        let errors = report.errors();
        let field = entry.key.as_str();
        if FIELDS.contains(&field) {
            check(&fields, field, report);
        } else {
            let message = match nearest(field, FIELDS) {
                _ if LIMIT_FIELDS.contains(&field) => "is each limit's own, and has no default".to_owned(),
                Some(meant) => format!("unknown field; did you mean {meant}?"),
                None => "unknown field".to_owned(),
            };
            report.error(entry.at, &quoted(field), Problem::new(message, FIELDS.join(", ")));
        }
        if report.errors() == errors {
            entries.push(entry.clone());
        }
    }
    report.leave_limit();
    Defaults { entries }
}

/// Reports the problem with one default.
fn check(fields: &Fields<'_>, field: &str, report: &mut Report) {
    match field {
        "mode" => {
            fields.choice("mode", &Mode::NAMED, report);
        }
        "extra_attributes" => {
            fields.choice("extra_attributes", &EXTRA_ATTRIBUTES, report);
        }
        "consistency" => {
            fields.choice("consistency", &CONSISTENCIES, report);
        }
        "on_store_failure" => {
            on_store_failure::read(*fields, report);
        }
        // Whether a limit may have one depends on the limit.
        "lease" => {
            lease::read(*fields, Consistency::Leased, report);
        }
        "timezone" => {
            let zone = fields.text("timezone", "an IANA name such as Europe/Rome", report);
            if let Some(Err(error)) = zone.map(|zone| Calendar::new(CalendarUnit::Day, zone)) {
                report.error(fields.place("timezone"), "timezone", Problem::new(error.to_string(), ""));
            }
        }
        _ => quota::check_default(fields, field, report),
    }
}

impl Defaults {
    /// Applies the defaults that a limit uses and does not set itself.
    pub(super) fn applied<'n>(&self, limit: &'n Node) -> Cow<'n, Node> {
        let Tree::Table(own) = &limit.tree else { return Cow::Borrowed(limit) };
        if self.entries.is_empty() {
            return Cow::Borrowed(limit);
        }
        let text = |entries: &[Entry], field: &str| {
            let entry = entries.iter().find(|entry| entry.key == field)?;
            entry.node.as_text().map(str::to_owned)
        };
        let has = |field: &str| own.iter().any(|entry| entry.key == field);
        let effective =
            |field: &str| text(own, field).or_else(|| text(&self.entries, field).filter(|_| !has(field)));
        let is_concurrent = has("concurrency");
        let algorithm = if is_concurrent && !has("algorithm") {
            "concurrency".to_owned()
        } else {
            effective("algorithm").unwrap_or_else(|| "token-bucket".to_owned())
        };
        let align = effective("align");
        let align = align.as_deref();
        let consistency = effective("consistency").unwrap_or_default();
        let suits = |field: &str| match field {
            // Nothing is counted, so no store and no algorithm is asked.
            field if is_uncounted(own) => matches!(field, "mode" | "extra_attributes"),
            "algorithm" => !is_concurrent,
            "timezone" => align == Some("calendar") && quota::has_field(&algorithm, field),
            "consistency" => consistency != "leased" || quota::may_be_leased(&algorithm, align),
            "lease" => {
                matches!(consistency.as_str(), "leased" | "auto") && quota::may_be_leased(&algorithm, align)
            }
            "extra_attributes" | "mode" | "on_store_failure" => true,
            field => quota::has_field(&algorithm, field),
        };
        let added = self.entries.iter().filter(|entry| !has(&entry.key) && suits(&entry.key));
        let entries = own.iter().chain(added).cloned().collect();
        Cow::Owned(Node { at: limit.at, tree: Tree::Table(entries) })
    }
}

/// Whether every value of a limit is `unlimited` or `deny`.
fn is_uncounted(own: &[Entry]) -> bool {
    let is_value =
        |node: &Node| node.as_text().is_some_and(|text| matches!(text.trim(), "unlimited" | "deny"));
    let are_values = |node: &Node| {
        let mut nodes = vec![node];
        while let Some(node) = nodes.pop() {
            match &node.tree {
                Tree::Table(entries) => nodes.extend(entries.iter().map(|entry| &entry.node)),
                _ if is_value(node) => {}
                _ => return false,
            }
        }
        true
    };
    let given = |field: &str| own.iter().find(|entry| entry.key == field).map(|entry| &entry.node);
    let mut fields = ["rate", "tiers", "overrides"].into_iter().filter_map(given).peekable();
    fields.peek().is_some() && given("concurrency").is_none() && fields.all(are_values)
}
