//! The table of small states: one cache line a bucket, everything in atomics, no unsafe code.
//!
//! A bucket is a line: a header, a tag and the state words for each slot, and a last word with the rest of each slot's
//! identity and its quota's number. Buckets that run over are chained to overflow lines, which belong to the bucket's lock.
//!
//! ```text
//! word 0   sequence:34 | link:28 | ready:1 | locked:1
//! word 1…  a tag for each slot (zero: free), then the state words of each slot
//! word 7   for each slot: rest of the identity:11 | quota number:10
//! ```
//!
//! *Growth* is linear hashing: the number of buckets grows by a sixteenth at a time, a new bucket takes its entries from its
//! parent when it is first met, and no entry ever moves otherwise. There is no pause and no doubling. Main lines grow from
//! the bottom of the region, overflow lines from its top.
//!
//! *Reading* is optimistic: the header is read before and after (a sequence lock), so a denial writes nothing. *Writing*
//! takes the lock bit by comparing the whole header, which fails if anything changed since it was read.
//!
//! *Eviction*: the first word of a state is the instant from which it equals a key never seen. Only a slot past that instant
//! is ever given to another key; while there is room, only one that is well past it, so that keys in use stay where they are.

use std::sync::Arc;

use crate::key::Fingerprint;
use crate::memory::budget::Budget;
use crate::memory::holds::Holds;
use crate::memory::region::{LINE_BYTES, Line, Region};
use crate::sync::{AtomicU64, Mutex, Ordering, fence, spin_loop, yield_now};

mod chain;
mod unit;
mod walk;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use unit::UnitStep;
pub(crate) use walk::Slot;

const LOCKED: u64 = 1;
const READY: u64 = 2;
const LINK_SHIFT: u32 = 2;
const LINK_BITS: u32 = 28;
const LINK_MASK: u64 = ((1 << LINK_BITS) - 1) << LINK_SHIFT;
const SEQUENCE_ONE: u64 = 1 << (LINK_SHIFT + LINK_BITS);
const META: usize = 7;
const META_BITS: u32 = 21;
const META_MASK: u64 = (1 << META_BITS) - 1;
/// Bits of a slot's quota number.
pub(crate) const NUMBER_BITS: u32 = 10;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
const REST_SHIFT: u32 = 64 - (META_BITS - NUMBER_BITS);
/// Buckets of an empty table.
const FIRST_BUCKETS: usize = if cfg!(loom) { 2 } else { 16 };
/// A longer chain in an unlocked read means that the read was torn.
const CHAIN_MAX: usize = 1 << 12;
/// Spins before a waiting thread gives up its time slice.
const SPINS: u32 = if cfg!(loom) { 1 } else { 100 };

/// A table of states of `WORDS` words, `SLOTS` to a line.
pub(crate) struct Table<const SLOTS: usize, const WORDS: usize> {
    region: Region,
    /// How many buckets there are, as a [`Shape`]. Published with release after the budget was taken; only grows.
    shape: AtomicU64,
    overflow: Mutex<Overflow>,
    /// The next bucket to split off from its parent, if no thread has done so yet. Only a hint.
    unsplit: AtomicU64,
    budget: Arc<Budget>,
    /// How long a slot is left alone after it has become idle, while there is room; in the unit of a state's first word.
    idle_grace: u64,
    holds: Holds,
}

/// Overflow lines, counted from the top of the region. Link 0 is none, link k is the k-th line from the top.
struct Overflow {
    made: u64,
    free: u64,
    free_lines: u64,
}

/// A state and the number of the quota that it was counted under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotEntry<const WORDS: usize> {
    pub(crate) state: [u64; WORDS],
    pub(crate) number: u32,
}

/// No room for a new key: every slot it could have holds a state that still matters, and the budget is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// Where an entry is.
#[derive(Clone, Copy)]
pub(crate) struct SlotPosition<'a> {
    line: &'a Line,
    slot: usize,
}

