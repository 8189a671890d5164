//! Cache lines of atomic words, reserved as address space when the store is made and touched only as it grows, and the
//! byte budget that all tables of a store share.

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

/// Bytes that a store may still take.
pub(crate) struct Budget {
    left: AtomicU64,
    total: u64,
}

impl Budget {
    pub(crate) fn new(total: u64) -> Self {
        Self { left: AtomicU64::new(total), total }
    }

    /// All of it.
    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// Bytes taken so far.
    pub(crate) fn used(&self) -> u64 {
        self.total - self.left.load(Ordering::Relaxed)
    }

    /// Whether less than a quarter is left.
    pub(crate) fn is_short(&self) -> bool {
        self.left.load(Ordering::Relaxed) < self.total / 4
    }

    /// Takes bytes if that many are left. Relaxed is enough: the number guards no other memory.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    /// Gives bytes back.
    pub(crate) fn give(&self, bytes: u64) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}
