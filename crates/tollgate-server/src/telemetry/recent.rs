//! The latest denials, so that an operator can look at one that is over. The memory is bounded, and so is the cost of a
//! flood: beyond [`KEPT_PER_SECOND`] a denial costs one read.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tollgate::Timestamp;

use super::Event;
use super::events::EventBudget;

/// Maximum number of denials that are kept.
const KEPT_MAX: usize = 1_000;
/// Maximum number of denials that are kept of one second.
const KEPT_PER_SECOND: u64 = 50;

/// One denial, with the key of the limit that denied.
struct KeptDenial {
    key: String,
    event: Arc<Event>,
}

/// The latest denials, oldest first.
pub(super) struct RecentDenials {
    budget: EventBudget,
    kept: Mutex<VecDeque<KeptDenial>>,
}

impl RecentDenials {
    pub(super) fn new() -> Self {
        Self { budget: EventBudget::new(KEPT_PER_SECOND), kept: Mutex::default() }
    }

    /// Keeps a denial if this second has room for it. `describe` makes the text of its key, and its event.
    #[cold]
    pub(super) fn keep(&self, now: Timestamp, describe: impl FnOnce() -> (String, Event)) {
        if !self.budget.spend(now) {
            return;
        }
        let (key, event) = describe();
        // The lock is held for a few instructions, none of which panics.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(KeptDenial { key, event: Arc::new(event) });
    }

    /// The denials since an instant, oldest first.
    pub(super) fn since(&self, at: Timestamp) -> Vec<Arc<Event>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().map(|denial| &denial.event).filter(|event| event.at >= at).cloned().collect()
    }

    /// The latest denial of a key by a limit.
    pub(super) fn last(&self, limit: &str, key: &str) -> Option<Arc<Event>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut latest_first = kept.iter().rev();
        let denial = latest_first.find(|denial| denial.event.limit == limit && denial.key == key)?;
        Some(Arc::clone(&denial.event))
    }
}