/// A bucket that is locked, until this is dropped, whatever happens meanwhile.
struct LockedBucket<'a, const SLOTS: usize, const WORDS: usize> {
    table: &'a Table<SLOTS, WORDS>,
    bucket: usize,
}

impl<const SLOTS: usize, const WORDS: usize> Drop for LockedBucket<'_, SLOTS, WORDS> {
    fn drop(&mut self) {
        self.table.unlock(self.bucket);
    }
}

enum Search<'a> {
    Found(SlotPosition<'a>),
    Absent,
    Torn,
}

impl<const SLOTS: usize, const WORDS: usize> Table<SLOTS, WORDS> {
    /// A table that may take at most the budget's bytes and leaves idle slots alone for a while.
    pub(crate) fn new(budget: Arc<Budget>, idle_grace: u64) -> Self {
        const { assert!(1 + SLOTS + SLOTS * WORDS <= META && SLOTS * META_BITS as usize <= 64) };
        let lines = (budget.total() / LINE_BYTES).clamp(FIRST_BUCKETS as u64, LINK_MASK >> LINK_SHIFT);
        let region = Region::new(usize::try_from(lines).unwrap_or(usize::MAX));
        for index in 0..FIRST_BUCKETS {
            region.line(index)[0].store(READY, Ordering::Relaxed);
        }
        budget.take(FIRST_BUCKETS as u64 * LINE_BYTES);
        let overflow = Mutex::new(Overflow { made: 0, free: 0, free_lines: 0 });
        Self {
            region,
            shape: AtomicU64::new(Shape::new(FIRST_BUCKETS as u64).0),
            overflow,
            unsplit: AtomicU64::new(0),
            budget,
            idle_grace,
            holds: Holds::default(),
        }
    }

    /// Entries that are kept longer than they say.
    pub(crate) const fn holds(&self) -> &Holds {
        &self.holds
    }

    /// Decides about one key: `step` gets its entry, which may be idle, and answers with the entry to keep, if it changes. `step` may be called again when another thread was faster.
    #[inline]
    pub(crate) fn update<R>(
        &self,
        key: Fingerprint,
        horizon: u64,
        mut step: impl FnMut(Option<SlotEntry<WORDS>>) -> (Option<SlotEntry<WORDS>>, R),
    ) -> Result<R, Full> {
        for _ in 0..SPINS {
            let shape = self.shape(Ordering::Relaxed);
            let line = self.region.line(shape.bucket(key.tag));
            // Acquire: what a writer stored before it let go of the lock is seen below.
            let header = line[0].load(Ordering::Acquire);
            if header & (LOCKED | READY) != READY {
                break;
            }
            let (place, entry) = match self.search(line, header, key, CHAIN_MAX) {
                Search::Found(place) => (Some(place), Some(self.read(place))),
                Search::Absent => (None, None),
                Search::Torn => continue,
            };
            // Acquire: the loads above are not delayed beyond the second look at the header. A key that was found is nowhere
            // else; one that was not may have moved if the table grew before the header was read.
            fence(Ordering::Acquire);
            let grown = place.is_none() && self.shape(Ordering::Relaxed) != shape;
            if grown || line[0].load(Ordering::Relaxed) != header {
                continue;
            }
            let (next, answer) = step(entry);
            let Some(next) = next else {
                return Ok(answer);
            };
            let Some(place) = place else {
                break;
            };
            // Acquire pairs with the release of the last writer; the comparison proves that nothing changed since.
            if line[0].compare_exchange(header, header | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                // Release: a reader that sees the stores below also sees the header locked.
                fence(Ordering::Release);
                match entry {
                    Some(known) if known.number == next.number => self.write_state(place, next.state),
                    _ => self.write(place, key, next),
                }
                line[0].store(header.wrapping_add(SEQUENCE_ONE), Ordering::Release);
                return Ok(answer);
            }
        }
        self.update_locked(key, horizon, step)
    }

