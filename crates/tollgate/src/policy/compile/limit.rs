//! One limit of a file. [`super::quota`] reads its quotas, and [`super::when`] its conditions.

use crate::address::{Network, Prefixes};
use crate::policy::check;
use crate::policy::compile::{lease, on_store_failure, penalty, quota, when};
use crate::policy::document::{Node, Tree};
use crate::policy::exact::is_client;
use crate::policy::expression::Expression;
use crate::policy::failures::Failures;
use crate::policy::fields::{self, Fields};
use crate::policy::finding::{Position, Problem, Report, quoted};
use crate::policy::limit::{Consistency, Cost, ExtraAttributes, Limit, Mode, QuotaIndex, Quotas};
use crate::policy::pattern::NO_ADDRESS;
use crate::policy::positions::LimitPositions;
use crate::policy::text::TextMap;
use crate::policy::{By, Vocabulary};
use crate::quota::Quota;
use crate::rate_text;

/// The fields of a limit.
pub(crate) const FIELDS: [&str; 27] = [
    "name",
    "when",
    "by",
    "extra_attributes",
    "rate",
    "burst",
    "algorithm",
    "align",
    "timezone",
    "billing_day",
    "precision",
    "estimate",
    "queue",
    "concurrency",
    "permit_ttl",
    "tier_by",
    "tiers",
    "overrides",
    "cost",
    "mode",
    "enforce_percent",
    "on_store_failure",
    "consistency",
    "lease",
    "block_for",
    "count",
    "failures",
];

/// Which requests count: all, or only failures.
const COUNTS: [(&str, bool); 2] = [("all", false), ("failures", true)];

pub(super) const CONSISTENCIES: [(&str, Consistency); 3] =
    [("exact", Consistency::Exact), ("leased", Consistency::Leased), ("auto", Consistency::Auto)];

pub(super) const EXTRA_ATTRIBUTES: [(&str, ExtraAttributes); 2] =
    [("any", ExtraAttributes::Any), ("none", ExtraAttributes::None)];

/// The name of a limit for its findings, read before everything else.
pub(super) fn name_of(node: &Node) -> Option<&str> {
    let Tree::Table(entries) = &node.tree else {
        return None;
    };
    let entry = entries.iter().find(|entry| entry.key == "name")?;
    match &entry.node.tree {
        Tree::Text(name) => Some(name),
        _ => None,
    }
}

/// Reads a limit. Returns it with the positions of its fields.
pub(super) fn read(
    node: &Node,
    vocabulary: &Vocabulary,
    report: &mut Report,
) -> Option<(Limit, LimitPositions)> {
    let fields = Fields::of(node, "", "a table such as {name: all, rate: 100/s}", report)?;
    fields.only(&FIELDS, report);
    let name = name(fields, report).unwrap_or_default();
    let when = when::read(fields, vocabulary, report);
    let by = by(fields, vocabulary, report);
    let mut quotas = quota::read(fields, report);
    if let Some(quotas) = &mut quotas {
        quotas.overrides = keyed(std::mem::take(&mut quotas.overrides), by.first(), fields, report);
    }
    let cost = cost(fields, quotas.as_ref(), report);
    let percent = fields.count("enforce_percent", 100, report).unwrap_or(100);
    let consistency = fields.choice("consistency", &CONSISTENCIES, report).unwrap_or_default();
    let mut limit = Limit {
        name: name.to_owned(),
        when,
        by,
        extra_attributes: fields.choice("extra_attributes", &EXTRA_ATTRIBUTES, report).unwrap_or_default(),
        mode: fields.choice("mode", &Mode::NAMED, report).unwrap_or_default(),
        enforce_percent: u8::try_from(percent).unwrap_or(100),
        on_store_failure: on_store_failure::read(fields, report).unwrap_or_default(),
        consistency,
        lease: lease::read(fields, consistency, report),
        block_for: penalty::read(fields, report),
        failures: failures(fields, report),
        // Without quotas the limit is refused, but its other problems are still reported.
        quotas: quotas.unwrap_or_else(Quotas::none),
        cost,
    };
    for doubt in limit.settle(vocabulary) {
        report.say(fields.place("cost"), "cost", doubt);
    }
    for (field, fault) in limit.seal(report.credentials()) {
        report.error(fields.place(&field), &field, fault);
    }
    check::alone(&limit, vocabulary, &|field| fields.place(field), report);
    Some((limit, LimitPositions::of(fields)))
}

