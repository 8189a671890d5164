//! Chance, for pauses that must not be the same in every node of a fleet. Nothing here is secret.

use std::hash::{BuildHasher, RandomState};

/// A number that nobody foresees. The standard library starts each thread's hashers at a random number, and counts on from there.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}
