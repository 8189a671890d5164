//! Writes the rules of a tree as limits: the path through the tree becomes a condition, because in a policy every limit
//! that matches applies.

use serde_json::json;
use tollgate::policy::{Expression, Negation};
use tollgate::rate::UNITS_PER_SECOND_MAX;

use super::tree::{EnvoyConfig, Node, RateAllowance, TreeLevel};
use crate::convert::{
    AND, AttributeCondition, Converted, ConvertedDomain, Native, REFUSED, WINDOWS, When, cel_text, is_name,
    problem,
};
use crate::rls::Unit;

/// A rule and its ancestors, each with the level that contains it.
type Path<'c> = Vec<(&'c TreeLevel, &'c Node)>;

impl EnvoyConfig {
    /// The rules of a domain.
    pub(crate) fn converted(&self, domain: &str) -> ConvertedDomain {
        let mut limits = Vec::new();
        if let Some(domain) = self.domain(domain) {
            level(&domain.root, &mut Vec::new(), &mut limits);
        }
        let changes = vec![ORDER.to_owned()];
        let together = "a request that one limit refuses is counted by no limit; there, the others count it";
        ConvertedDomain {
            limits,
            defaults: DEFAULTS,
            changes,
            together: Some(together),
            made_for: Some(MADE_FOR),
        }
    }
}

/// A rule is for descriptors that have its entries and no others.
const DEFAULTS: &str = "extra_attributes: none, algorithm: fixed-window, align: epoch";
const MADE_FOR: &str =
    "for Envoy's descriptors; behind the gateway remove extra_attributes, or no limit applies";
const ORDER: &str =
    "the order of a descriptor's entries does not matter, and a descriptor that has a key twice is refused";

fn level<'c>(at: &'c TreeLevel, path: &mut Path<'c>, converted: &mut Vec<Converted>) {
    for node in &at.nodes {
        path.push((at, node));
        if node.limit.is_some() {
            converted.push(rule(path));
        }
        level(&node.children, path, converted);
        path.pop();
    }
}

fn rule(path: &Path<'_>) -> Converted {
    let shown = |node: &Node| {
        if node.value.is_empty() { node.key.clone() } else { format!("{}={}", node.key, node.value) }
    };
    let way: Vec<String> = path.iter().map(|(_, node)| shown(node)).collect();
    let limit = path.last().and_then(|(_, node)| node.limit.as_ref());
    let name = match limit {
        Some(limit) if !limit.name.is_empty() => limit.name.clone(),
        _ => way.join("-"),
    };
    let (mut changes, mut possible) = (Vec::new(), None);
    let native = match limit.map(|limit| limit.allowance) {
        Some(RateAllowance::PerUnit(requests, unit)) => {
            possible = (requests > 0).then_some(better(unit));
            native(path, requests, unit, &mut changes)
        }
        _ => {
            Err("everything passes without a limit; the limits beside it leave out what it names".to_owned())
        }
    };
    if let Some(limit) = limit {
        if limit.is_quota {
            changes.push("quota_mode has no counterpart: here this limit refuses by itself".to_owned());
        }
        if !limit.replaces.is_empty() {
            changes.push(format!(
                "replaces has no counterpart: here {} applies beside it",
                limit.replaces.join(", ")
            ));
        }
    }
    let is_shadow = limit.is_some_and(|limit| limit.is_shadow);
    let is_limited = limit.is_some_and(|limit| matches!(limit.allowance, RateAllowance::PerUnit(..)));
    let native = native.map(|native| Native { is_shadow, ..native });
    changes.dedup();
    let refuses = is_limited && !is_shadow;
    Converted { name, origin: way.join(", "), limit: native, refuses, changes, possible }
}

fn native(path: &Path<'_>, requests: u32, unit: Unit, changes: &mut Vec<String>) -> Result<Native, String> {
    if u64::from(requests) > UNITS_PER_SECOND_MAX.saturating_mul(unit.seconds()) {
        return Err(format!("{requests} a {} is faster than a policy can count", unit.name()));
    }
    if let Some((_, node)) = path.iter().find(|(_, node)| node.key.contains('*')) {
        return Err(format!("{} stands for many keys, and a policy names each attribute", node.key));
    }
    let is_repeated = |at: usize| path[..at].iter().any(|(_, before)| before.key == path[at].1.key);
    if let Some(at) = (0..path.len()).find(|&at| is_repeated(at)) {
        return Err(format!(
            "a request has the attribute {} once, and this rule asks for it twice",
            path[at].1.key
        ));
    }
    let when = match table(path) {
        Some(conditions) => When::Table(conditions),
        None => When::Cel(expression(path, changes)?),
    };
    let mut by: Vec<String> = Vec::new();
    for (_, node) in path {
        let is_counted_by = node.value.is_empty() || node.value.contains('*') && !node.is_shared;
        if is_counted_by && !by.contains(&node.key) {
            by.push(node.key.clone());
        }
    }
    let rate = if requests == 0 { REFUSED.to_owned() } else { rate(requests, unit) };
    Ok(Native { when, by, rate, align: None, is_shadow: false })
}

