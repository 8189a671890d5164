//! The memory of the counters: shards with one lock each, so that keys seldom contend, and a small extra shard for
//! shared counters. The table can be saved and restored.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::shard::{Entry, Shard, ShardFull};
use crate::service::cell::{Charged, Limit};

/// Number of shards.
const SHARDS: usize = 256;
/// The fraction of all bytes that the shard for shared counters gets: one part in this many.
const SHARED_PART: u64 = 64;
/// Maximum number of entries in one saved piece.
const PIECE_ENTRIES: usize = 1 << 15;
/// Bytes of a saved entry: the key's hash and the instant.
const ENTRY_BYTES: usize = 24;

/// The part of the table that holds an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Region {
    /// Keys with a counter of their own.
    Own = 0,
    /// Counters that new keys share.
    Shared = 1,
}

/// The table.
pub(crate) struct CounterTable {
    shards: Box<[Mutex<Shard>]>,
    shared: Mutex<Shard>,
}

/// The result of restoring entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PutBack {
    /// Entries that were restored.
    pub(crate) kept: u64,
    /// Entries without room: the counters of their keys start empty.
    pub(crate) no_room: u64,
}

impl CounterTable {
    /// A table of at most this many bytes, which are allocated as they are needed.
    pub(crate) fn new(bytes: u64) -> Self {
        let shared = bytes / SHARED_PART;
        let shard = (bytes - shared) / SHARDS as u64;
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::new(shard))).collect(),
            shared: Mutex::new(Shard::new(shared)),
        }
    }

    /// Charges the counter of this hash.
    #[inline]
    pub(super) fn charge(
        &self,
        region: Region,
        hash: u128,
        limit: &Limit,
        now: i64,
        quantity: i64,
    ) -> Result<Charged, ShardFull> {
        self.shard(region, hash).charge(hash, limit, now, quantity)
    }

    /// The instant from which the counter of a key is empty, if it is in the future.
    pub(super) fn instant(&self, hash: u128, now: i64) -> Option<i64> {
        self.shard(Region::Own, hash).instant_of(hash).filter(|instant| *instant > now)
    }

    /// Removes a key. Returns whether it had counted anything.
    pub(super) fn forget(&self, hash: u128, now: i64) -> bool {
        self.shard(Region::Own, hash).forget(hash).is_some_and(|instant| instant > now)
    }

    /// All entries that still count, in pieces, while charges go on. Each shard is copied at one instant under its
    /// lock, and no piece is written during the copy.
    pub(crate) fn pieces(&self, now: i64) -> impl Iterator<Item = Vec<u8>> {
        let own = self.shards.iter().map(|shard| (Region::Own, shard));
        own.chain([(Region::Shared, &self.shared)]).flat_map(move |(region, shard)| {
            let entries = locked(shard).entries(now);
            entries.chunks(PIECE_ENTRIES).map(|entries| piece(region, entries)).collect::<Vec<_>>()
        })
    }

    /// How many entries are in a piece.
    pub(crate) const fn entries_in(piece: &[u8]) -> u64 {
        (piece.len().saturating_sub(1) / ENTRY_BYTES) as u64
    }

    /// Restores entries from a piece that was saved when the clock said `taken_at`. If the clock says less now, it was
    /// set back, and the entries move back with it: no key gains units, and no key waits longer than before.
    ///
    /// # Errors
    /// When the bytes are not a valid piece.
    pub(crate) fn put_back(&self, piece: &[u8], taken_at: i64, now: i64) -> Result<PutBack, String> {
        let (region, entries) = match piece.split_first() {
            Some((&region, entries)) if region == Region::Own as u8 => (Region::Own, entries),
            Some((&region, entries)) if region == Region::Shared as u8 => (Region::Shared, entries),
            _ => return Err("a part is counted by a command that this version does not know".to_owned()),
        };
        let (entries, []) = entries.as_chunks::<ENTRY_BYTES>() else {
            return Err("a counter of a command is cut off".to_owned());
        };
        let back = taken_at.saturating_sub(now).max(0);
        let mut put_back = PutBack::default();
        for entry in entries {
            let Entry { hash, instant } = read(entry)?;
            let instant = instant.saturating_sub(back);
            if instant <= now {
                continue;
            }
            match self.shard(region, hash).put_back(hash, instant, now) {
                Ok(()) => put_back.kept += 1,
                Err(ShardFull) => put_back.no_room += 1,
            }
        }
        Ok(put_back)
    }

    #[inline]
    fn shard(&self, region: Region, hash: u128) -> MutexGuard<'_, Shard> {
        match region {
            // The low bits of the lower half. The slot in the shard comes from the upper half.
            Region::Own => locked(&self.shards[usize::try_from(hash % SHARDS as u128).unwrap_or(0)]),
            Region::Shared => locked(&self.shared),
        }
    }
}

/// A thread that panicked while it held the lock left a consistent table: each word is written in one step.
#[inline]
fn locked(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn piece(region: Region, entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + entries.len() * ENTRY_BYTES);
    bytes.push(region as u8);
    for Entry { hash, instant } in entries {
        bytes.extend_from_slice(&hash.to_le_bytes());
        bytes.extend_from_slice(&instant.to_le_bytes());
    }
    bytes
}

