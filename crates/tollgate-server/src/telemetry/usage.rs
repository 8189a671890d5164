//! What the memory store holds, counted seldom: counting walks all of it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tollgate::memory::Usage;
use tollgate::{Ticks, Timestamp};

use super::names::{STORE_BYTES, STORE_CAPACITY, STORE_KEYS, STORE_OVERFLOW};
use super::{Sample, Stopwatch};

/// Least time between two counts.
const REST_MIN: Ticks = Ticks::from_secs(10);
/// A count that took long is followed by a rest this many times as long, so that counting takes a hundredth of a core at most.
const REST_SHARE: u32 = 100;

/// The last count.
#[derive(Default)]
pub(crate) struct Counted {
    last: Mutex<Option<(Usage, Timestamp)>>,
}

impl Counted {
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
        // Held while counting, so that two scrapes do not count at once. A panic inside leaves the last count as it was.
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

    /// However often anybody scrapes, the store is walked once in ten seconds.
    #[test]
    fn counting_is_seldom() {
        let (counted, mut walks) = (Counted::default(), 0);
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

    /// A walk that takes long is followed by a rest that is long.
    #[test]
    fn a_long_walk_is_followed_by_a_long_rest() {
        assert_eq!(rest(Duration::from_millis(1)), REST_MIN);
        assert_eq!(rest(Duration::from_secs(1)), Ticks::from_secs(100));
    }
}
