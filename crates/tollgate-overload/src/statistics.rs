//! The statistics of the controllers in integers: correlation, elasticity, variation, logarithm, running
//! mean, median of three. Shares are in thousandths.

use std::collections::VecDeque;

/// One in thousandths.
pub(crate) const ONE: u64 = 1_000;

/// A share of `whole` in thousandths, at most `most`.
pub(crate) fn share(part: u64, whole: u64, most: u64) -> u64 {
    let share = u128::from(part) * u128::from(ONE) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX).min(most)
}

/// `value × numerator / denominator`, rounded down.
pub(crate) fn scaled(value: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(value) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(product).unwrap_or(u64::MAX)
}

/// The decimal logarithm in thousandths, rounded down; 0 for 0.
pub(crate) fn log10(value: u64) -> u64 {
    /// log10(2) in millionths.
    const LOG10_2: u64 = 301_030;
    let Some(whole) = value.checked_ilog2() else { return 0 };
    // The mantissa in 1..2 with 32 fractional bits; each squaring yields one more bit of the logarithm.
    let mut mantissa = (u128::from(value) << 32) >> whole;
    let mut bits = u64::from(whole);
    for _ in 0..12 {
        mantissa = (mantissa * mantissa) >> 32;
        bits <<= 1;
        if mantissa >= 2 << 32 {
            mantissa >>= 1;
            bits |= 1;
        }
    }
    ((bits * LOG10_2) >> 12) / 1_000
}

/// The correlation of two series, from −1000 to 1000; 0 if one of them is constant.
pub(crate) fn correlation(points: impl Iterator<Item = (u64, u64)> + Clone) -> i64 {
    let wide = |value: u64| i128::from(value.min(1 << 40));
    let count = i128::try_from(points.clone().count()).unwrap_or(0);
    let (mut x, mut y, mut xx, mut yy, mut xy) = (0i128, 0i128, 0i128, 0i128, 0i128);
    for (one, other) in points {
        let (one, other) = (wide(one), wide(other));
        x += one;
        y += other;
        xx += one * one;
        yy += other * other;
        xy += one * other;
    }
    let deviation = |sum: i128, squares: i128| (count * squares - sum * sum).unsigned_abs().isqrt();
    let product = deviation(x, xx).saturating_mul(deviation(y, yy));
    let together = count * xy - x * y;
    match i128::try_from(product) {
        Ok(product) if product > 0 => {
            i64::try_from((together * 1_000 / product).clamp(-1_000, 1_000)).unwrap_or(0)
        }
        _ => 0,
    }
}

/// The relative change of the second series per relative change of the first, in thousandths: 1000 if it
/// grows in proportion, 0 if it is constant. `None` if the first is constant.
pub(crate) fn elasticity(points: impl Iterator<Item = (u64, u64)> + Clone) -> Option<i64> {
    let wide = |value: u64| i128::from(value.min(1 << 40));
    let count = i128::try_from(points.clone().count()).ok()?;
    let (mut x, mut y, mut xx, mut xy) = (0i128, 0i128, 0i128, 0i128);
    for (one, other) in points {
        let (one, other) = (wide(one), wide(other));
        x += one;
        y += other;
        xx += one * one;
        xy += one * other;
    }
    let (together, alone) = (count * xy - x * y, count * xx - x * x);
    // The slope times the ratio of the means, in two steps to avoid overflow.
    let slope = together.checked_mul(1_000_000)?.checked_div(alone)?;
    i64::try_from(slope.checked_mul(x)? / (1_000 * y.max(1))).ok()
}

/// The standard deviation of a series in thousandths of its mean.
pub(crate) fn variation(values: impl Iterator<Item = u64> + Clone) -> u64 {
    let count = values.clone().count() as u128;
    let sum: u128 = values.clone().map(u128::from).sum();
    let squares: u128 = values.map(|value| u128::from(value) * u128::from(value)).sum();
    let deviation = (count * squares).saturating_sub(sum * sum).isqrt();
    u64::try_from(deviation * u128::from(ONE) / sum.max(1)).unwrap_or(u64::MAX)
}

/// A running mean of about the last `age` values.
#[derive(Clone, Debug)]
pub(crate) struct RunningMean {
    age: u64,
    seen: u64,
    /// The mean, times 1024.
    mean: u64,
}

impl RunningMean {
    pub(crate) const fn new(age: u64) -> Self {
        Self { age, seen: 0, mean: 0 }
    }

    /// Adds a value and returns the mean.
    pub(crate) fn add(&mut self, value: u64) -> u64 {
        self.seen = (self.seen + 1).min(self.age.max(1));
        let value = value.min(1 << 50) << 10;
        self.mean = if value >= self.mean {
            self.mean + (value - self.mean) / self.seen
        } else {
            self.mean - (self.mean - value) / self.seen
        };
        self.mean >> 10
    }
}

/// The median of the last three values, so that one outlier changes nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Median {
    last: VecDeque<u64>,
}

impl Median {
    pub(crate) fn add(&mut self, value: u64) -> u64 {
        if self.last.len() == 3 {
            self.last.pop_front();
        }
        self.last.push_back(value);
        let mut sorted: Vec<u64> = self.last.iter().copied().collect();
        sorted.sort_unstable();
        // The smaller of two: a baseline must not begin with an outlier.
        sorted.get((sorted.len() - 1) / 2).copied().unwrap_or(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_right_to_a_thousandth() {
        for (value, milli) in [(1, 0), (2, 301), (10, 1_000), (20, 1_301), (100, 2_000), (1_000, 3_000)] {
            let found = log10(value);
            assert!(found <= milli && found + 1 >= milli, "{value}: {found}");
        }
        assert_eq!(log10(0), 0);
    }

    #[test]
    fn correlation_and_elasticity_are_computed() {
        let rising = (0..20u64).map(|i| (i, 3 * i + 7));
        assert!(correlation(rising) >= 999);
        assert!(correlation((0..20u64).map(|i| (i, 100 - i))) <= -999);
        assert_eq!(correlation((0..20u64).map(|i| (5, i))), 0);
        assert_eq!(correlation(std::iter::empty()), 0);
        // Numbers as large as those of clocks and rates.
        assert!(correlation((1..50u64).map(|i| (i << 33, i << 34))) >= 999);
        let near =
            |found: Option<i64>, wanted: i64| assert!(found.is_some_and(|found| (found - wanted).abs() < 10));
        near(elasticity((10..20u64).map(|i| (i, 7_000_000 * i))), 1_000);
        near(elasticity((10..20u64).map(|i| (i, 7_000_000))), 0);
        near(elasticity((100..120u64).map(|i| (i, 3 * i * i))), 2_000);
        assert_eq!(elasticity((1_000..1_010u64).map(|i| (7, i))), None);
        assert_eq!(variation([7, 7, 7].into_iter()), 0);
        assert_eq!(variation([5, 15].into_iter()), 500);
    }

    #[test]
    fn running_means_decay_and_medians_ignore_outliers() {
        let mut mean = RunningMean::new(5);
        assert_eq!((mean.add(100), mean.add(200)), (100, 150));
        for _ in 0..60 {
            mean.add(1_000);
        }
        assert!(mean.add(1_000) > 990);
        let mut median = Median::default();
        assert_eq!([10, 900, 11, 12].map(|value| median.add(value)), [10, 10, 11, 12]);
    }
}