fn name<'n>(fields: Fields<'n>, report: &mut Report) -> Option<&'n str> {
    if !fields.has("name") {
        let problem = Problem::new("missing", "a name that no other limit has");
        report.error(fields.place("name"), "name", problem);
    }
    let name = fields.text("name", "a text", report)?;
    check::name(name, fields.place("name"), report);
    Some(name)
}

/// The attributes of `by`: a list, or a single name.
fn by(fields: Fields<'_>, vocabulary: &Vocabulary, report: &mut Report) -> Vec<By> {
    let accepted = "a list of attribute names, such as [api_key]";
    let Some(node) = fields.get("by") else {
        return Vec::new();
    };
    let Tree::List(items) = &node.tree else {
        let written = fields::text(node, "by", accepted, report);
        return written
            .and_then(|written| attribute(written, ("by", node.at), vocabulary, report))
            .into_iter()
            .collect();
    };
    let mut read: Vec<By> = Vec::new();
    for (i, item) in items.iter().enumerate() {
        let field = format!("by[{i}]");
        let Some(written) = fields::text(item, &field, accepted, report) else { continue };
        // YAML takes `[ip/24,64]` for two items.
        let before = i.checked_sub(1).and_then(|before| items.get(before)).and_then(Node::as_text);
        let prefix = before.filter(|before| before.contains('/') && !before.contains(','));
        let is_rest = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if prefix.is_some() && is_rest(written) {
            continue;
        }
        let rest =
            items.get(i + 1).and_then(Node::as_text).filter(|rest| written.contains('/') && is_rest(rest));
        let whole = match rest {
            Some(rest) if !written.contains(',') => format!("{written},{rest}"),
            _ => written.to_owned(),
        };
        read.extend(attribute(&whole, (&field, item.at), vocabulary, report));
    }
    read
}

/// One attribute of `by`.
fn attribute(
    written: &str,
    (field, at): (&str, Position),
    vocabulary: &Vocabulary,
    report: &mut Report,
) -> Option<By> {
    let is_name = vocabulary.declares(written);
    let is_list = !is_name && !written.contains('/') && written.contains([',', ' ', '|', '+']);
    let read = if is_list {
        let names: Vec<&str> = written.split([',', ' ', '|', '+']).filter(|name| !name.is_empty()).collect();
        let message = format!("{} is several names in one text", quoted(written));
        Err(Problem::new(message, format!("by: [{}]", quoted(&names.join(", ")))))
    } else {
        By::read(written, vocabulary)
    };
    read.map_err(|problem| report.error(at, field, problem)).ok()
}

