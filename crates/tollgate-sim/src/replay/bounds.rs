//! The fewest and the most denials of a bucket that a log with stamps of whole seconds leaves open. A stamp hides up to a
//! second, so two requests are between one second less and one second more apart than their stamps.
//!
//! The most: time between two stamps counts for one second less, but never twice. What passes then passes wherever in
//! its second each request came. The fewest: the bucket has what comes in one second on top. Whatever the instants, no
//! more passes. Both are exact for requests of one unit and one limit.

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
