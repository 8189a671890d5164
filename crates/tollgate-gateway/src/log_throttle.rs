//! A log throttle: warnings that could come with every request are logged once a second.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::Timestamp;
use tollgate::time::TICKS_PER_SECOND;

/// Admits one warning in each second, and counts the others.
#[derive(Debug, Default)]
pub struct LogThrottle {
    second: AtomicU64,
    skipped: AtomicU64,
}

impl LogThrottle {
    /// Whether to warn now. If so, returns how many warnings were skipped since the last.
    pub fn due(&self, now: Timestamp) -> Option<u64> {
        let second = now.unix_micros() / TICKS_PER_SECOND;
        // Relaxed: the numbers guard no other memory. At the turn of a second two threads may both warn, which is rare
        // enough.
        if self.second.swap(second, Ordering::Relaxed) == second {
            self.skipped.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.skipped.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thousand warnings in a second become one, and the next one reports how many there were.
    #[test]
    fn one_warning_a_second() {
        let log_throttle = LogThrottle::default();
        let second = Timestamp::from_unix_seconds;
        let logged = (0..1_000).filter(|_| log_throttle.due(second(7)).is_some()).count();
        assert_eq!(logged, 1);
        assert_eq!(log_throttle.due(second(8)), Some(999));
    }
}
