//! Random numbers for jitter. They spread calls and protect nothing, so a small generator is enough.

use std::hash::{BuildHasher, RandomState};

use tollgate::Ticks;

/// A generator (SplitMix64).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A generator with a random seed, so that processes differ.
    pub(crate) fn new() -> Self {
        Self(RandomState::new().hash_one(0))
    }

    /// A generator that repeats itself, for tests.
    pub(crate) const fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A time from zero to `most`.
    pub(crate) fn up_to(&mut self, most: Ticks) -> Ticks {
        Ticks::from_micros(self.next() % most.as_micros().saturating_add(1))
    }
}
