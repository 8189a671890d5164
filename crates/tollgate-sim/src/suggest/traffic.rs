//! The needs of all keys of a log, and of each day of it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use tollgate::{Rate, Ticks, Timestamp};

use super::frontier::{Frontier, FrontierDay, FrontierPoint};
use super::need::{BurstRange, KeyNeed};
use super::share::{KeyShare, WantedShare};
use super::unlike::{UNLIKE_MAX, UnlikeKeys, unlike};
use crate::log::ArrivalWindow;

/// Maximum number of keys. Each takes about 500 bytes and its own text.
pub const KEYS_MAX: usize = 5_000_000;
/// The length of a day, in microseconds.
const DAY: u64 = 86_400_000_000;
/// The least part of a day that the log must cover for the day to be compared with others.
const DAY_COVERED_MIN: Ticks = Ticks::from_secs(12 * 3_600);
/// Most keys unlike the others that are named.
const NAMED_MAX: usize = 5;
/// One in so many keys of a day is left out at most, unless a coarser share is wanted.
const LEFT_OUT_PART: usize = 100;
/// Maximum number of requests that wait.
const WAITING_MAX: usize = 1 << 20;

/// A request as a log describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedRequest {
    /// The earliest instant at which it may have come.
    pub at: Timestamp,
    /// How much later it may have come.
    pub width: Ticks,
    /// How long it took. A log is in the order in which requests end.
    pub duration: Ticks,
    /// Its cost.
    pub cost: u64,
}

/// There are more than [`KEYS_MAX`] keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyKeys;

/// A request that waits for earlier ones. The order is that of time, and of the log where times are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WaitingRequest {
    at: Timestamp,
    number: u64,
    key: usize,
    width: Ticks,
    cost: u64,
}

/// A day of the log that has ended.
#[derive(Debug)]
struct PastDay {
    start: Timestamp,
    keys: u64,
    /// For each share that is possible, the burst that denies no request of it, for each rate.
    bursts: Vec<(KeyShare, Vec<u64>)>,
    /// For each rate, the largest needs with their keys: those of all keys that may be unlike the others or left out, and
    /// one more.
    highest: Vec<Vec<(u64, usize)>>,
}

/// The traffic of a log, by key.
#[derive(Debug)]
pub struct TrafficSummary {
    rates: Vec<Rate>,
    wanted: WantedShare,
    keys: HashMap<Box<str>, usize>,
    needs: Vec<KeyNeed>,
    days: Vec<PastDay>,
    day: u64,
    requests: u64,
    width_max: Ticks,
    span: Option<(Timestamp, Timestamp)>,
    waiting: BinaryHeap<Reverse<WaitingRequest>>,
    window: ArrivalWindow,
    late: u64,
}

impl TrafficSummary {
    /// Nothing yet. For each of the rates, bursts are found that suffice for this share of the keys.
    #[must_use]
    pub fn new(rates: Vec<Rate>, wanted: WantedShare) -> Self {
        Self {
            rates,
            wanted,
            keys: HashMap::new(),
            needs: Vec::new(),
            days: Vec::new(),
            day: 0,
            requests: 0,
            width_max: Ticks::ZERO,
            span: None,
            waiting: BinaryHeap::new(),
            window: ArrivalWindow::default(),
            late: 0,
        }
    }

    /// Adds a request of a key. Requests come in the order in which they ended, as a log has them.
    ///
    /// # Errors
    /// When there are more than [`KEYS_MAX`] keys.
    pub fn add(&mut self, key: &str, request: LoggedRequest) -> Result<(), TooManyKeys> {
        let LoggedRequest { at, width, duration, cost } = request;
        let key = match self.keys.get(key) {
            Some(key) => *key,
            None if self.needs.len() >= KEYS_MAX => return Err(TooManyKeys),
            None => {
                self.keys.insert(key.into(), self.needs.len());
                self.needs.push(KeyNeed::new(self.rates.len()));
                self.needs.len() - 1
            }
        };
        self.requests += 1;
        self.window.add(at, duration);
        self.waiting.push(Reverse(WaitingRequest { at, number: self.requests, key, width, cost }));
        while let Some(Reverse(first)) = self.waiting.peek()
            && (self.window.is_complete(first.at) || self.waiting.len() > WAITING_MAX)
        {
            self.count_first();
        }
        Ok(())
    }

