//! Sorted numbers: quantiles, a histogram, and the knee.

use super::report::Bar;

/// The smallest number that at least this share of all numbers does not exceed, in thousandths. 0 of none.
pub(super) fn quantile(sorted: &[u64], thousandths: u64) -> u64 {
    let rank = (sorted.len() as u64 * thousandths).div_ceil(1_000).max(1);
    let index = usize::try_from(rank - 1).unwrap_or(usize::MAX);
    sorted.get(index).copied().unwrap_or_default()
}

/// How many numbers are up to 1, 2, 4, 8, and so on, and how many of those of touched keys, which are among them.
pub(super) fn histogram(sorted: &[u64], touched: &[u64]) -> Vec<Bar> {
    let Some(max) = sorted.last() else { return Vec::new() };
    let until = |numbers: &[u64], to: u64| numbers.partition_point(|number| *number <= to) as u64;
    let (mut bars, mut to, mut before) = (Vec::new(), 1u64, (0, 0));
    loop {
        let (all, of_touched) = (until(sorted, to), until(touched, to));
        bars.push(Bar { to, keys: all - before.0, touched: of_touched - before.1 });
        if to >= *max {
            return bars;
        }
        (before, to) = ((all, of_touched), to.saturating_mul(2));
    }
}

/// The number at which the curve of ranks bends most: the point farthest from the line between its ends, both axes
/// logarithmic. `None` if there are fewer than ten numbers, or they hardly differ.
#[expect(
    clippy::float_arithmetic,
    clippy::cast_precision_loss,
    reason = "a point to show to people, from numbers far below 2^52"
)]
pub(super) fn knee(sorted: &[u64]) -> Option<u64> {
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    if sorted.len() < 10 || max < min.saturating_mul(2) {
        return None;
    }
    let point = |end: usize, number: u64| {
        let above = sorted.len() - end;
        ((above as f64 + 1.0).ln(), (number.max(1) as f64).ln())
    };
    let end_of = |number: u64| sorted.partition_point(|other| *other <= number);
    let (first, last) = (point(end_of(min), min), point(sorted.len(), max));
    let mut best = (0.0, None);
    let mut index = 0;
    while let Some(&number) = sorted.get(index) {
        index = end_of(number);
        let (x, y) = point(index, number);
        // Twice the area of the triangle; below the line means that few keys are far above the rest.
        let area = (last.0 - first.0) * (y - first.1) - (last.1 - first.1) * (x - first.0);
        if area.abs() > best.0 {
            best = (area.abs(), Some(number));
        }
    }
    best.1.filter(|knee| *knee < max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quantiles are numbers of the list, and none is above its share.
    #[test]
    fn quantiles_are_ranks() {
        let numbers: Vec<u64> = (1..=1_000).collect();
        assert_eq!([500, 990, 999, 1_000].map(|share| quantile(&numbers, share)), [500, 990, 999, 1_000]);
        assert_eq!((quantile(&[7], 1), quantile(&[], 500)), (7, 0));
    }

    /// Every number is in one row.
    #[test]
    fn a_histogram_has_every_number_once() {
        let bars = histogram(&[1, 1, 2, 3, 4, 9], &[1, 4, 9]);
        let bars: Vec<[u64; 3]> = bars.iter().map(|bar| [bar.to, bar.keys, bar.touched]).collect();
        assert_eq!(bars, [[1, 2, 1], [2, 1, 0], [4, 2, 1], [8, 0, 0], [16, 1, 1]]);
    }

    /// The knee separates the many from the few: here people with up to 30 requests from robots with thousands.
    #[test]
    fn the_knee_is_between_people_and_robots() {
        let mut numbers: Vec<u64> = (0..1_000).map(|index| 1 + index % 30).collect();
        numbers.extend([5_000, 8_000, 9_000]);
        numbers.sort_unstable();
        let knee = knee(&numbers).unwrap();
        assert!((20..=5_000).contains(&knee), "{knee}");
        assert_eq!(super::knee(&[5; 50]), None);
    }
}
