//! What `CL.THROTTLE` and `THROTTLE` remember: for each key the instant from which it is as if never used. Keys are kept as keyed
//! hashes, and the table never grows beyond its bytes. An entry is given up only when its instant is past, which is the same
//! as no entry. When all of them matter, new keys share a few counters of their limit, and known keys stay exact.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::{KeyFamily, Secret};

use super::cell::{Charged, Limit};
use shard::{Full, Shard};

mod shard;

/// Parts of the table, each with a lock of its own, so that keys seldom wait for each other.
const SHARDS: usize = 256;
/// How many counters the new keys of one limit share while there is no room.
const SHARES: u128 = 8;
/// Bytes of the hall where those counters are kept, as a part of all.
const HALL_PART: u64 = 64;

/// Which command asks. A key of one is another than the same key of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// `CL.THROTTLE`.
    Cell,
    /// `THROTTLE`.
    Crab,
}

/// The table.
pub(crate) struct Cells {
    cell: KeyFamily,
    crab: KeyFamily,
    shared: KeyFamily,
    shards: Box<[Mutex<Shard>]>,
    hall: Mutex<Shard>,
}

impl Cells {
    /// A table of at most so many bytes. They are taken as they are needed.
    pub(crate) fn new(bytes: u64) -> Self {
        let hall = bytes / HALL_PART;
        let shard = (bytes - hall) / SHARDS as u64;
        Self {
            cell: KeyFamily::new("cl.throttle", Secret::random()),
            crab: KeyFamily::new("throttle", Secret::random()),
            shared: KeyFamily::new("shared", Secret::random()),
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::new(shard))).collect(),
            hall: Mutex::new(Shard::new(hall)),
        }
    }

    /// Charges a key. It always answers: without room for a counter the key shares one, and without room for that it is
    /// refused.
    pub(crate) fn charge(&self, asker: Asker, key: &[u8], limit: &Limit, now: i64, quantity: i64) -> Charged {
        let family = match asker {
            Asker::Cell => &self.cell,
            Asker::Crab => &self.crab,
        };
        let hash = family.hash(key);
        self.shard(hash)
            .charge(hash, limit, now, quantity)
            .or_else(|Full| self.charge_shared(hash, limit, now, quantity))
            .unwrap_or_else(|Full| limit.refused())
    }

    #[cold]
    fn charge_shared(&self, key: u128, limit: &Limit, now: i64, quantity: i64) -> Result<Charged, Full> {
        let share = (key % SHARES).to_le_bytes();
        let [interval, most] = limit.identity().map(i64::to_le_bytes);
        let hash = self.shared.hash_parts(&[&interval, &most, &share]);
        locked(&self.hall).charge(hash, limit, now, quantity)
    }

    #[inline]
    fn shard(&self, hash: u128) -> MutexGuard<'_, Shard> {
        // The low bits of the lower half; the place in the shard comes from the upper one.
        let index = usize::try_from(hash % SHARDS as u128).unwrap_or(0);
        locked(&self.shards[index])
    }
}

/// A thread that panicked while it held the lock left a table that is still sound: each word is written at once.
#[inline]
fn locked(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000_000_000_000;
    const HOUR: i64 = 3_600_000_000_000;

    fn hourly() -> Limit {
        Limit::beyond_one(1, 1, 3_600).unwrap()
    }

    /// Two commands count the same key apart, and two limits of one command together, as redis-cell does.
    #[test]
    fn keys_are_told_apart() {
        let cells = Cells::new(1 << 20);
        let left = |asker, key: &[u8]| cells.charge(asker, key, &hourly(), NOW, 1).remaining;
        assert_eq!([left(Asker::Cell, b"k"), left(Asker::Cell, b"k")], [1, 0]);
        assert_eq!([left(Asker::Crab, b"k"), left(Asker::Cell, b"other")], [1, 1]);
        let faster = Limit::beyond_one(1, 1, 60).unwrap();
        assert!(cells.charge(Asker::Cell, b"k", &faster, NOW, 1).limited);
    }

    /// A flood of new keys frees no throttled key and denies no known one; the flood itself is admitted no more often than
    /// the counters that it shares.
    #[test]
    fn a_flood_changes_nothing_for_known_keys() {
        let cells = Cells::new(1 << 20);
        let charge = |key: &str, now| cells.charge(Asker::Cell, key.as_bytes(), &hourly(), now, 1);
        for _ in 0..2 {
            assert!(!charge("throttled", NOW).limited);
        }
        charge("known", NOW);
        let admitted = (0..200_000).filter(|key| !charge(&format!("flood-{key}"), NOW).limited).count();
        let room = (1 << 20) / 24;
        assert!((room / 2..room).contains(&admitted), "{admitted} of room for {room}");
        let late = (0..1_000).filter(|key| !charge(&format!("late-{key}"), NOW).limited).count();
        assert_eq!(late, 0, "the shared counters are used up");
        assert!(charge("throttled", NOW).limited);
        assert!(!charge("known", NOW).limited);
        // When the flood's own entries are past, there is room again.
        let tomorrow = NOW + 24 * HOUR;
        assert_eq!((0..20_000).filter(|key| charge(&format!("new-{key}"), tomorrow).limited).count(), 0);
    }

    /// New keys of another limit do not share the counters of the one that floods.
    #[test]
    fn limits_share_apart() {
        let cells = Cells::new(1 << 20);
        for key in 0..200_000u32 {
            cells.charge(Asker::Cell, &key.to_le_bytes(), &hourly(), NOW, 1);
        }
        let other = Limit::beyond_one(0, 1, 60).unwrap();
        let admitted = (0..1_000u16)
            .filter(|key| !cells.charge(Asker::Cell, &key.to_le_bytes()[..], &other, NOW, 1).limited);
        assert_eq!(admitted.count(), 8);
    }

    /// Without room even for what is shared the answer is a denial.
    #[test]
    fn no_room_at_all() {
        let cells = Cells::new(0);
        let refused = cells.charge(Asker::Cell, b"k", &hourly(), NOW, 1);
        assert_eq!(
            (refused.limited, refused.remaining, refused.retry_after),
            (true, 0, Some(i128::from(HOUR)))
        );
        assert!(!cells.charge(Asker::Cell, b"k", &hourly(), NOW, 0).limited, "to look needs no room");
    }
}
