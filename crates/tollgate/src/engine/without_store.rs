//! What is answered when the store does not: each limit has a failure mode of its own.

use super::live::Live;
use super::{Charges, Engine};
use crate::charge::{Answer, Answers, Charge};
use crate::decision::{Source, Stance};
use crate::memory::MemoryStore;
use crate::outcome::{Outcome, Verdict};
use crate::policy::{Match, OnStoreFailure};
use crate::store::Store;
use crate::time::{Ticks, Timestamp};

/// What a closed limit tells while its store is away.
const CLOSED_RETRY: Ticks = Ticks::from_secs(1);
/// Bytes of the counters that stand in for a store that does not answer.
const LOCAL_BYTES: u64 = 8 << 20;

impl<S: Store> Engine<S> {
    /// Decides without the store, each limit by its own failure mode: open, closed, or by this process's own counters.
    pub(super) fn without_store(
        &self,
        live: &Live,
        matches: &[Match],
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Answers {
        let mode = |matched: &Match| live.policy.limits()[matched.limit as usize].on_store_failure();
        let refuses = |(matched, charge): (&Match, &Charge<'_>)| {
            mode(matched) == OnStoreFailure::Deny && charge.stance == Stance::Enforced
        };
        let refused = matches.iter().zip(charges).any(refuses); // Then the others are only looked at: all or nothing.
        let local: Charges<'_> = matches
            .iter()
            .zip(charges)
            .filter(|(matched, _)| mode(matched) == OnStoreFailure::Local)
            .map(|(_, charge)| Charge { cost: if refused { 0 } else { charge.cost }, ..*charge })
            .collect();
        let store = self.local.get_or_init(|| MemoryStore::new(LOCAL_BYTES, now));
        let mut counted = store.charge_now(&local, now).unwrap_or_default().into_iter();
        matches
            .iter()
            .zip(charges)
            .map(|(matched, charge)| match mode(matched) {
                OnStoreFailure::Allow => uncounted(charge, Verdict::Allow, Source::Open),
                OnStoreFailure::Deny => closed(charge),
                OnStoreFailure::Local => counted
                    .next()
                    .map_or_else(|| closed(charge), |answer| Answer { source: Source::Local, ..answer }),
            })
            .collect()
    }
}

fn closed(charge: &Charge<'_>) -> Answer {
    uncounted(charge, Verdict::Deny { retry_after: CLOSED_RETRY }, Source::Closed)
}

/// An answer that no counter stands behind.
fn uncounted(charge: &Charge<'_>, verdict: Verdict, source: Source) -> Answer {
    let limit = charge.quota.capacity();
    let outcome =
        Outcome { verdict, limit, remaining: 0, next_unit_after: Ticks::ZERO, reset_after: Ticks::ZERO };
    Answer { outcome, source }
}
