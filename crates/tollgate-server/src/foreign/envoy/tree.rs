//! The rules of each domain as a tree, and the way of a descriptor through it.

use std::cell::LazyCell;
use std::collections::HashMap;

use tollgate::policy::glob::Glob;

use crate::rls::Unit;
use crate::text;

/// Every domain of a configuration.
#[derive(Debug, Default)]
pub(crate) struct EnvoyConfig {
    pub(super) domains: Vec<Domain>,
    by_name: HashMap<String, usize>,
}

/// One domain.
#[derive(Debug, Default)]
pub(super) struct Domain {
    pub(super) name: String,
    pub(super) root: TreeLevel,
}

/// The rules that one entry of a descriptor may meet.
#[derive(Debug, Default)]
pub(super) struct TreeLevel {
    /// In the file's order.
    pub(super) nodes: Vec<Node>,
    /// Which of them is for a key and a value.
    exact: HashMap<String, HashMap<String, usize>>,
    /// Which have a star, in the file's order.
    wild: Vec<(usize, Wildcard)>,
    /// Which is for any value of a key.
    any: HashMap<String, usize>,
}

/// How a rule with a star is met.
#[derive(Debug)]
enum Wildcard {
    /// The key is plain, and the value fits.
    Value(Glob),
    /// The key has a star itself: key and value fit as one text, with an underscore between.
    Whole(Glob),
}

/// One rule.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) key: String,
    /// Empty for any value.
    pub(super) value: String,
    pub(super) limit: Option<EnvoyLimit>,
    /// All values that its star stands for are counted together.
    pub(super) is_shared: bool,
    /// Metrics tell the value that its entry has (`value_to_metric`).
    pub(super) tells_value: bool,
    pub(super) children: TreeLevel,
}

/// What a rule allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EnvoyLimit {
    pub(super) allowance: RateAllowance,
    /// Empty where it has none.
    pub(super) name: String,
    pub(super) replaces: Vec<String>,
    pub(super) is_shadow: bool,
    pub(super) is_quota: bool,
    /// What metrics call it: the domain and the way to it, as the original does.
    pub(super) metric: String,
    /// Metrics tell the value of every entry (`detailed_metric`).
    pub(super) tells_values: bool,
}

/// How much a rule allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RateAllowance {
    /// Everything, uncounted.
    Unlimited,
    /// So many in each unit; none at all for 0.
    PerUnit(u32, Unit),
}

/// The rule that a descriptor met, and what it is counted by.
#[derive(Debug)]
pub(super) struct MatchedNode<'c> {
    pub(super) limit: &'c EnvoyLimit,
    /// For each entry the pattern that stands for its value, if values are counted together there.
    pub(super) patterns: Vec<Option<&'c str>>,
    /// What metrics call it with values of the request, where the rule asks for that.
    pub(super) detail: Option<String>,
}

impl EnvoyConfig {
    /// The domain of this name, made when it is not there.
    pub(super) fn domain_mut(&mut self, name: &str) -> &mut Domain {
        let next = self.domains.len();
        let at = *self.by_name.entry(name.to_owned()).or_insert(next);
        if at == next {
            self.domains.push(Domain { name: name.to_owned(), root: TreeLevel::default() });
        }
        &mut self.domains[at]
    }

    /// Tells each rule what metrics call it. For a configuration that is complete.
    pub(super) fn name_rules(&mut self) {
        for domain in &mut self.domains {
            domain.root.name_rules(&text::plain(&domain.name));
        }
    }

    /// What metrics call its rules.
    pub(in crate::foreign) fn metrics(&self) -> Vec<&str> {
        let mut limits = Vec::new();
        self.domains.iter().for_each(|domain| domain.root.list(&mut limits));
        limits.into_iter().map(|limit| limit.metric.as_str()).collect()
    }

    pub(super) fn domain(&self, name: &str) -> Option<&Domain> {
        self.by_name.get(name).and_then(|&at| self.domains.get(at))
    }
}

impl Domain {
    /// The rule that decides about a descriptor, if one does: that of its last entry, reached through one rule for each entry
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
        let detail = is_detailed.then(|| self.detail(&path, entries, limit.tells_values));
        Some(MatchedNode { limit, patterns, detail })
    }

    /// What metrics call a rule with the values of these entries.
    fn detail(&self, path: &[&Node], entries: &[(String, String)], tells_values: bool) -> String {
        let mut name = text::plain(&self.name);
        for (node, (key, value)) in path.iter().zip(entries) {
            name.push('.');
            let is_open = node.value.is_empty() || node.has_star();
            if is_open && !node.is_shared && (tells_values || node.tells_value) {
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

    /// What metrics call its part of the way.
    fn metric(&self) -> String {
        let (key, value) = (text::plain(&self.key), text::plain(&self.value));
        if value.is_empty() { key } else { format!("{key}_{value}") }
    }
}

impl TreeLevel {
    /// Tells each rule below here what metrics call it.
    fn name_rules(&mut self, way: &str) {
        for node in &mut self.nodes {
            let way = format!("{way}.{}", node.metric());
            node.children.name_rules(&way);
            if let Some(limit) = &mut node.limit {
                limit.metric = way;
            }
        }
    }

    /// Adds every rule below here to the list.
    fn list<'c>(&'c self, limits: &mut Vec<&'c EnvoyLimit>) {
        for node in &self.nodes {
            limits.extend(&node.limit);
            node.children.list(limits);
        }
    }

    /// Adds a rule. Where there is one for the same key and value that one stays; whether it was added is told.
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

    /// The rule for an entry: the one with its value, else the first in the file whose star fits, else the one for any value.
    pub(super) fn find(&self, key: &str, value: &str) -> Option<&Node> {
        let exact = self.exact.get(key).and_then(|values| values.get(value));
        // Made once, and only where a rule asks for it.
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
