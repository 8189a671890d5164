//! Counters that many threads add to. Each thread adds to its own stripe, so that two threads seldom write to the same
//! cache line. A reader sums up the stripes.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of stripes of each row of counters.
pub(crate) const STRIPES: usize = 8;
/// Unused counters between two stripes, so that no cache line (nor the pair that is fetched with it) belongs to both.
const GAP: usize = 16;

/// The stripe of this thread.
#[inline]
pub(crate) fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: the values only have to be spread out.
    thread_local!(static STRIPE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
    STRIPE.with(|stripe| *stripe)
}

/// A row of counters, all zero at first.
pub(super) struct StripedCounters {
    length: usize,
    words: Box<[AtomicU64]>,
}

impl StripedCounters {
    pub(super) fn new(length: usize) -> Self {
        let words = (0..STRIPES * (length + GAP)).map(|_| AtomicU64::new(0)).collect();
        Self { length, words }
    }

    /// Adds to one counter.
    #[inline]
    pub(super) fn add(&self, index: usize, count: u64) {
        debug_assert!(index < self.length);
        // Relaxed, here and below: each number is independent and guards no other memory.
        if let Some(word) = self.words.get(stripe() * (self.length + GAP) + index) {
            word.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// The value of one counter. It never decreases.
    pub(super) fn sum(&self, index: usize) -> u64 {
        debug_assert!(index < self.length);
        let stripes = (0..STRIPES).filter_map(|stripe| self.words.get(stripe * (self.length + GAP) + index));
        stripes.map(|word| word.load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With any number of threads, no count is lost, and no count goes to another counter.
    #[test]
    fn nothing_is_lost_between_threads() {
        let cells = StripedCounters::new(3);
        std::thread::scope(|scope| {
            for _ in 0..2 * STRIPES {
                scope.spawn(|| (0..1_000).for_each(|n| cells.add(n % 2, 1 + (n as u64) % 2)));
            }
        });
        let all = 2 * STRIPES as u64 * 500;
        assert_eq!((cells.sum(0), cells.sum(1), cells.sum(2)), (all, 2 * all, 0));
    }
}
