//! Limits out of traffic: for each of several rates, the smallest burst with which a token bucket or GCRA would have
//! denied nothing, for each key, in one pass.
//!
//! A bucket with rate `r` and burst `b` denies none of a key's requests exactly if no interval between two of them has
//! more than `b + r × length` units. So the burst that a key needs is the maximum, over all intervals, of
//! `units − r × length`. [`KeyNeed`] computes it exactly, in whole numbers, with one step for each request and rate.
//! [`TrafficSummary`] does that for many keys and for each day, and
//! [`Frontier::suggest`] chooses.

mod need;
mod share;
mod smallest;
mod unlike;
mod frontier;
mod traffic;

pub use frontier::{
    DAYS_FACTOR_MAX, Doubt, Frontier, FrontierDay, FrontierPoint, HEADROOM_WHOLE, KEYS_MIN, MadeFor,
    PERIODS_MIN, Suggestion,
};
pub use need::{BurstRange, KeyNeed};
pub use share::{KeyShare, WantedShare};
pub use traffic::{KEYS_MAX, LoggedRequest, TooManyKeys, TrafficSummary};
pub use unlike::{UNLIKE_FACTOR, UnlikeKeys};
