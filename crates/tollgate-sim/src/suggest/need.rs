//! The burst that one key needs at one rate.
//!
//! The arithmetic is in credits: a unit is as many credits as the rate's period has ticks, and each tick returns as many
//! credits as the rate has units. Nothing is rounded until the end, and 128 bits hold every sum.

use std::collections::VecDeque;

use tollgate::{Rate, Ticks, Timestamp};

/// The bursts between which the truth lies, because stamps of whole seconds do not say when a request came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BurstRange {
    /// The burst that suffices if the requests came as far apart as their stamps allow.
    pub least: u64,
    /// The burst that always suffices: the requests came as close together as their stamps allow.
    pub most: u64,
}

/// A rate in credits.
#[derive(Clone, Copy, Debug)]
struct CreditRate {
    gain: u64,
    unit: u64,
}

impl CreditRate {
    fn of(rate: Rate) -> Self {
        Self { gain: rate.units(), unit: rate.period().as_micros() }
    }

    fn of_units(self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.unit)
    }

    fn over(self, time: Ticks) -> u128 {
        u128::from(time.as_micros()) * u128::from(self.gain)
    }

    /// Whole units, rounded up.
    fn units_up(self, credits: u128) -> u64 {
        u64::try_from(credits.div_ceil(u128::from(self.unit.max(1)))).unwrap_or(u64::MAX)
    }
}

/// The largest number of units that were needed, now and since the day began.
#[derive(Clone, Copy, Debug, Default)]
struct Peak {
    ever: u64,
    of_day: u64,
}

impl Peak {
    fn raise(&mut self, rate: CreditRate, credits: u128) {
        // Most requests raise no peak, so most divisions are saved.
        if credits > rate.of_units(self.of_day) {
            self.of_day = rate.units_up(credits);
            self.ever = self.ever.max(self.of_day);
        }
    }
}

/// One rate of a key.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    /// The credits that a bucket without bounds lacks, with requests at their stamps.
    lacking: u128,
    peak: Peak,
}

/// The burst that a key with coarse stamps needs beyond its levels.
#[derive(Debug, Default)]
struct CoarseNeed {
    /// The requests that may all have come at one instant with the next: when each may have come at the latest, and
    /// its cost.
    recent: VecDeque<(Timestamp, u64)>,
    recent_cost: u64,
    /// For each rate: what is lacking at most, and the peak of it.
    levels: Vec<Level>,
    /// For each rate: the units that were needed at least.
    least: Vec<u64>,
}

/// The burst that one key needs, at each of the rates.
#[derive(Debug)]
pub struct KeyNeed {
    last: Timestamp,
    cost_max: u64,
    /// Whether a request came since the day began.
    is_active: bool,
    levels: Vec<Level>,
    coarse: Option<Box<CoarseNeed>>,
}

impl KeyNeed {
    /// A key without a request, for this many rates.
    #[must_use]
    pub fn new(rates: usize) -> Self {
        Self {
            last: Timestamp::default(),
            cost_max: 0,
            is_active: false,
            levels: vec![Level::default(); rates],
            coarse: None,
        }
    }

    /// Adds a request that came at `at`, or up to `width` later. Requests come in the order of their stamps; one that
    /// is late is counted as if it came with the one before, which never makes the need smaller.
    pub fn add(&mut self, rates: &[Rate], at: Timestamp, width: Ticks, cost: u64) {
        let now = at.max(self.last);
        let since = now.since(self.last);
        self.last = now;
        self.cost_max = self.cost_max.max(cost);
        self.is_active = true;
        if self.coarse.is_none() && !width.is_zero() {
            // Up to here nothing was uncertain, so both sides are equal.
            let levels = self.levels.clone();
            let least = levels.iter().map(|level| level.peak.ever).collect();
            self.coarse = Some(Box::new(CoarseNeed { levels, least, ..CoarseNeed::default() }));
        }
        for (level, rate) in self.levels.iter_mut().zip(rates) {
            let rate = CreditRate::of(*rate);
            level.lacking = level.lacking.saturating_sub(rate.over(since)) + rate.of_units(cost);
            level.peak.raise(rate, level.lacking);
        }
        if let Some(coarse) = &mut self.coarse {
            coarse.raise_least(rates, &self.levels, width);
            coarse.add(rates, (now, since), width, cost);
        }
    }

    /// The burst that the key needs at the rate of this index.
    #[must_use]
    pub fn burst(&self, index: usize) -> BurstRange {
        let peak = self.levels.get(index).map_or(0, |level| level.peak.ever);
        let Some(coarse) = &self.coarse else { return BurstRange { least: peak, most: peak } };
        let most = coarse.levels.get(index).map_or(0, |level| level.peak.ever);
        let least = coarse.least.get(index).copied().unwrap_or_default();
        BurstRange { least: least.max(self.cost_max), most }
    }

    /// The largest burst that the key needed at a rate since the day began; `None` if no request came.
    #[must_use]
    pub fn burst_of_day(&self, index: usize) -> Option<u64> {
        let levels = self.coarse.as_ref().map_or(&self.levels, |coarse| &coarse.levels);
        levels.get(index).filter(|_| self.is_active).map(|level| level.peak.of_day)
    }

    /// Begins a new day. What is lacking stays.
    pub fn begin_day(&mut self) {
        self.is_active = false;
        let coarse = self.coarse.iter_mut().flat_map(|coarse| coarse.levels.iter_mut());
        self.levels.iter_mut().chain(coarse).for_each(|level| level.peak.of_day = 0);
    }
}

impl CoarseNeed {
    /// Each interval that ends with the last request may have been longer by its width, less one tick: the width ends
    /// before the next second begins.
    fn raise_least(&mut self, rates: &[Rate], levels: &[Level], width: Ticks) {
        let longer = Ticks::from_micros(width.as_micros().saturating_sub(1));
        for ((least, level), rate) in self.least.iter_mut().zip(levels).zip(rates) {
            let rate = CreditRate::of(*rate);
            let needed = level.lacking.saturating_sub(rate.over(longer));
            if needed > rate.of_units(*least) {
                *least = rate.units_up(needed);
            }
        }
    }

    /// Adds a request. A request `s` and a later one `e` are at least as far apart as `e`'s stamp and the end of `s`'s
    /// width. All requests whose widths have not ended when the next one may come can have come at once with it.
    fn add(&mut self, rates: &[Rate], (now, since): (Timestamp, Ticks), width: Ticks, cost: u64) {
        for (level, rate) in self.levels.iter_mut().zip(rates) {
            level.lacking = level.lacking.saturating_sub(CreditRate::of(*rate).over(since));
        }
        while let Some(&(end, of_first)) = self.recent.front().filter(|(end, _)| *end <= now) {
            // Intervals that begin with this request have a length from now on.
            for (level, rate) in self.levels.iter_mut().zip(rates) {
                let rate = CreditRate::of(*rate);
                let begun = rate.of_units(self.recent_cost).saturating_sub(rate.over(now.since(end)));
                level.lacking = level.lacking.max(begun);
            }
            self.recent.pop_front();
            self.recent_cost = self.recent_cost.saturating_sub(of_first);
        }
        self.recent.push_back((now + width, cost));
        self.recent_cost = self.recent_cost.saturating_add(cost);
        for (level, rate) in self.levels.iter_mut().zip(rates) {
            let rate = CreditRate::of(*rate);
            level.lacking += rate.of_units(cost);
            level.peak.raise(rate, level.lacking.max(rate.of_units(self.recent_cost)));
        }
    }
}
