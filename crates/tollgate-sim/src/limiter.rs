//! One key of one limit in virtual time: an algorithm and its state.

use tollgate::algorithm::Charged;
use tollgate::algorithm::concurrency::{self, Concurrency, PermitId};
use tollgate::algorithm::fixed_window::{self, FixedWindow};
use tollgate::algorithm::gcra::{self, Gcra};
use tollgate::algorithm::leaky_bucket::{self, LeakyBucket};
use tollgate::algorithm::sliding_log::{self, SlidingLog};
use tollgate::algorithm::sliding_window::{self, SlidingWindow};
use tollgate::algorithm::token_bucket::{self, TokenBucket};
use tollgate::{Outcome, Quota, Timestamp};

/// The algorithm and the state of a key. Equal limiters give equal answers from then on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limiter {
    /// A token bucket.
    TokenBucket(TokenBucket, token_bucket::State),
    /// A GCRA.
    Gcra(Gcra, gcra::State),
    /// A fixed window.
    FixedWindow(FixedWindow, fixed_window::State),
    /// A sliding window.
    SlidingWindow(SlidingWindow, sliding_window::State),
    /// A sliding log.
    SlidingLog(SlidingLog, sliding_log::State),
    /// A leaky bucket.
    LeakyBucket(LeakyBucket, leaky_bucket::State),
    /// Permits, numbered from 0 in the order of the charges.
    Concurrency(Concurrency, concurrency::State, PermitId),
}

impl Limiter {
    /// A new key.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        match quota {
            Quota::TokenBucket(quota) => Limiter::TokenBucket(quota, token_bucket::State::default()),
            Quota::Gcra(quota) => Limiter::Gcra(quota, gcra::State::default()),
            Quota::FixedWindow(quota) => Limiter::FixedWindow(quota, fixed_window::State::default()),
            Quota::SlidingWindow(quota) => Limiter::SlidingWindow(quota, sliding_window::State::default()),
            Quota::SlidingLog(quota) => Limiter::SlidingLog(quota, sliding_log::State::default()),
            Quota::LeakyBucket(quota) => Limiter::LeakyBucket(quota, leaky_bucket::State::default()),
            Quota::Concurrency(quota) => {
                Limiter::Concurrency(quota, concurrency::State::default(), PermitId(0))
            }
        }
    }

    /// Charges the key. A permit gets the next number.
    pub fn charge(&mut self, now: Timestamp, cost: u64) -> Outcome {
        match self {
            Limiter::TokenBucket(quota, state) => apply(state, |s| token_bucket::charge(quota, s, now, cost)),
            Limiter::Gcra(quota, state) => apply(state, |s| gcra::charge(quota.reservoir(), s, now, cost)),
            Limiter::FixedWindow(quota, state) => apply(state, |s| fixed_window::charge(quota, s, now, cost)),
            Limiter::SlidingWindow(quota, state) => {
                apply(state, |s| sliding_window::charge(quota, s, now, cost))
            }
            Limiter::SlidingLog(quota, state) => apply(state, |s| sliding_log::charge(quota, s, now, cost)),
            Limiter::LeakyBucket(quota, state) => apply(state, |s| leaky_bucket::charge(quota, s, now, cost)),
            Limiter::Concurrency(quota, state, next) => {
                let outcome = apply(state, |s| concurrency::charge(quota, s, now, cost, *next));
                if outcome.is_allowed() && cost > 0 {
                    next.0 += 1;
                }
                outcome
            }
        }
    }

    /// Refunds units of one admitted charge. `admission` is its number, counted from 0, which identifies a permit; the other
    /// algorithms use the instant in `charged`.
    pub fn refund(&mut self, now: Timestamp, units: u64, charged: Charged, admission: usize) {
        match self {
            Limiter::TokenBucket(quota, state) => {
                *state = token_bucket::refund(quota, *state, now, units, charged);
            }
            Limiter::Gcra(quota, state) => {
                *state = gcra::refund(quota.reservoir(), *state, now, units, charged);
            }
            Limiter::FixedWindow(quota, state) => {
                *state = fixed_window::refund(quota, *state, now, units, charged);
            }
            Limiter::SlidingWindow(quota, state) => {
                *state = sliding_window::refund(quota, std::mem::take(state), now, units, charged);
            }
            Limiter::SlidingLog(quota, state) => {
                *state = sliding_log::refund(quota, std::mem::take(state), now, units, charged);
            }
            Limiter::LeakyBucket(quota, state) => {
                *state = gcra::refund(quota.shape().reservoir(), *state, now, units, charged);
            }
            Limiter::Concurrency(quota, state, _) => {
                let permit = PermitId(admission as u64);
                *state = concurrency::refund(quota, std::mem::take(state), now, permit, units);
            }
        }
    }

    /// The instant from which on the key equals a new one.
    #[must_use]
    pub fn idle_at(&self) -> Timestamp {
        match self {
            Limiter::TokenBucket(quota, state) => token_bucket::idle_at(quota, state),
            Limiter::Gcra(_, state) | Limiter::LeakyBucket(_, state) => gcra::idle_at(state),
            Limiter::FixedWindow(quota, state) => fixed_window::idle_at(quota, state),
            Limiter::SlidingWindow(quota, state) => sliding_window::idle_at(quota, state),
            Limiter::SlidingLog(quota, state) => sliding_log::idle_at(quota, state),
            Limiter::Concurrency(quota, state, _) => concurrency::idle_at(quota, state),
        }
    }
}

/// Applies a charge to a state in place.
fn apply<S: Default>(state: &mut S, charge: impl FnOnce(S) -> (S, Outcome)) -> Outcome {
    let (next, outcome) = charge(std::mem::take(state));
    *state = next;
    outcome
}
