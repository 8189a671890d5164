//! The rules of each domain as a tree, and the path of a descriptor through it.

use std::cell::LazyCell;
use std::collections::HashMap;

use tollgate::policy::glob::Glob;

use crate::rls::Unit;
use crate::text;

/// All domains of a configuration.
#[derive(Debug, Default)]
pub struct EnvoyConfig {
    pub(super) domains: Vec<Domain>,
    by_name: HashMap<String, usize>,
}

/// One domain.
#[derive(Debug, Default)]
pub(super) struct Domain {
    pub(super) name: String,
    pub(super) root: TreeLevel,
}

/// The rules that one entry of a descriptor may match.
#[derive(Debug, Default)]
pub(super) struct TreeLevel {
    /// In the file's order.
    pub(super) nodes: Vec<Node>,
    /// The index of the rule for a key and a value.
    exact: HashMap<String, HashMap<String, usize>>,
    /// The rules with a star, in the file's order.
    wild: Vec<(usize, Wildcard)>,
    /// The index of the rule for any value of a key.
    any: HashMap<String, usize>,
}

/// How a rule with a star matches.
#[derive(Debug)]
enum Wildcard {
    /// The key is plain, and the value matches.
    Value(Glob),
    /// The key contains a star: key and value match as one text, with an underscore between them.
    Whole(Glob),
}

/// One rule.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) key: String,
    /// Empty for any value.
    pub(super) value: String,
    pub(super) limit: Option<EnvoyLimit>,
    /// Whether all values that match its star share one counter.
    pub(super) is_shared: bool,
    /// Whether metrics show the value of its entry (`value_to_metric`).
    pub(super) tells_value: bool,
    pub(super) children: TreeLevel,
}

/// The rate that a rule allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EnvoyLimit {
    pub(super) allowance: RateAllowance,
    /// Empty if it has none.
    pub(super) name: String,
    pub(super) replaces: Vec<String>,
    pub(super) is_shadow: bool,
    pub(super) is_quota: bool,
    /// Its name in the metrics: the domain and the path to it, as in the original.
    pub(super) metric: String,
    /// Whether metrics show the value of every entry (`detailed_metric`).
    pub(super) tells_values: bool,
}

/// How much a rule allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RateAllowance {
    /// Everything, uncounted.
    Unlimited,
    /// This many in each unit; 0 allows none.
    PerUnit(u32, Unit),
}

/// The rule that a descriptor matched, and the key of its counter.
#[derive(Debug)]
pub(super) struct MatchedNode<'c> {
    pub(super) limit: &'c EnvoyLimit,
    /// For each entry the pattern that replaces its value, if such values share a counter.
    pub(super) patterns: Vec<Option<&'c str>>,
    /// Its name in the metrics with values of the request, if the rule asks for that.
    pub(super) detail: Option<String>,
}

impl EnvoyConfig {
    /// The domain of this name. It is created if it is missing.
    pub(super) fn domain_mut(&mut self, name: &str) -> &mut Domain {
        let next = self.domains.len();
        let at = *self.by_name.entry(name.to_owned()).or_insert(next);
        if at == next {
            self.domains.push(Domain { name: name.to_owned(), root: TreeLevel::default() });
        }
        &mut self.domains[at]
    }

    /// Sets the name of each rule in the metrics, once the configuration is complete.
    pub(super) fn name_rules(&mut self) {
        for domain in &mut self.domains {
            domain.root.name_rules(&text::plain(&domain.name));
        }
    }

    /// The names of its rules in the metrics.
    pub(crate) fn metrics(&self) -> Vec<&str> {
        let mut limits = Vec::new();
        self.domains.iter().for_each(|domain| domain.root.list(&mut limits));
        limits.into_iter().map(|limit| limit.metric.as_str()).collect()
    }

    pub(super) fn domain(&self, name: &str) -> Option<&Domain> {
        self.by_name.get(name).and_then(|&at| self.domains.get(at))
    }
}