/// The condition of a rule as a table, if a table can express it.
fn table(path: &Path<'_>) -> Option<Vec<AttributeCondition>> {
    let mut conditions = Vec::new();
    for (level, node) in path {
        let excluded: Vec<String> = met_instead(level, node).map(|other| other.value.clone()).collect();
        let (sense, values) = match (node.value.is_empty(), excluded.is_empty()) {
            (true, true) => continue,
            (true, false) => (Negation::IsNot, excluded),
            (false, true) => (Negation::Is, vec![node.value.clone()]),
            (false, false) => return None,
        };
        if !values.iter().all(|value| is_plain(value)) {
            return None;
        }
        conditions.push(AttributeCondition { name: node.key.clone(), sense, values });
    }
    // The compiler refuses values that it takes for something else.
    let names: Vec<&str> = conditions.iter().map(|one| one.name.as_str()).collect();
    let entry = |one: &AttributeCondition| match one.sense {
        Negation::Is => (one.name.clone(), json!(one.values)),
        Negation::IsNot => (one.name.clone(), json!({ "not": one.values })),
    };
    let when: serde_json::Map<_, _> = conditions.iter().map(entry).collect();
    let alone = json!({ "attributes": names, "limits": [{ "name": "a", "when": when, "rate": "1/s" }] });
    (conditions.is_empty() || problem(&alone.to_string()).is_none()).then_some(conditions)
}

/// Whether a table compares a value, or its pattern, as the original does.
fn is_plain(value: &str) -> bool {
    value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./:@*".contains(&byte))
}

/// The condition of a rule in CEL.
fn expression(path: &Path<'_>, changes: &mut Vec<String>) -> Result<Vec<String>, String> {
    if let Some((_, node)) = path.iter().find(|(_, node)| !is_name(&node.key)) {
        return Err(format!(
            "CEL cannot name the attribute {}; write this limit by hand, with a table in `when:`",
            node.key
        ));
    }
    let mut conditions = Vec::new();
    for (level, node) in path {
        conditions.extend(own(node, changes));
        conditions.extend(others(level, node, changes));
    }
    match Expression::new(&conditions.join(AND)) {
        Err(problem) if !conditions.is_empty() => Err(format!(
            "its condition is too much for one expression ({}); write it by hand",
            problem.message
        )),
        _ => Ok(conditions),
    }
}

fn rate(requests: u32, unit: Unit) -> String {
    match unit {
        Unit::Second => format!("{requests}/s"),
        Unit::Minute => format!("{requests}/min"),
        Unit::Hour => format!("{requests}/h"),
        Unit::Day => format!("{requests}/day"),
        Unit::Week | Unit::Month | Unit::Year => format!("{requests} per {}d", unit.seconds() / 86_400),
    }
}

/// An ability of the limit in a policy that the original lacks.
const fn better(unit: Unit) -> &'static str {
    match unit {
        Unit::Second | Unit::Minute | Unit::Hour => WINDOWS,
        Unit::Day | Unit::Week | Unit::Month | Unit::Year => {
            "`align: calendar` with a `timezone:` counts by the days, weeks, months and years of the calendar instead \
             of periods from 1970"
        }
    }
}

/// The condition that the value of an entry must meet for its own rule.
fn own(node: &Node, changes: &mut Vec<String>) -> Option<String> {
    (!node.value.is_empty()).then(|| condition(node, changes))
}

/// The rules of the level that match some values of a rule in its place.
fn met_instead<'c>(level: &'c TreeLevel, node: &'c Node) -> impl Iterator<Item = &'c Node> {
    let is_exact = |node: &Node| !node.value.is_empty() && !node.value.contains('*');
    let own = level.nodes.iter().position(|other| std::ptr::eq(other, node));
    level.nodes.iter().enumerate().filter_map(move |(place, other)| {
        let is_other = other.key == node.key && !other.value.is_empty() && Some(place) != own;
        let is_first = is_exact(other) || node.value.is_empty() || Some(place) < own;
        (is_other && !is_exact(node) && is_first).then_some(other)
    })
}

/// The conditions that exclude values for which another rule of the level matches instead.
fn others(level: &TreeLevel, node: &Node, changes: &mut Vec<String>) -> Vec<String> {
    let (mut conditions, mut values) = (Vec::new(), Vec::new());
    for other in met_instead(level, node) {
        match other.value.contains('*') {
            true => conditions.push(format!("!({})", condition(other, changes))),
            false => values.push(cel_text(&other.value)),
        }
    }
    match values.as_slice() {
        [] => {}
        [one] => conditions.push(format!("{} != {one}", node.key)),
        several => conditions.push(format!("!({} in [{}])", node.key, several.join(", "))),
    }
    conditions
}

/// The value of an entry, as a condition in CEL.
fn condition(node: &Node, changes: &mut Vec<String>) -> String {
    let key = &node.key;
    let parts: Vec<&str> = node.value.split('*').collect();
    let [first, middle @ .., last] = parts.as_slice() else {
        return format!("{key} == {}", cel_text(&node.value));
    };
    let mut all = Vec::new();
    if !first.is_empty() {
        all.push(format!("{key}.startsWith({})", cel_text(first)));
    }
    all.extend(
        middle
            .iter()
            .filter(|part| !part.is_empty())
            .map(|part| format!("{key}.contains({})", cel_text(part))),
    );
    if !last.is_empty() {
        all.push(format!("{key}.endsWith({})", cel_text(last)));
    }
    let is_ordered = middle.iter().any(|part| !part.is_empty()) && all.len() > 1;
    if is_ordered {
        let value = &node.value;
        changes.push(format!("{value} is wider here: the order of its inner parts is not looked at"));
    }
    let letters: usize = parts.iter().map(|part| part.chars().count()).sum();
    if all.len() > 1 {
        all.push(format!("size({key}) >= {letters}"));
    }
    match all.len() {
        0 => format!("has({key})"),
        _ => all.join(" && "),
    }
}
