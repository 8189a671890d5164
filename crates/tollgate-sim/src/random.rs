//! A seeded generator of random integers: SplitMix64. It is part of this crate so that a seed always gives the same trace.

use tollgate::key::{GOLDEN, mix};

/// A stream of random numbers that its seed determines.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the stream of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let before = self.0;
        self.0 = before.wrapping_add(GOLDEN);
        mix(before)
    }

    /// A number below `bound`, or 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        high_product(self.bits(), bound)
    }

    /// An exponentially distributed number with this mean: a gap of a Poisson process. It uses von Neumann's method, which
    /// only compares uniform numbers: a falling run that starts at `x` has odd length with probability e^-x.
    pub fn exponential(&mut self, mean: u64) -> u64 {
        let mut whole = 0u64;
        loop {
            let first = self.bits();
            let (mut last, mut length) = (first, 1u32);
            loop {
                let next = self.bits();
                if next >= last {
                    break;
                }
                last = next;
                length += 1;
            }
            if length % 2 == 1 {
                return whole.saturating_add(high_product(first, mean));
            }
            whole = whole.saturating_add(mean);
        }
    }
}

/// `fraction / 2^64 × whole`, rounded down.
fn high_product(fraction: u64, whole: u64) -> u64 {
    u64::try_from((u128::from(fraction) * u128::from(whole)) >> 64).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 - e^-1 of the gaps, 63.2 %, are shorter than the mean.
    #[test]
    fn exponential_gaps_have_the_right_mean_and_shape() {
        let mut random = Random::new(1);
        let gaps: Vec<u64> = (0..100_000).map(|_| random.exponential(1_000)).collect();
        let mean = gaps.iter().sum::<u64>() / 100_000;
        assert!((985..1_015).contains(&mean), "{mean}");
        let short = gaps.iter().filter(|&&gap| gap < 1_000).count();
        assert!((62_600..63_800).contains(&short), "{short}");
    }
}
