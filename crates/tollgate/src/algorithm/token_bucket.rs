//! Token bucket: credits and the time they were counted. It refills steadily up to its burst; in any interval `t` it
//! admits at most `burst + rate × t`.

use crate::algorithm::Charged;
use crate::algorithm::reservoir::{CapacityBound, GAIN_MAX, Reservoir};
use crate::outcome::Outcome;
use crate::rate::{QuotaError, Rate};
use crate::time::{Ticks, Timestamp};

/// The numbers of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    rate: Rate,
    reservoir: Reservoir,
}

/// The credits that a bucket lacks, and the instant at which it lacked them.
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
        let units = rate.checked()?.burst_units().unwrap_or(rate.units());
        // Most rates have a pace whose state fits one word; the others take two.
        let widths = [GAIN_MAX, u64::MAX];
        match widths.into_iter().find_map(|gain_max| Reservoir::fitting(rate, units, gain_max)) {
            Some(reservoir) => Ok(Self { rate, reservoir }),
            None => {
                let [narrow, wide] = widths.map(|gain_max| CapacityBound::of(rate, gain_max));
                Err(narrow.max(wide).refuse(rate, units))
            }
        }
    }

    /// The rate as the user wrote it.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// The burst, in units.
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
            self.missing.saturating_sub(reservoir.gained(now.since(self.at).as_micros()))
        } else {
            let taken_back = reservoir.gained(self.at.since(now).as_micros());
            (self.missing + taken_back).min(reservoir.credits())
        }
    }

    /// When the bucket is full again, and the credits by which it would be over-full at that tick: the same state,
    /// anchored at the instant from which it equals a bucket never used.
    #[must_use]
    #[inline]
    pub(crate) fn to_full(self, reservoir: &Reservoir) -> (Timestamp, u64) {
        let gain = reservoir.pace().gain();
        let ticks = gain.div_ceil(self.missing);
        (self.at + Ticks::from_micros(ticks), ticks * gain.get() - self.missing)
    }

    /// The inverse of [`State::to_full`].
    #[must_use]
    #[inline]
    pub(crate) fn from_full(full_at: Timestamp, surplus: u64, reservoir: &Reservoir) -> Self {
        if full_at == Timestamp::default() {
            return Self::default(); // No tick before the epoch can be the anchor, and no key was charged by then.
        }
        let gain = reservoir.pace().gain().get();
        Self {
            // One tick may gain more credits than the bucket holds, and no bucket lacks more than it holds.
            missing: gain.saturating_sub(surplus).min(reservoir.credits()),
            at: full_at - Ticks::ONE,
        }
    }
}

/// Charges `cost` units.
#[must_use]
#[inline]
pub fn charge(quota: &TokenBucket, state: State, now: Timestamp, cost: u64) -> (State, Outcome) {
    let (reservoir, now) = (&quota.reservoir, now.decidable());
    let missing = state.missing(reservoir, now);
    let (left, verdict) = reservoir.take(missing, cost);
    let admitted = verdict.is_allowed() && cost > 0;
    let clamped = missing == reservoir.credits() && now < state.at;
    let next = if admitted || clamped { State { missing: left, at: now } } else { state };
    (next, reservoir.outcome(left, verdict))
}

/// Refunds `units`, as far as they have not come back since they were charged; at most to a full bucket.
#[must_use]
pub fn refund(quota: &TokenBucket, state: State, now: Timestamp, units: u64, charged: Charged) -> State {
    let now = now.decidable();
    let missing = state.missing(&quota.reservoir, now);
    let elapsed = charged.elapsed(now);
    State { missing: quota.reservoir.put(missing, units, elapsed), at: now }
}

/// From when on the state equals that of a key never seen.
#[must_use]
pub fn idle_at(quota: &TokenBucket, state: &State) -> Timestamp {
    state.to_full(&quota.reservoir).0
}

/// The state under `quota` of a bucket that was counted under `previous` until `at`: available units are kept.
#[must_use]
pub fn inherit(quota: &TokenBucket, previous: &TokenBucket, state: State, at: Timestamp) -> State {
    let at = at.decidable();
    let missing = state.missing(&previous.reservoir, at);
    State { missing: quota.reservoir.inherit(&previous.reservoir, missing), at }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

    /// The story: a bucket that gains ten units a tick but holds only five, anchored where it is full, lacked ten. That
    /// is more than it holds, and the next look at it underflowed. A key never seen, anchored so at the epoch, had also
    /// lost a tick's gain.
    #[test]
    fn the_anchor_of_a_full_bucket_lacks_nothing() {
        let quota = TokenBucket::new(Rate::per_second(10_000_000).burst(5)).unwrap();
        for (state, now) in
            [(State::default(), Timestamp::default()), (State::default(), T0), (State::lacking(0, T0), T0)]
        {
            let (full_at, surplus) = state.to_full(&quota.reservoir);
            let anchored = State::from_full(full_at, surplus, &quota.reservoir);
            assert_eq!(charge(&quota, anchored, now, 0).1, charge(&quota, state, now, 0).1);
        }
    }

    /// Both anchors of a state give the same answers, before and after both instants.
    #[test]
    fn anchoring_where_it_is_full_changes_no_answer() {
        for rate in [Rate::per_second(7), Rate::per_second(3_000_001).burst(4), Rate::per_month(1)] {
            let quota = TokenBucket::new(rate).unwrap();
            for taken in 0..=quota.burst().min(5) {
                let state = charge(&quota, State::default(), T0, taken).0;
                let (full_at, surplus) = state.to_full(&quota.reservoir);
                let anchored = State::from_full(full_at, surplus, &quota.reservoir);
                let whole = Ticks::from_secs(1);
                for now in [T0 - whole, T0 - Ticks::ONE, T0, T0 + Ticks::ONE, T0 + whole, full_at] {
                    let answers = |state| charge(&quota, state, now, 1).1;
                    assert_eq!(answers(anchored), answers(state), "{taken} taken of {rate:?}");
                }
            }
        }
    }
}
