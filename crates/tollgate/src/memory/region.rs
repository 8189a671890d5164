//! Cache lines of atomic words, reserved as address space when the store is created and touched only as it
//! grows.

use crate::sync::AtomicU64;

/// Words in one cache line.
pub(crate) const LINE_WORDS: usize = 8;
/// Bytes in one cache line.
pub(crate) const LINE_BYTES: u64 = 64;

/// One cache line.
pub(crate) type Line = [AtomicU64; LINE_WORDS];

/// A run of cache lines. Untouched lines cost address space, not memory.
pub(crate) struct Region {
    words: Box<[AtomicU64]>,
    /// Words before the first cache line. An aligned allocation would write zeros.
    skip: usize,
}

impl Region {
    #[cfg(not(loom))]
    pub(crate) fn new(lines: usize) -> Self {
        // Zeroed by the allocator: large allocations consist of pages that do not exist until they are
        // written.
        let words = bytemuck::allocation::zeroed_slice_box::<AtomicU64>((lines + 1) * LINE_WORDS);
        let skip = words.as_ptr().align_offset(64).min(LINE_WORDS);
        Self { words, skip }
    }

    #[cfg(loom)]
    pub(crate) fn new(lines: usize) -> Self {
        let words = (0..(lines + 1) * LINE_WORDS).map(|_| AtomicU64::new(0)).collect();
        Self { words, skip: 0 }
    }

    /// The number of lines.
    pub(crate) const fn len(&self) -> usize {
        self.words.len() / LINE_WORDS - 1
    }

    /// One line. Callers keep `index` below [`Region::len`]: buckets and links are made only from such
    /// indices.
    #[inline]
    pub(crate) fn line(&self, index: usize) -> &Line {
        // It does not wrap: an index is below 2^28.
        let start = index.wrapping_mul(LINE_WORDS).wrapping_add(self.skip);
        let words = &self.words[start..start.wrapping_add(LINE_WORDS)];
        match words.first_chunk() {
            Some(line) => line,
            None => unreachable!("the slice has just the words of a line"),
        }
    }
}
