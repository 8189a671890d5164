//! The counters of `CL.THROTTLE` and `THROTTLE`: for each key, the instant from which its counter is empty. Keys are
//! stored as keyed hashes, and the table never grows beyond its byte limit. An entry is evicted only when its instant
//! has passed, which equals having no entry. When every entry still counts, new keys share a few counters of their
//! limit, and known keys stay exact.

use tollgate::key::KeyFamily;

use super::cell::{Charged, Limit};
use shard::ShardFull;
use table::Region;
use tollgate::Source;

mod shard;
mod table;

pub(crate) use table::CounterTable;

/// The number of counters that new keys of one limit share while the table is full.
const SHARES: u128 = 8;

/// The command of a call. The same key has separate counters for each command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThrottleCommand {
    /// `CL.THROTTLE`.
    Cell,
    /// `THROTTLE`.
    Crab,
}

impl ThrottleCommand {
    pub(crate) const ALL: [ThrottleCommand; 2] = [ThrottleCommand::Cell, ThrottleCommand::Crab];

    /// The command, as operators name it. It is also the name of the key family, so a new name would lose all existing
    /// keys.
    pub(crate) const fn command(self) -> &'static str {
        match self {
            ThrottleCommand::Cell => "cl.throttle",
            ThrottleCommand::Crab => "throttle",
        }
    }
}

/// The counters.
pub(crate) struct Cells {
    cell: KeyFamily,
    crab: KeyFamily,
    shared: KeyFamily,
    pub(crate) table: CounterTable,
}

impl Cells {
    /// Counters in this table, with keys of these families.
    pub(crate) fn new(table: CounterTable, family: impl Fn(&str) -> KeyFamily) -> Self {
        Self {
            cell: family(ThrottleCommand::Cell.command()),
            crab: family(ThrottleCommand::Crab.command()),
            shared: family("shared"),
            table,
        }
    }

    /// Charges a key, and reports which counter was used. It always answers: if the table is full, the key shares a
    /// counter, and if that is impossible too, the key is denied.
    pub(crate) fn charge(
        &self,
        asker: ThrottleCommand,
        key: &[u8],
        limit: &Limit,
        now: i64,
        quantity: i64,
    ) -> (Charged, Source) {
        let hash = self.hash(asker, key);
        match self.table.charge(Region::Own, hash, limit, now, quantity) {
            Ok(charged) => (charged, Source::Exact),
            Err(ShardFull) => match self.charge_shared(hash, limit, now, quantity) {
                Ok(charged) => (charged, Source::Overflow),
                Err(ShardFull) => (limit.refused(), Source::Full),
            },
        }
    }

    /// The instant from which the counter of a key is empty, if it is in the future.
    pub(crate) fn instant(&self, asker: ThrottleCommand, key: &[u8], now: i64) -> Option<i64> {
        self.table.instant(self.hash(asker, key), now)
    }

    /// Clears the counter of a key. Returns whether it had counted anything.
    pub(crate) fn forget(&self, asker: ThrottleCommand, key: &[u8], now: i64) -> bool {
        self.table.forget(self.hash(asker, key), now)
    }

    #[inline]
    fn hash(&self, asker: ThrottleCommand, key: &[u8]) -> u128 {
        match asker {
            ThrottleCommand::Cell => self.cell.hash(key),
            ThrottleCommand::Crab => self.crab.hash(key),
        }
    }

    #[cold]
    fn charge_shared(&self, key: u128, limit: &Limit, now: i64, quantity: i64) -> Result<Charged, ShardFull> {
        let share = (key % SHARES).to_le_bytes();
        let [interval, most] = limit.identity().map(i64::to_le_bytes);
        let hash = self.shared.hash_parts(&[&interval, &most, &share]);
        self.table.charge(Region::Shared, hash, limit, now, quantity)
    }
}

#[cfg(test)]
mod tests {
    use tollgate::Secret;

    use super::*;

    const NOW: i64 = 1_700_000_000_000_000_000;
    const HOUR: i64 = 3_600_000_000_000;

    fn cells(bytes: u64) -> Cells {
        Cells::new(CounterTable::new(bytes), |name| KeyFamily::new(name, Secret::random()))
    }

    fn hourly() -> Limit {
        Limit::beyond_one(1, 1, 3_600).unwrap()
    }

    /// The two commands count the same key separately. Two limits of one command count it together, as in redis-cell.
    #[test]
    fn keys_are_told_apart() {
        let cells = cells(1 << 20);
        let left = |asker, key: &[u8]| cells.charge(asker, key, &hourly(), NOW, 1).0.remaining;
        assert_eq!([left(ThrottleCommand::Cell, b"k"), left(ThrottleCommand::Cell, b"k")], [1, 0]);
        assert_eq!([left(ThrottleCommand::Crab, b"k"), left(ThrottleCommand::Cell, b"other")], [1, 1]);
        let faster = Limit::beyond_one(1, 1, 60).unwrap();
        assert!(cells.charge(ThrottleCommand::Cell, b"k", &faster, NOW, 1).0.limited);
    }

    /// A flood of new keys neither frees a throttled key nor denies a known one. The flood itself is admitted only as
    /// often as the counters that it shares allow.
    #[test]
    fn a_flood_changes_nothing_for_known_keys() {
        let cells = cells(1 << 20);
        let charge =
            |key: &str, now| cells.charge(ThrottleCommand::Cell, key.as_bytes(), &hourly(), now, 1).0;
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
        // When the entries of the flood have passed, there is room again.
        let tomorrow = NOW + 24 * HOUR;
        assert_eq!((0..20_000).filter(|key| charge(&format!("new-{key}"), tomorrow).limited).count(), 0);
    }

    /// New keys of another limit do not share the counters of the flooded limit.
    #[test]
    fn limits_share_apart() {
        let cells = cells(1 << 20);
        for key in 0..200_000u32 {
            cells.charge(ThrottleCommand::Cell, &key.to_le_bytes(), &hourly(), NOW, 1);
        }
        let other = Limit::beyond_one(0, 1, 60).unwrap();
        let admitted = (0..1_000u16).filter(|key| {
            !cells.charge(ThrottleCommand::Cell, &key.to_le_bytes()[..], &other, NOW, 1).0.limited
        });
        assert_eq!(admitted.count(), 8);
    }

    /// Without room even for a shared counter, the answer is a denial.
    #[test]
    fn no_room_at_all() {
        let cells = cells(0);
        let refused = cells.charge(ThrottleCommand::Cell, b"k", &hourly(), NOW, 1).0;
        assert_eq!(
            (refused.limited, refused.remaining, refused.retry_after),
            (true, 0, Some(i128::from(HOUR)))
        );
        assert!(
            !cells.charge(ThrottleCommand::Cell, b"k", &hourly(), NOW, 0).0.limited,
            "to look needs no room"
        );
    }
}
