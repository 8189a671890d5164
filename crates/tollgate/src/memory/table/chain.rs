//! Making room: slots that may be taken over, overflow lines, growth, and the split of a bucket. All of it happens under the
//! bucket's lock and away from the hot path.

use smallvec::SmallVec;

use super::{
    FIRST_BUCKETS, Full, LINK_MASK, LINK_SHIFT, META, META_MASK, READY, SEQUENCE_ONE, Shape, SlotEntry,
    SlotPosition, Table, link_of, shift_of,
};
use crate::key::Fingerprint;
use crate::memory::region::{LINE_BYTES, LINE_WORDS, Line};
use crate::sync::{MutexGuard, Ordering};

/// A table grows when more than one bucket in this many has run over.
const OVERFLOW_SHARE: u64 = 5;
/// Buckets that a thread splits off after it adds a key, until all are split.
const SPLITS: u64 = 2;
/// A table grows by this part of itself.
const GROWTH_SHARE: u64 = 16;

/// A slot as it lies in a line, for moving it as it is.
struct Raw<const WORDS: usize> {
    tag: u64,
    meta: u64,
    state: [u64; WORDS],
}

impl<const SLOTS: usize, const WORDS: usize> Table<SLOTS, WORDS> {
    /// Keeps an entry: in the key's own slot, else in one that is free or long idle, else in a new overflow line, else in one
    /// that has just become idle.
    pub(crate) fn put(
        &self,
        bucket: usize,
        key: Fingerprint,
        horizon: u64,
        entry: SlotEntry<WORDS>,
    ) -> Result<(), Full> {
        let line = self.region.line(bucket);
        if let Some((place, _)) = self.find(bucket, key) {
            self.write(place, key, entry);
            return Ok(());
        }
        let place = match self.vacancy(line, self.long_idle(horizon)) {
            Some(place) => place,
            None => match self.lengthen(line) {
                Ok(place) => place,
                Err(full) => self.vacancy(line, horizon).ok_or(full)?,
            },
        };
        self.write(place, key, entry);
        Ok(())
    }

    /// Whether [`Table::put`] would find a place for a key.
    pub(crate) fn has_room(&self, key: Fingerprint, horizon: u64) -> bool {
        if !self.budget.is_short() {
            return true;
        }
        let bucket = self.lock_for(key, horizon);
        let has_place = self.find(bucket, key).is_some()
            || self.vacancy(self.region.line(bucket), horizon).is_some()
            || self.has_line();
        self.unlock(bucket);
        has_place
    }

    /// Whether an overflow line is left.
    fn has_line(&self) -> bool {
        let overflow = self.overflow();
        let buckets = self.shape(Ordering::Relaxed).buckets();
        let may_make = buckets + overflow.made < self.region.len() as u64;
        overflow.free != 0 || (may_make && self.budget.fits(LINE_BYTES))
    }

    /// Forgets a key. Under the bucket's lock.
    pub(crate) fn remove(&self, bucket: usize, key: Fingerprint) -> bool {
        let found = self.find(bucket, key);
        if let Some((place, _)) = found {
            place.line[1 + place.slot].store(0, Ordering::Relaxed);
        }
        found.is_some()
    }

    /// The instant before which a slot must have become idle to be given away while there is room. Once memory is short there
    /// is no grace period: what idle keys would take is left for buckets that are full of live ones.
    fn long_idle(&self, horizon: u64) -> u64 {
        if self.budget.is_short() { horizon } else { horizon.saturating_sub(self.idle_grace) }
    }

    /// Whether the state in a slot equals absence.
    pub(super) fn is_idle(&self, line: &Line, slot: usize, horizon: u64) -> bool {
        let first = line[1 + SLOTS + slot * WORDS].load(Ordering::Relaxed);
        self.holds.is_idle(first, || self.read(SlotPosition { line, slot }).number, horizon)
    }

    /// A free slot, or one whose state equals absence.
    fn vacancy<'a>(&'a self, first: &'a Line, horizon: u64) -> Option<SlotPosition<'a>> {
        let mut line = first;
        loop {
            for slot in 0..SLOTS {
                let free = line[1 + slot].load(Ordering::Relaxed) == 0;
                if free || self.is_idle(line, slot, horizon) {
                    return Some(SlotPosition { line, slot });
                }
            }
            match link_of(line[0].load(Ordering::Relaxed)) {
                0 => return None,
                link => line = self.overflow_line(link),
            }
        }
    }

