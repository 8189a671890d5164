//! Counters of the windows that other people's rules count in. They live in the engine's store and survive a reload: what names one
//! is the request, never the number of a rule.

use std::collections::HashMap;

use tollgate::algorithm::fixed_window::Align;
use tollgate::quota::EXACT_MAX;
use tollgate::store::{Store, StoreFailure};
use tollgate::{Counted, Engine, QuotaError, Tally, Ticks, Timestamp};

use crate::rls::Unit;

/// Most attempts to fill a counter that others add to.
const FILLINGS_MAX: usize = 4;

/// The windows of a configuration.
#[derive(Debug)]
pub(crate) struct Tallies {
    units: Vec<Tally>,
    /// By their length in seconds.
    first_hit: HashMap<u64, Tally>,
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
        Ok(Self { units, first_hit })
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
        self.try_add(unit, parts, units, now).await.unwrap_or(u64::MAX)
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
        // One that fails takes nothing away, which is to the caller's loss only.
        let _ = self.engine.subtract(tally, parts, units, now).await;
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
        let counted = |total| Counted { total, ends_after: Ticks::ZERO, source: tollgate::Source::Exact };
        if seconds == 0 {
            return counted(units);
        }
        let Some(tally) = self.tallies.first_hit.get(&seconds) else { return counted(u64::MAX) };
        self.engine.add(tally, parts, units, now).await.unwrap_or_else(|_| counted(u64::MAX))
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
            let _ = self.engine.subtract(tally, parts, units, now).await;
        }
    }
}
