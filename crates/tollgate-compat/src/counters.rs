//! Counters of the windows of compat configurations. They live in the engine's store and survive a reload: a counter is
//! named by the request, never by the number of a rule.

use std::collections::HashMap;

use tollgate::algorithm::fixed_window::Align;
use tollgate::engine::{Counted, Tally};
use tollgate::rate::EXACT_MAX;
use tollgate::store::Store;
use tollgate::{Engine, QuotaError, Source, Ticks, Timestamp};

use crate::rls::Unit;
use tollgate::store::together;

/// Maximum attempts to fill a counter that other requests add to.
const FILLINGS_MAX: usize = 4;

/// The windows of a configuration.
#[derive(Debug)]
pub struct Tallies {
    units: Vec<Tally>,
    /// By their length in seconds.
    first_hit: HashMap<u64, Tally>,
}

impl Tallies {
    /// Windows of every unit, and windows of each of these lengths that begin at the first hit.
    ///
    /// # Errors
    /// When a length is out of range.
    pub fn new<S: Store>(engine: &Engine<S>, lengths: impl Iterator<Item = u64>) -> Result<Self, QuotaError> {
        let unit =
            |unit: Unit| engine.ledger().tally("envoy", Ticks::from_secs(unit.seconds()), Align::Epoch);
        let units = Unit::ALL.into_iter().map(unit).collect::<Result<_, _>>()?;
        let mut first_hit = HashMap::new();
        for seconds in lengths.filter(|&seconds| seconds > 0) {
            first_hit.insert(
                seconds,
                engine.ledger().tally("limitador", Ticks::from_secs(seconds), Align::FirstHit)?,
            );
        }
        Ok(Self { units, first_hit })
    }
}

/// The windows, and the engine that has their counters.
pub struct Counters<'s, S> {
    /// The engine.
    pub engine: &'s Engine<S>,
    /// The windows.
    pub tallies: &'s Tallies,
}

impl<S: Store> Counters<'_, S> {
    /// The results of all futures, in their order. On a store with a network they wait together.
    pub(super) async fn together<F: Future>(&self, futures: Vec<F>) -> Vec<F::Output> {
        let store = self.engine.store();
        if !store.never_waits() {
            return together(store, futures).await;
        }
        let mut outputs = Vec::with_capacity(futures.len());
        for future in futures {
            outputs.push(future.await);
        }
        outputs
    }

    /// Adds to the current window of a unit; 0 only reads. Returns the count after it, or the maximum if the count
    /// failed, so that a fault never admits a request.
    pub async fn add(&self, unit: Unit, parts: &[&[u8]], units: u64, now: Timestamp) -> Counted {
        let Some(tally) = self.tallies.units.get(unit as usize) else { return counted(u64::MAX) };
        self.engine.ledger().add(tally, parts, units, now).await
    }

    /// Subtracts from the current window of a unit what was added `within` this time, down to 0. Returns the count
    /// after it.
    pub async fn subtract(
        &self,
        unit: Unit,
        parts: &[&[u8]],
        units: u64,
        within: Ticks,
        now: Timestamp,
    ) -> Counted {
        if let Some(tally) = self.tallies.units.get(unit as usize) {
            self.engine.ledger().subtract(tally, parts, units, within, now).await;
        }
        self.add(unit, parts, 0, now).await
    }

    /// Takes back what was added at exactly this `now`, from the window that it was counted in.
    pub async fn take_back(
        &self,
        unit: Unit,
        parts: &[&[u8]],
        units: u64,
        counted: &Counted,
        now: Timestamp,
    ) {
        if let Some(tally) = self.tallies.units.get(unit as usize) {
            self.engine.ledger().take_back(tally, parts, units, counted, now).await;
        }
    }

    /// Adds to a window of this many seconds that began at the first hit; 0 only reads. A window of 0 seconds does not
    /// exist, so nothing is counted in it.
    pub(super) async fn add_from_first(
        &self,
        seconds: u64,
        parts: &[&[u8]],
        units: u64,
        now: Timestamp,
    ) -> Counted {
        if seconds == 0 {
            return counted(units);
        }
        let Some(tally) = self.tallies.first_hit.get(&seconds) else { return counted(u64::MAX) };
        self.engine.ledger().add(tally, parts, units, now).await
    }

    /// Adds to such a window up to the maximum of a counter: the part that does not fit is left out, and never all of
    /// it.
    pub(super) async fn fill_from_first(
        &self,
        seconds: u64,
        parts: &[&[u8]],
        units: u64,
        now: Timestamp,
    ) -> Counted {
        let mut units = units.min(EXACT_MAX);
        let mut counted = self.add_from_first(seconds, parts, units, now).await;
        // Other requests may add to it meanwhile, so the rest changes. A counter that they keep full is full.
        for _ in 0..FILLINGS_MAX {
            if counted.total != u64::MAX || units == 0 {
                break;
            }
            let before = self.add_from_first(seconds, parts, 0, now).await;
            units = EXACT_MAX.saturating_sub(before.total);
            counted = self.add_from_first(seconds, parts, units, now).await;
        }
        counted
    }

    /// Subtracts from such a window what was added to it `within` this time.
    pub(super) async fn subtract_from_first(
        &self,
        seconds: u64,
        parts: &[&[u8]],
        units: u64,
        within: Ticks,
        now: Timestamp,
    ) {
        if let Some(tally) = self.tallies.first_hit.get(&seconds) {
            self.engine.ledger().subtract(tally, parts, units, within, now).await;
        }
    }

    /// Takes back what was added to such a window at exactly this `now`.
    pub(super) async fn take_back_from_first(
        &self,
        seconds: u64,
        parts: &[&[u8]],
        units: u64,
        counted: &Counted,
        now: Timestamp,
    ) {
        if let Some(tally) = self.tallies.first_hit.get(&seconds) {
            self.engine.ledger().take_back(tally, parts, units, counted, now).await;
        }
    }
}

