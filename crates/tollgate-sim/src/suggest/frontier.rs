//! The frontier of rates and bursts, and the choice of one of them.

use tollgate::{Rate, Ticks, Timestamp};

use super::need::BurstRange;
use super::share::{KeyShare, WantedShare};

/// The least number of keys for which limits are suggested, whatever the share.
pub const KEYS_MIN: u64 = 100;
/// A key needs far more than others if its burst is so many times theirs.
pub(super) const FAR_MORE: u64 = 4;
/// The most that the bursts of two days may differ, as a factor.
pub const DAYS_FACTOR_MAX: u64 = 2;
/// How many periods the log must cover at least: as many as a week has days.
pub const PERIODS_MIN: u64 = 7;
/// The parts of a head-room in a whole.
pub const HEADROOM_WHOLE: u64 = 100;

/// One point of the frontier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontierPoint {
    /// The rate.
    pub rate: Rate,
    /// The smallest burst that denies no request of the wanted share of keys.
    pub burst: BurstRange,
    /// The smallest burst that denies no request at all.
    pub burst_of_all: u64,
    /// The smallest burst that denies no request of a looser share of keys, which leaves out ten times as many.
    pub burst_of_fewer: u64,
}

/// The keys that need a burst far larger than a looser share of the keys, at one rate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outliers {
    /// How many there are.
    pub keys: u64,
    /// The first of them, the largest needs first: each with its values.
    pub names: Vec<String>,
}

/// One day, in UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontierDay {
    /// Its begin.
    pub start: Timestamp,
    /// How many keys made a request.
    pub keys: u64,
    /// For each rate, the burst that denies no request of the wanted share of this day's keys.
    pub bursts: Vec<u64>,
    /// Whether the log covers at least half of it, so that it can be compared with others.
    pub is_covered: bool,
}

/// The limits that would have denied nothing.
#[derive(Clone, Debug)]
pub struct Frontier {
    /// A point for each rate, in the order of the rates.
    pub points: Vec<FrontierPoint>,
    /// The keys that are unlike the others, for each rate.
    pub outliers: Vec<Outliers>,
    /// The share of keys that was asked for.
    pub wanted: WantedShare,
    /// The share that it is for these keys.
    pub share: KeyShare,
    /// The looser share that leaves the outliers out.
    pub looser: KeyShare,
    /// How many keys there are.
    pub keys: u64,
    /// How many requests there are.
    pub requests: u64,
    /// Requests that came so late in the log that they are counted later than they came. Bursts are never smaller by it.
    pub late: u64,
    /// The first and the last request.
    pub span: (Timestamp, Timestamp),
    /// How much time the log covers, without single requests that are far from the one before.
    pub covered: Ticks,
    /// How long a request waited for earlier ones.
    pub window: Ticks,
    /// How much later than its stamp a request may have come.
    pub width_max: Ticks,
    /// The days with requests.
    pub days: Vec<FrontierDay>,
}

/// Why a suggestion should not be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// So few keys that each single one would decide.
    FewKeys {
        /// How many.
        keys: u64,
        /// The wanted share of them.
        share: KeyShare,
        /// How many it takes for this share, and at least [`KEYS_MIN`].
        needed: u64,
    },
    /// The log covers less than [`PERIODS_MIN`] periods of the rate.
    ShortLog {
        /// How much it covers.
        covered: Ticks,
        /// The period.
        period: Ticks,
    },
    /// Two days need bursts that differ by more than [`DAYS_FACTOR_MAX`].
    DaysDiffer {
        /// The day that needs the least, and the burst.
        least: (Timestamp, u64),
        /// The day that needs the most, and the burst.
        most: (Timestamp, u64),
    },
}

/// The limit for all keys but a few that need far more and decide the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LooserSuggestion {
    /// The limit that leaves them out.
    pub suggestion: Suggestion,
    /// The few keys.
    pub outliers: Outliers,
}

/// The chosen point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// Its index among the points.
    pub index: usize,
    /// The share of keys that it is made for.
    pub share: KeyShare,
    /// The burst that these needed at this point.
    pub needed: u64,
    /// The rate and the burst, with head-room.
    pub rate: Rate,
    /// The burst, with head-room.
    pub burst: u64,
    /// Why it should not be trusted; empty if it can be.
    pub doubts: Vec<Doubt>,
}

