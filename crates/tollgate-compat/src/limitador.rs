//! Limitador's limits: `file` reads them, `matching` finds those of a request, `decide` decides by the original's
//! rules, `ledger` lists the open counters, `sentence` explains, `convert` writes a policy. Faults of the original are
//! not repeated: checking and adding are one step, and no expression can make it panic.

pub mod decide;
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
pub(crate) use ledger::CounterLedger;
pub use ledger::Listed;
pub(super) use ledger::listed;

/// All namespaces of a configuration.
#[derive(Debug, Default)]
pub struct LimitadorConfig {
    namespaces: Vec<Namespace>,
    by_name: HashMap<String, usize>,
    /// The index of each limit in its namespace, by the namespace's index and the limit's identity.
    by_identity: HashMap<(usize, LimitIdentity), usize>,
}

/// The identity of a limit in the original: its length, conditions and variables, but not its number and names.
type LimitIdentity = (u64, Vec<String>, Vec<String>);

/// One namespace, which RLS calls a domain.
#[derive(Debug)]
pub(super) struct Namespace {
    pub(super) name: String,
    pub(super) limits: Vec<LimitadorLimit>,
}

/// One limit.
#[derive(Debug)]
pub struct LimitadorLimit {
    /// Its id in the file.
    pub id: Option<String>,
    /// Its namespace.
    pub namespace: String,
    /// Requests in a window.
    pub max_value: u64,
    /// The length of the window.
    pub seconds: u64,
    /// Its name in the file.
    pub name: Option<String>,
    /// Its conditions, sorted and unique.
    pub conditions: Vec<Cel>,
    /// Its variables, sorted and unique.
    pub variables: Vec<Cel>,
    /// Its name in the metrics: its namespace, and its name or, without one, its length.
    pub metric: String,
}

impl LimitadorConfig {
    /// The limits of a namespace; empty for an unknown one.
    pub(super) fn limits(&self, namespace: &str) -> &[LimitadorLimit] {
        self.by_name.get(namespace).map_or(&[], |&at| &self.namespaces[at].limits)
    }

    /// The limits of a namespace; `None` for an unknown one.
    #[must_use]
    pub fn namespace(&self, name: &str) -> Option<&[LimitadorLimit]> {
        self.by_name.contains_key(name).then(|| self.limits(name))
    }

    pub(super) fn names(&self) -> Vec<&str> {
        self.namespaces.iter().map(|namespace| namespace.name.as_str()).collect()
    }

    /// The names of its limits in the metrics.
    pub(super) fn metrics(&self) -> Vec<&str> {
        let limits = self.namespaces.iter().flat_map(|namespace| &namespace.limits);
        limits.map(|limit| limit.metric.as_str()).collect()
    }

    /// The length of every window.
    pub(super) fn lengths(&self) -> Vec<u64> {
        self.namespaces.iter().flat_map(|namespace| &namespace.limits).map(|limit| limit.seconds).collect()
    }

    /// Adds a limit. A limit with the same identity as another only lowers that one's number. Returns whether it is a
    /// new limit.
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
