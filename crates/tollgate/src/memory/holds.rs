//! Counters that are kept longer than they say themselves. A state tells from which instant on it equals absence *by the quota
//! that it was counted under*; when a slower one takes over, that instant is too early for those that nobody has asked since.

use std::sync::OnceLock;

use crate::memory::NUMBERS_MAX;
use crate::sync::{AtomicU64, Ordering};

/// Which quota numbers are held, in the unit of a state's first word. Costs nothing until the first hold.
#[derive(Default)]
pub(crate) struct Holds {
    /// The end of the last hold.
    until: AtomicU64,
    numbers: OnceLock<Box<[Held]>>,
}

/// The hold of one number.
struct Held {
    since: AtomicU64,
    until: AtomicU64,
}

/// A hold that is in force, in plain ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lasting {
    pub(crate) number: u32,
    pub(crate) since: u64,
    pub(crate) until: u64,
}

impl Holds {
    /// The holds that are in force at an instant.
    pub(crate) fn lasting(&self, at: u64) -> Vec<Lasting> {
        // Acquire: pairs with the release of the last hold.
        if self.until.load(Ordering::Acquire) <= at {
            return Vec::new();
        }
        let all = (0u32..).zip(self.numbers.get().into_iter().flatten());
        all.map(|(number, held)| {
            let [since, until] = [&held.since, &held.until].map(|word| word.load(Ordering::Relaxed));
            Lasting { number, since, until }
        })
        .filter(|lasting| lasting.until > at)
        .collect()
    }

    /// Holds the counters of a number that were not idle at `since`, until `until`. One hold at a time: the engine swaps under a
    /// lock.
    pub(crate) fn hold(&self, number: u32, since: u64, until: u64) {
        let all = self.numbers.get_or_init(|| {
            (0..NUMBERS_MAX).map(|_| Held { since: AtomicU64::new(0), until: AtomicU64::new(0) }).collect()
        });
        let Some(held) = all.get(number as usize) else { return };
        let in_force = held.until.load(Ordering::Relaxed) > since;
        let earlier = held.since.load(Ordering::Relaxed);
        held.since.store(if in_force { earlier.min(since) } else { since }, Ordering::Relaxed);
        held.until.fetch_max(until, Ordering::Relaxed);
        // Release: whoever sees that there are holds sees them.
        self.until.fetch_max(until, Ordering::Release);
    }

    /// Whether a state whose first word is `first` equals absence at `horizon`, whatever quota follows its own.
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