    /// The same under the bucket's lock: for new keys, and when optimism does not pay.
    #[inline(never)]
    fn update_locked<R>(
        &self,
        key: Fingerprint,
        horizon: u64,
        mut step: impl FnMut(Option<SlotEntry<WORDS>>) -> (Option<SlotEntry<WORDS>>, R),
    ) -> Result<R, Full> {
        let written = {
            let bucket = LockedBucket { table: self, bucket: self.lock_for(key, horizon) };
            let (next, answer) = step(self.get(bucket.bucket, key));
            next.map_or(Ok(()), |entry| self.put(bucket.bucket, key, horizon, entry)).map(|()| answer)
        };
        self.tidy(horizon);
        written
    }

    /// Brings a key's line into the cache, so that a batch waits for all of them at once. The answer is only there to be used.
    #[inline]
    pub(crate) fn touch(&self, key: Fingerprint) -> u64 {
        self.region.line(self.shape(Ordering::Relaxed).bucket(key.tag))[0].load(Ordering::Relaxed)
    }

    /// The bucket that a key has now, split off from its parent if that was still to do.
    pub(crate) fn bucket(&self, key: Fingerprint, horizon: u64) -> usize {
        // Acquire: the bucket's parent is complete once the new number is seen.
        let bucket = self.shape(Ordering::Acquire).bucket(key.tag);
        self.ensure_ready(bucket, horizon);
        bucket
    }

    /// Whether the key still belongs to that bucket. Asked under the bucket's lock.
    pub(crate) fn owns(&self, bucket: usize, key: Fingerprint) -> bool {
        self.shape(Ordering::Acquire).bucket(key.tag) == bucket
    }

    #[inline]
    fn shape(&self, ordering: Ordering) -> Shape {
        Shape(self.shape.load(ordering))
    }

    fn lock_for(&self, key: Fingerprint, horizon: u64) -> usize {
        loop {
            let bucket = self.bucket(key, horizon);
            self.lock(bucket);
            if self.owns(bucket, key) {
                return bucket;
            }
            self.unlock(bucket);
        }
    }

    /// Locks a bucket that is ready. Several buckets are locked in ascending order.
    pub(crate) fn lock(&self, bucket: usize) {
        let header = &self.region.line(bucket)[0];
        let mut spins = 0;
        loop {
            let seen = header.load(Ordering::Relaxed);
            // Acquire: what the last holder wrote is seen.
            if seen & LOCKED == 0
                && header
                    .compare_exchange_weak(seen, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                // Release: a reader that sees a store made under the lock also sees the header locked.
                fence(Ordering::Release);
                return;
            }
            spins += 1;
            // The holder does a few dozen instructions; if it is not running, spinning does not help.
            if spins % SPINS == 0 {
                yield_now();
            } else {
                spin_loop();
            }
        }
    }

    /// Lets go of a bucket.
    pub(crate) fn unlock(&self, bucket: usize) {
        let header = &self.region.line(bucket)[0];
        let seen = header.load(Ordering::Relaxed);
        // Release: everything written under the lock is seen by the next thread that takes it.
        header.store((seen & !LOCKED).wrapping_add(SEQUENCE_ONE), Ordering::Release);
    }

    /// Where a key's entry is, and what it holds. Under the bucket's lock.
    #[inline]
    pub(crate) fn find(
        &self,
        bucket: usize,
        key: Fingerprint,
    ) -> Option<(SlotPosition<'_>, SlotEntry<WORDS>)> {
        let line = self.region.line(bucket);
        match self.search(line, line[0].load(Ordering::Relaxed), key, usize::MAX) {
            Search::Found(place) => Some((place, self.read(place))),
            Search::Absent | Search::Torn => None,
        }
    }

