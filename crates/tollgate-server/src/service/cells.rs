//! What `CL.THROTTLE` and `THROTTLE` remember: for each key the instant from which it is as if never used. Keys are kept as keyed
//! hashes, and the table never grows beyond its bytes. An entry is given up only when its instant is past, which is the same
//! as no entry. When all of them matter, new keys share a few counters of their limit, and known keys stay exact.

use tollgate::key::KeyFamily;

use super::cell::{Charged, Limit};
use shard::ShardFull;
use table::Room;
use tollgate::Source;

mod shard;
mod table;

pub(crate) use table::Table;

/// How many counters the new keys of one limit share while there is no room.
const SHARES: u128 = 8;

/// Which command asks. A key of one is another than the same key of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// `CL.THROTTLE`.
    Cell,
    /// `THROTTLE`.
    Crab,
}

impl Asker {
    pub(crate) const ALL: [Asker; 2] = [Asker::Cell, Asker::Crab];

    /// The command, as operators name it. It is also the name of its keys' family, so another name would forget all of them.
    pub(crate) const fn command(self) -> &'static str {
        match self {
            Asker::Cell => "cl.throttle",
            Asker::Crab => "throttle",
        }
    }
}

/// The counters.
pub(crate) struct Cells {
    cell: KeyFamily,
    crab: KeyFamily,
    shared: KeyFamily,
    pub(crate) table: Table,
}

impl Cells {
    /// Counters in this table, whose keys are of these families.
    pub(crate) fn new(table: Table, family: impl Fn(&str) -> KeyFamily) -> Self {
        Self {
            cell: family(Asker::Cell.command()),
            crab: family(Asker::Crab.command()),
            shared: family("shared"),
            table,
        }
    }

    /// Charges a key, and tells by which counter. It always answers: without room for a counter the key shares one, and without
    /// room for that it is refused.
    pub(crate) fn charge(
        &self,
        asker: Asker,
        key: &[u8],
        limit: &Limit,
        now: i64,
        quantity: i64,
    ) -> (Charged, Source) {
        let hash = self.hash(asker, key);
        match self.table.charge(Room::Own, hash, limit, now, quantity) {
            Ok(charged) => (charged, Source::Exact),
            Err(ShardFull) => match self.charge_shared(hash, limit, now, quantity) {
                Ok(charged) => (charged, Source::Overflow),
                Err(ShardFull) => (limit.refused(), Source::Full),
            },
        }
    }

    /// From when on a key is as if never used, if that is still to come.
    pub(crate) fn instant(&self, asker: Asker, key: &[u8], now: i64) -> Option<i64> {
        self.table.instant(self.hash(asker, key), now)
    }

    /// Makes a key as if never used; tells whether it was not.
    pub(crate) fn forget(&self, asker: Asker, key: &[u8], now: i64) -> bool {
        self.table.forget(self.hash(asker, key), now)
    }

    #[inline]
    fn hash(&self, asker: Asker, key: &[u8]) -> u128 {
        match asker {
            Asker::Cell => self.cell.hash(key),
            Asker::Crab => self.crab.hash(key),
        }
    }

    #[cold]
    fn charge_shared(&self, key: u128, limit: &Limit, now: i64, quantity: i64) -> Result<Charged, ShardFull> {
        let share = (key % SHARES).to_le_bytes();
        let [interval, most] = limit.identity().map(i64::to_le_bytes);
        let hash = self.shared.hash_parts(&[&interval, &most, &share]);
        self.table.charge(Room::Hall, hash, limit, now, quantity)
    }
}

#[cfg(test)]
mod tests {
    use tollgate::Secret;

    use super::*;

    const NOW: i64 = 1_700_000_000_000_000_000;
    const HOUR: i64 = 3_600_000_000_000;

    fn cells(bytes: u64) -> Cells {
        Cells::new(Table::new(bytes), |name| KeyFamily::new(name, Secret::random()))
    }

    fn hourly() -> Limit {
        Limit::beyond_one(1, 1, 3_600).unwrap()
    }

    /// Two commands count the same key apart, and two limits of one command together, as redis-cell does.
    #[test]
    fn keys_are_told_apart() {
        let cells = cells(1 << 20);
        let left = |asker, key: &[u8]| cells.charge(asker, key, &hourly(), NOW, 1).0.remaining;
        assert_eq!([left(Asker::Cell, b"k"), left(Asker::Cell, b"k")], [1, 0]);
        assert_eq!([left(Asker::Crab, b"k"), left(Asker::Cell, b"other")], [1, 1]);
        let faster = Limit::beyond_one(1, 1, 60).unwrap();
        assert!(cells.charge(Asker::Cell, b"k", &faster, NOW, 1).0.limited);
    }

    /// A flood of new keys frees no throttled key and denies no known one; the flood itself is admitted no more often than
    /// the counters that it shares.
    #[test]
    fn a_flood_changes_nothing_for_known_keys() {
        let cells = cells(1 << 20);
        let charge = |key: &str, now| cells.charge(Asker::Cell, key.as_bytes(), &hourly(), now, 1).0;
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
        let cells = cells(1 << 20);
        for key in 0..200_000u32 {
            cells.charge(Asker::Cell, &key.to_le_bytes(), &hourly(), NOW, 1);
        }
        let other = Limit::beyond_one(0, 1, 60).unwrap();
        let admitted = (0..1_000u16)
            .filter(|key| !cells.charge(Asker::Cell, &key.to_le_bytes()[..], &other, NOW, 1).0.limited);
        assert_eq!(admitted.count(), 8);
    }

    /// Without room even for what is shared the answer is a denial.
    #[test]
    fn no_room_at_all() {
        let cells = cells(0);
        let refused = cells.charge(Asker::Cell, b"k", &hourly(), NOW, 1).0;
        assert_eq!(
            (refused.limited, refused.remaining, refused.retry_after),
            (true, 0, Some(i128::from(HOUR)))
        );
        assert!(!cells.charge(Asker::Cell, b"k", &hourly(), NOW, 0).0.limited, "to look needs no room");
    }
}
