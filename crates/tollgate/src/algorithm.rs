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