    /// Hangs an empty overflow line behind the bucket's first line.
    fn lengthen<'a>(&'a self, first: &'a Line) -> Result<SlotPosition<'a>, Full> {
        let link = self.take_line().ok_or(Full)?;
        let line = self.overflow_line(link);
        hang(line, link_of(first[0].load(Ordering::Relaxed)));
        hang(first, link);
        Ok(SlotPosition { line, slot: 0 })
    }

    fn overflow(&self) -> MutexGuard<'_, super::Overflow> {
        // A panic while the list is held is a bug of this file; the list itself is always consistent.
        match self.overflow.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    /// An empty overflow line: a freed one, else a new one. Lets the table grow when many buckets have run over.
    fn take_line(&self) -> Option<u64> {
        let mut overflow = self.overflow();
        self.grow(&mut overflow);
        if overflow.free != 0 {
            let link = overflow.free;
            overflow.free = link_of(self.overflow_line(link)[0].load(Ordering::Relaxed));
            overflow.free_lines -= 1;
            return Some(link);
        }
        let buckets = self.shape(Ordering::Relaxed).buckets();
        if buckets + overflow.made >= self.region.len() as u64 || !self.budget.take(LINE_BYTES) {
            return None;
        }
        overflow.made += 1;
        Some(overflow.made)
    }

    fn give_lines(&self, links: &[u64]) {
        let mut overflow = self.overflow();
        for &link in links {
            hang(self.overflow_line(link), overflow.free);
            overflow.free = link;
            overflow.free_lines += 1;
        }
    }

    /// Publishes more buckets. They stay empty until a thread needs them and splits them off from their parent.
    fn grow(&self, overflow: &mut super::Overflow) {
        let buckets = self.shape(Ordering::Relaxed).buckets();
        let in_use = overflow.made - overflow.free_lines;
        if in_use * OVERFLOW_SHARE < buckets {
            return;
        }
        let more = (buckets / GROWTH_SHARE).max(FIRST_BUCKETS as u64);
        if buckets + more + overflow.made <= self.region.len() as u64 && self.budget.take(more * LINE_BYTES) {
            // Release: a thread that sees the number sees the lines, which are zero and therefore not ready.
            self.shape.store(Shape::new(buckets + more).0, Ordering::Release);
        }
    }

    /// Makes a bucket usable by moving its entries from its parent.
    #[inline]
    pub(super) fn ensure_ready(&self, bucket: usize, horizon: u64) {
        // Acquire: pairs with the release at the end of the split.
        if self.region.line(bucket)[0].load(Ordering::Acquire) & READY == 0 {
            self.split_off(bucket, horizon);
        }
    }

    /// Moves a bucket's entries from its parent. Holds no other lock than the parent's.
    #[cold]
    fn split_off(&self, bucket: usize, horizon: u64) {
        let parent = bucket & ((1 << bucket.ilog2()) - 1);
        self.ensure_ready(parent, horizon);
        self.lock(parent);
        // All children of one parent are split off under its lock, so this look decides.
        if self.region.line(bucket)[0].load(Ordering::Relaxed) & READY == 0 {
            self.split(parent, bucket, horizon);
        }
        self.unlock(parent);
    }

    /// Splits off a few of the buckets that growth has published. A thread that adds a key does this afterwards, holding no lock, so
    /// that chains are short again before the table grows once more.
    pub(crate) fn tidy(&self, horizon: u64) {
        let buckets = self.shape(Ordering::Acquire).buckets();
        // Relaxed: a lost update repeats a look at a bucket that is ready, no more.
        let next = self.unsplit.load(Ordering::Relaxed);
        if next >= buckets {
            return;
        }
        let end = buckets.min(next + SPLITS);
        for bucket in next..end {
            self.ensure_ready(usize::try_from(bucket).unwrap_or(0), horizon);
        }
        self.unsplit.fetch_max(end, Ordering::Relaxed);
    }

