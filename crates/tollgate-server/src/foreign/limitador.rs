//! Limitador's limits: `file` reads them, `matching` finds those of a request, `answer` decides by the original's rules, `ledger`
//! remembers which counters live, `sentence` explains, `convert` writes our own form. What the original does wrong is not repeated:
//! checking and adding are one step, and no expression can make it panic.

pub(crate) mod answer;
mod convert;
mod file;
mod ledger;
mod matching;
mod sentence;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use tollgate::policy::source::Cel;

pub(super) use file::compile;
pub(super) use ledger::listed;
pub(crate) use ledger::{CounterLedger, Listed};

/// Every namespace of a configuration.
#[derive(Debug, Default)]
pub(crate) struct LimitadorConfig {
    namespaces: Vec<Namespace>,
    by_name: HashMap<String, usize>,
    /// Where each limit is, by what makes it one: in which namespace, and the how manieth.
    by_identity: HashMap<(usize, LimitIdentity), usize>,
}

/// What makes a limit one to the original: everything but the number and the names. Its length, conditions and variables.
type LimitIdentity = (u64, Vec<String>, Vec<String>);

/// One namespace: what RLS calls a domain.
#[derive(Debug)]
pub(super) struct Namespace {
    pub(super) name: String,
    pub(super) limits: Vec<LimitadorLimit>,
}

/// One limit.
#[derive(Debug)]
pub(crate) struct LimitadorLimit {
    pub(crate) id: Option<String>,
    pub(crate) namespace: String,
    pub(crate) max_value: u64,
    pub(crate) seconds: u64,
    pub(crate) name: Option<String>,
    /// Sorted, each once.
    pub(crate) conditions: Vec<Cel>,
    /// Sorted, each once.
    pub(crate) variables: Vec<Cel>,
    /// What metrics call it: its namespace, and its name or, without one, its length.
    pub(crate) metric: String,
}

impl LimitadorConfig {
    /// The limits of a namespace; none for one that is not there.
    pub(super) fn limits(&self, namespace: &str) -> &[LimitadorLimit] {
        self.by_name.get(namespace).map_or(&[], |&at| &self.namespaces[at].limits)
    }

    /// The same, or nothing for a namespace that is not there.
    pub(crate) fn namespace(&self, name: &str) -> Option<&[LimitadorLimit]> {
        self.by_name.contains_key(name).then(|| self.limits(name))
    }

    pub(super) fn names(&self) -> Vec<&str> {
        self.namespaces.iter().map(|namespace| namespace.name.as_str()).collect()
    }

    /// What metrics call its limits.
    pub(super) fn metrics(&self) -> Vec<&str> {
        let limits = self.namespaces.iter().flat_map(|namespace| &namespace.limits);
        limits.map(|limit| limit.metric.as_str()).collect()
    }

    /// The length of every window.
    pub(super) fn lengths(&self) -> Vec<u64> {
        self.namespaces.iter().flat_map(|namespace| &namespace.limits).map(|limit| limit.seconds).collect()
    }

    /// Adds a limit. One that is the same limit as another only lowers its number; whether it is one of its own is told.
    fn add(&mut self, limit: LimitadorLimit) -> bool {
        let next = self.namespaces.len();
        let at = *self.by_name.entry(limit.namespace.clone()).or_insert(next);
        if at == next {
            self.namespaces.push(Namespace { name: limit.namespace.clone(), limits: Vec::new() });
        }
        let limits = &mut self.namespaces[at].limits;
        let known = *self.by_identity.entry((at, limit.identity())).or_insert(limits.len());
        if let Some(twin) = limits.get_mut(known) {
            twin.max_value = twin.max_value.min(limit.max_value);
            return false;
        }
        limits.push(limit);
        true
    }
}

impl LimitadorLimit {
    fn identity(&self) -> LimitIdentity {
        let sources = |expressions: &[Cel]| {
            expressions.iter().map(|expression| expression.source().to_owned()).collect()
        };
        (self.seconds, sources(&self.conditions), sources(&self.variables))
    }
}
