//! Counters of the windows that other people's rules count in. They live in the engine's store and survive a reload: what names one
//! is the request, never the number of a rule.

use std::collections::HashMap;
use std::sync::OnceLock;

use tollgate::algorithm::fixed_window::Align;
use tollgate::quota::EXACT_MAX;
use tollgate::store::{Store, StoreFailure};
use tollgate::{Counted, Engine, MemoryStore, Policy, QuotaError, Secret, Source, Tally, Ticks, Timestamp};

use crate::rls::Unit;

/// Most attempts to fill a counter that others add to.
const FILLINGS_MAX: usize = 4;

/// Bytes of the counters that stand in for a store that is away.
const LOCAL_BYTES: u64 = 8 << 20;

/// The windows of a configuration.
pub(crate) struct Tallies {
    units: Vec<Tally>,
    /// By their length in seconds.
    first_hit: HashMap<u64, Tally>,
    /// Counts while the store is away; none until then.
    local: OnceLock<Engine>,
}

impl std::fmt::Debug for Tallies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tallies")
            .field("units", &self.units)
            .field("first_hit", &self.first_hit)
            .finish_non_exhaustive()
    }
}

impl Tallies {
    /// Windows of every unit, and from the first hit on of each of these lengths.
    ///
    /// # Errors
    /// When a length is out of range.
    pub(crate) fn new<S: Store>(
        engine: &Engine<S>,
        lengths: impl Iterator<Item = u64>,
    ) -> Result<Self, QuotaError> {
        let unit = |unit: Unit| engine.tally("envoy", Ticks::from_secs(unit.seconds()), Align::Epoch);
        let units = Unit::ALL.into_iter().map(unit).collect::<Result<_, _>>()?;
        let mut first_hit = HashMap::new();
        for seconds in lengths.filter(|&seconds| seconds > 0) {
            first_hit.insert(seconds, engine.tally("limitador", Ticks::from_secs(seconds), Align::FirstHit)?);
        }
        Ok(Self { units, first_hit, local: OnceLock::new() })
    }
}

/// The windows, and the engine that has their counters.
pub(crate) struct Counters<'s, S> {
    pub(crate) engine: &'s Engine<S>,
    pub(crate) tallies: &'s Tallies,
}

