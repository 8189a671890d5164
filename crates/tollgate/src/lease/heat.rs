//! Which keys are hot: a sketch of counts of bounded size. It may take a quiet key for a hot one, never a hot one for quiet.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::time::{Ticks, Timestamp};

const ROWS: usize = 4;
const COLUMNS: usize = 4_096;
/// Counts are halved so often, so that what was hot is not for ever.
const HALVED_EVERY: Ticks = Ticks::from_secs(1);
/// From how many requests a second on a key is hot, about.
pub(super) const HOT: u32 = 20;

/// Counts of keys.
pub(super) struct Heat {
    counts: Box<[AtomicU32]>,
    halved: AtomicU64,
}

impl Heat {
    pub(super) fn new() -> Self {
        let counts = (0..ROWS * COLUMNS).map(|_| AtomicU32::new(0)).collect();
        Self { counts, halved: AtomicU64::new(0) }
    }

    /// Counts a request of a key; how many it has had lately, or more.
    pub(super) fn count(&self, key: u128, now: Timestamp) -> u32 {
        self.cool(now);
        let places = (0..ROWS).map(|row| {
            // The key is a hash already: each row takes other bits of it.
            let column = usize::try_from(key >> (16 * row + 8) & (COLUMNS as u128 - 1)).unwrap_or(0);
            row * COLUMNS + column
        });
        places.map(|place| self.counts[place].fetch_add(1, Ordering::Relaxed) + 1).min().unwrap_or(0)
    }

    fn cool(&self, now: Timestamp) {
        let last = self.halved.load(Ordering::Relaxed);
        let due = last + HALVED_EVERY.as_micros() <= now.unix_micros();
        let won = due
            && self
                .halved
                .compare_exchange(last, now.unix_micros(), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if won {
            self.counts
                .iter()
                .for_each(|count| count.store(count.load(Ordering::Relaxed) / 2, Ordering::Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key that is asked about fifty times a second is hot, also among many others; one that is asked about once is not.
    #[test]
    fn hot_keys_are_known() {
        let heat = Heat::new();
        let mix = |number: u128| number.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
        let mut now = Timestamp::from_unix_seconds(1_000);
        for second in 0..5u128 {
            for step in 0..50u128 {
                heat.count(mix(7), now);
                for other in 0..20 {
                    heat.count(mix(1_000 + second * 100_000 + step * 20 + other), now);
                }
                now = now + Ticks::from_millis(20);
            }
        }
        assert!(heat.count(mix(7), now) > HOT);
        assert!(heat.count(mix(999_999_999), now) < HOT);
    }
}
