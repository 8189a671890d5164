//! The meaning of each rule, as a sentence.

use super::tree::{EnvoyConfig, EnvoyLimit, Node, RateAllowance, TreeLevel};
use crate::rls::Unit;
use crate::rule::Numbered;

impl EnvoyConfig {
    pub(crate) fn names(&self) -> Vec<&str> {
        self.domains.iter().map(|domain| domain.name.as_str()).collect()
    }

    pub(crate) fn sentences(&self) -> Vec<String> {
        self.each(sentence)
    }

    pub(crate) fn numbers(&self) -> Vec<Numbered> {
        self.each(numbered)
    }

    pub(crate) fn meanings(&self) -> Vec<(String, String)> {
        self.each(|domain, path| Some((subject(domain, path), sentence(domain, path)?)))
    }

    fn each<T>(&self, visit: fn(&str, &[&Node]) -> Option<T>) -> Vec<T> {
        let mut all = Vec::new();
        for domain in &self.domains {
            level(&domain.root, &domain.name, &mut Vec::new(), visit, &mut all);
        }
        all
    }
}

/// Collects the result of a function for each rule.
fn level<'c, T>(
    level: &'c TreeLevel,
    domain: &str,
    path: &mut Vec<&'c Node>,
    visit: fn(&str, &[&Node]) -> Option<T>,
    all: &mut Vec<T>,
) {
    for node in &level.nodes {
        path.push(node);
        all.extend(visit(domain, path));
        self::level(&node.children, domain, path, visit, all);
        path.pop();
    }
}

/// The subject of a rule.
fn subject(domain: &str, path: &[&Node]) -> String {
    let places: Vec<String> = path.iter().map(|node| place(node)).collect();
    format!("{domain}: {}", places.join(", "))
}

fn numbered(domain: &str, path: &[&Node]) -> Option<Numbered> {
    let limit = path.last()?.limit.as_ref()?;
    let (units, seconds, off) = match limit.allowance {
        RateAllowance::Unlimited => (u64::from(u32::MAX), 1, Some("unlimited")),
        RateAllowance::PerUnit(requests, unit) => (u64::from(requests), unit.seconds(), None),
    };
    let off = off.or(limit.is_shadow.then_some("shadow_mode"));
    Some(Numbered { name: subject(domain, path), off, units, seconds })
}

fn sentence(domain: &str, path: &[&Node]) -> Option<String> {
    let node = path.last()?;
    let subject = subject(domain, path);
    let Some(limit) = &node.limit else {
        let is_exception = node.children.nodes.is_empty();
        return is_exception.then(|| format!("{subject}: not limited"));
    };
    Some(format!("{subject}: {}", allowance(limit)))
}

/// One entry, as text.
fn place(node: &Node) -> String {
    let Node { key, value, is_shared, .. } = node;
    match (value.is_empty(), node.has_star(), is_shared) {
        (true, false, _) => format!("each {key}"),
        (true, true, _) => format!("each of {key}"),
        (false, false, _) => format!("{key}={value}"),
        (false, true, true) => format!("all {key}={value} together"),
        (false, true, false) => format!("each {key}={value}"),
    }
}

fn allowance(limit: &EnvoyLimit) -> String {
    let mut text = match limit.allowance {
        RateAllowance::Unlimited => "not limited".to_owned(),
        RateAllowance::PerUnit(0, _) => "refused always".to_owned(),
        RateAllowance::PerUnit(requests, unit) => {
            let requests =
                if requests == 1 { "1 request".to_owned() } else { format!("{requests} requests") };
            let article = if unit == Unit::Hour { "an" } else { "a" };
            format!("{requests} {article} {}", unit.name())
        }
    };
    if limit.is_shadow {
        text.push_str("; counted, never refused (shadow_mode)");
    }
    if limit.is_quota {
        text.push_str("; refused when every quota of the request is used up (quota_mode)");
    }
    if !limit.name.is_empty() {
        text.push_str(&format!("; called {}", limit.name));
    }
    if !limit.replaces.is_empty() {
        text.push_str(&format!("; in place of {}", limit.replaces.join(", ")));
    }
    text
}
