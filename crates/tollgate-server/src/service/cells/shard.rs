//! One shard of the table: open addressing with linear probing in one zeroed allocation. The system provides its pages
//! on first use. A shard never grows and never allocates after the start.

use crate::service::cell::{Charged, Limit};

/// Words of a slot: both halves of the key's hash, and the instant. The upper half is zero in a free slot.
const SLOT_WORDS: usize = 3;
const SLOT_BYTES: u64 = 8 * SLOT_WORDS as u64;
/// The number of slots swept for past entries with each new key, and when the shard is full.
const SWEEP_SLOTS: usize = 4;
const SWEEP_SLOTS_WHEN_FULL: usize = 64;

/// The shard has no room for another key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ShardFull;

/// The stored state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) hash: u128,
    pub(super) instant: i64,
}

#[derive(Debug)]
pub(super) struct Shard {
    words: Vec<u64>,
    slots: usize,
    used: usize,
    /// Maximum number of used slots. The others stay free, so that a search ends soon.
    most: usize,
    /// The slot where the next sweep starts.
    hand: usize,
}

/// The slot of a key, or the free slot at which the search for it ended.
enum SlotSearch {
    Occupied(usize),
    Free(usize),
    /// The shard has no slots.
    None,
}

impl Shard {
    pub(super) fn new(bytes: u64) -> Self {
        let slots = usize::try_from(bytes / SLOT_BYTES).unwrap_or(0);
        // In this form the zeros are pages that the system has not provided yet.
        Self { words: vec![0; slots * SLOT_WORDS], slots, used: 0, most: slots / 4 * 3, hand: 0 }
    }

    /// Charges the key of this hash.
    pub(super) fn charge(
        &mut self,
        hash: u128,
        limit: &Limit,
        now: i64,
        quantity: i64,
    ) -> Result<Charged, ShardFull> {
        match self.find(hash) {
            SlotSearch::Occupied(slot) => {
                let (charged, next) = limit.charge(Some(self.instant(slot)), now, quantity);
                if let Some(next) = next {
                    self.words[slot * SLOT_WORDS + 2] = next.cast_unsigned();
                }
                Ok(charged)
            }
            SlotSearch::Free(_) | SlotSearch::None => {
                let (charged, next) = limit.charge(None, now, quantity);
                match next {
                    Some(next) if next > now => self.insert(hash, next, now).map(|()| charged),
                    _ => Ok(charged), // Nothing to remember: it is as if never used.
                }
            }
        }
    }

    /// The stored instant of a key.
    pub(super) fn instant_of(&self, hash: u128) -> Option<i64> {
        match self.find(hash) {
            SlotSearch::Occupied(slot) => Some(self.instant(slot)),
            SlotSearch::Free(_) | SlotSearch::None => None,
        }
    }

    /// Removes a key, and returns its instant.
    pub(super) fn forget(&mut self, hash: u128) -> Option<i64> {
        let SlotSearch::Occupied(slot) = self.find(hash) else { return None };
        let instant = self.instant(slot);
        self.remove(slot);
        Some(instant)
    }

    /// All entries whose instant is in the future.
    pub(super) fn entries(&self, now: i64) -> Vec<Entry> {
        let used = self.words.as_chunks::<SLOT_WORDS>().0.iter().filter(|[upper, ..]| *upper != 0);
        let entries = used.map(|&[upper, lower, instant]| Entry {
            hash: u128::from(upper) << 64 | u128::from(lower),
            instant: instant.cast_signed(),
        });
        entries.filter(|entry| entry.instant > now).collect()
    }

    /// Restores a saved key. The later instant wins.
    pub(super) fn put_back(&mut self, hash: u128, instant: i64, now: i64) -> Result<(), ShardFull> {
        match self.find(hash) {
            SlotSearch::Occupied(slot) => {
                let later = self.instant(slot).max(instant);
                self.words[slot * SLOT_WORDS + 2] = later.cast_unsigned();
                Ok(())
            }
            SlotSearch::Free(_) | SlotSearch::None => self.insert(hash, instant, now),
        }
    }

    #[inline]
    fn find(&self, hash: u128) -> SlotSearch {
        if self.slots == 0 {
            return SlotSearch::None;
        }
        let (upper, lower) = halves(hash);
        let mut slot = self.home(upper);
        // The loop ends because a quarter of the slots is free.
        loop {
            match self.words[slot * SLOT_WORDS] {
                0 => return SlotSearch::Free(slot),
                word if word == upper && self.words[slot * SLOT_WORDS + 1] == lower => {
                    return SlotSearch::Occupied(slot);
                }
                _ => slot = self.after(slot),
            }
        }
    }

