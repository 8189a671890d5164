//! The latest denials, so that an operator can look at one that is over, and beside them the latest that a limit in shadow
//! would have made. Each memory is bounded. When it is full, the
//! key with the most denials in it gives way, so a noisy client displaces its own denials, and not those of others. The
//! cost of a flood is bounded as well: beyond its share of a second, a denial of a key costs one read.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::{Decision, LimitStatus, Timestamp};

use super::Event;
use super::events::EventBudget;

/// Maximum number of denials that are kept.
const KEPT_MAX: usize = 1_000;
/// Maximum number of denials that are kept of one second.
const KEPT_PER_SECOND: u64 = 1_000;
/// Keys share budgets by their hash. A budget is the maximum number of denials that are kept of one second.
const BUDGETS: u64 = 1_024;
pub(super) const KEPT_PER_SECOND_OF_KEY: u64 = 10;

/// One denial, with the key of the limit that denied.
struct KeptDenial {
    order: u64,
    key: String,
    event: Arc<Event>,
}

/// The denials that are kept, by the hash of their key.
#[derive(Default)]
struct KeptDenials {
    by_key: HashMap<u64, VecDeque<KeptDenial>>,
    count: usize,
    /// How many were ever kept.
    order: u64,
    /// The latest denial of the keys of which none is kept any more.
    forgotten: Option<Timestamp>,
}

/// The latest denials.
pub(super) struct RecentDenials {
    budgets: Box<[EventBudget]>,
    budget: EventBudget,
    kept: Mutex<KeptDenials>,
    /// The latest denial for which there was no budget at all, in microseconds; 0 if there was none.
    lost: AtomicU64,
    hashes: RandomState,
}

impl RecentDenials {
    pub(super) fn new() -> Self {
        Self {
            budgets: (0..BUDGETS).map(|_| EventBudget::new(KEPT_PER_SECOND_OF_KEY)).collect(),
            budget: EventBudget::new(KEPT_PER_SECOND),
            kept: Mutex::default(),
            lost: AtomicU64::new(0),
            hashes: RandomState::new(),
        }
    }

    /// The hash of the key whose share a denial takes: that of the limit that denied. Where this limit has one counter
    /// for all requests, another key of the request tells clients apart.
    pub(super) fn share_of(&self, decision: &Decision) -> u64 {
        if let Some(block) = decision.block() {
            return self.share(block.attributes());
        }
        let cause = decision.cause();
        let keyed = cause.into_iter().chain(decision.limits()).find(|status| !status.limit.by().is_empty());
        keyed.or(cause).map_or(0, |status| status.key_hash)
    }

    /// The same for a limit in shadow that would have denied.
    pub(super) fn share_of_shadow(&self, decision: &Decision, shadow: &LimitStatus<'_>) -> u64 {
        if !shadow.limit.by().is_empty() {
            return shadow.key_hash;
        }
        let keyed = decision.limits().find(|status| !status.limit.by().is_empty());
        keyed.map_or(shadow.key_hash, |status| status.key_hash)
    }

    /// The hash of a key for which the engine has none.
    pub(super) fn share(&self, key: impl Hash) -> u64 {
        self.hashes.hash_one(key)
    }

    /// Keeps a denial of a key if this second has room for it. `describe` makes the text of the key, and the event.
    #[cold]
    pub(super) fn keep(&self, share: u64, now: Timestamp, describe: impl FnOnce() -> (String, Event)) {
        let index = usize::try_from(share % BUDGETS).unwrap_or_default();
        if !self.budgets[index].spend(now) {
            return;
        }
        if !self.budget.spend(now) {
            // Relaxed: the number guards no other memory.
            self.lost.fetch_max(now.unix_micros(), Ordering::Relaxed);
            return;
        }
        let (key, event) = describe();
        self.kept().add(share, key, event);
    }

    /// The denials since an instant, oldest first.
    pub(super) fn since(&self, at: Timestamp) -> Vec<Arc<Event>> {
        let kept = self.kept();
        let mut since: Vec<&KeptDenial> = kept.denials().filter(|denial| denial.event.at >= at).collect();
        since.sort_unstable_by_key(|denial| denial.order);
        since.into_iter().map(|denial| Arc::clone(&denial.event)).collect()
    }

    /// The latest denial of a key by a limit.
    pub(super) fn last(&self, limit: &str, key: &str) -> Option<Arc<Event>> {
        let kept = self.kept();
        let of_key = kept.denials().filter(|denial| denial.event.limit == limit && denial.key == key);
        of_key.max_by_key(|denial| denial.order).map(|denial| Arc::clone(&denial.event))
    }

    /// The instant up to which keys were denied of which nothing is kept, if there are such keys.
    pub(super) fn forgotten_until(&self) -> Option<Timestamp> {
        let lost = Some(self.lost.load(Ordering::Relaxed)).filter(|lost| *lost > 0);
        self.kept().forgotten.max(lost.map(Timestamp::from_unix_micros))
    }

    fn kept(&self) -> MutexGuard<'_, KeptDenials> {
        // The lock is held for a few instructions for each key, none of which panics.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptDenials {
    fn denials(&self) -> impl Iterator<Item = &KeptDenial> {
        self.by_key.values().flatten()
    }

    fn add(&mut self, share: u64, key: String, event: Event) {
        if self.count >= KEPT_MAX {
            self.give_way();
        }
        self.order += 1;
        self.count += 1;
        let denial = KeptDenial { order: self.order, key, event: Arc::new(event) };
        self.by_key.entry(share).or_default().push_back(denial);
    }

    /// Drops the oldest denial of the key with the most. Among several such keys it is the one with the oldest denial.
    fn give_way(&mut self) {
        let rank = |denials: &VecDeque<KeptDenial>| {
            (denials.len(), Reverse(denials.front().map_or(0, |denial| denial.order)))
        };
        let largest = self.by_key.iter_mut().max_by_key(|(_, denials)| rank(denials));
        let Some((&share, denials)) = largest else { return };
        let Some(dropped) = denials.pop_front() else { return };
        self.count -= 1;
        if denials.is_empty() {
            self.by_key.remove(&share);
        }
        // A limit without a key of its own may have denied this client alone.
        if dropped.key.is_empty() || !self.by_key.contains_key(&share) {
            self.forgotten = self.forgotten.max(Some(dropped.event.at));
        }
    }
}