/// A count without a counter.
const fn counted(total: u64) -> Counted {
    let charged_at = Timestamp::from_unix_seconds(0);
    Counted { total, ends_after: Ticks::ZERO, source: Source::Exact, charged_at }
}

#[cfg(test)]
mod tests {
    use tollgate::store::{Answers, Charge, Hold, StoreFailure};
    use tollgate::{Policy, Secret};

    use super::*;
    use tollgate::fuzzing::poll_once;

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

    /// A store that always fails in this way, shared by two servers.
    struct Failing(StoreFailure);

    impl Store for Failing {
        async fn charge(&self, _: &[Charge<'_>], _: Timestamp) -> Result<Answers, StoreFailure> {
            Err(self.0)
        }

        async fn refund(&self, _: &[Charge<'_>], _: Timestamp) -> Result<(), StoreFailure> {
            Err(self.0)
        }

        async fn reset(&self, _: &[Charge<'_>], _: Timestamp) -> Result<(), StoreFailure> {
            Err(self.0)
        }

        fn hold(&self, _: &Hold) {}

        fn nodes(&self) -> u32 {
            2
        }
    }

    /// While the store is unreachable or too slow, this server counts locally, as if the other server counted as much.
    /// The bug: a store that was too slow was taken for an unknown count, and every request was over the limit.
    #[test]
    fn a_store_that_is_away_or_slow_is_stood_in_for() {
        for failure in [StoreFailure::Unreachable, StoreFailure::Unanswered] {
            let policy = Policy::compile("test", b"limits: []").unwrap();
            let engine = Engine::builder()
                .policy(policy)
                .store(Failing(failure))
                .secret(Secret::repeatable(1))
                .build();
            let tallies = Tallies::new(&engine, [].into_iter()).unwrap();
            let counters = Counters { engine: &engine, tallies: &tallies };
            let add = |units| poll_once(counters.add(Unit::Hour, &[b"key"], units, NOW));
            let counts = [add(3), add(1), add(0)].map(|counted| (counted.total, counted.source));
            assert_eq!(counts, [6, 8, 8].map(|total| (total, Source::Local)), "{failure}");
        }
    }
}
