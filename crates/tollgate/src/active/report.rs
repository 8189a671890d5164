//! The result of a policy swap, limit by limit.

use std::collections::{HashMap, HashSet};

use crate::policy::{FieldChange, Limit, Policy, differing};

/// The effect of a swap on the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwapReport {
    /// Fields of the whole policy that have changed.
    pub fields: Vec<FieldChange>,
    /// Limits with any change, be it of numbers, conditions or mode; their counters were kept.
    pub changed: Vec<String>,
    /// Limits that are new.
    pub added: Vec<String>,
    /// Limits that are gone.
    pub removed: Vec<String>,
    /// Limits that use other counters than before, because what they count by, or how, has changed. These start anew,
    /// unless the store has them from an earlier process or another one.
    pub restarted: Vec<String>,
    /// Limits that are again what they were in an earlier policy: they use the counters that they had then.
    pub resumed: Vec<String>,
}

impl SwapReport {
    /// Adds the changes other than numbers.
    pub(crate) fn compare(&mut self, before: &Policy, after: &Policy) {
        self.fields = before.changed_fields(after);
        let known: HashMap<&str, &Limit> =
            before.limits().iter().map(|limit| (limit.name(), limit)).collect();
        let otherwise = self.restarted.iter().chain(&self.resumed);
        let otherwise: HashSet<&str> = otherwise.map(String::as_str).collect();
        let is_changed = |limit: &&Limit| {
            let old = known.get(limit.name()).filter(|_| !otherwise.contains(limit.name()));
            old.is_some_and(|old| !differing(old, limit).is_empty())
        };
        let changed = after.limits().iter().filter(is_changed).map(|limit| limit.name().to_owned()).collect();
        self.changed = changed;
    }
}
