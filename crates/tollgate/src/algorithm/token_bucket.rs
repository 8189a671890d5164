//! Token bucket: credits and the time they were counted. Refills steadily up to its burst; admits in any interval `t` at
//! most `burst + rate × t`.

use crate::algorithm::reservoir::{GAIN_MAX, Reservoir};
use crate::outcome::Outcome;
use crate::quota::{QuotaError, Rate};
use crate::time::{Ticks, Timestamp};

/// The numbers of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    rate: Rate,
    reservoir: Reservoir,
}

/// The credits that a bucket lacks, and when that was so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    missing: u64,
    at: Timestamp,
}

impl TokenBucket {
    /// A bucket that refills at `rate`; its burst is the rate's, or as many units as one period has.
    ///
    /// # Errors
    /// When the numbers are out of range or cannot be counted exactly.
    pub fn new(rate: Rate) -> Result<Self, QuotaError> {
        let units = rate.burst_units().unwrap_or(rate.units());
        // Most rates have a pace whose state fits one word; the others take two.
        let reservoir = Reservoir::new(rate, units, GAIN_MAX).or_else(|_| Reservoir::new(rate, units, u64::MAX))?;
        Ok(Self { rate, reservoir })
    }

    /// The rate as the user wrote it.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Units at once.
    #[must_use]
    pub const fn burst(&self) -> u64 {
        self.reservoir.units()
    }

    /// Its credits.
    #[must_use]
    pub const fn reservoir(&self) -> &Reservoir {
        &self.reservoir
    }
}

impl State {
    /// A bucket that lacked `missing` credits at an instant.
    #[must_use]
    pub const fn lacking(missing: u64, at: Timestamp) -> Self {
        Self { missing, at }
    }

    /// The credits that are missing at `now`: a clock that stepped back takes the refill back, down to an empty bucket.
    #[must_use]
    #[inline]
    pub fn missing(&self, reservoir: &Reservoir, now: Timestamp) -> u64 {
        if now >= self.at {
            self.missing
                .saturating_sub(reservoir.gained(now.since(self.at).as_micros()))
        } else {
            let taken_back = reservoir.gained(self.at.since(now).as_micros());
            (self.missing + taken_back).min(reservoir.credits())
        }
    }

    /// When the bucket is full again, and the credits by which it would be over-full at that tick: the same state, anchored
    /// at the instant from which it equals a bucket never used.
    #[must_use]
    #[inline]
    pub fn to_full(self, reservoir: &Reservoir) -> (Timestamp, u64) {
        let gain = reservoir.pace().gain();
        let ticks = gain.div_ceil(self.missing);
        (
            self.at + Ticks::from_micros(ticks),
            ticks * gain.get() - self.missing,
        )
    }

    /// The inverse of [`State::to_full`].
    #[must_use]
    #[inline]
    pub fn from_full(full_at: Timestamp, surplus: u64, reservoir: &Reservoir) -> Self {
        let gain = reservoir.pace().gain().get();
        Self {
            missing: gain.saturating_sub(surplus),
            at: full_at - Ticks::ONE,
        }
    }
}

/// Charges `cost` units.
#[must_use]
#[inline]
pub fn charge(quota: &TokenBucket, state: State, now: Timestamp, cost: u64) -> (State, Outcome) {
    let reservoir = &quota.reservoir;
    let missing = state.missing(reservoir, now);
    let (left, verdict) = reservoir.take(missing, cost);
    let admitted = verdict.is_allowed() && cost > 0;
    let clamped = missing == reservoir.credits() && now < state.at;
    let next = if admitted || clamped {
        State {
            missing: left,
            at: now,
        }
    } else {
        state
    };
    (next, reservoir.outcome(left, verdict))
}

/// Gives back `units`, at most to a full bucket.
#[must_use]
pub fn refund(quota: &TokenBucket, state: State, now: Timestamp, units: u64) -> State {
    let missing = state.missing(&quota.reservoir, now);
    State {
        missing: quota.reservoir.put(missing, units),
        at: now,
    }
}

/// From when on the state equals that of a key never seen.
#[must_use]
pub fn idle_at(quota: &TokenBucket, state: &State) -> Timestamp {
    state.to_full(&quota.reservoir).0
}

/// The state under `quota` of a bucket that was counted under `previous` until `at`: available units are kept.
#[must_use]
pub fn inherit(quota: &TokenBucket, previous: &TokenBucket, state: State, at: Timestamp) -> State {
    let missing = state.missing(&previous.reservoir, at);
    State {
        missing: quota.reservoir.inherit(&previous.reservoir, missing),
        at,
    }
}
