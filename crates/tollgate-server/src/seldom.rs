//! Warnings that could come with every request, and are told once a second.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::Timestamp;
use tollgate::time::TICKS_PER_SECOND;

/// Lets one warning through in each second, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    second: AtomicU64,
    skipped: AtomicU64,
}

impl Seldom {
    /// Whether to warn now; if so, how many warnings were left out since the last.
    pub(crate) fn due(&self, now: Timestamp) -> Option<u64> {
        let second = now.unix_micros() / TICKS_PER_SECOND;
        // Relaxed: the numbers guard nothing. Two threads at the turn of a second may both warn, which is seldom enough.
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

    /// A thousand warnings in a second are one, and the next one tells how many there were.
    #[test]
    fn one_warning_a_second() {
        let seldom = Seldom::default();
        let second = Timestamp::from_unix_seconds;
        let told = (0..1_000).filter(|_| seldom.due(second(7)).is_some()).count();
        assert_eq!(told, 1);
        assert_eq!(seldom.due(second(8)), Some(999));
    }
}