impl Frontier {
    /// The smallest rate that returns its burst within one period, with head-room in hundredths. `None` if no rate
    /// does.
    #[must_use]
    pub fn suggest(&self, headroom: u64) -> Option<Suggestion> {
        let mut suggestion = self.chosen(headroom, self.share, |point| point.burst.most)?;
        suggestion.doubts.extend(self.days_doubt(suggestion.index));
        Some(suggestion)
    }

    /// The limit for all keys but a few, if these decide the limit of the wanted share: they need far more than the
    /// others, and without them the rate is far lower.
    #[must_use]
    pub fn suggest_looser(&self, headroom: u64) -> Option<LooserSuggestion> {
        let suggestion = self.chosen(headroom, self.looser, |point| point.burst_of_fewer)?;
        let outliers = self.outliers.get(suggestion.index)?.clone();
        let is_much_lower = self
            .suggest(headroom)
            .is_none_or(|wanted| suggestion.rate.units() * FAR_MORE <= wanted.rate.units());
        (is_much_lower && outliers.keys > 0).then_some(LooserSuggestion { suggestion, outliers })
    }

    /// The point with the smallest rate that returns its burst within one period, and its numbers with head-room.
    fn chosen(&self, headroom: u64, share: KeyShare, burst: fn(&FrontierPoint) -> u64) -> Option<Suggestion> {
        let returns = |point: &FrontierPoint| burst(point) <= point.rate.units();
        let fits = self.points.iter().enumerate().filter(|(_, point)| returns(point) && self.keys > 0);
        let (index, point) = fits.min_by(|(_, one), (_, other)| compare(one.rate, other.rate))?;
        let more = |units: u64| {
            let units = u128::from(units) * u128::from(headroom.max(HEADROOM_WHOLE));
            u64::try_from(units.div_ceil(u128::from(HEADROOM_WHOLE))).unwrap_or(u64::MAX)
        };
        let needed = burst(point);
        let burst = more(needed).max(1);
        let rate = Rate::per_ticks(more(point.rate.units()), point.rate.period()).burst(burst);
        Some(Suggestion { index, share, needed, rate, burst, doubts: self.doubts(share, index) })
    }

    /// The days that can be compared: those that the log covers at least half.
    pub fn comparable_days(&self) -> impl Iterator<Item = &FrontierDay> {
        self.days.iter().filter(|day| day.is_covered)
    }

    /// Doubts about a limit for this share of the keys.
    fn doubts(&self, share: KeyShare, index: usize) -> Vec<Doubt> {
        let mut doubts = Vec::new();
        let needed = share.keys_for_one_more().unwrap_or_default().max(KEYS_MIN);
        if self.keys < needed {
            doubts.push(Doubt::FewKeys { keys: self.keys, share, needed });
        }
        let period = self.points.get(index).map_or(Ticks::ZERO, |point| point.rate.period());
        if self.covered.as_micros() < period.as_micros().saturating_mul(PERIODS_MIN) {
            doubts.push(Doubt::ShortLog { covered: self.covered, period });
        }
        doubts
    }

    /// The doubt of days that need different bursts for the wanted share of the keys.
    fn days_doubt(&self, index: usize) -> Option<Doubt> {
        let of_day = |day: &FrontierDay| Some((day.start, *day.bursts.get(index)?));
        let days = || self.comparable_days().filter_map(of_day);
        let least = days().min_by_key(|(_, burst)| *burst)?;
        let most = days().max_by_key(|(_, burst)| *burst)?;
        (most.1 > least.1.saturating_mul(DAYS_FACTOR_MAX)).then_some(Doubt::DaysDiffer { least, most })
    }
}

/// Compares what two rates give in the same time.
fn compare(one: Rate, other: Rate) -> std::cmp::Ordering {
    let product = |units: u64, period: Ticks| u128::from(units) * u128::from(period.as_micros());
    product(one.units(), other.period()).cmp(&product(other.units(), one.period()))
}
