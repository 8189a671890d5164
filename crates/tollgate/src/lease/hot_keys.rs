//! The hot-key sketch: approximate request counts per key in bounded memory. It may report a quiet key as
//! hot, never a hot key as quiet.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::time::{Ticks, Timestamp};

const ROWS: usize = 4;
const COLUMNS: usize = 4_096;
/// The period after which all counts are halved.
const HALVING_PERIOD: Ticks = Ticks::from_secs(1);
/// The approximate requests per second from which a key is hot.
pub(super) const HOT_THRESHOLD: u32 = 20;

/// A count-min sketch of requests per key.
pub(super) struct HotKeySketch {
    counts: Box<[AtomicU32]>,
    halved_at: AtomicU64,
}

impl HotKeySketch {
    pub(super) fn new() -> Self {
        let counts = (0..ROWS * COLUMNS).map(|_| AtomicU32::new(0)).collect();
        Self { counts, halved_at: AtomicU64::new(0) }
    }

    /// Counts a request of a key. Returns its recent count, or an overestimate.
    pub(super) fn count(&self, key: u128, now: Timestamp) -> u32 {
        self.decay(now);
        let cells = (0..ROWS).map(|row| {
            // The key is a hash: each row uses different bits of it.
            let column = usize::try_from(key >> (16 * row + 8) & (COLUMNS as u128 - 1)).unwrap_or(0);
            row * COLUMNS + column
        });
        cells.map(|cell| self.counts[cell].fetch_add(1, Ordering::Relaxed) + 1).min().unwrap_or(0)
    }

    fn decay(&self, now: Timestamp) {
        let last = self.halved_at.load(Ordering::Relaxed);
        let due = last + HALVING_PERIOD.as_micros() <= now.unix_micros();
        let is_mine = due
            && self
                .halved_at
                .compare_exchange(last, now.unix_micros(), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_mine {
            self.counts
                .iter()
                .for_each(|count| count.store(count.load(Ordering::Relaxed) / 2, Ordering::Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key with fifty requests a second among many others is hot; a key with one request is not.
    #[test]
    fn hot_keys_are_detected() {
        let sketch = HotKeySketch::new();
        let mix = |number: u128| number.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
        let mut now = Timestamp::from_unix_seconds(1_000);
        for second in 0..5u128 {
            for step in 0..50u128 {
                sketch.count(mix(7), now);
                for other in 0..20 {
                    sketch.count(mix(1_000 + second * 100_000 + step * 20 + other), now);
                }
                now = now + Ticks::from_millis(20);
            }
        }
        assert!(sketch.count(mix(7), now) > HOT_THRESHOLD);
        assert!(sketch.count(mix(999_999_999), now) < HOT_THRESHOLD);
    }
}
