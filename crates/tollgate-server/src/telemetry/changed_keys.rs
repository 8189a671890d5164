//! The keys whose decisions differ most between two policies. Their text is kept in a sketch of a fixed size.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use tollgate::{CheckRequest, Decision, Timestamp};

use super::sketch::{Denial, KeyOutcome, KeyVerdict, Sketch, SketchEntry};
use super::top::{key_of, shown_key};

/// How many keys are listed.
const LISTED_MAX: usize = 10;

/// A key, and how many of its decisions differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ChangedKey {
    /// The limit that denies, in the policy that denies.
    pub(crate) limit: String,
    pub(crate) key: String,
    pub(crate) newly_denied: u64,
    pub(crate) newly_allowed: u64,
}

/// Counts the keys of decisions that differ. Locked only when two decisions do.
#[derive(Debug, Default)]
pub(crate) struct ChangedKeys {
    keys: Mutex<Sketch>,
    names: RandomState,
}

impl ChangedKeys {
    /// Counts a request that the new policy denies.
    pub(crate) fn newly_denied(&self, denied: &Decision, request: &CheckRequest<'_>, now: Timestamp) {
        self.count(denied, request, KeyVerdict::Denied(Denial { at: now, retry_after: None }));
    }

    /// Counts a request that only the old policy denies.
    pub(crate) fn newly_allowed(&self, denied: &Decision, request: &CheckRequest<'_>) {
        self.count(denied, request, KeyVerdict::Passed);
    }

    fn count(&self, denied: &Decision, request: &CheckRequest<'_>, verdict: KeyVerdict) {
        // A limit without `by` has one key, and its name says enough.
        let Some(cause) = denied.cause().filter(|cause| !cause.limit.by().is_empty()) else { return };
        let (limit, key) = (cause.limit.name(), key_of(cause.limit, request));
        let id = self.names.hash_one((limit, &key));
        let describe = |entry: &mut SketchEntry| {
            entry.limit.push_str(limit);
            entry.key.push_str(&key);
        };
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.add(id, 1, KeyOutcome { verdict, source: None }, describe);
    }

    /// The keys with the most changes.
    pub(crate) fn list(&self) -> Vec<ChangedKey> {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let found = keys.entries().map(|entry| ChangedKey {
            limit: entry.limit.clone(),
            key: shown_key(&entry.key),
            newly_denied: entry.denied,
            newly_allowed: entry.certain().saturating_sub(entry.denied),
        });
        most_changed(found.collect())
    }
}

/// The first keys of a list, those with the most changes first.
pub(crate) fn most_changed(mut keys: Vec<ChangedKey>) -> Vec<ChangedKey> {
    keys.sort_by(|a, b| {
        let changes = |key: &ChangedKey| key.newly_denied + key.newly_allowed;
        (changes(b), &a.limit, &a.key).cmp(&(changes(a), &b.limit, &b.key))
    });
    keys.truncate(LISTED_MAX);
    keys
}
