//! The fewest and the most denials that a log with stamps of whole seconds leaves open, of a bucket or a sliding window. A
//! stamp hides up to a second, so two requests are between one second less and one second more apart than their stamps.
//!
//! Buckets. The most: time between two stamps counts for one second less, but never twice. What passes then passes
//! wherever in its second each request came. The fewest: the bucket has what comes in one second on top. Whatever the
//! instants, no more passes.
//!
//! Windows. To admit each request that fits admits as many as possible, so it is enough to compare which sets of requests
//! fit. The fewest: what fits into the windows at the true instants has stamps that are as far apart, rounded down. The
//! most: stamps that are one second further apart than the window, rounded up, fit wherever in its second each came.
//!
//! All are sound for requests of one unit and one limit.

use std::collections::VecDeque;

use tollgate::time::TICKS_PER_SECOND;
use tollgate::{Ticks, Timestamp};

/// A bucket, in credits: `gain` for each tick, `capacity` in all.
#[derive(Clone, Copy, Debug)]
pub(super) struct CreditBucket {
    pub(super) gain: u64,
    pub(super) capacity: u64,
}

impl CreditBucket {
    const fn gained(self, ticks: u64) -> u64 {
        self.gain.saturating_mul(ticks)
    }
}

/// The credits that one key lacks at both extremes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bounds {
    second: Timestamp,
    /// Lacking one second before this one, at most.
    before: u64,
    /// Taken in this second, with the most denials.
    taken: u64,
    /// Lacking now, with the most denials.
    most: u64,
    /// Lacking now, with the fewest denials.
    fewest: u64,
}

/// Whether a request is denied at both extremes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extremes {
    pub(super) fewest: bool,
    pub(super) most: bool,
}

impl Bounds {
    /// Charges a request in the second of `now`.
    pub(super) fn charge(&mut self, bucket: CreditBucket, now: Timestamp, credits: u64) -> Extremes {
        let second = now - Ticks::from_micros(now.unix_micros() % TICKS_PER_SECOND);
        if second > self.second {
            let elapsed = second.since(self.second).as_micros();
            self.before = self.most.saturating_sub(bucket.gained(elapsed - TICKS_PER_SECOND));
            self.most = self.most.saturating_sub(bucket.gained(elapsed));
            self.fewest = self.fewest.saturating_sub(bucket.gained(elapsed));
            (self.taken, self.second) = (0, second);
        }
        let slack = bucket.gained(TICKS_PER_SECOND);
        let denied = Extremes {
            most: self.before.saturating_add(self.taken).saturating_add(credits) > bucket.capacity,
            fewest: self.fewest.saturating_add(credits) > bucket.capacity.saturating_add(slack),
        };
        if !denied.most {
            self.taken = self.taken.saturating_add(credits);
            self.most = self.most.saturating_add(credits);
        }
        if !denied.fewest {
            self.fewest = self.fewest.saturating_add(credits);
        }
        denied
    }
}

/// A sliding window of `limit` units, in whole seconds: how long it is at each extreme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SecondsWindow {
    limit: u64,
    fewest: u64,
    most: u64,
}

impl SecondsWindow {
    /// A window in which at most `limit` units ever are if it is `shortest`, and which denies nothing that fits into
    /// windows of `longest`.
    pub(super) const fn new(limit: u64, shortest: Ticks, longest: Ticks) -> Self {
        Self {
            limit,
            fewest: shortest.as_micros() / TICKS_PER_SECOND,
            most: longest.as_micros().div_ceil(TICKS_PER_SECOND) + 1,
        }
    }
}

/// The units that one key was admitted at both extremes.
#[derive(Clone, Debug, Default)]
pub(super) struct WindowBounds {
    fewest: AdmittedSeconds,
    most: AdmittedSeconds,
}

impl WindowBounds {
    /// Bytes that it takes, with what it points to.
    pub(super) fn bytes(&self) -> usize {
        let places = self.fewest.seconds.capacity() + self.most.seconds.capacity();
        size_of::<Self>() + places * size_of::<(u64, u64)>()
    }

    /// Charges a request in the second of `now`.
    pub(super) fn charge(&mut self, window: SecondsWindow, now: Timestamp, cost: u64) -> Extremes {
        let second = now.unix_micros() / TICKS_PER_SECOND;
        Extremes {
            fewest: !self.fewest.charge(second, (window.fewest, window.limit), cost),
            most: !self.most.charge(second, (window.most, window.limit), cost),
        }
    }
}

/// The units admitted in each of the latest seconds. There are at most as many seconds as units, and as the window has.
#[derive(Clone, Debug, Default)]
struct AdmittedSeconds {
    seconds: VecDeque<(u64, u64)>,
    units: u64,
}

impl AdmittedSeconds {
    /// Charges a request if it fits into a window of this length and limit. Returns whether it does.
    fn charge(&mut self, second: u64, (length, limit): (u64, u64), cost: u64) -> bool {
        while let Some((_, units)) = self.seconds.pop_front_if(|(oldest, _)| *oldest + length <= second) {
            self.units -= units;
        }
        if self.units.saturating_add(cost) > limit {
            return false;
        }
        self.units += cost;
        match self.seconds.back_mut() {
            Some((newest, units)) if *newest >= second => *units += cost,
            _ => self.seconds.push_back((second, cost)),
        }
        true
    }
}