    /// How many keys there are so far.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.needs.len()
    }

    /// Counts the earliest request that waits.
    fn count_first(&mut self) {
        let Some(Reverse(WaitingRequest { at, key, width, cost, .. })) = self.waiting.pop() else { return };
        // A late request counts for the day that has begun.
        let day = (at.unix_micros() / DAY).max(self.day);
        if self.span.is_some() && day > self.day {
            self.end_day();
        }
        self.day = day;
        let (first, last) = self.span.unwrap_or((at, at));
        self.late += u64::from(at < last);
        self.span = Some((first.min(at), last.max(at)));
        self.width_max = self.width_max.max(width);
        if let Some(need) = self.needs.get_mut(key) {
            need.add(&self.rates, at, width, cost);
        }
    }

    fn end_day(&mut self) {
        // How many keys the log has is known at its end. Keys only become more, so few shares are possible.
        let possible = self.wanted.possible(self.needs.len() as u64);
        let mut bursts: Vec<(KeyShare, Vec<u64>)> =
            possible.into_iter().map(|share| (share, Vec::new())).collect();
        let mut keys = 0;
        let mut highest = Vec::new();
        for index in 0..self.rates.len() {
            let of_key = |(key, need): (usize, &KeyNeed)| Some((need.burst_of_day(index)?, key));
            let mut needed: Vec<(u64, usize)> = self.needs.iter().enumerate().filter_map(of_key).collect();
            let mut values: Vec<u64> = needed.iter().map(|(burst, _)| *burst).collect();
            keys = values.len() as u64;
            for (share, bursts) in &mut bursts {
                bursts.push(share.quantile(&mut values));
            }
            let kept = UNLIKE_MAX + needed.len() / LEFT_OUT_PART + 1;
            if needed.len() > kept {
                needed.select_nth_unstable_by_key(kept, |(burst, _)| Reverse(*burst));
                needed.truncate(kept);
                needed.shrink_to_fit();
            }
            highest.push(needed);
        }
        self.needs.iter_mut().for_each(KeyNeed::begin_day);
        let start = Timestamp::from_unix_micros(self.day * DAY);
        self.days.push(PastDay { start, keys, bursts, highest });
    }

    /// The result.
    #[must_use]
    pub fn finish(mut self) -> Frontier {
        while !self.waiting.is_empty() {
            self.count_first();
        }
        if self.span.is_some() {
            self.end_day();
        }
        let span = self.span.unwrap_or_default();
        let keys = self.needs.len() as u64;
        let share = self.wanted.of(keys);
        let days = std::mem::take(&mut self.days).into_iter();
        let unlike = unlike(&self.rates, &self.needs);
        let set: HashSet<usize> = unlike.iter().copied().collect();
        Frontier {
            points: (0..self.rates.len()).map(|index| self.point(index, share, &set)).collect(),
            unlike: self.described(&unlike, &set),
            wanted: self.wanted,
            share,
            keys,
            requests: self.requests,
            late: self.late,
            span,
            covered: self.window.covered(),
            window: self.window.length(),
            width_max: self.width_max,
            days: days
                .map(|day| of_share(day, (share, WantedShare::Finest.of(keys)), (span, &set)))
                .collect(),
        }
    }

    /// The keys that are unlike the others, with their names and needs.
    fn described(&self, unlike: &[usize], set: &HashSet<usize>) -> UnlikeKeys {
        if unlike.is_empty() {
            return UnlikeKeys::default();
        }
        let named = &unlike[..unlike.len().min(NAMED_MAX)];
        let mut names: Vec<(usize, &str)> = self
            .keys
            .iter()
            .filter_map(|(name, key)| Some((named.iter().position(|one| one == key)?, &**name)))
            .collect();
        names.sort_unstable();
        let need = |key: usize, index: usize| self.needs.get(key).map_or(0, |need| need.burst(index).most);
        let others = || (0..self.needs.len()).filter(|key| !set.contains(key));
        let least = |index: usize| unlike.iter().map(|key| need(*key, index)).min().unwrap_or_default();
        let most = |index: usize| others().map(|key| need(key, index)).max().unwrap_or_default();
        UnlikeKeys {
            keys: unlike.len() as u64,
            names: names.into_iter().map(|(_, name)| name.to_owned()).collect(),
            least: (0..self.rates.len()).map(least).collect(),
            most_of_others: (0..self.rates.len()).map(most).collect(),
        }
    }

    fn point(&self, index: usize, share: KeyShare, unlike: &HashSet<usize>) -> FrontierPoint {
        let of_keys = |value: fn(BurstRange) -> u64, left_out: &HashSet<usize>| {
            let kept = self.needs.iter().enumerate().filter(|(key, _)| !left_out.contains(key));
            kept.map(|(_, need)| value(need.burst(index))).collect::<Vec<u64>>()
        };
        let range = |share: KeyShare, left_out: &HashSet<usize>| BurstRange {
            least: share.quantile(&mut of_keys(|range| range.least, left_out)),
            most: share.quantile(&mut of_keys(|range| range.most, left_out)),
        };
        let none = HashSet::new();
        FrontierPoint {
            rate: self.rates[index],
            burst: range(share, &none),
            burst_of_all: of_keys(|range| range.most, &none).into_iter().max().unwrap_or_default(),
            burst_of_others: range(KeyShare::USUAL, unlike),
        }
    }
}

/// The day with the bursts of the wanted share, of a log with this first and last request and these keys unlike the
/// others, of which the finest share is taken.
fn of_share(
    day: PastDay,
    (share, finest): (KeyShare, KeyShare),
    (span, unlike): ((Timestamp, Timestamp), &HashSet<usize>),
) -> FrontierDay {
    let PastDay { start, keys, bursts, highest } = day;
    let covered = span.1.min(start + Ticks::from_micros(DAY)).since(span.0.max(start));
    let bursts =
        bursts.into_iter().find(|(of, _)| *of == share).map(|(_, bursts)| bursts).unwrap_or_default();
    // Some of the few may have made no request on this day. Then fewer are left out than might be.
    let others = keys.saturating_sub(unlike.len() as u64);
    let left_out = usize::try_from(others - finest.of(others)).unwrap_or(usize::MAX);
    let of_others = |highest: Vec<(u64, usize)>| {
        let others = highest.into_iter().filter(|(_, key)| !unlike.contains(key));
        let mut others: Vec<u64> = others.map(|(burst, _)| burst).collect();
        others.sort_unstable_by_key(|burst| Reverse(*burst));
        others.get(left_out).or(others.last()).copied().unwrap_or_default()
    };
    let bursts_of_others = highest.into_iter().map(of_others).collect();
    FrontierDay { start, keys, bursts, bursts_of_others, is_covered: covered >= DAY_COVERED_MIN }
}
