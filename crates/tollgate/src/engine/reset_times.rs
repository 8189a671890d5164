//! When counters were reset. A reset wipes the charges before it, so nothing of them is left to refund: a refund of
//! such a charge would refund later charges.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::key::Fingerprint;
use crate::time::Timestamp;

/// Maximum number of counters whose reset is remembered individually.
const REMEMBERED_MAX: usize = 1 << 16;

/// The resets of an engine.
#[derive(Debug, Default)]
pub(super) struct ResetTimes {
    /// Whether there was any reset. A refund that races with a reset is made either way, as if a moment earlier or
    /// later.
    any: AtomicBool,
    resets: RwLock<Resets>,
}

#[derive(Debug, Default)]
struct Resets {
    /// The last reset of each counter.
    at: HashMap<Fingerprint, Timestamp>,
    /// The last of the resets that are no longer remembered individually. They may have been of any counter.
    all_until: Option<Timestamp>,
}

impl ResetTimes {
    /// Records that counters are being reset. Called before the store resets them, so that no refund comes in between.
    pub(super) fn record(&self, keys: impl Iterator<Item = Fingerprint>, now: Timestamp) {
        let mut resets = self.resets.write().unwrap_or_else(PoisonError::into_inner);
        for key in keys {
            if resets.at.len() >= REMEMBERED_MAX {
                // Then some valid refunds are dropped, which denies too much but never admits too much.
                let last = resets.at.values().max().copied();
                resets.all_until = resets.all_until.max(last);
                resets.at.clear();
            }
            let at = resets.at.entry(key).or_insert(now);
            *at = now.max(*at);
        }
        // Release: a thread that sees the flag sees the resets, by the lock.
        self.any.store(true, Ordering::Release);
    }

    /// Whether a reset has wiped a charge. A charge at the very instant of a reset counts as before it.
    pub(super) fn covers(&self, key: Fingerprint, charged_at: Timestamp) -> bool {
        // Acquire: see above.
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let resets = self.resets.read().unwrap_or_else(PoisonError::into_inner);
        resets.all_until.max(resets.at.get(&key).copied()).is_some_and(|at| charged_at <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Ticks;

    const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

    fn key(number: u64) -> Fingerprint {
        Fingerprint { tag: number | 1 << 63, rest: number }
    }

    /// When resets are forgotten, more charges count as wiped, not fewer.
    #[test]
    fn memory_is_bounded() {
        let times = ResetTimes::default();
        let later = |seconds| T0 + Ticks::from_secs(seconds);
        times.record([key(1)].into_iter(), later(5));
        assert!(
            times.covers(key(1), later(5)) && !times.covers(key(1), later(6)) && !times.covers(key(2), T0)
        );
        times.record((2..=REMEMBERED_MAX as u64 + 1).map(key), later(7));
        assert!(
            times.covers(key(1), later(5))
                && times.covers(key(0), later(7))
                && !times.covers(key(0), later(8))
        );
        let kept = times.resets.read().unwrap().at.len();
        assert!(kept <= REMEMBERED_MAX, "{kept}");
    }
}
