//! Writes the rules of a tree as limits: the path through the tree becomes a condition, because in a policy every limit
//! that matches applies.

use tollgate::policy::Expression;
use tollgate::rate::UNITS_PER_SECOND_MAX;

use super::tree::{EnvoyConfig, Node, RateAllowance, TreeLevel};
use crate::convert::{AND, Converted, ConvertedDomain, Native, REFUSED, WINDOWS, cel_text, is_name};
use crate::rls::Unit;

/// A rule and its ancestors, each with the level that contains it.
type Path<'c> = Vec<(&'c TreeLevel, &'c Node)>;

impl EnvoyConfig {
    /// The rules of a domain.
    pub(crate) fn converted(&self, domain: &str) -> ConvertedDomain {
        let (mut ways, mut limits) = (Vec::new(), Vec::new());
        if let Some(domain) = self.domain(domain) {
            collect_ways(&domain.root, &mut Vec::new(), &mut ways);
            level(&domain.root, &ways, &mut Vec::new(), &mut limits);
        }
        let changes =
            vec!["it also applies to requests with attributes that the rule does not name, and in any order"];
        let together = "a request that one limit refuses is counted by no limit; there, the others count it";
        ConvertedDomain { limits, changes, together: Some(together) }
    }
}

/// The keys on the way to each node: the descriptors that the file knows.
fn collect_ways<'c>(level: &'c TreeLevel, way: &mut Vec<&'c str>, ways: &mut Vec<Vec<&'c str>>) {
    for node in &level.nodes {
        way.push(&node.key);
        ways.push(way.clone());
        collect_ways(&node.children, way, ways);
        way.pop();
    }
}

/// A key of each longer descriptor that has all keys of this path: by it a request is known to be meant for the longer
/// one, whose rule applies there instead.
fn longer<'c>(path: &Path<'_>, ways: &[Vec<&'c str>]) -> Vec<&'c str> {
    let is_here = |key: &str| path.iter().any(|(_, node)| node.key == key);
    let mut keys: Vec<&str> = Vec::new();
    for way in ways.iter().filter(|way| path.iter().all(|(_, node)| way.contains(&node.key.as_str()))) {
        let others = || way.iter().copied().filter(|key| !is_here(key) && is_name(key));
        if !others().any(|key| keys.contains(&key)) {
            keys.extend(others().next());
        }
    }
    keys
}

fn level<'c>(at: &'c TreeLevel, ways: &[Vec<&str>], path: &mut Path<'c>, converted: &mut Vec<Converted>) {
    for node in &at.nodes {
        path.push((at, node));
        if node.limit.is_some() {
            converted.push(rule(path, ways));
        }
        level(&node.children, ways, path, converted);
        path.pop();
    }
}

fn rule(path: &Path<'_>, ways: &[Vec<&str>]) -> Converted {
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
            native(path, ways, requests, unit, &mut changes)
        }
        _ => Err(
            "without a limit everything passes, which needs no limit here; the limits beside it leave it out"
                .to_owned(),
        ),
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

fn native(
    path: &Path<'_>,
    ways: &[Vec<&str>],
    requests: u32,
    unit: Unit,
    changes: &mut Vec<String>,
) -> Result<Native, String> {
    if u64::from(requests) > UNITS_PER_SECOND_MAX.saturating_mul(unit.seconds()) {
        return Err(format!("{requests} a {} is faster than a policy can count", unit.name()));
    }
    if let Some((_, node)) = path.iter().find(|(_, node)| !is_name(&node.key)) {
        return Err(format!(
            "CEL cannot name the attribute {}; write this limit by hand, with a table in `when:`",
            node.key
        ));
    }
    let is_repeated = |at: usize| path[..at].iter().any(|(_, before)| before.key == path[at].1.key);
    if let Some(at) = (0..path.len()).find(|&at| is_repeated(at)) {
        return Err(format!(
            "a request has the attribute {} once, and this rule asks for it twice",
            path[at].1.key
        ));
    }
    let mut conditions = Vec::new();
    for (level, node) in path {
        conditions.extend(own(node, changes));
        conditions.extend(others(level, node, changes));
    }
    let left_out: Vec<String> = longer(path, ways).into_iter().map(str::to_owned).collect();
    conditions.extend(left_out.iter().map(|key| format!("!has({key})")));
    if !conditions.is_empty()
        && let Err(problem) = Expression::new(&conditions.join(AND))
    {
        return Err(format!(
            "its condition is too much for one expression ({}); write it by hand",
            problem.message
        ));
    }
    let mut by: Vec<String> = Vec::new();
    for (_, node) in path {
        let is_counted_by = node.value.is_empty() || node.value.contains('*') && !node.is_shared;
        if is_counted_by && !by.contains(&node.key) {
            by.push(node.key.clone());
        }
    }
    let (rate, align) = match requests {
        0 => (REFUSED.to_owned(), None),
        _ => (rate(requests, unit), Some("epoch")),
    };
    Ok(Native { when: conditions, left_out, by, rate, align, is_shadow: false })
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

/// The conditions that exclude values for which another rule of the level would match instead.
fn others(level: &TreeLevel, node: &Node, changes: &mut Vec<String>) -> Vec<String> {
    if !node.value.is_empty() && !node.value.contains('*') {
        return Vec::new();
    }
    let is_wild = |other: &Node| other.value.contains('*');
    let mut is_before = true;
    let (mut conditions, mut values) = (Vec::new(), Vec::new());
    for other in &level.nodes {
        if std::ptr::eq(other, node) {
            is_before = false;
            continue;
        }
        let is_met_instead = other.key == node.key
            && !other.value.is_empty()
            && (!is_wild(other) || is_before || node.value.is_empty());
        if is_met_instead {
            match is_wild(other) {
                true => conditions.push(format!("!({})", condition(other, changes))),
                false => values.push(cel_text(&other.value)),
            }
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
    if middle.iter().any(|part| !part.is_empty()) {
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
