//! What happened since the last look: latencies as a histogram, how many ended and how, how full it was. Recording is a few atomic
//! additions; whoever closes a window takes all of it and leaves it empty.
//!
//! All orderings are relaxed: the numbers are a statistic. A sample that races with a closing window is counted in this one or the next,
//! and never twice, because each number is taken by one swap.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::time::Ticks;

/// Steps of an octave: a step is at most 1/64 of the value, and values within it are taken to lie evenly.
const STEPS: u64 = 64;
/// Octaves above the first, which is told to the microsecond: up to 2^32 µs, over an hour.
const OCTAVES: u64 = 26;
const BUCKETS: usize = 64 * 27;
const _: () = assert!(BUCKETS as u64 == STEPS * (OCTAVES + 1));

/// The window in the making.
#[derive(Debug)]
pub(super) struct Window {
    latencies: Box<[AtomicU32]>,
    dropped: AtomicU64,
    refused: AtomicU64,
    /// Samples, and the sum of what was in flight when their requests began.
    samples: AtomicU64,
    in_flight: AtomicU64,
    peak: AtomicU64,
}

/// What a window held.
#[derive(Clone, Debug, Default)]
pub(super) struct Summary {
    /// Requests that ended well, with their latency.
    pub(super) samples: u64,
    /// Requests that were lost to overload.
    pub(super) dropped: u64,
    /// Requests that were not let in.
    pub(super) refused: u64,
    /// The most that were in flight.
    pub(super) peak: u64,
    /// What was in flight on average when those of the samples began, in thousandths.
    pub(super) in_flight: u64,
    /// The latency that half of them stayed below.
    pub(super) p50: Ticks,
    /// The latency that nine of ten stayed below.
    pub(super) p90: Ticks,
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
    /// Counts a request that ended well.
    pub(super) fn succeeded(&self, latency: Ticks, in_flight: u32) {
        if let Some(bucket) = self.latencies.get(bucket_of(latency.as_micros())) {
            bucket.fetch_add(1, Relaxed);
        }
        self.samples.fetch_add(1, Relaxed);
        self.in_flight.fetch_add(u64::from(in_flight), Relaxed);
    }

    /// Counts a request that was lost to overload.
    pub(super) fn dropped(&self) {
        self.dropped.fetch_add(1, Relaxed);
    }

    /// Counts a request that was not let in.
    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// So many are in flight now.
    pub(super) fn saw(&self, in_flight: u32) {
        // Read first: the maximum seldom moves, and a read leaves the line with everybody.
        if self.peak.load(Relaxed) < u64::from(in_flight) {
            self.peak.fetch_max(u64::from(in_flight), Relaxed);
        }
    }

    /// Requests that ended so far, well or not.
    pub(super) fn ended(&self) -> u64 {
        self.samples.load(Relaxed) + self.dropped.load(Relaxed)
    }

    /// Takes all of it. `in_flight` is what is in flight now, with which the next one begins.
    pub(super) fn close(&self, in_flight: u32) -> Summary {
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
    // In the first octaves a step is a microsecond; above, the top seven bits tell the step.
    let index = if octave == 0 && micros < STEPS {
        micros
    } else {
        STEPS * u64::from(octave + 1) + ((micros >> octave) - STEPS)
    };
    usize::try_from(index).unwrap_or(usize::MAX).min(BUCKETS - 1)
}

/// Where a bucket begins and how wide it is, in microseconds.
fn bounds_of(bucket: usize) -> (u64, u64) {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return (bucket, 1);
    }
    let octave = bucket / STEPS - 1;
    ((STEPS + bucket % STEPS) << octave, 1 << octave)
}

/// The latency below which so many thousandths lie.
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
        window.saw(9);
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
