//! Cache lines of atomic words, reserved as address space when the store is made and touched only as it grows, and the
//! byte budget that all tables of a store share.

use std::sync::Arc;

use crate::sync::{AtomicU64, Ordering};

/// Words in one cache line.
pub(crate) const LINE_WORDS: usize = 8;
/// Bytes in one cache line.
pub(crate) const LINE_BYTES: u64 = 64;

/// One cache line.
pub(crate) type Line = [AtomicU64; LINE_WORDS];

/// A run of cache lines. Lines never touched cost address space, not memory.
pub(crate) struct Region {
    words: Box<[AtomicU64]>,
    /// Words before the first that starts a cache line. Asking the allocator for the alignment would make it write zeros.
    skip: usize,
}

impl Region {
    #[cfg(not(loom))]
    pub(crate) fn new(lines: usize) -> Self {
        // Zeroed by the allocator, which for large sizes means pages that do not exist until they are written.
        let words = bytemuck::allocation::zeroed_slice_box::<AtomicU64>((lines + 1) * LINE_WORDS);
        let skip = words.as_ptr().align_offset(64).min(LINE_WORDS);
        Self { words, skip }
    }

    #[cfg(loom)]
    pub(crate) fn new(lines: usize) -> Self {
        let words = (0..(lines + 1) * LINE_WORDS).map(|_| AtomicU64::new(0)).collect();
        Self { words, skip: 0 }
    }

    /// How many lines there are.
    pub(crate) const fn len(&self) -> usize {
        self.words.len() / LINE_WORDS - 1
    }

    /// One line. Callers keep `index` below [`Region::len`]: buckets and links are only ever made from indices within it.
    #[inline]
    pub(crate) fn line(&self, index: usize) -> &Line {
        // Nothing wraps: an index is below 2^28.
        let start = index.wrapping_mul(LINE_WORDS).wrapping_add(self.skip);
        let words = &self.words[start..start.wrapping_add(LINE_WORDS)];
        match words.first_chunk() {
            Some(line) => line,
            None => unreachable!("the slice has just the words of a line"),
        }
    }
}

/// One part in so many of a share is a reserve that new keys do not get.
const RESERVE_PARTS: u64 = 2;

/// Bytes that one part of a store may take: its own share first, then what all parts have in common. Tables never give lines
/// back, so a flood of one kind of key takes the common bytes for good; the other kinds still have their shares.
pub(crate) struct Budget {
    own: AtomicU64,
    own_total: u64,
    common: Arc<AtomicU64>,
    common_total: u64,
}

impl Budget {
    /// A budget that nobody shares.
    #[cfg(test)]
    pub(crate) fn new(total: u64) -> Self {
        let (own, common) = (AtomicU64::new(total), Arc::new(AtomicU64::new(0)));
        Self { own, own_total: total, common, common_total: 0 }
    }

    /// Budgets of three parts: an eighth for each, the rest in common.
    pub(crate) fn shares(total: u64) -> [Arc<Budget>; 3] {
        let own_total = total / 8;
        let common_total = total - 3 * own_total;
        let common = Arc::new(AtomicU64::new(common_total));
        std::array::from_fn(|_| {
            let own = AtomicU64::new(own_total);
            Arc::new(Self { own, own_total, common: Arc::clone(&common), common_total })
        })
    }

    /// The most that this part may take.
    pub(crate) const fn total(&self) -> u64 {
        self.own_total + self.common_total
    }

    /// Bytes left of this part's share.
    pub(crate) fn own_left(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    /// Bytes left of what all parts have in common.
    pub(crate) fn common_left(&self) -> u64 {
        self.common.load(Ordering::Relaxed)
    }

    /// Whether less than a quarter is left.
    pub(crate) fn is_short(&self) -> bool {
        self.own_left() + self.common_left() < self.total() / 4
    }

    /// Bytes of this part's share that [`Budget::take_unreserved`] leaves.
    const fn reserve(&self) -> u64 {
        self.own_total / RESERVE_PARTS
    }

    /// Takes bytes for a new key, which leaves a reserve for the keys that are known.
    pub(crate) fn take_unreserved(&self, bytes: u64) -> bool {
        let least = bytes.saturating_add(self.reserve());
        let take = |left: u64| left.checked_sub(least).map(|rest| rest + self.reserve());
        // Relaxed, as below.
        self.own.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() || self.take_common(bytes)
    }

    /// Takes bytes for a key that is known: of the reserve only when nothing else is left.
    pub(crate) fn take_reserve(&self, bytes: u64) -> bool {
        self.take_unreserved(bytes) || self.take(bytes)
    }

    fn take_common(&self, bytes: u64) -> bool {
        let take = |left: u64| left.checked_sub(bytes);
        self.common.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Takes bytes if that many are left. Relaxed is enough: the numbers guard no other memory.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let take = |from: &AtomicU64| {
            from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
        };
        take(&self.own) || take(&self.common)
    }

    /// Gives bytes back: to this part's share until that is whole.
    pub(crate) fn give(&self, bytes: u64) {
        let refill = |own: u64| Some(own.saturating_add(bytes).min(self.own_total));
        let own =
            self.own.fetch_update(Ordering::Relaxed, Ordering::Relaxed, refill).unwrap_or(self.own_total);
        let beyond = own.saturating_add(bytes).saturating_sub(self.own_total);
        self.common.fetch_add(beyond, Ordering::Relaxed);
    }
}
