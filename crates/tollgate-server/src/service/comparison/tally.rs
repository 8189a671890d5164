//! The decisions that a candidate policy changes, by limit and by key.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use tollgate::{CheckRequest, Decision, LimitStatus};

use crate::text;

/// Maximum number of limits, and of keys, whose share of the changes is counted separately.
const CAUSES_MAX: usize = 1_000;
const KEYS_MAX: usize = 10_000;
/// Maximum number of keys that are shown.
const KEYS_SHOWN: usize = 20;
/// The cause of a denial that no limit caused.
const REQUEST: &str = "the request itself";

/// Decisions that the candidate policy changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ChangedCount {
    pub(crate) newly_denied: u64,
    pub(crate) newly_allowed: u64,
}

impl ChangedCount {
    pub(crate) const fn sum(self) -> u64 {
        self.newly_denied + self.newly_allowed
    }
}

/// A key and the decisions about it that change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ChangedKey {
    /// The limit that denies, in the policy that denies.
    pub(crate) limit: String,
    pub(crate) key: String,
    #[serde(flatten)]
    pub(crate) count: ChangedCount,
}

/// The changes by limit and by key.
#[derive(Debug, Default)]
struct Causes {
    limits: BTreeMap<String, ChangedCount>,
    keys: HashMap<(String, String), ChangedCount>,
}

/// Counts the decisions that the candidate policy changes.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    decisions: AtomicU64,
    newly_denied: AtomicU64,
    newly_allowed: AtomicU64,
    /// By the limit that denies, in the policy that denies. Locked only when two decisions differ.
    causes: Mutex<Causes>,
}

/// A tally for output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Tallied {
    pub(crate) decisions: u64,
    pub(crate) changed: u64,
    pub(crate) newly_denied: u64,
    pub(crate) newly_allowed: u64,
    /// The changes that each limit causes.
    pub(crate) by_limit: BTreeMap<String, ChangedCount>,
    /// How many keys have changes.
    pub(crate) keys_changed: u64,
    /// Those with the most changes.
    pub(crate) keys: Vec<ChangedKey>,
}

impl Tally {
    /// Compares a decision of the old policy with one of the new policy.
    pub(crate) fn count(&self, request: &CheckRequest<'_>, old: &Decision, new: &Decision) {
        // Relaxed throughout: the counters guard no other memory.
        self.decisions.fetch_add(1, Ordering::Relaxed);
        let (denied, count) = match (old.is_allowed(), new.is_allowed()) {
            (true, false) => {
                self.newly_denied.fetch_add(1, Ordering::Relaxed);
                (new, ChangedCount { newly_denied: 1, newly_allowed: 0 })
            }
            (false, true) => {
                self.newly_allowed.fetch_add(1, Ordering::Relaxed);
                (old, ChangedCount { newly_denied: 0, newly_allowed: 1 })
            }
            _ => return,
        };
        let cause = denied.cause_name().unwrap_or(REQUEST).to_owned();
        let key = denied.cause().map(|status| (status.limit.name().to_owned(), key_of(&status, request)));
        let mut causes = self.causes.lock().unwrap_or_else(PoisonError::into_inner);
        let Causes { limits, keys } = &mut *causes;
        if limits.len() < CAUSES_MAX || limits.contains_key(&cause) {
            let sum = limits.entry(cause).or_default();
            *sum = ChangedCount {
                newly_denied: sum.newly_denied + count.newly_denied,
                newly_allowed: sum.newly_allowed + count.newly_allowed,
            };
        }
        if let Some(key) = key.filter(|key| keys.len() < KEYS_MAX || keys.contains_key(key)) {
            let sum = keys.entry(key).or_default();
            *sum = ChangedCount {
                newly_denied: sum.newly_denied + count.newly_denied,
                newly_allowed: sum.newly_allowed + count.newly_allowed,
            };
        }
    }

    pub(crate) fn tallied(&self) -> Tallied {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let (newly_denied, newly_allowed) = (load(&self.newly_denied), load(&self.newly_allowed));
        let causes = self.causes.lock().unwrap_or_else(PoisonError::into_inner);
        let of_key = |((limit, key), count): (&(String, String), &ChangedCount)| ChangedKey {
            limit: limit.clone(),
            key: key.clone(),
            count: *count,
        };
        let mut keys: Vec<ChangedKey> = causes.keys.iter().map(of_key).collect();
        keys.sort_by(|one, other| {
            (other.count.sum(), &one.limit, &one.key).cmp(&(one.count.sum(), &other.limit, &other.key))
        });
        keys.truncate(KEYS_SHOWN);
        Tallied {
            decisions: load(&self.decisions),
            changed: newly_denied + newly_allowed,
            newly_denied,
            newly_allowed,
            by_limit: causes.limits.clone(),
            keys_changed: causes.keys.len() as u64,
            keys,
        }
    }
}

/// The values that a limit counts a request by, in the syntax of the command line.
fn key_of(status: &LimitStatus<'_>, request: &CheckRequest<'_>) -> String {
    let Some(descriptor) = request.descriptors().nth(status.descriptor) else { return String::new() };
    let mut key = String::new();
    for by in status.limit.by() {
        let Some(attribute) = descriptor.attributes().iter().find(|attribute| attribute.name == by.name())
        else {
            continue;
        };
        if !key.is_empty() {
            key.push(' ');
        }
        text::push(&mut key, by.name());
        key.push('=');
        by.with_key_text(attribute.value, |value| text::push(&mut key, &text::unsecret(by.name(), value)));
    }
    key
}
