//! The counters of `CL.THROTTLE` and `THROTTLE`: for each key, the instant from which its counter is empty. Keys are
//! stored as keyed hashes, in shards with one lock each. An entry is evicted only when its instant has passed, which
//! equals having no entry. When every entry still counts, new keys are refused, and known keys stay exact.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::Source;
use tollgate::key::KeyFamily;

use super::throttle_limit::{Charged, Limit};

/// Number of shards.
const SHARDS: usize = 256;
/// Bytes of a map's bucket: a key's hash, an instant, and the map's own byte. A map has a power of two of them, and
/// uses seven in eight.
const BUCKET_BYTES: u64 = 25;
/// How long a full shard waits before it looks for past entries again, in nanoseconds.
const SWEEP_INTERVAL: u64 = 250_000_000;
/// Maximum number of entries in one saved piece.
const PIECE_ENTRIES: usize = 1 << 15;
/// Bytes of a saved entry: the key's hash and the instant.
const ENTRY_BYTES: usize = 24;
/// The first byte of a saved piece. Earlier versions also saved counters that new keys shared, which now have none.
const OWN_COUNTERS: u8 = 0;
const SHARED_COUNTERS: u8 = 1;

/// The keyed hash of a key.
type KeyHash = [u8; 16];

/// The command of a call. The same key has separate counters for each command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThrottleCommand {
    /// `CL.THROTTLE`.
    ClThrottle,
    /// `THROTTLE`.
    Throttle,
}

impl ThrottleCommand {
    pub(crate) const ALL: [ThrottleCommand; 2] = [ThrottleCommand::ClThrottle, ThrottleCommand::Throttle];

    /// The command, as operators name it. It is also the name of the key family, so a new name would lose all existing
    /// keys.
    pub(crate) const fn command(self) -> &'static str {
        match self {
            ThrottleCommand::ClThrottle => "cl.throttle",
            ThrottleCommand::Throttle => "throttle",
        }
    }
}

/// The counters.
pub(crate) struct ThrottleCounters {
    cell: KeyFamily,
    crab: KeyFamily,
    pub(crate) table: CounterTable,
}

impl ThrottleCounters {
    /// Counters in this table, with keys of these families.
    pub(crate) fn new(table: CounterTable, family: impl Fn(&str) -> KeyFamily) -> Self {
        Self {
            cell: family(ThrottleCommand::ClThrottle.command()),
            crab: family(ThrottleCommand::Throttle.command()),
            table,
        }
    }

    /// Charges a key, and reports which counter was used. It always answers: if the table is full, a new key is denied.
    pub(crate) fn charge(
        &self,
        command: ThrottleCommand,
        key: &[u8],
        limit: &Limit,
        now: i64,
        quantity: i64,
    ) -> (Charged, Source) {
        let hash = self.hash(command, key);
        let mut shard = self.table.shard(&hash);
        let stored = shard.instants.get_mut(&hash);
        let (charged, next) = limit.charge(stored.as_deref().copied(), now, quantity);
        // Without a next instant there is nothing to remember.
        if let Some(next) = next {
            if let Some(stored) = stored {
                *stored = next;
            } else if next > now && shard.insert(hash, next, now).is_err() {
                return (limit.refused(), Source::Full);
            }
        }
        (charged, Source::Exact)
    }

    /// The instant from which the counter of a key is empty, if it is in the future.
    pub(crate) fn instant(&self, command: ThrottleCommand, key: &[u8], now: i64) -> Option<i64> {
        let hash = self.hash(command, key);
        self.table.shard(&hash).instants.get(&hash).copied().filter(|instant| *instant > now)
    }

    /// Clears the counter of a key. Returns whether it had counted anything.
    pub(crate) fn forget(&self, command: ThrottleCommand, key: &[u8], now: i64) -> bool {
        let hash = self.hash(command, key);
        let mut shard = self.table.shard(&hash);
        // The entry stays until the next sweep: a map that entries were removed from one by one may grow for no entry.
        let cleared = shard.instants.get_mut(&hash).map(|instant| std::mem::replace(instant, i64::MIN));
        cleared.is_some_and(|instant| instant > now)
    }

    #[inline]
    fn hash(&self, command: ThrottleCommand, key: &[u8]) -> KeyHash {
        let hash = match command {
            ThrottleCommand::ClThrottle => self.cell.hash(key),
            ThrottleCommand::Throttle => self.crab.hash(key),
        };
        hash.to_le_bytes()
    }
}

/// The memory of the counters, which can be saved and restored.
pub(crate) struct CounterTable {
    shards: Box<[Mutex<Shard>]>,
}