    fn insert(&mut self, hash: u128, instant: i64, now: i64) -> Result<(), ShardFull> {
        self.sweep(now, if self.used < self.most { SWEEP_SLOTS } else { SWEEP_SLOTS_WHEN_FULL });
        if self.used >= self.most {
            return Err(ShardFull);
        }
        let SlotSearch::Free(slot) = self.find(hash) else { return Err(ShardFull) };
        let (upper, lower) = halves(hash);
        self.words[slot * SLOT_WORDS..][..SLOT_WORDS].copy_from_slice(&[
            upper,
            lower,
            instant.cast_unsigned(),
        ]);
        self.used += 1;
        Ok(())
    }

    /// Evicts entries that have passed, among the next `slots`.
    fn sweep(&mut self, now: i64, slots: usize) {
        for _ in 0..slots.min(self.slots) {
            if self.words[self.hand * SLOT_WORDS] != 0 && self.instant(self.hand) <= now {
                self.remove(self.hand); // Another entry may have moved here; it is looked at next.
            } else {
                self.hand = self.after(self.hand);
            }
        }
    }

    /// Frees a slot, and moves back the entries that had probed past it.
    fn remove(&mut self, slot: usize) {
        let (mut hole, mut next) = (slot, self.after(slot));
        loop {
            let upper = self.words[next * SLOT_WORDS];
            if upper == 0 {
                break;
            }
            if self.distance(self.home(upper), next) >= self.distance(hole, next) {
                self.words.copy_within(next * SLOT_WORDS..(next + 1) * SLOT_WORDS, hole * SLOT_WORDS);
                hole = next;
            }
            next = self.after(next);
        }
        self.words[hole * SLOT_WORDS..][..SLOT_WORDS].fill(0);
        self.used -= 1;
    }

    fn instant(&self, slot: usize) -> i64 {
        self.words[slot * SLOT_WORDS + 2].cast_signed()
    }

    /// The slot where the search for a key starts: the upper half of the hash, scaled to the slots.
    #[inline]
    fn home(&self, upper: u64) -> usize {
        let scaled = u128::from(upper) * self.slots as u128;
        usize::try_from(scaled >> 64).unwrap_or(0)
    }

    #[inline]
    const fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.slots { 0 } else { slot + 1 }
    }

    /// The number of steps from one slot forward to another.
    const fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slots - from }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "both halves are kept")]
#[inline]
const fn halves(hash: u128) -> (u64, u64) {
    ((hash >> 64) as u64, hash as u64)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const NOW: i64 = 1_700_000_000_000_000_000;

    proptest! {
        /// The model is a map that never forgets. A past entry equals no entry, so no answer may differ while there is
        /// room. Without room only new keys are refused.
        #[test]
        fn as_a_map_that_never_forgets(
            slots in 8..64u64,
            steps in proptest::collection::vec((0..40u64, 0..3_000_000_000i64, -1..4i64), 1..400),
        ) {
            let limit = Limit::beyond_one(2, 1, 1).unwrap();
            let mut shard = Shard::new(slots * SLOT_BYTES);
            let mut map: HashMap<u64, i64> = HashMap::new();
            let mut now = NOW;
            for (key, pause, quantity) in steps {
                now += pause / 20;
                // Few start slots, so that keys collide.
                let hash = u128::from(key % 5) << 125 | u128::from(key + 1) << 64 | u128::from(key);
                let stored = map.get(&key).copied();
                let (expected, next) = limit.charge(stored, now, quantity);
                match shard.charge(hash, &limit, now, quantity) {
                    Ok(charged) => {
                        prop_assert_eq!(charged, expected);
                        if let Some(next) = next {
                            map.insert(key, next);
                        }
                    }
                    Err(ShardFull) => {
                        prop_assert!(stored.is_none_or(|stored| stored <= now), "a known key was refused");
                        prop_assert_eq!(shard.used, shard.most);
                    }
                }
                let used = shard.words.chunks(SLOT_WORDS).filter(|slot| slot[0] != 0).count();
                prop_assert_eq!(shard.used, used);
            }
        }
    }
}