    /// The entry of a key, which may be idle. Under the bucket's lock.
    pub(crate) fn get(&self, bucket: usize, key: Fingerprint) -> Option<SlotEntry<WORDS>> {
        self.find(bucket, key).map(|(_, entry)| entry)
    }

    #[inline]
    fn search<'a>(&'a self, first: &'a Line, header: u64, key: Fingerprint, chain_max: usize) -> Search<'a> {
        let (mut line, mut link) = (first, link_of(header));
        for _ in 0..chain_max {
            for slot in 0..SLOTS {
                if line[1 + slot].load(Ordering::Relaxed) == key.tag
                    && self.rest(line, slot) == key.rest >> REST_SHIFT
                {
                    return Search::Found(SlotPosition { line, slot });
                }
            }
            if link == 0 {
                return Search::Absent;
            }
            line = self.overflow_line(link);
            link = link_of(line[0].load(Ordering::Relaxed));
        }
        Search::Torn
    }

    #[inline]
    fn rest(&self, line: &Line, slot: usize) -> u64 {
        ((line[META].load(Ordering::Relaxed) >> shift_of(slot)) & META_MASK) >> NUMBER_BITS
    }

    #[inline]
    fn overflow_line(&self, link: u64) -> &Line {
        #[allow(
            clippy::cast_possible_truncation,
            reason = "links are line numbers, at most the region's length"
        )]
        self.region.line(self.region.len() - link as usize)
    }

    #[inline]
    fn read(&self, place: SlotPosition<'_>) -> SlotEntry<WORDS> {
        let first = 1 + SLOTS + place.slot * WORDS;
        let state = std::array::from_fn(|word| place.line[first + word].load(Ordering::Relaxed));
        let meta = place.line[META].load(Ordering::Relaxed) >> shift_of(place.slot);
        #[allow(clippy::cast_possible_truncation, reason = "masked to ten bits")]
        SlotEntry { state, number: (meta & NUMBER_MASK) as u32 }
    }

    #[inline]
    fn write_state(&self, place: SlotPosition<'_>, state: [u64; WORDS]) {
        let first = 1 + SLOTS + place.slot * WORDS;
        for (word, value) in state.iter().enumerate() {
            place.line[first + word].store(*value, Ordering::Relaxed);
        }
    }

    /// Writes an entry where it is to be. Under the bucket's lock.
    pub(crate) fn write(&self, place: SlotPosition<'_>, key: Fingerprint, entry: SlotEntry<WORDS>) {
        self.write_state(place, entry.state);
        let shift = shift_of(place.slot);
        let meta = ((key.rest >> REST_SHIFT) << NUMBER_BITS) | (u64::from(entry.number) & NUMBER_MASK);
        let others = place.line[META].load(Ordering::Relaxed) & !(META_MASK << shift);
        place.line[META].store(others | (meta << shift), Ordering::Relaxed);
        place.line[1 + place.slot].store(key.tag, Ordering::Relaxed);
    }
}

/// A number of buckets, and the mask that covers it in the upper half, so that both are read at once.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape(u64);

impl Shape {
    const fn new(buckets: u64) -> Self {
        Self(((u64::MAX >> (buckets - 1).leading_zeros()) << 32) | buckets)
    }

    const fn buckets(self) -> u64 {
        self.0 & 0xFFFF_FFFF
    }

    /// Linear hashing: the low bits of the tag, one bit less where that bucket does not exist yet.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "bucket numbers are below 2^28")]
    const fn bucket(self, tag: u64) -> usize {
        let mask = self.0 >> 32;
        let index = tag & mask;
        let folded = index & (mask >> 1);
        (if index < self.buckets() { index } else { folded }) as usize
    }
}

/// Where a slot's part of the last word starts.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "a line has at most three slots")]
const fn shift_of(slot: usize) -> u32 {
    slot as u32 * META_BITS
}

#[inline]
const fn link_of(header: u64) -> u64 {
    (header & LINK_MASK) >> LINK_SHIFT
}
