//! GCRA: one timestamp, the theoretical arrival time (TAT), at which the bucket is full again. Decides as the token
//! bucket does, with half the memory.

use crate::algorithm::Charged;
use crate::algorithm::reservoir::{GAIN_MAX, Reservoir};
use crate::algorithm::token_bucket::TokenBucket;
use crate::outcome::{Outcome, Verdict};
use crate::rate::{QuotaError, Rate};
use crate::time::{Ticks, Timestamp};

/// The numbers of a GCRA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gcra {
    rate: Rate,
    reservoir: Reservoir,
}

/// The theoretical arrival time: whole ticks, and a fraction of a tick in credits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    tick: Timestamp,
    fraction: u16,
}

impl Gcra {
    /// A GCRA at `rate`; its burst is the rate's, or as many units as one period has.
    ///
    /// # Errors
    /// When the numbers are out of range, or the state would not fit one word exactly.
    pub fn new(rate: Rate) -> Result<Self, QuotaError> {
        let made = Self::with_capacity(rate, rate.burst_units().unwrap_or(rate.units()));
        made.map_err(|error| match TokenBucket::new(rate) {
            Ok(_) => error.or("`algorithm: token-bucket`, which has more room"),
            Err(_) => error,
        })
    }

    /// A GCRA whose reservoir holds `units`, whatever the rate's burst.
    ///
    /// # Errors
    /// As [`Gcra::new`].
    pub fn with_capacity(rate: Rate, units: u64) -> Result<Self, QuotaError> {
        Ok(Self { rate, reservoir: Reservoir::new(rate, units, GAIN_MAX)? })
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
    /// The state from its two parts.
    #[must_use]
    #[inline]
    pub const fn new(tick: Timestamp, fraction: u16) -> Self {
        Self { tick, fraction }
    }

    /// Whole ticks and the fraction.
    #[must_use]
    #[inline]
    pub const fn parts(self) -> (Timestamp, u16) {
        (self.tick, self.fraction)
    }

    /// The credits that are missing at `now`, at most the whole reservoir.
    #[must_use]
    #[inline]
    pub fn missing(self, reservoir: &Reservoir, now: Timestamp) -> u64 {
        if self.tick < now {
            0
        } else {
            let ahead = self.tick.since(now).as_micros();
            (reservoir.gained(ahead) + u64::from(self.fraction)).min(reservoir.credits())
        }
    }

    /// The state of a reservoir that lacks `missing` credits at `now`.
    #[must_use]
    #[inline]
    pub fn lacking(missing: u64, reservoir: &Reservoir, now: Timestamp) -> Self {
        let gain = reservoir.pace().gain();
        let ticks = gain.div_floor(missing);
        #[allow(clippy::cast_possible_truncation, reason = "a remainder of a division by at most 2^16")]
        let fraction = (missing - ticks * gain.get()) as u16;
        Self { tick: now + Ticks::from_micros(ticks), fraction }
    }
}

/// Charges `cost` units.
#[must_use]
#[inline(always)]
pub fn charge(reservoir: &Reservoir, state: State, now: Timestamp, cost: u64) -> (State, Outcome) {
    let (next, left, verdict) = advance(reservoir, state, now, cost);
    (next, reservoir.outcome(left, verdict))
}

/// The step inside [`charge`]: the next state, the credits that are then missing, and the verdict.
#[must_use]
#[inline]
pub fn advance(reservoir: &Reservoir, state: State, now: Timestamp, cost: u64) -> (State, u64, Verdict) {
    let now = now.decidable();
    let missing = state.missing(reservoir, now);
    let (left, verdict) = reservoir.take(missing, cost);
    let admitted = verdict.is_allowed() && cost > 0;
    // Out of range only after the clock stepped back, or the quota shrank. The clamped state is kept, so that a clock
    // step costs one interval, not the whole step.
    let clamped = missing == reservoir.credits();
    let next = if admitted || clamped { State::lacking(left, reservoir, now) } else { state };
    (next, left, verdict)
}

/// Refunds `units`, as far as they have not come back since they were charged; at most to a full bucket.
#[must_use]
pub fn refund(reservoir: &Reservoir, state: State, now: Timestamp, units: u64, charged: Charged) -> State {
    let now = now.decidable();
    let elapsed = charged.elapsed(now);
    State::lacking(reservoir.put(state.missing(reservoir, now), units, elapsed), reservoir, now)
}

/// Refunds `units` of a charge that left the bucket full again at `full_at`, if it was the last charge. If another
/// request was charged since, nothing is refunded: its slot would otherwise be given to another request, too.
#[must_use]
pub fn step_back(
    reservoir: &Reservoir,
    state: State,
    full_at: Timestamp,
    now: Timestamp,
    units: u64,
) -> Option<State> {
    (idle_at(&state) == full_at).then(|| refund(reservoir, state, now, units, Charged::At(now)))
}

/// From when on the state equals that of a key never seen.
#[must_use]
#[inline]
pub fn idle_at(state: &State) -> Timestamp {
    if state.fraction == 0 { state.tick } else { state.tick + Ticks::ONE }
}

/// The state under `reservoir` of one that was counted under `previous` until `at`: available units are kept.
#[must_use]
pub fn inherit(reservoir: &Reservoir, previous: &Reservoir, state: State, at: Timestamp) -> State {
    let at = at.decidable();
    State::lacking(reservoir.inherit(previous, state.missing(previous, at)), reservoir, at)
}
