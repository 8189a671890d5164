//! From files to rules. All problems are reported at once, in the words of Tollgate's own policy files. A file that the
//! original loads is loaded; fields that it silently ignores get a warning.

use tollgate::policy::Problem;
use tollgate::policy::source::{
    Entry, Fields, Node as Value, Reading, Report, SecondDocument, Tree, nearest, quoted, read,
};

use super::tree::{EnvoyConfig, EnvoyLimit, Node, RateAllowance, TreeLevel};
use crate::format::Source;
use crate::rls::Unit;

/// Deepest nesting: a list and a table for each entry of a descriptor.
const READING: Reading = Reading { depth_max: 2 * ENTRIES_MAX + 4, second_document: SecondDocument::Ignored };
/// Maximum entries that a rule may require.
const ENTRIES_MAX: usize = 32;

/// The fields of each table. The original knows all of them everywhere, and ignores those that mean nothing in a table.
const FILE: [&str; 2] = ["domain", "descriptors"];
const DESCRIPTOR: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
    "descriptors",
];
const RATE_LIMIT: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];
const UNITS: &str = "second, minute, hour, day, week, month or year";

/// Reads all files of a configuration. A domain in several files has the rules of all of them.
pub(crate) fn compile(sources: &[Source], report: &mut Report) -> EnvoyConfig {
    let mut config = EnvoyConfig::default();
    for source in sources {
        report.enter_file(&source.name);
        if let Some(root) = read(&source.bytes, READING, report) {
            file(&merged(root), &mut config, report);
        }
    }
    config.name_rules();
    config
}

/// Replaces merge keys (`<<`) by the fields that they refer to. Fields of the table itself take precedence. Nothing
/// grows by it: the reader has counted each alias as often as it is used.
fn merged(value: Value) -> Value {
    let tree = match value.tree {
        Tree::List(items) => Tree::List(items.into_iter().map(merged).collect()),
        Tree::Table(entries) => {
            let (merges, mut own): (Vec<Entry>, Vec<Entry>) = entries
                .into_iter()
                .map(|entry| Entry { node: merged(entry.node), ..entry })
                .partition(|entry| entry.key == "<<" && is_mergeable(&entry.node));
            for entry in merges {
                let tables = if let Tree::List(items) = entry.node.tree { items } else { vec![entry.node] };
                for entry in tables.into_iter().flat_map(fields_of) {
                    if own.iter().all(|known| known.key != entry.key) {
                        own.push(entry);
                    }
                }
            }
            Tree::Table(own)
        }
        other => other,
    };
    Value { at: value.at, tree }
}

/// Whether it is a table, or a list of tables. Any other value stays, and is reported as an unknown field.
fn is_mergeable(value: &Value) -> bool {
    match &value.tree {
        Tree::Table(_) => true,
        Tree::List(items) => items.iter().all(|item| matches!(item.tree, Tree::Table(_))),
        Tree::Empty | Tree::Text(_) => false,
    }
}

fn fields_of(value: Value) -> Vec<Entry> {
    if let Tree::Table(entries) = value.tree { entries } else { Vec::new() }
}

fn file(root: &Value, config: &mut EnvoyConfig, report: &mut Report) {
    let Some(fields) = Fields::of(root, "", "a table with `domain:` and `descriptors:`", report) else {
        return;
    };
    only(fields, &FILE, "", report);
    let Some(name) = domain(fields, report) else { return };
    if config.domain(name).is_some() {
        let message = format!("domain {} is in another file, too", quoted(name));
        report.warning(
            fields.place("domain"),
            "domain",
            Problem::new(message, "one file for a domain; their rules are joined"),
        );
    }
    let domain = config.domain_mut(name);
    level(fields, "descriptors", &mut domain.root, report);
}

fn domain<'n>(fields: Fields<'n>, report: &mut Report) -> Option<&'n str> {
    let accepted = "the domain that Envoy asks about, such as `domain: ingress`";
    match fields.get("domain").map(|value| &value.tree) {
        Some(Tree::Text(name)) if !name.is_empty() => Some(name),
        Some(Tree::List(_) | Tree::Table(_)) => fields.text("domain", accepted, report),
        _ => {
            report.error(fields.place("domain"), "domain", Problem::new("has no value", accepted));
            None
        }
    }
}

