//! Durations in fixed buckets.

use super::striped::StripedCounters;

/// Upper bounds of the duration of a decision, in nanoseconds: 1 µs to 100 ms.
pub(super) const DURATION_BOUNDS: [u64; 16] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
];

/// Upper bounds of the retry delay sent to callers, in nanoseconds: 10 ms to 30 days.
pub(super) const RETRY_BOUNDS: [u64; 11] = [
    10_000_000,
    100_000_000,
    1_000_000_000,
    5_000_000_000,
    15_000_000_000,
    60_000_000_000,
    300_000_000_000,
    3_600_000_000_000,
    21_600_000_000_000,
    86_400_000_000_000,
    2_592_000_000_000_000,
];

/// The number of durations under each bound, and their sum.
pub(super) struct Histogram {
    bounds: &'static [u64],
    /// One cell for each bound, one for durations above all bounds, and one for the sum.
    cells: StripedCounters,
}

/// The current values of a histogram.
pub(super) struct HistogramReading {
    /// For each bound, how many durations were at most as long.
    pub(super) buckets: Vec<(u64, u64)>,
    pub(super) count: u64,
    pub(super) sum_nanos: u64,
}

impl Histogram {
    pub(super) fn new(bounds: &'static [u64]) -> Self {
        Self { bounds, cells: StripedCounters::new(bounds.len() + 2) }
    }

    /// Counts one duration.
    #[inline]
    pub(super) fn observe(&self, nanos: u64) {
        let bucket = self.bounds.partition_point(|&bound| bound < nanos);
        self.cells.add(bucket, 1);
        self.cells.add(self.bounds.len() + 1, nanos);
    }

    pub(super) fn read(&self) -> HistogramReading {
        let mut count: u64 = 0;
        let mut buckets = Vec::with_capacity(self.bounds.len());
        for (index, &bound) in self.bounds.iter().enumerate() {
            count = count.wrapping_add(self.cells.sum(index));
            buckets.push((bound, count));
        }
        count = count.wrapping_add(self.cells.sum(self.bounds.len()));
        HistogramReading { buckets, count, sum_nanos: self.cells.sum(self.bounds.len() + 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A duration equal to a bound belongs to its bucket, and a duration above all bounds is still counted.
    #[test]
    fn durations_fall_under_their_bounds() {
        let histogram = Histogram::new(&DURATION_BOUNDS);
        for nanos in [0, 1_000, 1_001, 100_000_000, 100_000_001] {
            histogram.observe(nanos);
        }
        let reading = histogram.read();
        assert_eq!((reading.buckets[0], reading.buckets[1]), ((1_000, 2), (2_500, 3)));
        assert_eq!((reading.buckets[15], reading.count), ((100_000_000, 4), 5));
        assert_eq!(reading.sum_nanos, 200_002_002);
    }

    /// The bounds are sorted. Otherwise the search among them would be wrong.
    #[test]
    fn bounds_go_up() {
        assert!(DURATION_BOUNDS.is_sorted() && RETRY_BOUNDS.is_sorted());
    }
}
