//! The needs of all keys of a log, and of each day of it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use tollgate::{Rate, Ticks, Timestamp};

use super::frontier::{FAR_MORE, Frontier, FrontierDay, FrontierPoint, Outliers};
use super::need::{BurstRange, KeyNeed};
use super::share::{KeyShare, WantedShare};
use crate::log::ArrivalWindow;

/// Maximum number of keys. Each takes about 500 bytes and its own text.
pub const KEYS_MAX: usize = 5_000_000;
/// The length of a day, in microseconds.
const DAY: u64 = 86_400_000_000;
/// The least part of a day that the log must cover for the day to be compared with others.
const DAY_COVERED_MIN: Ticks = Ticks::from_secs(12 * 3_600);
/// Most outliers that are named.
const NAMED_MAX: usize = 5;
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
        for index in 0..self.rates.len() {
            let mut needed: Vec<u64> =
                self.needs.iter().filter_map(|need| need.burst_of_day(index)).collect();
            keys = needed.len() as u64;
            for (share, bursts) in &mut bursts {
                bursts.push(share.quantile(&mut needed));
            }
        }
        self.needs.iter_mut().for_each(KeyNeed::begin_day);
        let start = Timestamp::from_unix_micros(self.day * DAY);
        self.days.push(PastDay { start, keys, bursts });
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
        let looser = share.looser(keys);
        let points: Vec<FrontierPoint> =
            (0..self.rates.len()).map(|index| self.point(index, (share, looser))).collect();
        Frontier {
            outliers: self.outliers(&points),
            points,
            wanted: self.wanted,
            share,
            looser,
            keys,
            requests: self.requests,
            late: self.late,
            span,
            covered: self.window.covered(),
            window: self.window.length(),
            width_max: self.width_max,
            days: days.map(|day| of_share(day, share, span)).collect(),
        }
    }

    /// The keys that need far more than the looser share, for each point.
    fn outliers(&self, points: &[FrontierPoint]) -> Vec<Outliers> {
        let of_point = |(index, point): (usize, &FrontierPoint)| {
            let need = |key: usize| self.needs.get(key).map_or(0, |need| need.burst(index).most);
            let far_more = point.burst_of_fewer.saturating_mul(FAR_MORE);
            let mut keys: Vec<usize> = (0..self.needs.len()).filter(|key| need(*key) >= far_more).collect();
            keys.sort_by_key(|key| Reverse(need(*key)));
            let count = keys.len() as u64;
            keys.truncate(NAMED_MAX);
            (count, keys)
        };
        let all: Vec<(u64, Vec<usize>)> = points.iter().enumerate().map(of_point).collect();
        let mut named: HashMap<usize, &str> =
            all.iter().flat_map(|(_, keys)| keys).map(|key| (*key, "")).collect();
        for (name, key) in &self.keys {
            named.entry(*key).and_modify(|known| *known = name);
        }
        let names = |keys: &[usize]| {
            keys.iter().filter_map(|key| named.get(key)).map(|name| (*name).to_owned()).collect()
        };
        all.iter().map(|(keys, first)| Outliers { keys: *keys, names: names(first) }).collect()
    }

    fn point(&self, index: usize, (share, looser): (KeyShare, KeyShare)) -> FrontierPoint {
        let of_keys = |value: fn(BurstRange) -> u64| {
            self.needs.iter().map(|need| value(need.burst(index))).collect::<Vec<u64>>()
        };
        let mut most = of_keys(|range| range.most);
        let burst = BurstRange {
            least: share.quantile(&mut of_keys(|range| range.least)),
            most: share.quantile(&mut most),
        };
        let burst_of_all = most.iter().copied().max().unwrap_or_default();
        let burst_of_fewer = looser.quantile(&mut most);
        FrontierPoint { rate: self.rates[index], burst, burst_of_all, burst_of_fewer }
    }
}

/// The day with the bursts of this share, of a log with this first and last request.
fn of_share(day: PastDay, share: KeyShare, span: (Timestamp, Timestamp)) -> FrontierDay {
    let PastDay { start, keys, bursts } = day;
    let covered = span.1.min(start + Ticks::from_micros(DAY)).since(span.0.max(start));
    let bursts =
        bursts.into_iter().find(|(of, _)| *of == share).map(|(_, bursts)| bursts).unwrap_or_default();
    FrontierDay { start, keys, bursts, is_covered: covered >= DAY_COVERED_MIN }
}