impl<S: Store> Counters<'_, S> {
    /// Adds to the current window of a unit; 0 only looks. The count after it, or the largest there is when nobody could count: a
    /// fault is never on the side of admitting.
    pub(super) async fn add(&self, unit: Unit, parts: &[&[u8]], units: u64, now: Timestamp) -> u64 {
        let Some(tally) = self.tallies.units.get(unit as usize) else { return u64::MAX };
        self.counted(tally, parts, units, now).await.map_or(u64::MAX, |counted| counted.total)
    }

    /// Adds in the store; while that is away, in this process, as if every server that shares it counted as much.
    ///
    /// # Errors
    /// When nobody could count.
    async fn counted(
        &self,
        tally: &Tally,
        parts: &[&[u8]],
        units: u64,
        now: Timestamp,
    ) -> Result<Counted, StoreFailure> {
        match self.engine.add(tally, parts, units, now).await {
            // Also where it may have been added: the answer must come, and nobody asks twice.
            Err(failure) if failure.is_outage() => {
                let counted = self.local(now)?.add(tally, parts, units, now).await?;
                let nodes = u64::from(self.engine.nodes());
                Ok(Counted { total: counted.total.saturating_mul(nodes), source: Source::Local, ..counted })
            }
            counted => counted,
        }
    }

    /// What counts while the store is away.
    fn local(&self, now: Timestamp) -> Result<&Engine, StoreFailure> {
        if let Some(local) = self.tallies.local.get() {
            return Ok(local);
        }
        // Without limits of its own: it only counts.
        let (policy, _) = Policy::compile("local", b"limits: []").map_err(|_| StoreFailure::Unreachable)?;
        let engine = Engine::with_store(policy, MemoryStore::new(LOCAL_BYTES, now), Secret::random());
        Ok(self.tallies.local.get_or_init(|| engine))
    }

    /// Takes away where it was added.
    async fn taken(&self, tally: &Tally, parts: &[&[u8]], units: u64, now: Timestamp) {
        // One that fails takes nothing away, which is to the caller's loss only.
        if self.engine.subtract(tally, parts, units, now).await == Err(StoreFailure::Unreachable)
            && let Some(local) = self.tallies.local.get()
        {
            let _ = local.subtract(tally, parts, units, now).await;
        }
    }

    /// The same, where it matters why nobody could count.
    ///
    /// # Errors
    /// When the store does not answer.
    pub(crate) async fn try_add(
        &self,
        unit: Unit,
        parts: &[&[u8]],
        units: u64,
        now: Timestamp,
    ) -> Result<u64, StoreFailure> {
        let Some(tally) = self.tallies.units.get(unit as usize) else { return Ok(u64::MAX) };
        self.engine.add(tally, parts, units, now).await.map(|counted| counted.total)
    }

    /// Takes from the current window of a unit, down to none. The count after it.
    pub(crate) async fn subtract(&self, unit: Unit, parts: &[&[u8]], units: u64, now: Timestamp) -> u64 {
        let Some(tally) = self.tallies.units.get(unit as usize) else { return u64::MAX };
        self.taken(tally, parts, units, now).await;
        self.add(unit, parts, 0, now).await
    }

    /// Adds to the window of so many seconds that the first hit began; 0 only looks. No window lasts 0 seconds, so nothing is
    /// counted in it.
    pub(super) async fn add_from_first(
        &self,
        seconds: u64,
        parts: &[&[u8]],
        units: u64,
        now: Timestamp,
    ) -> Counted {
        let counted = |total| Counted { total, ends_after: Ticks::ZERO, source: Source::Exact };
        if seconds == 0 {
            return counted(units);
        }
        let Some(tally) = self.tallies.first_hit.get(&seconds) else { return counted(u64::MAX) };
        self.counted(tally, parts, units, now).await.unwrap_or_else(|_| counted(u64::MAX))
    }

    /// The same, up to the most that a counter can hold: what does not fit is left out, and never all of it.
    pub(super) async fn fill_from_first(
        &self,
        seconds: u64,
        parts: &[&[u8]],
        units: u64,
        now: Timestamp,
    ) -> Counted {
        let mut units = units.min(EXACT_MAX);
        let mut counted = self.add_from_first(seconds, parts, units, now).await;
        // Others may add to it meanwhile, so that what is left changes; a counter that they keep full is full.
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

    /// Takes from such a window what was added to it.
    pub(super) async fn subtract_from_first(
        &self,
        seconds: u64,
        parts: &[&[u8]],
        units: u64,
        now: Timestamp,
    ) {
        if let Some(tally) = self.tallies.first_hit.get(&seconds) {
            self.taken(tally, parts, units, now).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate::charge::{Answers, Charge};
    use tollgate::store::Hold;

    use super::*;
    use crate::at_once::at_once;

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

    /// A store that always fails so, shared by two.
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

    /// Whether the store is away or does not answer in time, this server counts, as if the other counted as much. The story: a store
    /// that was too slow was taken for a count that nobody knows, and everybody was over the limit.
    #[test]
    fn a_store_that_is_away_or_slow_is_stood_in_for() {
        for failure in [StoreFailure::Unreachable, StoreFailure::Unanswered] {
            let (policy, _) = Policy::compile("test", b"limits: []").unwrap();
            let engine = Engine::with_store(policy, Failing(failure), Secret::repeatable(1));
            let tallies = Tallies::new(&engine, [].into_iter()).unwrap();
            let counters = Counters { engine: &engine, tallies: &tallies };
            let add = |units| at_once(counters.add(Unit::Hour, &[b"key"], units, NOW));
            assert_eq!([add(3), add(1), add(0)], [6, 8, 8], "{failure}");
        }
    }
}
