//! Writes Limitador's limits as limits of a policy: `descriptors[0]['name']` becomes the attribute `name`.

use tollgate::policy::Expression;
use tollgate::policy::source::Cel;
use tollgate::rate::UNITS_PER_SECOND_MAX;

use super::{LimitadorConfig, LimitadorLimit};
use crate::convert::{Converted, ConvertedDomain, Native, REFUSED, WINDOWS, When, is_name};

impl LimitadorConfig {
    /// The limits of a namespace.
    pub(crate) fn converted(&self, namespace: &str) -> ConvertedDomain {
        let limits = self.limits(namespace);
        let is_read = |limit: &LimitadorLimit| !limit.conditions.is_empty() || !limit.variables.is_empty();
        let changes = match limits.iter().any(is_read) {
            true => vec![
                "of several descriptors it looks at the first that has its attributes, not only at descriptors[0]"
                    .to_owned(),
            ],
            false => Vec::new(),
        };
        let limits = limits.iter().map(converted).collect();
        ConvertedDomain { limits, defaults: "", changes, together: None, made_for: None }
    }
}

fn converted(limit: &LimitadorLimit) -> Converted {
    let name = limit.name.clone().or_else(|| limit.id.clone());
    let name = name.unwrap_or_else(|| format!("{}-in-{}s", limit.max_value, limit.seconds));
    let possible = (limit.max_value > 0).then_some(WINDOWS);
    // Limitador never applies a limit that reads a name without a value; a policy reads it as an attribute.
    let read = limit.conditions.iter().chain(&limit.variables);
    let changes = read.filter_map(Cel::unknown).map(|name| {
        format!(
            "{name} has no value in Limitador, so the limit does not apply there; here it is an attribute of the request"
        )
    });
    let (origin, changes) = (limit.sentence(), changes.collect());
    Converted { name, origin, limit: native(limit), refuses: true, changes, possible }
}

fn native(limit: &LimitadorLimit) -> Result<Native, String> {
    if limit.seconds == 0 {
        return Err("a limit in 0 seconds counts nothing, and no policy says that".to_owned());
    }
    if limit.max_value > UNITS_PER_SECOND_MAX.saturating_mul(limit.seconds) {
        return Err("it is faster than a policy can count".to_owned());
    }
    let mut by = Vec::new();
    for variable in &limit.variables {
        let name = attribute_names(variable.source()).filter(|name| name.split('.').all(is_name));
        by.push(
            name.ok_or_else(|| format!("a policy counts by attributes, and {} is none", variable.source()))?,
        );
    }
    let mut conditions = Vec::new();
    for condition in &limit.conditions {
        let rewritten = attribute_names(condition.source());
        let rewritten = rewritten.filter(|text| is_ours(text));
        let rewritten = rewritten
            .ok_or_else(|| format!("{} cannot be said with attributes alone", condition.source()))?;
        conditions.push(if limit.conditions.len() > 1 { format!("({rewritten})") } else { rewritten });
    }
    let (rate, align) = match limit.max_value {
        0 => (REFUSED.to_owned(), None),
        most => (format!("{most} per {}s", limit.seconds), Some("first-hit")),
    };
    Ok(Native { when: When::Cel(conditions), by, rate, align, ..Native::default() })
}

/// Whether it is an expression over attributes, and over nothing else.
fn is_ours(text: &str) -> bool {
    let is_plain = |name: &str| !matches!(name.split('.').next(), Some("descriptors" | "limit"));
    Expression::new(text).is_ok_and(|expression| expression.attributes().all(is_plain))
}

/// The expression with attributes instead of the entries of the first descriptor that it reads; `None` if it reads an
/// entry that is not a valid name.
fn attribute_names(source: &str) -> Option<String> {
    const FIRST: &str = "descriptors[0]";
    let mut text = String::new();
    let mut rest = source;
    while let Some(at) = rest.find(FIRST) {
        text.push_str(&rest[..at]);
        let after = &rest[at + FIRST.len()..];
        let (name, left) = if let Some(after) = after.strip_prefix('.') {
            let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(after.len());
            after.split_at(end)
        } else {
            let (quote, end) = if after.starts_with("['") { ("['", "']") } else { ("[\"", "\"]") };
            after.strip_prefix(quote)?.split_once(end)?
        };
        // A name with dots is an attribute's name in CEL too.
        if !name.split('.').all(is_name) {
            return None;
        }
        text.push_str(name);
        rest = left;
    }
    text.push_str(rest);
    Some(text)
}
