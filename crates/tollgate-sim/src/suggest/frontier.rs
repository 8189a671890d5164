//! The frontier of rates and bursts, and the choice of one of them.

use tollgate::{Rate, Ticks, Timestamp};

use super::need::BurstRange;
use super::share::{KeyShare, WantedShare};
use super::smallest::smallest;
use super::unlike::UnlikeKeys;

/// The least number of keys for which limits are suggested, whatever the share.
pub const KEYS_MIN: u64 = 100;
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
    /// The smallest burst that denies no request of [`KeyShare::USUAL`] of the keys that are not unlike the others.
    pub burst_of_others: BurstRange,
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
    /// The same without the keys that are unlike the others. As many more are left out as of all keys of the day.
    pub bursts_of_others: Vec<u64>,
    /// Whether the log covers at least half of it, so that it can be compared with others.
    pub is_covered: bool,
}

/// The limits that would have denied nothing.
#[derive(Clone, Debug)]
pub struct Frontier {
    /// A point for each rate, in the order of the rates.
    pub points: Vec<FrontierPoint>,
    /// The keys that are unlike the others.
    pub unlike: UnlikeKeys,
    /// The share of keys that was asked for.
    pub wanted: WantedShare,
    /// The share that it is for these keys.
    pub share: KeyShare,
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

/// The keys that a limit is made for: it denies none of their requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadeFor {
    /// This share of all keys.
    Share(KeyShare),
    /// [`KeyShare::USUAL`] of the keys that are not unlike the others: all of them, if they are fewer than 1,000.
    Others,
    /// All keys.
    All,
}

/// The chosen point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// Its index among the points.
    pub index: usize,
    /// The keys that it is made for.
    pub made_for: MadeFor,
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
    /// The smallest rate that returns its burst within one period, with head-room in hundredths. It is made for the
    /// wanted share, or for the others if no share is wanted and some keys are unlike them. `None` if no rate does.
    #[must_use]
    pub fn suggest(&self, headroom: u64) -> Option<Suggestion> {
        self.suggest_for(self.made_for(), headroom)
    }

    /// The keys that the suggestion is made for.
    #[must_use]
    pub fn made_for(&self) -> MadeFor {
        match self.wanted {
            WantedShare::Finest if self.unlike.keys > 0 => MadeFor::Others,
            WantedShare::Finest | WantedShare::Exactly(_) => MadeFor::Share(self.share),
        }
    }

    /// The limit that is made for these keys, chosen in this way.
    #[must_use]
    pub fn suggest_for(&self, made_for: MadeFor, headroom: u64) -> Option<Suggestion> {
        let burst = |point: &FrontierPoint| match made_for {
            MadeFor::Share(_) => point.burst.most,
            MadeFor::Others => point.burst_of_others.most,
            MadeFor::All => point.burst_of_all,
        };
        let rates: Vec<Rate> = self.points.iter().map(|point| point.rate).collect();
        let returns = |index: usize| burst(&self.points[index]) <= rates[index].units();
        let index = smallest(&rates, |index| returns(index) && self.keys > 0)?;
        let point = &self.points[index];
        let more = |units: u64| {
            let units = u128::from(units) * u128::from(headroom.max(HEADROOM_WHOLE));
            u64::try_from(units.div_ceil(u128::from(HEADROOM_WHOLE))).unwrap_or(u64::MAX)
        };
        let needed = burst(point);
        let burst = more(needed).max(1);
        let rate = Rate::per_ticks(more(point.rate.units()), point.rate.period()).burst(burst);
        let doubts = self.doubts(made_for, index);
        Some(Suggestion { index, made_for, needed, rate, burst, doubts })
    }

    /// How many keys are not unlike the others.
    #[must_use]
    pub const fn others(&self) -> u64 {
        self.keys.saturating_sub(self.unlike.keys)
    }

    /// The days that can be compared: those that the log covers at least half.
    pub fn comparable_days(&self) -> impl Iterator<Item = &FrontierDay> {
        self.days.iter().filter(|day| day.is_covered)
    }

    /// Doubts about a limit that is made for these keys.
    fn doubts(&self, made_for: MadeFor, index: usize) -> Vec<Doubt> {
        let mut doubts = Vec::new();
        let share = if let MadeFor::Share(share) = made_for { share } else { self.share };
        let needed = if matches!(made_for, MadeFor::Share(_)) { share.keys_for_one_more() } else { None };
        let needed = needed.unwrap_or_default().max(KEYS_MIN);
        if self.keys < needed {
            doubts.push(Doubt::FewKeys { keys: self.keys, share, needed });
        }
        let period = self.points.get(index).map_or(Ticks::ZERO, |point| point.rate.period());
        if self.covered.as_micros() < period.as_micros().saturating_mul(PERIODS_MIN) {
            doubts.push(Doubt::ShortLog { covered: self.covered, period });
        }
        doubts.extend(self.days_doubt(made_for, index));
        doubts
    }

    /// The bursts of comparable days that a limit for these keys depends on, at one rate.
    pub fn bursts_of_days(&self, made_for: MadeFor, index: usize) -> impl Iterator<Item = (Timestamp, u64)> {
        let bursts = move |day: &FrontierDay| match made_for {
            MadeFor::Others => day.bursts_of_others.get(index).copied(),
            MadeFor::Share(_) | MadeFor::All => day.bursts.get(index).copied(),
        };
        // A day without any of the keys has nothing to compare.
        let of_day = move |day: &FrontierDay| Some((day.start, bursts(day).filter(|burst| *burst > 0)?));
        self.comparable_days().filter_map(of_day)
    }

    /// The doubt of days that need different bursts.
    fn days_doubt(&self, made_for: MadeFor, index: usize) -> Option<Doubt> {
        let days = || self.bursts_of_days(made_for, index);
        let least = days().min_by_key(|(_, burst)| *burst)?;
        let most = days().max_by_key(|(_, burst)| *burst)?;
        (most.1 > least.1.saturating_mul(DAYS_FACTOR_MAX)).then_some(Doubt::DaysDiffer { least, most })
    }
}
