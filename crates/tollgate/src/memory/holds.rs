//! Holds: counters that are kept beyond their own expiry. A state knows the instant from which it equals that
//! of a new key *under the quota that counted it*. If a slower quota takes over, that instant is too early
//! for counters that were not charged since.

use std::sync::OnceLock;

use crate::memory::NUMBERS_MAX;
use crate::sync::{AtomicU64, Ordering};

/// The held quota numbers, in the unit of a state's first word. Free of cost until the first hold.
#[derive(Default)]
pub(crate) struct Holds {
    /// The end of the last hold.
    until: AtomicU64,
    numbers: OnceLock<Box<[NumberHold]>>,
}

/// The hold of one number.
struct NumberHold {
    since: AtomicU64,
    until: AtomicU64,
}

/// An active hold, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ActiveHold {
    pub(crate) number: u32,
    pub(crate) since: u64,
    pub(crate) until: u64,
}

impl Holds {
    /// The holds that are active at an instant.
    pub(crate) fn active(&self, at: u64) -> Vec<ActiveHold> {
        // Acquire: pairs with the release of the last hold.
        if self.until.load(Ordering::Acquire) <= at {
            return Vec::new();
        }
        let all = (0u32..).zip(self.numbers.get().into_iter().flatten());
        all.map(|(number, held)| {
            let [since, until] = [&held.since, &held.until].map(|word| word.load(Ordering::Relaxed));
            ActiveHold { number, since, until }
        })
        .filter(|hold| hold.until > at)
        .collect()
    }

    /// Holds the counters of a number that were not idle at `since`, until `until`. Calls do not overlap,
    /// since the engine swaps policies under a lock.
    pub(crate) fn hold(&self, number: u32, since: u64, until: u64) {
        let all = self.numbers.get_or_init(|| {
            (0..NUMBERS_MAX)
                .map(|_| NumberHold { since: AtomicU64::new(0), until: AtomicU64::new(0) })
                .collect()
        });
        let Some(held) = all.get(number as usize) else { return };
        let is_active = held.until.load(Ordering::Relaxed) > since;
        let earlier = held.since.load(Ordering::Relaxed);
        held.since.store(if is_active { earlier.min(since) } else { since }, Ordering::Relaxed);
        held.until.fetch_max(until, Ordering::Relaxed);
        // Release: a reader that sees this sees the hold.
        self.until.fetch_max(until, Ordering::Release);
    }

    /// Whether a state with this first word equals that of a new key at `horizon`, under its own quota and
    /// any successor.
    #[inline]
    pub(crate) fn is_idle(&self, first: u64, number: impl FnOnce() -> u32, horizon: u64) -> bool {
        // Acquire: pairs with the release above.
        first <= horizon
            && (self.until.load(Ordering::Acquire) <= horizon || self.is_let_go(first, number(), horizon))
    }

    #[cold]
    fn is_let_go(&self, first: u64, number: u32, horizon: u64) -> bool {
        let held = self.numbers.get().and_then(|all| all.get(number as usize));
        held.is_none_or(|held| {
            held.until.load(Ordering::Relaxed) <= horizon || first <= held.since.load(Ordering::Relaxed)
        })
    }
}