/// The result of restoring entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RestoreResult {
    /// Entries that were restored.
    pub(crate) kept: u64,
    /// Entries without room: the counters of their keys start empty.
    pub(crate) dropped: u64,
}

impl CounterTable {
    /// A table of at most this many bytes, which are allocated as they are needed.
    pub(crate) fn new(bytes: u64) -> Self {
        let buckets = bytes / SHARDS as u64 / BUCKET_BYTES;
        let buckets = buckets.checked_ilog2().map_or(0, |log| 1usize << log);
        let shard = || Shard { instants: HashMap::new(), entries_max: buckets / 8 * 7, swept_at: i64::MIN };
        Self { shards: (0..SHARDS).map(|_| Mutex::new(shard())).collect() }
    }

    /// All entries that still count, in pieces, while charges go on. Each shard is copied at one instant under its
    /// lock, and no piece is written during the copy.
    pub(crate) fn pieces(&self, now: i64) -> impl Iterator<Item = Vec<u8>> {
        self.shards.iter().flat_map(move |shard| {
            let shard = locked(shard);
            let counting = shard.instants.iter().filter(|(_, instant)| **instant > now);
            let entries: Vec<_> = counting.map(|(hash, instant)| (*hash, *instant)).collect();
            drop(shard);
            entries.chunks(PIECE_ENTRIES).map(piece).collect::<Vec<_>>()
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
    pub(crate) fn restore(&self, piece: &[u8], taken_at: i64, now: i64) -> Result<RestoreResult, String> {
        let entries = match piece.split_first() {
            Some((&OWN_COUNTERS, entries)) => entries,
            Some((&SHARED_COUNTERS, _)) => return Ok(RestoreResult::default()),
            _ => return Err("a part is counted by a command that this version does not know".to_owned()),
        };
        let (entries, []) = entries.as_chunks::<ENTRY_BYTES>() else {
            return Err("a counter of a command is cut off".to_owned());
        };
        let back = taken_at.saturating_sub(now).max(0);
        let mut restore = RestoreResult::default();
        for entry in entries {
            let Some((hash, instant)) = entry.split_first_chunk() else { continue };
            let Some(instant) = instant.first_chunk().copied().map(i64::from_le_bytes) else { continue };
            let instant = instant.saturating_sub(back);
            if instant <= now {
                continue;
            }
            match self.shard(hash).restore(*hash, instant, now) {
                Ok(()) => restore.kept += 1,
                Err(ShardFull) => restore.dropped += 1,
            }
        }
        Ok(restore)
    }

    #[inline]
    fn shard(&self, hash: &KeyHash) -> MutexGuard<'_, Shard> {
        locked(&self.shards[usize::from(hash[0]) % SHARDS])
    }
}

/// A thread that panicked while it held the lock left a consistent map: each change of it is one step.
#[inline]
fn locked(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn piece(entries: &[(KeyHash, i64)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + entries.len() * ENTRY_BYTES);
    bytes.push(OWN_COUNTERS);
    for (hash, instant) in entries {
        bytes.extend_from_slice(hash);
        bytes.extend_from_slice(&instant.to_le_bytes());
    }
    bytes
}

/// The shard has no room for another key.
struct ShardFull;

/// One part of the table.
struct Shard {
    instants: HashMap<KeyHash, i64>,
    /// Maximum number of entries.
    entries_max: usize,
    /// When past entries were last looked for.
    swept_at: i64,
}

impl Shard {
    /// Restores a saved key. The later instant wins.
    fn restore(&mut self, hash: KeyHash, instant: i64, now: i64) -> Result<(), ShardFull> {
        match self.instants.get_mut(&hash) {
            Some(stored) => *stored = instant.max(*stored),
            None => self.insert(hash, instant, now)?,
        }
        Ok(())
    }

    /// Adds a key that has no entry yet.
    fn insert(&mut self, hash: KeyHash, instant: i64, now: i64) -> Result<(), ShardFull> {
        if self.instants.len() >= self.entries_max && !self.sweep(now) {
            return Err(ShardFull);
        }
        self.instants.insert(hash, instant);
        Ok(())
    }

    /// Evicts past entries, unless it did so just now. Returns whether there is room. The entries that stay move to a
    /// new map, because a map that entries were removed from may grow while it has free buckets.
    #[cold]
    fn sweep(&mut self, now: i64) -> bool {
        if self.entries_max == 0 || now.abs_diff(self.swept_at) < SWEEP_INTERVAL {
            return false;
        }
        self.swept_at = now;
        if self.instants.values().any(|instant| *instant <= now) {
            let entries = std::mem::take(&mut self.instants).into_iter();
            self.instants = entries.filter(|(_, instant)| *instant > now).collect();
        }
        self.instants.len() < self.entries_max
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tollgate::Secret;

    use super::*;

    const NOW: i64 = 1_700_000_000_000_000_000;
    const SECOND: i64 = 1_000_000_000;
    const HOUR: i64 = 3_600 * SECOND;

    fn throttle_counters(bytes: u64) -> ThrottleCounters {
        cells_in(CounterTable::new(bytes))
    }

    fn cells_in(table: CounterTable) -> ThrottleCounters {
        ThrottleCounters::new(table, |name| KeyFamily::new(name, Secret::repeatable(1)))
    }

    fn hourly() -> Limit {
        Limit::beyond_one(1, 1, 3_600).unwrap()
    }

    /// The two commands count the same key separately. Two limits of one command count it together, as in redis-cell.
    #[test]
    fn keys_have_separate_counters() {
        let throttle_counters = throttle_counters(1 << 20);
        let left =
            |command, key: &[u8]| throttle_counters.charge(command, key, &hourly(), NOW, 1).0.remaining;
        assert_eq!(
            [left(ThrottleCommand::ClThrottle, b"k"), left(ThrottleCommand::ClThrottle, b"k")],
            [1, 0]
        );
        assert_eq!(
            [left(ThrottleCommand::Throttle, b"k"), left(ThrottleCommand::ClThrottle, b"other")],
            [1, 1]
        );
        let faster = Limit::beyond_one(1, 1, 60).unwrap();
        assert!(throttle_counters.charge(ThrottleCommand::ClThrottle, b"k", &faster, NOW, 1).0.limited);
    }

    /// A flood of new keys neither frees a throttled key nor denies a known one. The flood itself is refused when the
    /// table is full, until its entries have passed.
    #[test]
    fn a_flood_changes_nothing_for_known_keys() {
        let throttle_counters = throttle_counters(1 << 20);
        let charge = |key: &str, now| {
            throttle_counters.charge(ThrottleCommand::ClThrottle, key.as_bytes(), &hourly(), now, 1)
        };
        for _ in 0..2 {
            assert!(!charge("throttled", NOW).0.limited);
        }
        charge("known", NOW);
        let admitted = (0..200_000).filter(|key| !charge(&format!("flood-{key}"), NOW).0.limited).count();
        let room = (1 << 20) / ENTRY_BYTES;
        assert!((room / 2..room).contains(&admitted), "{admitted} of room for {room}");
        let (late, source) = charge("late", NOW);
        assert_eq!((late.limited, source), (true, Source::Full));
        assert!(charge("throttled", NOW).0.limited);
        assert_eq!((charge("known", NOW).0.limited, charge("known", NOW).1), (false, Source::Exact));
        let tomorrow = NOW + 24 * HOUR;
        assert_eq!((0..20_000).filter(|key| charge(&format!("new-{key}"), tomorrow).0.limited).count(), 0);
    }

    /// A map takes no more memory than the table was given, however often keys come, pass and are forgotten.
    #[test]
    fn a_shard_stays_within_its_bytes() {
        let throttle_counters = throttle_counters(1 << 20);
        for round in 0..10 {
            let now = NOW + round * HOUR;
            for key in 0..40_000u32 {
                throttle_counters.charge(
                    ThrottleCommand::ClThrottle,
                    &key.to_le_bytes(),
                    &hourly(),
                    now,
                    1 + round % 2,
                );
                if key % 3 == 0 {
                    throttle_counters.forget(ThrottleCommand::ClThrottle, &key.to_le_bytes(), now);
                }
            }
        }
        for shard in &throttle_counters.table.shards {
            let shard = locked(shard);
            assert!(
                shard.instants.capacity() <= shard.entries_max,
                "{} > {}",
                shard.instants.capacity(),
                shard.entries_max
            );
        }
    }

    /// Without room for any counter, the answer is a denial.
    #[test]
    fn no_room_at_all() {
        let throttle_counters = throttle_counters(0);
        let refused = throttle_counters.charge(ThrottleCommand::ClThrottle, b"k", &hourly(), NOW, 1).0;
        assert_eq!(
            (refused.limited, refused.remaining, refused.retry_after),
            (true, 0, Some(i128::from(HOUR)))
        );
        assert!(
            !throttle_counters.charge(ThrottleCommand::ClThrottle, b"k", &hourly(), NOW, 0).0.limited,
            "to look needs no room"
        );
    }

    /// One key in a hundred is used for a second, the others for ten.
    fn filled(throttle_counters: &ThrottleCounters, keys: u32) {
        let limit = Limit::beyond_one(9, 1, 1).unwrap();
        for key in 0..keys {
            let quantity = if key % 100 == 0 { 1 } else { 10 };
            throttle_counters.charge(ThrottleCommand::ClThrottle, &key.to_le_bytes(), &limit, NOW, quantity);
        }
    }

    fn restore(pieces: &[Vec<u8>], bytes: u64, taken_at: i64, now: i64) -> (CounterTable, RestoreResult) {
        let (table, mut all) = (CounterTable::new(bytes), RestoreResult::default());
        for piece in pieces {
            let RestoreResult { kept, dropped } = table.restore(piece, taken_at, now).unwrap();
            all = RestoreResult { kept: all.kept + kept, dropped: all.dropped + dropped };
        }
        (table, all)
    }

    fn sorted(table: &CounterTable, now: i64) -> Vec<[u8; ENTRY_BYTES]> {
        let pieces = table.pieces(now);
        let mut entries: Vec<_> =
            pieces.flat_map(|piece| piece[1..].as_chunks::<ENTRY_BYTES>().0.to_vec()).collect();
        entries.sort_unstable();
        entries
    }

    /// Saved entries are restored, also into a table of another size. Past entries are neither saved nor restored.
    #[test]
    fn a_restored_counter_equals_the_written_one() {
        let throttle_counters = throttle_counters(1 << 20);
        filled(&throttle_counters, 2_500);
        let pieces: Vec<Vec<u8>> = throttle_counters.table.pieces(NOW).collect();
        assert_eq!(pieces.iter().map(|piece| CounterTable::entries_in(piece)).sum::<u64>(), 2_500);
        for bytes in [1 << 20, 1 << 22] {
            let (again, report) = restore(&pieces, bytes, NOW, NOW);
            assert_eq!(report, RestoreResult { kept: 2_500, dropped: 0 });
            assert_eq!(sorted(&again, NOW), sorted(&throttle_counters.table, NOW));
        }
        let (small, report) = restore(&pieces, 1 << 16, NOW, NOW);
        assert_eq!((report.kept + report.dropped, report.kept), (2_500, sorted(&small, NOW).len() as u64));
        assert!(report.dropped > 0 && report.kept > 1_500, "{report:?}");
        assert_eq!(sorted(&throttle_counters.table, NOW + SECOND).len(), 2_475);
        assert_eq!(restore(&pieces, 1 << 20, NOW, NOW + SECOND).1, RestoreResult { kept: 2_475, dropped: 0 });
    }

    /// A clock that was set back moves the entries back. A clock that was set forward has let that much time pass.
    #[test]
    fn clocks_that_were_set() {
        let throttle_counters = throttle_counters(1 << 20);
        filled(&throttle_counters, 2);
        let pieces: Vec<Vec<u8>> = throttle_counters.table.pieces(NOW).collect();
        for (moved, left) in [(0, [1, 10]), (-86_400, [1, 10]), (4, [-3, 6])] {
            let now = NOW + moved * SECOND;
            let again = cells_in(restore(&pieces, 1 << 20, NOW, now).0);
            let instants =
                [0u32, 1].map(|key| again.instant(ThrottleCommand::ClThrottle, &key.to_le_bytes(), now));
            let expected = left.map(|left| (left > 0).then_some(now + left * SECOND));
            assert_eq!(instants, expected, "moved by {moved} s");
        }
    }

    /// Forgetting a key clears that key only.
    #[test]
    fn one_is_forgotten() {
        let throttle_counters = throttle_counters(1 << 20);
        filled(&throttle_counters, 3);
        let forget =
            |key: u32, now| throttle_counters.forget(ThrottleCommand::ClThrottle, &key.to_le_bytes(), now);
        assert_eq!([forget(0, NOW), forget(0, NOW)], [true, false]);
        assert_eq!(sorted(&throttle_counters.table, NOW).len(), 2);
        assert!(!forget(1, NOW + 10 * SECOND), "what is past is nothing to forget");
    }

    /// The shared counters that an earlier version saved are passed over.
    #[test]
    fn shared_counters_of_an_earlier_version() {
        let piece = [[SHARED_COUNTERS; 1].as_slice(), &[9; ENTRY_BYTES]].concat();
        assert_eq!(CounterTable::new(1 << 20).restore(&piece, NOW, NOW), Ok(RestoreResult::default()));
    }

    proptest! {
        /// No input causes a panic or an inconsistent table: restored entries are saved again.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(0..4u8, 0..200), taken_at: i64, now: i64) {
            let table = CounterTable::new(1 << 16);
            if let Ok(report) = table.restore(&bytes, taken_at, now) {
                prop_assert!(report.kept <= CounterTable::entries_in(&bytes));
                prop_assert!(sorted(&table, now).len() as u64 <= report.kept);
            }
        }
    }
}