impl Domain {
    /// The rule for a descriptor, if there is one: that of its last entry, reached through one rule for each entry
    /// before.
    pub(super) fn met<'c>(&'c self, entries: &[(String, String)]) -> Option<MatchedNode<'c>> {
        let mut level = &self.root;
        let mut path = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let node = level.find(key, value)?;
            level = &node.children;
            path.push(node);
        }
        let limit = path.last()?.limit.as_ref()?;
        let patterns = path.iter().map(|node| node.is_shared.then_some(node.value.as_str())).collect();
        let is_detailed = limit.tells_values || path.iter().any(|node| node.tells_value);
        let detail = is_detailed.then(|| self.detail(limit, &path, entries));
        Some(MatchedNode { limit, patterns, detail })
    }

    /// The name of a rule in the metrics, with the values of these entries.
    fn detail(&self, limit: &EnvoyLimit, path: &[&Node], entries: &[(String, String)]) -> String {
        let mut name = text::plain(&self.name);
        for (node, (key, value)) in path.iter().zip(entries) {
            name.push('.');
            let is_open = node.value.is_empty() || node.has_star();
            if is_open && !node.is_shared && (limit.tells_values || node.tells_value) {
                text::push(&mut name, key);
                name.push('_');
                text::push(&mut name, value);
            } else {
                name.push_str(&node.metric());
            }
        }
        name
    }
}

impl Node {
    pub(super) fn has_star(&self) -> bool {
        self.value.contains('*') || self.key.contains('*')
    }

    /// Its part of the name in the metrics.
    fn metric(&self) -> String {
        let (key, value) = (text::plain(&self.key), text::plain(&self.value));
        if value.is_empty() { key } else { format!("{key}_{value}") }
    }
}

impl TreeLevel {
    /// Sets the name of each rule below this level in the metrics.
    fn name_rules(&mut self, way: &str) {
        for node in &mut self.nodes {
            let way = format!("{way}.{}", node.metric());
            node.children.name_rules(&way);
            if let Some(limit) = &mut node.limit {
                limit.metric = way;
            }
        }
    }

    /// Adds all rules below this level to the list.
    fn list<'c>(&'c self, limits: &mut Vec<&'c EnvoyLimit>) {
        for node in &self.nodes {
            limits.extend(&node.limit);
            node.children.list(limits);
        }
    }

    /// Adds a rule, unless there is one for the same key and value. Returns whether it was added.
    pub(super) fn add(&mut self, node: Node) -> bool {
        let at = self.nodes.len();
        let (key, value) = (node.key.clone(), node.value.clone());
        let is_known = if value.is_empty() {
            self.any.contains_key(&key)
        } else {
            self.exact.get(&key).is_some_and(|values| values.contains_key(&value))
        };
        if is_known {
            return false;
        }
        let wildcard = match Glob::new(&key) {
            Some(glob) if value.is_empty() => Some(Wildcard::Whole(glob)),
            Some(_) => Glob::new(&format!("{key}_{value}")).map(Wildcard::Whole),
            None => Glob::new(&value).map(Wildcard::Value),
        };
        if let Some(wildcard) = wildcard {
            self.wild.push((at, wildcard));
        }
        if value.is_empty() {
            self.any.insert(key, at);
        } else {
            self.exact.entry(key).or_default().insert(value, at);
        }
        self.nodes.push(node);
        true
    }

    /// The rule for an entry: the one with its value, else the first in the file whose star matches, else the one for
    /// any value.
    pub(super) fn find(&self, key: &str, value: &str) -> Option<&Node> {
        let exact = self.exact.get(key).and_then(|values| values.get(value));
        // Built once, and only if a rule needs it.
        let whole = LazyCell::new(|| format!("{key}_{value}"));
        let fits = |(at, wildcard): &&(usize, Wildcard)| match wildcard {
            Wildcard::Value(glob) => self.nodes[*at].key == key && glob.matches(value),
            Wildcard::Whole(glob) => glob.matches(&whole),
        };
        let wild = || self.wild.iter().find(fits).map(|(at, _)| at);
        let at = exact.or_else(wild).or_else(|| self.any.get(key))?;
        self.nodes.get(*at)
    }
}