    fn split(&self, parent: usize, child: usize, horizon: u64) {
        let mut freed = SmallVec::<[u64; 8]>::new();
        let entries = self.drain(parent, self.long_idle(horizon), &mut freed);
        let (mut parent_line, mut child_line) = (self.region.line(parent), self.region.line(child));
        let (mut parent_slot, mut child_slot) = (0, 0);
        for raw in &entries {
            let to_child = Shape::new(child as u64 + 1).bucket(raw.tag) == child;
            let (line, slot) = if to_child {
                (&mut child_line, &mut child_slot)
            } else {
                (&mut parent_line, &mut parent_slot)
            };
            if *slot == SLOTS {
                // As many lines were freed as both chains together need; see the module's test.
                let Some(link) = freed.pop().or_else(|| self.take_line()) else { continue };
                let next = self.overflow_line(link);
                hang(next, 0);
                hang(line, link);
                (*line, *slot) = (next, 0);
            }
            place_raw::<SLOTS, WORDS>(line, *slot, raw);
            *slot += 1;
        }
        self.give_lines(&freed);
        let header = &self.region.line(child)[0];
        // Release: a thread that sees the child ready sees its entries.
        header.store((header.load(Ordering::Relaxed) | READY).wrapping_add(SEQUENCE_ONE), Ordering::Release);
    }

    /// Takes every entry that still matters out of a chain, and the chain apart.
    fn drain(
        &self,
        bucket: usize,
        horizon: u64,
        freed: &mut SmallVec<[u64; 8]>,
    ) -> SmallVec<[Raw<WORDS>; 12]> {
        let mut entries = SmallVec::new();
        let mut line = self.region.line(bucket);
        loop {
            for slot in 0..SLOTS {
                let is_idle = self.is_idle(line, slot, horizon);
                let raw = take_raw::<SLOTS, WORDS>(line, slot);
                if raw.tag != 0 && !is_idle {
                    entries.push(raw);
                }
            }
            let link = link_of(line[0].load(Ordering::Relaxed));
            hang(line, 0);
            if link == 0 {
                return entries;
            }
            freed.push(link);
            line = self.overflow_line(link);
        }
    }

    /// Entries that still matter, counted under each bucket's lock in turn. For reports, not for decisions.
    pub(crate) fn count(&self, horizon: u64) -> u64 {
        let mut live = 0;
        for bucket in 0..self.shape(Ordering::Acquire).buckets() {
            let Ok(bucket) = usize::try_from(bucket) else { continue };
            if self.region.line(bucket)[0].load(Ordering::Acquire) & READY == 0 {
                continue;
            }
            self.lock(bucket);
            let mut line = self.region.line(bucket);
            loop {
                for slot in 0..SLOTS {
                    let tag = line[1 + slot].load(Ordering::Relaxed);
                    live += u64::from(tag != 0 && !self.is_idle(line, slot, horizon));
                }
                match link_of(line[0].load(Ordering::Relaxed)) {
                    0 => break,
                    link => line = self.overflow_line(link),
                }
            }
            self.unlock(bucket);
        }
        live
    }
}

/// Sets the link of a line and leaves the rest of its header as it is. Under the bucket's lock.
fn hang(line: &Line, link: u64) {
    let header = line[0].load(Ordering::Relaxed);
    line[0].store((header & !LINK_MASK) | (link << LINK_SHIFT), Ordering::Relaxed);
}

fn take_raw<const SLOTS: usize, const WORDS: usize>(line: &Line, slot: usize) -> Raw<WORDS> {
    let first = 1 + SLOTS + slot * WORDS;
    let raw = Raw {
        tag: line[1 + slot].load(Ordering::Relaxed),
        meta: (line[META].load(Ordering::Relaxed) >> shift_of(slot)) & META_MASK,
        state: std::array::from_fn(|word| line[first + word].load(Ordering::Relaxed)),
    };
    line[1 + slot].store(0, Ordering::Relaxed);
    raw
}

fn place_raw<const SLOTS: usize, const WORDS: usize>(line: &Line, slot: usize, raw: &Raw<WORDS>) {
    const { assert!(1 + SLOTS + SLOTS * WORDS < LINE_WORDS) };
    let first = 1 + SLOTS + slot * WORDS;
    for (word, value) in raw.state.iter().enumerate() {
        line[first + word].store(*value, Ordering::Relaxed);
    }
    let others = line[META].load(Ordering::Relaxed) & !(META_MASK << shift_of(slot));
    line[META].store(others | (raw.meta << shift_of(slot)), Ordering::Relaxed);
    line[1 + slot].store(raw.tag, Ordering::Relaxed);
}
