//! The least that a keyed decision costs on this machine: an open-addressing table of a 64-bit hash and an atomic
//! timestamp, linear probing, a power of two of slots, a cached clock. No eviction, no growth, no numbers in the answer.
//! It is what the others are held against, not something to use.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::CachedClock;
use crate::contender::Contender;
use crate::quota::Quota;
use crate::workload::Requests;

/// Decisions that a batch takes at a time.
const BATCH: usize = 16;
/// The tag of a slot that nobody uses.
const EMPTY: u64 = 0;

/// One decision at a time.
#[derive(Debug)]
pub struct LowerBound {
    table: Table,
    clock: CachedClock,
}

/// Sixteen decisions at a time: their cache misses overlap.
#[derive(Debug)]
pub struct Batched(LowerBound);

impl LowerBound {
    /// A table for so many keys.
    #[must_use]
    pub fn new(quota: Quota, keys: usize, clock: CachedClock) -> Self {
        Self { table: Table::new(quota, keys), clock }
    }
}

impl Batched {
    /// A table for so many keys.
    #[must_use]
    pub fn new(quota: Quota, keys: usize, clock: CachedClock) -> Self {
        Self(LowerBound::new(quota, keys, clock))
    }
}

impl Contender for LowerBound {
    fn decide(&self, requests: Requests<'_>) -> usize {
        let mut admitted = 0;
        for key in requests.keys {
            admitted += usize::from(black_box(self.table.check(hash(key.as_bytes()), self.clock.nanos())));
        }
        admitted
    }
}

impl Contender for Batched {
    fn decide(&self, requests: Requests<'_>) -> usize {
        let Self(LowerBound { table, clock }) = self;
        let mut admitted = 0;
        let mut hashes = [0; BATCH];
        for keys in requests.keys.chunks(BATCH) {
            let now = clock.nanos();
            let hashes = &mut hashes[..keys.len()];
            for (hash_of_key, key) in hashes.iter_mut().zip(keys) {
                *hash_of_key = hash(key.as_bytes());
            }
            // Loads that do not depend on each other: all misses are under way before the first decision waits for one.
            for &hash_of_key in &*hashes {
                black_box(table.slots[table.home(hash_of_key)].tag.load(Ordering::Relaxed));
            }
            for &hash_of_key in &*hashes {
                admitted += usize::from(black_box(table.check(hash_of_key, now)));
            }
        }
        admitted
    }
}

/// A key's hash and the time at which its bucket is full again, in nanoseconds.
#[derive(Debug, Default)]
#[repr(align(16))]
struct Slot {
    tag: AtomicU64,
    arrival: AtomicU64,
}

#[derive(Debug)]
struct Table {
    slots: Box<[Slot]>,
    mask: usize,
    interval: u64,
    tolerance: u64,
}

impl Table {
    fn new(quota: Quota, keys: usize) -> Self {
        let slots = (keys + keys / 2).next_power_of_two();
        let interval = u64::try_from(quota.interval().as_nanos()).unwrap_or(u64::MAX);
        Self {
            slots: (0..slots).map(|_| Slot::default()).collect(),
            mask: slots - 1,
            interval,
            tolerance: interval.saturating_mul(quota.burst.into()),
        }
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        hash as usize & self.mask
    }

    #[inline]
    fn check(&self, hash: u64, now: u64) -> bool {
        let mut index = self.home(hash);
        loop {
            let slot = &self.slots[index];
            let tag = slot.tag.load(Ordering::Relaxed); // The slot is its own two words: nothing else is published.
            if tag == hash || (tag == EMPTY && slot.take(hash)) {
                return slot.charge(now, self.interval, self.tolerance);
            }
            index = (index + 1) & self.mask;
        }
    }
}

impl Slot {
    /// Claims an empty slot, and says whether it now belongs to `hash`.
    #[cold]
    fn take(&self, hash: u64) -> bool {
        match self.tag.compare_exchange(EMPTY, hash, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(other) => other == hash,
        }
    }

    #[inline]
    fn charge(&self, now: u64, interval: u64, tolerance: u64) -> bool {
        let mut arrival = self.arrival.load(Ordering::Relaxed);
        loop {
            let next = arrival.max(now) + interval;
            if next > now + tolerance {
                return false;
            }
            match self.arrival.compare_exchange_weak(arrival, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(current) => arrival = current,
            }
        }
    }
}

/// One folded multiplication for keys of up to 16 bytes, one more for each further 16. Never [`EMPTY`].
#[inline]
fn hash(key: &[u8]) -> u64 {
    const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
    const SECRET: u64 = 0xa076_1d64_78bd_642f;
    let mut state = SEED ^ key.len() as u64;
    let mut rest = key;
    while let Some((block, further)) = rest.split_first_chunk::<16>() {
        let (low, high) = halves(block);
        state = fold(low ^ state, high ^ SECRET);
        rest = further;
    }
    let (low, high) = tail(rest);
    fold(low ^ state, high ^ SECRET) | 1 << 63
}

/// Fewer than 16 bytes as two words, which overlap.
#[inline]
fn tail(rest: &[u8]) -> (u64, u64) {
    if let (Some(first), Some(last)) = (rest.first_chunk::<8>(), rest.last_chunk::<8>()) {
        (u64::from_le_bytes(*first), u64::from_le_bytes(*last))
    } else if let (Some(first), Some(last)) = (rest.first_chunk::<4>(), rest.last_chunk::<4>()) {
        (u32::from_le_bytes(*first).into(), u32::from_le_bytes(*last).into())
    } else {
        let byte = |index: usize| u64::from(rest.get(index).copied().unwrap_or_default());
        (byte(0) | byte(1) << 8, byte(2))
    }
}

#[inline]
fn halves(block: &[u8; 16]) -> (u64, u64) {
    let both = u128::from_le_bytes(*block);
    (both as u64, (both >> 64) as u64)
}

#[inline]
fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash spreads keys that differ in one digit: no two of a million share a tag, and homes are not crowded.
    #[test]
    fn keys_spread() {
        let mut tags: Vec<u64> = (0..1_000_000).map(|id| hash(crate::workload::key(id).as_bytes())).collect();
        tags.sort_unstable();
        tags.dedup();
        assert_eq!(tags.len(), 1_000_000);
        let mut homes: Vec<u64> = tags.iter().map(|tag| tag & ((1 << 21) - 1)).collect();
        homes.sort_unstable();
        homes.dedup();
        assert!(homes.len() > 780_000, "a random hash fills about 795,000 homes, this one {}", homes.len());
    }

    /// Short, long and odd lengths all differ from those of their neighbours.
    #[test]
    fn lengths_matter() {
        let text = "abcdefghijklmnopqrstuvwxyz0123456789";
        let mut tags: Vec<u64> = (0..text.len()).map(|length| hash(&text.as_bytes()[..length])).collect();
        tags.sort_unstable();
        tags.dedup();
        assert_eq!(tags.len(), text.len());
    }
}
