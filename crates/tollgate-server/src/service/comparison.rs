//! Compares a candidate policy with the active one. Both decide about the same requests, each with its own counters
//! that start empty. Any difference therefore comes from the policies, and an equal policy shows none. A comparison is
//! bounded in time and memory, is off by default, and touches no live counter. Its requests are those to come, or those
//! of the last hour in virtual time.

mod past;
mod tally;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use serde::Serialize;
use tollgate::store::Store;
use tollgate::{CheckRequest, Engine, ExpiringOverride, LimitOverride, Policy, Quota, Scope, Timestamp};

pub(crate) use past::{PastComparison, past_comparison};
pub(crate) use tally::{ChangedCount, ChangedKey, Tallied};

use super::holds::Id;
use tally::Tally;

/// Memory for the counters of each of the two policies.
const MEMORY_BYTES: u64 = 16 << 20;
/// The same for past requests, which are decided within seconds.
const PAST_MEMORY_BYTES: u64 = 64 << 20;
/// Two policies that decide about the same requests.
pub(crate) struct Pair {
    old: Engine,
    new: Engine,
}

impl Pair {
    /// Creates a pair of engines. Concurrency limits are turned off: no request ever ends here, so their permits would
    /// only fill up and hide the results of the other limits.
    pub(crate) fn new(old: Engine, new: Engine, now: Timestamp) -> Self {
        for engine in [&old, &new] {
            let in_flight = |quota: &Quota| matches!(quota, Quota::Concurrency(_));
            let policy = engine.policy();
            let limits = policy.limits().iter().filter(|limit| limit.quotas().iter().any(in_flight));
            for limit in limits {
                let off = ExpiringOverride { kind: LimitOverride::Off, until: Timestamp::MAX };
                // A limit that is off already rejects an override, and needs none.
                let _ = engine.operator().set_override(Scope::Limit(limit.name()), off, now);
            }
        }
        Self { old, new }
    }

    /// A pair for past requests, from the instant of the first one on. Overrides are of now, so they do not apply.
    pub(crate) fn of_past<S: Store>(
        engine: &Engine<S>,
        [old, new]: [Arc<Policy>; 2],
        first: Timestamp,
    ) -> Self {
        let beginning = |policy| {
            let engine = engine.maintenance().siblings().candidate(policy, PAST_MEMORY_BYTES, first);
            let (all, single) = engine.operator().overrides(first).list();
            if all.is_some() {
                engine.operator().lift_override(Scope::All, first);
            }
            for (name, _) in single {
                engine.operator().lift_override(Scope::Limit(&name), first);
            }
            engine
        };
        Self::new(beginning(old), beginning(new), first)
    }

    /// Evaluates both policies, and counts the result.
    pub(crate) fn ask(&self, request: &CheckRequest<'_>, now: Timestamp, tally: &Tally) {
        // Both count in memory, which never waits.
        if let (Ok(old), Ok(new)) = (self.old.try_check(request, now), self.new.try_check(request, now)) {
            tally.count(request, &old, &new);
        }
    }
}

/// A comparison on live traffic.
struct Comparison {
    id: Id,
    until: Timestamp,
    /// Freed when the comparison ends, so that a stored result costs no memory.
    pair: Mutex<Option<Arc<Pair>>>,
    tally: Tally,
}

/// At most one comparison, or the result of the last one.
#[derive(Default)]
pub(crate) struct PolicyComparison {
    /// Whether a comparison is running. Checked for each decision.
    running: AtomicBool,
    latest: ArcSwapOption<Comparison>,
}

/// The state of a comparison.
#[derive(Debug, Serialize)]
pub(crate) struct ComparisonStatus {
    pub(crate) running: bool,
    #[serde(flatten)]
    pub(crate) tallied: Tallied,
}

/// Why a comparison was not started.
#[derive(Debug)]
pub(crate) enum NotBegun {
    /// Another is running.
    Busy,
    /// The system has no random bytes for its id.
    NoId,
}

impl PolicyComparison {
    /// Compares the engine's policy with a candidate until the given instant.
    pub(crate) fn begin<S: Store>(
        &self,
        engine: &Engine<S>,
        candidate: Policy,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<Id, NotBegun> {
        if self.latest.load().as_ref().is_some_and(|latest| self.is_running(latest, now)) {
            return Err(NotBegun::Busy);
        }
        let id = Id::random().ok_or(NotBegun::NoId)?;
        let old = engine.maintenance().siblings().candidate(engine.policy(), MEMORY_BYTES, now);
        let new = engine.maintenance().siblings().candidate(Arc::new(candidate), MEMORY_BYTES, now);
        let pair = Mutex::new(Some(Arc::new(Pair::new(old, new, now))));
        self.latest.store(Some(Arc::new(Comparison { id, until, pair, tally: Tally::default() })));
        // Release: a thread that sees `running` also sees the comparison.
        self.running.store(true, Ordering::Release);
        Ok(id)
    }

    fn is_running(&self, latest: &Comparison, now: Timestamp) -> bool {
        self.running.load(Ordering::Acquire) && now < latest.until
    }

    /// Lets both policies decide about a request that was just decided. Costs one load when no comparison runs.
    #[inline]
    pub(crate) fn observe(&self, request: &CheckRequest<'_>, now: Timestamp) {
        if self.running.load(Ordering::Acquire) {
            self.compare(request, now);
        }
    }

    fn compare(&self, request: &CheckRequest<'_>, now: Timestamp) {
        let latest = self.latest.load();
        let Some(comparison) = latest.as_ref() else { return };
        if now >= comparison.until {
            self.end(comparison);
            return;
        }
        // The lock is held for one clone.
        let pair = comparison.pair.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(pair) = pair {
            pair.ask(request, now, &comparison.tally);
        }
    }

    fn end(&self, comparison: &Comparison) {
        self.running.store(false, Ordering::Release);
        comparison.pair.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// The state of the comparison with this id.
    pub(crate) fn standing(&self, id: Id, now: Timestamp) -> Option<ComparisonStatus> {
        let latest = self.latest.load_full()?;
        if latest.id != id {
            return None;
        }
        let running = self.is_running(&latest, now);
        if !running {
            self.end(&latest);
        }
        Some(ComparisonStatus { running, tallied: latest.tally.tallied() })
    }

    /// Ends the comparison with this id, and returns its state.
    pub(crate) fn stop(&self, id: Id, now: Timestamp) -> Option<ComparisonStatus> {
        let latest = self.latest.load_full().filter(|latest| latest.id == id)?;
        self.end(&latest);
        self.standing(id, now)
    }
}