/// Reads the rules of one level. `path` is the field that contains them.
fn level(fields: Fields<'_>, path: &str, level: &mut TreeLevel, report: &mut Report) {
    let Some(value) = fields.get("descriptors") else { return };
    let items = match &value.tree {
        Tree::List(items) => items,
        Tree::Empty => return,
        _ => {
            let problem = Problem::new(format!("is {}", value.kind()), "a list of descriptors");
            return report.error(value.at, path, problem);
        }
    };
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if let Some(node) = descriptor(item, &path, report) {
            let (key, value) = (node.key.clone(), node.value.clone());
            if !level.add(node) {
                let shown = if value.is_empty() { key } else { format!("{key}={value}") };
                let message = format!("a second descriptor for {} at this level", quoted(&shown));
                report.error(item.at, &path, Problem::new(message, "each key, or key and value, once"));
            }
        }
    }
}

fn descriptor(item: &Value, path: &str, report: &mut Report) -> Option<Node> {
    let fields = Fields::of(item, path, "a table with `key:`", report)?;
    only(fields, &DESCRIPTOR, path, report);
    let key = text(fields, "key", path, report).unwrap_or_default();
    if key.is_empty() {
        let problem = Problem::new("has no value", "the key of a descriptor's entry, such as remote_address");
        report.error(fields.place("key"), &format!("{path}.key"), problem);
    }
    let value = text(fields, "value", path, report).unwrap_or_default();
    let mut flag = |name: &str| flag(fields, name, path, report);
    let (is_shadow, is_quota, is_shared) = (flag("shadow_mode"), flag("quota_mode"), flag("share_threshold"));
    let (tells_values, tells_value) = (flag("detailed_metric"), flag("value_to_metric"));
    if is_shared && !value.contains('*') && !key.contains('*') {
        let problem =
            Problem::new("there is no * in this value", "share_threshold with a value such as files/*");
        report.error(fields.place("share_threshold"), &format!("{path}.share_threshold"), problem);
    }
    let limit = fields
        .get("rate_limit")
        .filter(|value| !matches!(value.tree, Tree::Empty))
        .and_then(|value| rate_limit(value, &format!("{path}.rate_limit"), report))
        .map(|limit| EnvoyLimit { is_shadow, is_quota, tells_values, ..limit });
    let mut children = TreeLevel::default();
    level(fields, &format!("{path}.descriptors"), &mut children, report);
    Some(Node { key: key.to_owned(), value: value.to_owned(), limit, is_shared, tells_value, children })
}

fn rate_limit(value: &Value, path: &str, report: &mut Report) -> Option<EnvoyLimit> {
    let fields = Fields::of(value, path, "a table with `unit:` and `requests_per_unit:`", report)?;
    only(fields, &RATE_LIMIT, path, report);
    let name = text(fields, "name", path, report).unwrap_or_default();
    let is_unlimited = flag(fields, "unlimited", path, report);
    let unit_name = text(fields, "unit", path, report).unwrap_or_default();
    let unit = Unit::of(unit_name);
    let unit_path = format!("{path}.unit");
    let requests = requests_per_unit(fields, path, report);
    let replaces = replaces(fields, name, path, report);
    let allowance = match unit {
        Some(_) if is_unlimited => {
            let problem =
                Problem::new("an unlimited rule has no unit", "unlimited, or a unit and requests_per_unit");
            report.error(fields.place("unit"), &unit_path, problem);
            return None;
        }
        _ if is_unlimited => RateAllowance::Unlimited,
        Some(unit) => RateAllowance::PerUnit(requests?, unit),
        None => {
            let message = match unit_name {
                "" => "has no value".to_owned(),
                _ => match nearest(unit_name, UNITS.split([',', ' '])) {
                    Some(meant) => format!("{} is unknown; did you mean {meant}?", quoted(unit_name)),
                    None => format!("{} is unknown", quoted(unit_name)),
                },
            };
            report.error(fields.place("unit"), &unit_path, Problem::new(message, UNITS));
            return None;
        }
    };
    if let RateAllowance::PerUnit(0, _) = allowance {
        let problem = Problem::new("0 refuses every request", "at least 1, unless that is what is meant");
        report.warning(fields.place("requests_per_unit"), &format!("{path}.requests_per_unit"), problem);
    }
    Some(EnvoyLimit {
        allowance,
        name: name.to_owned(),
        replaces,
        is_shadow: false,
        is_quota: false,
        metric: String::new(),
        tells_values: false,
    })
}

fn requests_per_unit(fields: Fields<'_>, path: &str, report: &mut Report) -> Option<u32> {
    if !fields.has("requests_per_unit") {
        return Some(0);
    }
    let written = text(fields, "requests_per_unit", path, report)?;
    match integer(written).and_then(|number| u32::try_from(number).ok()) {
        Some(number) => Some(number),
        None => {
            let problem = Problem::new(
                format!("{} is no such number", quoted(written)),
                "a whole number up to 4294967295",
            );
            report.error(fields.place("requests_per_unit"), &format!("{path}.requests_per_unit"), problem);
            None
        }
    }
}

