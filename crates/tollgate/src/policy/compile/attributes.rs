//! `attributes`: the names that the policy may mention and that callers may send.

use std::collections::BTreeMap;

use crate::policy::check;
use crate::policy::document::{Node, Tree};
use crate::policy::fields::{self, Fields};
use crate::policy::finding::{Problem, Report, quoted};
use crate::policy::vocabulary::{DECLARED_MAX, Kind, Vocabulary};

const ACCEPTED: &str =
    "a list of names, such as [api_key, tenant, ip], in which {client: address} tells the kind of a value";

/// The names that the file declares. If it declares none, every name is accepted.
pub(super) fn read(fields: Fields<'_>, report: &mut Report) -> Vocabulary {
    let Some(node) = fields.get("attributes") else { return Vocabulary::default() };
    let Tree::List(items) = &node.tree else {
        let problem = Problem::new(format!("is {}", node.kind()), ACCEPTED);
        report.error(node.at, "attributes", problem);
        return Vocabulary::default();
    };
    if items.len() > DECLARED_MAX {
        let problem = Problem::new(format!("{} names", items.len()), format!("at most {DECLARED_MAX}"));
        report.error(node.at, "attributes", problem);
        return Vocabulary::default();
    }
    let mut names = BTreeMap::new();
    for (i, item) in items.iter().enumerate() {
        let field = format!("attributes[{i}]");
        let Some((name, kind)) = declared(item, &field, report) else { continue };
        check::attribute_name(name, item.at, &field, report);
        if names.insert(name.to_owned(), kind).is_some() {
            let message = format!("{} is named twice", quoted(name));
            report.error(item.at, &field, Problem::new(message, "each name once"));
        }
    }
    Vocabulary::declared(names)
}

/// A name, or a name with the kind of its values.
fn declared<'n>(item: &'n Node, field: &str, report: &mut Report) -> Option<(&'n str, Option<Kind>)> {
    match &item.tree {
        Tree::Table(entries) => {
            let [entry] = entries.as_slice() else {
                let problem = Problem::new(format!("a table of {} fields", entries.len()), ACCEPTED);
                report.error(item.at, field, problem);
                return None;
            };
            let kind = match fields::text(&entry.node, field, "address or text", report)? {
                "address" => Kind::Address,
                "text" => Kind::Text,
                other => {
                    let message = format!("{} is no kind of value", quoted(other));
                    report.error(entry.node.at, field, Problem::new(message, "address or text"));
                    return None;
                }
            };
            Some((entry.key.as_str(), Some(kind)))
        }
        _ => fields::text(item, field, ACCEPTED, report).map(|name| (name, None)),
    }
}
