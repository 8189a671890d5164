//! The contents of the memory store, counted rarely because counting walks all of it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tollgate::memory::Usage;
use tollgate::{Ticks, Timestamp};

use super::names::{STORE_BYTES, STORE_CAPACITY, STORE_KEYS, STORE_OVERFLOW};
use super::{Sample, Stopwatch};

/// Minimum time between two counts.
const REST_MIN: Ticks = Ticks::from_secs(10);
/// The pause after a count is this many times as long as the count, so that counting takes at most a hundredth of a
/// core.
const REST_SHARE: u32 = 100;

/// The last count.
#[derive(Default)]
pub(crate) struct CachedUsage {
    last: Mutex<Option<(Usage, Timestamp)>>,
}

impl CachedUsage {
    /// The numbers, counted again if the last count is old enough.
    pub(crate) fn samples(&self, now: Timestamp, count: impl FnOnce() -> Usage) -> [Sample; 4] {
        let usage = self.usage(now, count);
        [
            Sample::new(&STORE_KEYS, usage.keys),
            Sample::new(&STORE_OVERFLOW, usage.overflow_keys),
            Sample::new(&STORE_BYTES, usage.bytes),
            Sample::new(&STORE_CAPACITY, usage.capacity_bytes),
        ]
    }

    fn usage(&self, now: Timestamp, count: impl FnOnce() -> Usage) -> Usage {
        // The lock is held while counting, so that two scrapes do not count at the same time. A panic leaves the last
        // count unchanged.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((usage, until)) = *last
            && now < until
        {
            return usage;
        }
        let watch = Stopwatch::start();
        let usage = count();
        *last = Some((usage, now + rest(watch.elapsed())));
        usage
    }
}

fn rest(took: Duration) -> Ticks {
    Ticks::ceil_from(took.saturating_mul(REST_SHARE)).max(REST_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However frequent the scrapes are, the store is walked once in ten seconds.
    #[test]
    fn counting_is_rare() {
        let (counted, mut walks) = (CachedUsage::default(), 0);
        for second in 0..60 {
            for _ in 0..100 {
                counted.samples(Timestamp::from_unix_seconds(1_000 + second), || {
                    walks += 1;
                    Usage { keys: walks, overflow_keys: 0, bytes: 0, capacity_bytes: 1 }
                });
            }
        }
        assert_eq!(walks, 6);
    }

    /// A long walk is followed by a long pause.
    #[test]
    fn a_long_walk_is_followed_by_a_long_rest() {
        assert_eq!(rest(Duration::from_millis(1)), REST_MIN);
        assert_eq!(rest(Duration::from_secs(1)), Ticks::from_secs(100));
    }
}
