//! The observations since the last window: a histogram of latencies, how requests ended, and the peak in
//! flight. Recording takes a few atomic additions. Closing a window takes all of it.
//!
//! All orderings are relaxed, since the numbers are statistics. A sample that races with a close is counted
//! in this window or the next, and never twice, because each number is taken by one swap.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use tollgate::time::Ticks;

/// Steps of an octave. A step is at most 1/64 of the value; values within a step are assumed to be evenly
/// distributed.
const STEPS: u64 = 64;
/// Octaves above the first, which has microsecond steps: up to 2^32 µs, over an hour.
const OCTAVES: u64 = 26;
const BUCKETS: usize = 64 * 27;
const _: () = assert!(BUCKETS as u64 == STEPS * (OCTAVES + 1));

/// The open window.
#[derive(Debug)]
pub(crate) struct Window {
    latencies: Box<[AtomicU32]>,
    dropped: AtomicU64,
    refused: AtomicU64,
    /// Samples, and the sum of requests in flight when they began.
    samples: AtomicU64,
    in_flight: AtomicU64,
    peak: AtomicU64,
}

/// The observations of a closed window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summary {
    /// Successful requests.
    pub(crate) samples: u64,
    /// Requests lost to overload.
    pub(crate) dropped: u64,
    /// Refused requests.
    pub(crate) refused: u64,
    /// The peak of requests in flight.
    pub(crate) peak: u64,
    /// The mean of requests in flight when the samples began, in thousandths.
    pub(crate) in_flight: u64,
    /// The median latency.
    pub(crate) p50: Ticks,
    /// The 90th percentile of latency.
    pub(crate) p90: Ticks,
}

/// Whether all permits are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occupancy {
    Free,
    Full,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            latencies: (0..BUCKETS).map(|_| AtomicU32::new(0)).collect(),
            dropped: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            samples: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        }
    }
}

impl Window {
    /// Counts a successful request.
    pub(crate) fn succeeded(&self, latency: Ticks, in_flight: u32) {
        if let Some(bucket) = self.latencies.get(bucket_of(latency.as_micros())) {
            bucket.fetch_add(1, Relaxed);
        }
        self.samples.fetch_add(1, Relaxed);
        self.in_flight.fetch_add(u64::from(in_flight), Relaxed);
    }

    /// Counts a request that was lost to overload.
    pub(crate) fn dropped(&self) {
        self.dropped.fetch_add(1, Relaxed);
    }

    /// Counts a refused request.
    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// Records the number of requests in flight.
    pub(crate) fn record_in_flight(&self, in_flight: u32) {
        // Read first: the maximum seldom changes, and a read keeps the cache line shared.
        if self.peak.load(Relaxed) < u64::from(in_flight) {
            self.peak.fetch_max(u64::from(in_flight), Relaxed);
        }
    }

    /// Requests that ended so far, successfully or not.
    pub(crate) fn ended(&self) -> u64 {
        self.samples.load(Relaxed) + self.dropped.load(Relaxed)
    }

    /// Takes all observations. The next window begins with the current `in_flight`.
    pub(crate) fn close(&self, in_flight: u32) -> Summary {
        let counts: Vec<u64> =
            self.latencies.iter().map(|bucket| u64::from(bucket.swap(0, Relaxed))).collect();
        let counted = counts.iter().sum();
        let samples = self.samples.swap(0, Relaxed);
        let sum = self.in_flight.swap(0, Relaxed);
        Summary {
            samples,
            dropped: self.dropped.swap(0, Relaxed),
            refused: self.refused.swap(0, Relaxed),
            peak: self.peak.swap(u64::from(in_flight), Relaxed),
            in_flight: super::statistics::scaled(sum, 1_000, samples.max(1)),
            p50: quantile(&counts, counted, 500),
            p90: quantile(&counts, counted, 900),
        }
    }
}

/// The bucket of a latency.
fn bucket_of(micros: u64) -> usize {
    let octave = micros.max(1).ilog2().saturating_sub(STEPS.ilog2());
    // Below the first octave a step is a microsecond; above, the top seven bits are the step.
    let index = if octave == 0 && micros < STEPS {
        micros
    } else {
        STEPS * u64::from(octave + 1) + ((micros >> octave) - STEPS)
    };
    usize::try_from(index).unwrap_or(usize::MAX).min(BUCKETS - 1)
}

/// The start and the width of a bucket, in microseconds.
fn bounds_of(bucket: usize) -> (u64, u64) {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return (bucket, 1);
    }
    let octave = bucket / STEPS - 1;
    ((STEPS + bucket % STEPS) << octave, 1 << octave)
}

/// The quantile of latency, in thousandths.
fn quantile(counts: &[u64], counted: u64, thousandths: u64) -> Ticks {
    let rank = super::statistics::scaled(counted, thousandths, 1_000);
    let mut below = 0;
    for (bucket, &count) in counts.iter().enumerate() {
        if below + count > rank {
            let (start, width) = bounds_of(bucket);
            return Ticks::from_micros(start + super::statistics::scaled(width, rank - below, count));
        }
        below += count;
    }
    Ticks::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every latency lies in its bucket, and buckets are at most 1/64 wide.
    #[test]
    fn buckets_hold_their_latencies() {
        for micros in
            (0..10_000).chain((14..32).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 12_345]))
        {
            let (start, width) = bounds_of(bucket_of(micros));
            assert!((start..start + width).contains(&micros), "{micros}: {start}+{width}");
            assert!(width == 1 || width * STEPS <= micros, "{micros}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_window_is_taken_once() {
        let window = Window::default();
        for millis in 1..=1_000 {
            window.succeeded(Ticks::from_millis(millis), 4);
        }
        window.record_in_flight(9);
        window.dropped();
        let seen = window.close(3);
        assert_eq!((seen.samples, seen.dropped, seen.peak, seen.in_flight), (1_000, 1, 9, 4_000));
        for (found, millis) in [(seen.p50, 500), (seen.p90, 900)] {
            assert!(found.as_micros().abs_diff(millis * 1_000) < millis * 20, "{found:?}");
        }
        let empty = window.close(0);
        assert_eq!((empty.samples, empty.peak, empty.p90), (0, 3, Ticks::ZERO));
    }
}
