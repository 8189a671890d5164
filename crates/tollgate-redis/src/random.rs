//! Random numbers for jitter, so that the nodes of a fleet do not act in step. They protect no secret.

use std::hash::{BuildHasher, RandomState};

/// A random number. The standard library seeds each thread's hashers at random and increments the seed for each hasher.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}
