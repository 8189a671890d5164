//! From files to limits. All problems are reported at once, in the words of Tollgate's own policy files.

use tollgate::policy::Problem;
use tollgate::policy::source::{
    Cel, Fields, Node, Position, Reading, Report, SecondDocument, Tree, quoted, read,
};
use tollgate::rate::PERIOD_MAX;

use super::{LimitadorConfig, LimitadorLimit};
use crate::envoy::integer;
use crate::format::Source;
use crate::text::plain;

const READING: Reading = Reading { depth_max: 8, second_document: SecondDocument::Refused };
const FIELDS: [&str; 7] = ["id", "namespace", "max_value", "seconds", "name", "conditions", "variables"];
/// Longest window, in seconds, as for every window of Tollgate.
const SECONDS_MAX: u64 = PERIOD_MAX.ceil_seconds();
/// Maximum conditions, and maximum variables, of one limit.
const EXPRESSIONS_MAX: usize = 64;

/// Reads all files of a configuration.
pub(crate) fn compile(sources: &[Source], report: &mut Report) -> LimitadorConfig {
    let mut config = LimitadorConfig::default();
    for source in sources {
        report.enter_file(&source.name);
        let Some(root) = read(&source.bytes, READING, report) else { continue };
        match &root.tree {
            Tree::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    add(item, index, &mut config, report);
                }
                report.enter(String::new(), None);
            }
            _ => {
                let problem = Problem::new(format!("is {}", root.kind()), "a list of limits");
                report.error(root.at, "", problem);
            }
        }
    }
    config
}

fn add(item: &Node, index: usize, config: &mut LimitadorConfig, report: &mut Report) {
    report.enter(format!("[{index}]"), None);
    let Some(fields) = Fields::of(item, "", "a table with `namespace:`, `max_value:` and `seconds:`", report)
    else {
        return;
    };
    let Some(limit) = limit(fields, index, report) else { return };
    if !config.add(limit) {
        let message = "another limit has the same namespace, seconds, conditions and variables";
        let accepted = "one of them; they are one limit, and the smaller max_value holds";
        report.warning(item.at, "", Problem::new(message, accepted));
    }
}

fn limit(fields: Fields<'_>, index: usize, report: &mut Report) -> Option<LimitadorLimit> {
    let name = text(fields, "name", report);
    report.enter(format!("[{index}]"), name);
    fields.only(&FIELDS, report);
    let id = text(fields, "id", report).map(str::to_owned);
    let namespace = text(fields, "namespace", report).filter(|name| !name.is_empty());
    if namespace.is_none() {
        let problem = Problem::new("has no value", "the domain that is asked about");
        report.error(fields.place("namespace"), "namespace", problem);
    }
    let max_value = number(fields, "max_value", u64::MAX, report);
    if !fields.has("max_value") {
        let problem =
            Problem::new("is missing, so it is 0 and refuses everything", "how many a window allows");
        report.warning(fields.place("max_value"), "max_value", problem);
    }
    let seconds = number(fields, "seconds", SECONDS_MAX, report);
    if !fields.has("seconds") {
        let problem = Problem::new("is missing", "the length of a window in seconds");
        report.error(fields.place("seconds"), "seconds", problem);
    } else if seconds == Some(0) {
        let problem = Problem::new("a window of 0 seconds counts nothing", "at least 1");
        report.warning(fields.place("seconds"), "seconds", problem);
    }
    let conditions = expressions(fields, "conditions", report);
    let variables = expressions(fields, "variables", report);
    let max_value = if fields.has("max_value") { max_value? } else { 0 };
    let (namespace, seconds) = (namespace?, seconds?);
    let called = name.or(id.as_deref()).map_or_else(|| format!("{seconds}s"), str::to_owned);
    Some(LimitadorLimit {
        metric: plain(&format!("{namespace}.{called}")),
        id,
        namespace: namespace.to_owned(),
        max_value,
        seconds,
        name: name.map(str::to_owned),
        conditions: conditions?,
        variables: variables?,
    })
}

/// A field's text; `None` for an empty value.
fn text<'n>(fields: Fields<'n>, name: &str, report: &mut Report) -> Option<&'n str> {
    match fields.get(name).map(|value| &value.tree) {
        None | Some(Tree::Empty) => None,
        Some(_) => fields.text(name, "a text", report),
    }
}

fn number(fields: Fields<'_>, name: &str, max: u64, report: &mut Report) -> Option<u64> {
    let accepted = format!("a whole number up to {max}");
    fields.get(name)?;
    let written = fields.text(name, &accepted, report)?;
    match integer(written).filter(|&number| number <= max && !written.is_empty()) {
        Some(number) => Some(number),
        None => {
            let problem = Problem::new(format!("{} is no such number", quoted(written)), accepted);
            report.error(fields.place(name), name, problem);
            None
        }
    }
}

/// Expressions, sorted and unique.
fn expressions(fields: Fields<'_>, name: &str, report: &mut Report) -> Option<Vec<Cel>> {
    let accepted = "a list of CEL expressions, [] for none";
    let Some(value) = fields.get(name) else {
        report.error(fields.place(name), name, Problem::new("is missing", accepted));
        return None;
    };
    let items = match &value.tree {
        Tree::Empty => return Some(Vec::new()),
        Tree::List(items) if items.len() <= EXPRESSIONS_MAX => items,
        Tree::List(items) => {
            let problem = Problem::new(
                format!("has {} expressions", items.len()),
                format!("at most {EXPRESSIONS_MAX}"),
            );
            report.error(value.at, name, problem);
            return None;
        }
        _ => {
            report.error(value.at, name, Problem::new(format!("is {}", value.kind()), accepted));
            return None;
        }
    };
    let read: Vec<Option<Cel>> = items
        .iter()
        .enumerate()
        .map(|(index, item)| expression(item, &format!("{name}[{index}]"), report))
        .collect();
    let mut expressions: Vec<Cel> = read.into_iter().collect::<Option<_>>()?;
    expressions.sort_by(|one, other| one.source().cmp(other.source()));
    expressions.dedup_by(|one, other| one.source() == other.source());
    Some(expressions)
}

fn expression(item: &Node, field: &str, report: &mut Report) -> Option<Cel> {
    let Tree::Text(text) = &item.tree else {
        report.error(item.at, field, Problem::new(format!("is {}", item.kind()), "a CEL expression"));
        return None;
    };
    match Cel::new(text) {
        Ok(expression) => {
            unknown(&expression, item.at, field, report);
            Some(expression)
        }
        Err(problem) => {
            report.error(item.at, field, problem);
            None
        }
    }
}

/// Limitador 1.x wrote `req.method == 'POST'`; since 2.0 no request has such a name.
fn unknown(expression: &Cel, at: Position, field: &str, report: &mut Report) {
    if let Some(name) = expression.unknown() {
        let message = format!(
            "{} is no name that a request has, so the limit does not apply where it is looked at",
            quoted(name)
        );
        report.warning(at, field, Problem::new(message, format!("descriptors[0]['{}']", quoted(name))));
    }
}
