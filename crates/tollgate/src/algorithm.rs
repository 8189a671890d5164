//! The arithmetic: every algorithm as pure functions `(quota, state, now, cost) → (state, outcome)`.
//!
//! Rules that hold for all of them:
//! - Integers only, rounding always against the caller.
//! - `State::default()` is the state of a key never seen. `idle_at` tells when a state has become indistinguishable from it.
//! - A denied charge leaves the state as it was; only a state that a clock stepping back has put out of range is clamped,
//!   and the clamp is kept.
//! - A cost of 0 looks and changes nothing. A cost above the capacity is answered with `Never`.
//! - `now` may be earlier than the state: no function panics, and nothing is admitted that the quota does not allow.
//! - After `Timestamp::LAST` time stands still, so that no state reaches beyond the last instant that has a name.

use crate::time::{Ticks, Timestamp};

#[cfg(feature = "calendar")]
pub mod calendar;
pub mod concurrency;
pub mod fixed_window;
pub mod gcra;
pub mod leaky_bucket;
pub mod pace;
pub mod reservoir;
pub mod sliding_log;
pub mod sliding_window;
pub mod token_bucket;

/// When the units were charged that a refund gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charged {
    /// At this instant, by the clock of their counter.
    At(Timestamp),
    /// At some instant that is at most so long ago. The refund makes no more room than the units took, whichever instant that
    /// was: a bucket takes it to be the earliest, a window gives back the oldest units that count, and gives nothing back if the
    /// earliest no longer counts.
    Within(Ticks),
}

impl Charged {
    /// Nobody knows when: nothing is given back but permits, which have names.
    pub const UNKNOWN: Charged = Charged::Within(Ticks::MAX);

    /// The earliest instant at which they may have been charged.
    #[must_use]
    pub fn earliest(self, now: Timestamp) -> Timestamp {
        match self {
            Charged::At(at) => at,
            Charged::Within(age) => now - age,
        }
    }

    /// How long ago they were charged, at most.
    #[must_use]
    pub fn elapsed(self, now: Timestamp) -> Ticks {
        match self {
            Charged::At(at) => now.since(at),
            Charged::Within(age) => age,
        }
    }
}
