//! `when`: a table of values and patterns, or a CEL expression.

use crate::policy::document::{Node, Tree};
use crate::policy::expression::Expression;
use crate::policy::fields::{self, Fields};
use crate::policy::finding::{Report, quoted};
use crate::policy::limit::Condition;

const ACCEPTED: &str = "a table such as {method: POST, path: /v1/*}, or a CEL expression";

/// The conditions of a limit; none when it has no `when`.
pub(crate) fn read(fields: Fields<'_>, report: &mut Report) -> Vec<Condition> {
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
    table.iter().filter_map(|entry| condition(&entry.key, &entry.node, report)).collect()
}

/// One attribute and the value, the pattern, or the list of them that it must be.
fn condition(name: &str, node: &Node, report: &mut Report) -> Option<Condition> {
    let field = format!("when.{}", quoted(name));
    let accepted = "a text or a list of texts, in which * stands for anything";
    let choices = match &node.tree {
        Tree::List(items) => {
            items.iter().filter_map(|item| fields::text(item, &field, accepted, report)).collect()
        }
        _ => vec![fields::text(node, &field, accepted, report)?],
    };
    Some(Condition::one_of(name, choices))
}
