//! `when`: a table of attributes, each with a value, a list of values, or `{ not: … }` of these; or a CEL expression.

use crate::policy::condition::{Condition, Negation};
use crate::policy::document::{Node, Tree};
use crate::policy::expression::Expression;
use crate::policy::fields::{self, Fields};
use crate::policy::finding::{Problem, Report, quoted};
use crate::policy::pattern;
use crate::policy::vocabulary::Vocabulary;

const ACCEPTED: &str = "a table such as {method: POST, path: /v1/*}, or a CEL expression";
const VALUES: &str = "a text, a list of texts, or { not: ... } of these; * stands for anything";

/// The conditions of a limit; an empty list without `when`. Credentials in them are digests.
pub(crate) fn read(fields: Fields<'_>, vocabulary: &Vocabulary, report: &mut Report) -> Vec<Condition> {
    let mut conditions = read_plain(fields, vocabulary, report);
    for doubt in conditions.iter_mut().flat_map(|condition| condition.settle(vocabulary)) {
        report.say(fields.place("when"), "when", doubt);
    }
    let sealed: Vec<_> =
        conditions.iter_mut().map(|condition| condition.seal(report.credentials())).collect();
    for problem in sealed.into_iter().filter_map(Result::err) {
        report.error(fields.place("when"), "when", problem);
    }
    conditions
}

fn read_plain(fields: Fields<'_>, vocabulary: &Vocabulary, report: &mut Report) -> Vec<Condition> {
    let Some(node) = fields.get("when") else {
        return Vec::new();
    };
    if let Tree::Text(source) = &node.tree {
        return match Expression::new(source) {
            Ok(expression) => vec![Condition::Holds(expression)],
            Err(problem) => {
                report.error(node.at, "when", problem);
                Vec::new()
            }
        };
    }
    let Some(table) = Fields::of(node, "when", ACCEPTED, report) else {
        return Vec::new();
    };
    table.iter().filter_map(|entry| condition(&entry.key, &entry.node, vocabulary, report)).collect()
}

/// One attribute and what it must be, or must not be.
fn condition(name: &str, node: &Node, vocabulary: &Vocabulary, report: &mut Report) -> Option<Condition> {
    let field = format!("when.{}", quoted(name));
    let (node, sense) = match &node.tree {
        Tree::Table(_) => (negated(name, &field, node, report)?, Negation::IsNot),
        _ => (node, Negation::Is),
    };
    let choices: Vec<&str> = match &node.tree {
        Tree::List(items) => {
            items.iter().filter_map(|item| fields::text(item, &field, VALUES, report)).collect()
        }
        _ => vec![fields::text(node, &field, VALUES, report)?],
    };
    Some(Condition::read(name, choices, sense, vocabulary))
}

/// The value of `{ not: … }`. Other tables are matchers of other products.
fn negated<'n>(name: &str, field: &str, node: &'n Node, report: &mut Report) -> Option<&'n Node> {
    let table = Fields::of(node, field, VALUES, report)?;
    let mut entries = table.iter();
    let (Some(entry), None) = (entries.next(), entries.next()) else {
        let accepted = format!("{name}: {{ not: ... }}, or CEL as the whole `when` for more than that");
        report.error(node.at, field, Problem::new("is a table of several fields, or of none", accepted));
        return None;
    };
    if entry.key == "not" {
        return Some(&entry.node);
    }
    // Of a credential nothing is shown.
    let value = match &entry.node.tree {
        _ if report.credentials().contains(name) => "k1".to_owned(),
        Tree::List(items) => items.iter().filter_map(Node::as_text).collect::<Vec<_>>().join(", "),
        _ => entry.node.as_text().unwrap_or("...").to_owned(),
    };
    let meant = pattern::of_keyword(name, &entry.key, &value);
    let accepted =
        meant.unwrap_or_else(|| format!("{name}: a value, a list of values, or {{ not: ... }} of these"));
    let message = format!("{} is no way of matching here", quoted(&entry.key));
    report.error(entry.at, field, Problem::new(message, accepted));
    None
}