fn read(bytes: &[u8; ENTRY_BYTES]) -> Result<Entry, String> {
    let (hash, instant) = bytes.split_at(16);
    let hash = hash.try_into().map(u128::from_le_bytes);
    let instant = instant.try_into().map(i64::from_le_bytes);
    match (hash, instant) {
        // A zero upper half marks a free slot.
        (Ok(hash), Ok(instant)) if hash >> 64 != 0 => Ok(Entry { hash, instant }),
        _ => Err("a counter of a command has no key".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: i64 = 1_700_000_000_000_000_000;
    const SECOND: i64 = 1_000_000_000;

    fn filled(table: &CounterTable, keys: u64) {
        let limit = Limit::beyond_one(0, 1, 1).unwrap();
        for key in 0..u128::from(keys) {
            let hash = (key + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
            let region = if key % 10 == 9 { Region::Shared } else { Region::Own };
            assert!(!table.charge(region, hash, &limit, NOW, 1).unwrap().limited);
        }
    }

    fn put_back(pieces: &[Vec<u8>], bytes: u64, taken_at: i64, now: i64) -> (CounterTable, PutBack) {
        let (table, mut all) = (CounterTable::new(bytes), PutBack::default());
        for piece in pieces {
            let PutBack { kept, no_room } = table.put_back(piece, taken_at, now).unwrap();
            all = PutBack { kept: all.kept + kept, no_room: all.no_room + no_room };
        }
        (table, all)
    }

    fn sorted(table: &CounterTable, now: i64) -> Vec<(u8, [u8; ENTRY_BYTES])> {
        let pieces: Vec<Vec<u8>> = table.pieces(now).collect();
        let entries = pieces
            .iter()
            .flat_map(|piece| piece[1..].as_chunks::<ENTRY_BYTES>().0.iter().map(|entry| (piece[0], *entry)));
        let mut entries: Vec<_> = entries.collect();
        entries.sort_unstable();
        entries
    }

    /// Saved entries are restored, also into a table of another size. Past entries are neither saved nor restored.
    #[test]
    fn what_was_written_is_there_again() {
        let table = CounterTable::new(1 << 20);
        filled(&table, 1_000);
        let pieces: Vec<Vec<u8>> = table.pieces(NOW).collect();
        assert_eq!(pieces.iter().map(|piece| CounterTable::entries_in(piece)).sum::<u64>(), 1_000);
        for bytes in [1 << 20, 1 << 22] {
            let (again, report) = put_back(&pieces, bytes, NOW, NOW);
            assert_eq!(report, PutBack { kept: 1_000, no_room: 0 });
            assert_eq!(sorted(&again, NOW), sorted(&table, NOW));
        }
        let (small, report) = put_back(&pieces, 1 << 15, NOW, NOW);
        assert_eq!((report.kept + report.no_room, report.kept), (1_000, sorted(&small, NOW).len() as u64));
        assert!(report.no_room > 0 && report.kept > 100, "{report:?}");
        assert_eq!(table.pieces(NOW + SECOND).count(), 0);
        assert_eq!(put_back(&pieces, 1 << 20, NOW, NOW + SECOND).1, PutBack::default());
    }

    /// A clock that was set back moves the entries back. A clock that was set forward has let that much time pass.
    #[test]
    fn clocks_that_were_set() {
        let table = CounterTable::new(1 << 20);
        let limit = Limit::beyond_one(9, 1, 1).unwrap();
        let key = 7 << 64 | 7;
        table.charge(Region::Own, key, &limit, NOW, 10).unwrap();
        let pieces: Vec<Vec<u8>> = table.pieces(NOW).collect();
        for (moved, left) in [(0, 10), (-86_400, 10), (4, 6)] {
            let now = NOW + moved * SECOND;
            let (again, _) = put_back(&pieces, 1 << 20, NOW, now);
            assert_eq!(again.instant(key, now), Some(now + left * SECOND), "moved by {moved} s");
        }
    }

    /// Forgetting a key removes that key only.
    #[test]
    fn one_is_forgotten() {
        let table = CounterTable::new(1 << 20);
        let limit = Limit::beyond_one(0, 1, 1).unwrap();
        let keys = [1u128 << 64 | 256, 1 << 64 | 512, 2 << 64];
        for key in keys {
            table.charge(Region::Own, key, &limit, NOW, 1).unwrap();
        }
        assert_eq!([table.forget(keys[0], NOW), table.forget(keys[0], NOW)], [true, false]);
        assert_eq!(keys.map(|key| table.instant(key, NOW).is_some()), [false, true, true]);
        assert!(!table.forget(keys[1], NOW + SECOND), "what is past is nothing to forget");
    }

    proptest! {
        /// No input causes a panic or an inconsistent table: restored entries are saved again.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(0..4u8, 0..200), taken_at: i64, now: i64) {
            let table = CounterTable::new(1 << 16);
            if let Ok(report) = table.put_back(&bytes, taken_at, now) {
                prop_assert!(report.kept <= CounterTable::entries_in(&bytes));
                prop_assert!(sorted(&table, now).len() as u64 <= report.kept);
            }
        }
    }
}
