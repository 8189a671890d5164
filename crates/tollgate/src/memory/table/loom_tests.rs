//! Every interleaving of a few steps of the table's protocol, searched by loom. Run by `./test` with `--cfg loom`.

use std::sync::Arc;

use super::{Shape, SlotEntry, Table, UnitStep};
use crate::algorithm::reservoir::{FRACTION_BITS, GAIN_MAX, Reservoir, WordStep};
use crate::key::Fingerprint;
use crate::memory::budget::Budget;
use crate::memory::region::LINE_BYTES;
use crate::rate::Rate;
use crate::sync::Ordering;

type Pairs = Table<2, 2>;

/// A key whose tag has these low bits: it says which bucket it lives in.
fn key(low: u64) -> Fingerprint {
    Fingerprint { tag: low | (1 << 30), rest: 0 }
}

fn table() -> Arc<Pairs> {
    Arc::new(Pairs::new(Arc::new(Budget::new(6 * LINE_BYTES)), 0))
}

fn add(table: &Pairs, key: Fingerprint) {
    let added = table.update(key, 0, |held| {
        let state = held.map_or([1, 1], |entry| entry.state.map(|word| word + 1));
        (Some(SlotEntry { state, number: 0 }), ())
    });
    assert!(added.is_ok());
}

fn look(table: &Pairs, key: Fingerprint) -> Option<[u64; 2]> {
    table.update(key, 0, |held| (None, held.map(|entry| entry.state))).ok().flatten()
}

/// Runs two things side by side. Both get a thread: loom does not look for other orders of what its main thread does.
fn side_by_side(
    table: &Arc<Pairs>,
    one: impl FnOnce(&Pairs) + 'static,
    other: impl FnOnce(&Pairs) + 'static,
) {
    let (left, right) = (Arc::clone(table), Arc::clone(table));
    let left = loom::thread::spawn(move || one(&left));
    let right = loom::thread::spawn(move || other(&right));
    left.join().unwrap();
    right.join().unwrap();
}

/// Two writers of one key: both count.
#[test]
fn loom_two_writers_both_count() {
    loom::model(|| {
        let table = table();
        add(&table, key(0));
        side_by_side(&table, |table| add(table, key(0)), |table| add(table, key(0)));
        assert_eq!(look(&table, key(0)), Some([3, 3]));
    });
}

/// Two threads that meet a new key at once make one entry of it.
#[test]
fn loom_two_inserts_make_one_entry() {
    loom::model(|| {
        let table = table();
        side_by_side(&table, |table| add(table, key(1)), |table| add(table, key(1)));
        assert_eq!(look(&table, key(1)), Some([2, 2]));
        assert_eq!(table.count(0), 1);
    });
}

/// A reader beside a writer sees the state before or after, never a mixture.
#[test]
fn loom_reads_are_not_torn() {
    loom::model(|| {
        let table = table();
        add(&table, key(0));
        let read = |table: &Pairs| {
            let seen = look(table, key(0));
            assert!(seen == Some([1, 1]) || seen == Some([2, 2]), "{seen:?}");
        };
        side_by_side(&table, |table| add(table, key(0)), read);
    });
}

/// A bucket that is split while its key is counted loses neither the key nor the count, and does not double it.
#[test]
fn loom_a_split_loses_nothing() {
    loom::model(|| {
        let table = table();
        // With two buckets, keys 0 and 2 share bucket 0; with three, key 2 moves to bucket 2.
        add(&table, key(0));
        add(&table, key(2));
        let split = |table: &Pairs| {
            table.shape.store(Shape::new(3).0, Ordering::Release);
            table.ensure_ready(2, 0);
        };
        side_by_side(&table, split, |table| add(table, key(2)));
        assert_eq!(look(&table, key(0)), Some([1, 1]));
        assert_eq!(look(&table, key(2)), Some([2, 2]));
        assert_eq!(table.count(0), 2);
    });
}

/// Two transactions that lock two buckets each, in order, finish, and both count.
#[test]
fn loom_ordered_locks_do_not_deadlock() {
    loom::model(|| {
        let table = table();
        add(&table, key(0));
        add(&table, key(1));
        let both = |table: &Pairs| {
            table.lock(0);
            table.lock(1);
            for bucket in [0, 1] {
                let (place, entry) = table.find(bucket, key(bucket as u64)).unwrap();
                let next = SlotEntry { state: entry.state.map(|word| word + 1), number: 0 };
                table.write(place, key(bucket as u64), next);
            }
            table.unlock(1);
            table.unlock(0);
        };
        side_by_side(&table, both, both);
        assert_eq!(look(&table, key(0)), Some([3, 3]));
        assert_eq!(look(&table, key(1)), Some([3, 3]));
    });
}

/// Two threads on the fast path: of two that ask for the last unit, exactly one gets it.
#[test]
fn loom_one_unit_is_given_once() {
    loom::model(|| {
        let word = Reservoir::new(Rate::per_second(1).burst(1), 1, GAIN_MAX).unwrap().word().unwrap();
        let table = Arc::new(Table::<3, 1>::new(Arc::new(Budget::new(6 * LINE_BYTES)), 0));
        let now = 5 << FRACTION_BITS;
        assert!(table.update(key(0), 0, |_| (Some(SlotEntry { state: [1], number: 0 }), ())).is_ok());
        let ask = move |table: &Table<3, 1>| {
            match table.unit(key(0), &word, 0, now) {
                UnitStep::Admit(_) => return 1,
                UnitStep::Deny { .. } => return 0,
                UnitStep::Busy | UnitStep::Unusual => {}
            }
            let whole = {
                let whole = table.update(key(0), now, |held| {
                    let step = word.unit(held.map_or(0, |entry| entry.state[0]), now);
                    match step {
                        WordStep::Admit(next) => (Some(SlotEntry { state: [next], number: 0 }), step),
                        _ => (None, step),
                    }
                });
                whole.unwrap()
            };
            u32::from(matches!(whole, WordStep::Admit(_)))
        };
        let (left, right) = (Arc::clone(&table), Arc::clone(&table));
        let left = loom::thread::spawn(move || ask(&left));
        let right = loom::thread::spawn(move || ask(&right));
        assert_eq!(left.join().unwrap() + right.join().unwrap(), 1);
    });
}
