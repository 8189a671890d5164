//! The active policy and the secret of keys: replaces them while decisions go on.

use std::sync::{Arc, PoisonError};

use super::{Engine, SwapError, SwapReport};
use crate::active::{ActivePolicy, Next};
use crate::key::Secret;
use crate::policy::Policy;
use crate::store::Store;
use crate::time::Timestamp;

impl<S: Store> Engine<S> {
    /// Makes another policy active. Counters are kept: a raised number applies at once, a lowered one clamps, and no
    /// key gains a burst. Decisions in flight finish with the policy that they started with.
    ///
    /// # Errors
    /// When a limit was changed more often than its counters can distinguish; the old policy stays active.
    pub fn swap(&self, policy: Policy, now: Timestamp) -> Result<SwapReport, SwapError> {
        let _one_at_a_time = self.swapping.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, policy) = (self.policy(), Arc::new(policy));
        let mut report = self.swap_counters(Arc::clone(&policy), now)?;
        report.compare(&before, &policy);
        Ok(report)
    }

    /// The swap of counters, also after a policy of which only the counters are known; the report is about those. The
    /// caller runs one swap at a time.
    pub(super) fn swap_counters(&self, policy: Arc<Policy>, now: Timestamp) -> Result<SwapReport, SwapError> {
        let now = now.decidable();
        let before = self.active.load_full();
        let next = |before: &ActivePolicy, policy| ActivePolicy::after(before, policy, now);
        let next = match next(&before, Arc::clone(&policy)) {
            Ok(made) => made,
            // A number that no counter uses is free once the active policy has forgotten it, so that step comes first.
            Err(SwapError::TooManyQuotas { .. }) => {
                self.activate(next(&before, Arc::clone(&before.policy))?, now);
                next(&self.active.load(), policy)?
            }
        };
        Ok(self.activate(next, now))
    }

    /// Hashes keys with another secret from now on.
    pub(super) fn rekey_with(&self, secret: Arc<Secret>) {
        let _one_at_a_time = self.swapping.lock().unwrap_or_else(PoisonError::into_inner);
        let active = ActivePolicy::first(self.policy(), secret, self.store.is_grouped());
        self.store.prepare(active.families());
        self.active.store(Arc::new(active));
        if let Some(fallback) = self.fallback.get() {
            fallback.drop_deferred(); // They name keys that the store does not have.
        }
        self.changed();
    }

    pub(super) fn activate(&self, next: Next, now: Timestamp) -> SwapReport {
        if !next.hold.numbers.is_empty() {
            self.store.hold(&next.hold);
        }
        self.store.prepare(next.active.families());
        let active = Arc::new(next.active);
        let before = self.active.swap(Arc::clone(&active));
        if let Some(fallback) = self.fallback.get() {
            fallback.follow_swap(&before, &active, now);
        }
        self.changed();
        next.report
    }
}
