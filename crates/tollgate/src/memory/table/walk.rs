//! Reading a table out while it is in use, and filling an empty one again: what a snapshot needs of it.

use std::io;

use super::{Full, READY, REST_SHIFT, SlotEntry, SlotPosition, Table, link_of};
use crate::key::Fingerprint;
use crate::sync::Ordering;

/// Entries that are copied before they are handed on, beside those of one bucket.
const BATCH: usize = 512;

/// An entry and whose it is, as far as the table knows: of the key's second half only the uppermost bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot<const WORDS: usize> {
    pub(crate) key: Fingerprint,
    pub(crate) entry: SlotEntry<WORDS>,
}

impl<const SLOTS: usize, const WORDS: usize> Table<SLOTS, WORDS> {
    /// Hands out every entry that matters at `horizon`, some at a time and under no lock.
    ///
    /// Each bucket is copied under its own lock, in ascending order, while decisions go on. *Nothing is missed* of what is there
    /// throughout: an entry moves only when a bucket is split, under the parent's lock, and only to a bucket with a higher number.
    /// If the parent was copied before that, the entry was seen there; if after, the new bucket is still ahead, since the number
    /// of buckets is read again for each. An entry may be seen twice, in the parent and in the child; the later copy is the
    /// newer.
    pub(crate) fn walk(
        &self,
        horizon: u64,
        mut some: impl FnMut(&[Slot<WORDS>]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut copied = Vec::with_capacity(2 * BATCH);
        let mut bucket = 0;
        while (bucket as u64) < self.shape(Ordering::Acquire).buckets() {
            self.copy_bucket(bucket, horizon, &mut copied);
            if copied.len() >= BATCH {
                some(&copied)?;
                copied.clear();
            }
            bucket += 1;
        }
        some(&copied)
    }

    fn copy_bucket(&self, bucket: usize, horizon: u64, into: &mut Vec<Slot<WORDS>>) {
        let first = self.region.line(bucket);
        // Acquire: pairs with the release at the end of a split. Before that the entries are still in the parent.
        if first[0].load(Ordering::Acquire) & READY == 0 {
            return;
        }
        self.lock(bucket);
        let mut line = first;
        loop {
            for slot in 0..SLOTS {
                let tag = line[1 + slot].load(Ordering::Relaxed);
                if tag != 0 && !self.is_idle(line, slot, horizon) {
                    let key = Fingerprint { tag, rest: self.rest(line, slot) << REST_SHIFT };
                    into.push(Slot { key, entry: self.read(SlotPosition { line, slot }) });
                }
            }
            match link_of(line[0].load(Ordering::Relaxed)) {
                0 => break,
                link => line = self.overflow_line(link),
            }
        }
        self.unlock(bucket);
    }

    /// Keeps an entry as it was kept elsewhere, in place of the one that the key has. Tells whether it still matters; one that
    /// does not is left out.
    pub(crate) fn put_back(&self, slot: Slot<WORDS>, horizon: u64) -> Result<bool, Full> {
        let Slot { key, entry } = slot;
        if self.holds.is_idle(entry.state[0], || entry.number, horizon) {
            return Ok(false);
        }
        self.update_locked(key, horizon, |_| (Some(entry), true))
    }
}