/// Overrides by their keys. Addresses count by network, so an override for an address names its network.
fn keyed(
    overrides: TextMap<QuotaIndex>,
    by: Option<&By>,
    fields: Fields<'_>,
    report: &mut Report,
) -> TextMap<QuotaIndex> {
    let Some((by, prefixes)) = by.and_then(|by| Some((by, by.prefixes()?))) else { return overrides };
    let mut keyed = TextMap::default();
    for (written, index) in overrides {
        let field = format!("overrides.{}", quoted(&written));
        let network = written.parse::<Network>();
        let key = network.as_ref().ok().and_then(|network| prefixes.network(&network.first().to_string()));
        let problem = match (network, key) {
            (Ok(network), Some(key)) if network == key => None,
            (Ok(network), Some(key)) if key.contains(&network) => {
                let message = format!("{written} is a part of the key {key}, since `by` counts by network");
                Some(Problem::new(message, key.to_string()))
            }
            // The config may say that so many bits are one client.
            (Ok(network), Some(_)) if prefixes == Prefixes::Default && is_client(&network) => None,
            (Ok(_), _) => {
                let accepted =
                    format!("a limit of its own with `when: {{{}: {}}}`", by.name(), quoted(&written));
                Some(Problem::new("an override is for one key, and this is a network of many", accepted))
            }
            (Err(_), _) if &*written == NO_ADDRESS => None,
            (Err(why), _) => Some(Problem::new(format!("{} {why}", quoted(&written)), "")),
        };
        match problem {
            Some(problem) => report.error(fields.place(&field), &field, problem),
            None => {
                let key = by.key_text((&*written).into());
                if keyed.insert(key.into(), index).is_some() {
                    let problem = Problem::new("another override is for the same key", "each key once");
                    report.error(fields.place(&field), &field, problem);
                }
            }
        }
    }
    keyed
}

/// A number, the name of an attribute, or CEL.
fn cost(fields: Fields<'_>, quotas: Option<&Quotas>, report: &mut Report) -> Cost {
    let accepted = "a number, the name of an attribute, or CEL such as prompt_tokens + max_tokens";
    let Some(text) = fields.text("cost", accepted, report) else {
        // A request in flight takes one permit, whatever its cost.
        let in_flight =
            quotas.is_some_and(|quotas| matches!(quotas.all.first(), Some(Quota::Concurrency(_))));
        return if in_flight { Cost::Units(1) } else { Cost::Asked };
    };
    let problem = match (rate_text::count(text.trim()), Expression::new(text)) {
        (Ok(units), _) => return Cost::Units(units),
        (Err(problem), Ok(expression)) => {
            if is_number_like(text) || expression.attributes().next().is_none() {
                problem
            } else {
                return match expression.as_name() {
                    Some(name) => Cost::Attribute(name),
                    None => Cost::Computed(expression),
                };
            }
        }
        (Err(problem), Err(_)) if is_number_like(text) => problem,
        (Err(_), Err(problem)) => problem,
    };
    report.error(fields.place("cost"), "cost", problem);
    Cost::Asked
}

/// Whether only failures count, and which responses are failures.
fn failures(fields: Fields<'_>, report: &mut Report) -> Option<Failures> {
    let is_counted = fields.choice("count", &COUNTS, report).unwrap_or(false);
    let accepted = "a list of statuses such as [401, 403, 5xx]";
    let Some(node) = fields.get("failures") else { return is_counted.then(Failures::default) };
    if !is_counted {
        let problem = Problem::new("every response counts", "count: failures with it");
        report.error(fields.key_position("failures"), "failures", problem);
    }
    let Tree::List(items) = &node.tree else {
        report.error(node.at, "failures", Problem::new(format!("is {}", node.kind()), accepted));
        return None;
    };
    if items.is_empty() {
        let problem = Problem::new("an empty list counts nothing", accepted);
        report.error(node.at, "failures", problem);
    }
    let read = |(i, item)| fields::text(item, &format!("failures[{i}]"), accepted, report);
    let texts: Vec<&str> = items.iter().enumerate().filter_map(read).collect();
    match Failures::read(texts.iter().map(|text| text.trim())) {
        Ok(failures) => Some(failures),
        Err(text) => {
            let message = format!("{} is not a status", quoted(text));
            report.error(node.at, "failures", Problem::new(message, "100 to 599, or 1xx to 5xx"));
            None
        }
    }
}

/// Texts that YAML reads as numbers and CEL as names.
fn is_number_like(text: &str) -> bool {
    let bare = text.trim().trim_start_matches(['+', '-', '.']).to_ascii_lowercase();
    matches!(bare.as_str(), "nan" | "inf" | "infinity")
        || bare.starts_with(|c: char| c.is_ascii_digit()) && !bare.contains(' ')
}
