//! The arithmetic: every algorithm as pure functions `(quota, state, now, cost) → (state, outcome)`.
//!
//! Rules that hold for all of them:
//! - Integers only, rounding always against the caller.
//! - `State::default()` is the state of a key never seen. `idle_at` returns when a state becomes indistinguishable from
//!   it.
//! - A denied charge leaves the state as it was; only a state that a clock step backwards has put out of range is
//!   clamped, and the clamp is kept.
//! - A cost of 0 looks and changes nothing. A cost above the capacity gets `Never`.
//! - `now` may be earlier than the state: no function panics, and nothing is admitted that the quota does not allow.
//! - After `Timestamp::LAST` time stands still, so that no state reaches beyond the last instant that can be
//!   represented.

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

/// When the units of a refund were charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charged {
    /// At this instant, by the clock of their counter.
    At(Timestamp),
    /// At some instant at most this long ago. The refund makes no more room than the units took, whichever instant that
    /// was. A bucket assumes the earliest. A window refunds the oldest units that count, and nothing if the earliest
    /// instant no longer counts.
    Within(Ticks),
}

impl Charged {
    /// The instant is unknown: nothing is refunded except permits, which have ids.
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