/// A whole number in any of YAML's notations.
pub(crate) fn integer(text: &str) -> Option<u64> {
    let digits = text.trim().replace('_', "");
    let digits = digits.strip_prefix('+').unwrap_or(&digits);
    let (digits, radix) = match digits.get(..2) {
        Some("0x") => (&digits[2..], 16),
        Some("0o") => (&digits[2..], 8),
        Some("0b") => (&digits[2..], 2),
        Some(_) if digits.starts_with('0') => (&digits[1..], 8),
        _ => (digits, 10),
    };
    // from_str_radix would accept a sign here.
    if digits.is_empty() {
        return (text.trim() == "").then_some(0);
    }
    digits
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric())
        .then(|| u64::from_str_radix(digits, radix).ok())?
}

fn replaces(fields: Fields<'_>, own: &str, path: &str, report: &mut Report) -> Vec<String> {
    let path = format!("{path}.replaces");
    let accepted = "a list of names, such as [{name: basic}]";
    let items = match fields.get("replaces") {
        None => return Vec::new(),
        Some(value) => match &value.tree {
            Tree::Empty => return Vec::new(),
            Tree::List(items) => items,
            _ => {
                report.error(value.at, &path, Problem::new(format!("is {}", value.kind()), accepted));
                return Vec::new();
            }
        },
    };
    let mut names = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let Some(item_fields) = Fields::of(item, &path, "a table with `name:`", report) else { continue };
        only(item_fields, &["name"], &path, report);
        let name = text(item_fields, "name", &path, report).unwrap_or_default();
        let path = format!("{path}.name");
        if name.is_empty() {
            report.error(item.at, &path, Problem::new("has no value", "the name of another rule"));
        } else if name == own {
            report.error(
                item.at,
                &path,
                Problem::new("a rule cannot replace itself", "the name of another rule"),
            );
        } else {
            names.push(name.to_owned());
        }
    }
    names
}

/// Reports fields that the original does not know, and warns of those that it ignores here.
fn only(fields: Fields<'_>, here: &[&str], path: &str, report: &mut Report) {
    let within = |entry: &Entry| match path {
        "" => quoted(&entry.key),
        _ => format!("{path}.{}", quoted(&entry.key)),
    };
    for entry in fields.iter().filter(|entry| !here.contains(&entry.key.as_str())) {
        let mut known = FILE.iter().chain(&DESCRIPTOR).chain(&RATE_LIMIT);
        if known.any(|field| *field == entry.key) {
            let message = format!("means nothing here, and is ignored; it belongs {}", home(&entry.key));
            report.warning(entry.at, &within(entry), Problem::new(message, here.join(", ")));
            continue;
        }
        let message = match nearest(&entry.key, here.iter().copied()) {
            Some(meant) => format!("unknown field; did you mean {meant}?"),
            None if entry.key == "<<" => "only a table, or a list of tables, can be merged".to_owned(),
            None => "unknown field".to_owned(),
        };
        report.error(entry.at, &within(entry), Problem::new(message, here.join(", ")));
    }
}

/// Where a field belongs.
fn home(field: &str) -> &'static str {
    match field {
        "domain" => "at the top of the file",
        "unit" | "requests_per_unit" | "unlimited" | "name" | "replaces" => "inside rate_limit",
        _ => "beside a descriptor's key",
    }
}

/// A field's text as it is written; empty for an empty value.
fn text<'n>(fields: Fields<'n>, name: &str, path: &str, report: &mut Report) -> Option<&'n str> {
    let value = fields.get(name)?;
    match &value.tree {
        Tree::Text(text) => Some(text),
        Tree::Empty => Some(""),
        _ => {
            let problem = Problem::new(format!("is {}", value.kind()), "a text");
            report.error(value.at, &format!("{path}.{name}"), problem);
            None
        }
    }
}

fn flag(fields: Fields<'_>, name: &str, path: &str, report: &mut Report) -> bool {
    let Some(given) = text(fields, name, path, report) else { return false };
    match given.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" => true,
        "" | "false" | "no" | "off" | "n" => false,
        _ => {
            let problem = Problem::new(format!("{} is neither", quoted(given)), "true or false");
            report.error(fields.place(name), &format!("{path}.{name}"), problem);
            false
        }
    }
}
