//! Every interleaving of a few steps of the table's protocol, searched by loom. Run by `./test` with `--cfg loom`.

use std::sync::Arc;

use super::{Entry, Shape, Table};
use crate::key::Fingerprint;
use crate::memory::region::{Budget, LINE_BYTES};
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
        (Some(Entry { state, number: 0 }), ())
    });
    assert!(added.is_ok());
}

fn look(table: &Pairs, key: Fingerprint) -> Option<[u64; 2]> {
    table.update(key, 0, |held| (None, held.map(|entry| entry.state))).ok().flatten()
}

/// Two writers of one key: both count.
#[test]
fn loom_two_writers_both_count() {
    loom::model(|| {
        let table = table();
        add(&table, key(0));
        let other = Arc::clone(&table);
        let writer = loom::thread::spawn(move || add(&other, key(0)));
        add(&table, key(0));
        writer.join().unwrap();
        assert_eq!(look(&table, key(0)), Some([3, 3]));
    });
}

/// Two threads that meet a new key at once make one entry of it.
#[test]
fn loom_two_inserts_make_one_entry() {
    loom::model(|| {
        let table = table();
        let other = Arc::clone(&table);
        let writer = loom::thread::spawn(move || add(&other, key(1)));
        add(&table, key(1));
        writer.join().unwrap();
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
        let other = Arc::clone(&table);
        let writer = loom::thread::spawn(move || add(&other, key(0)));
        let seen = look(&table, key(0));
        assert!(seen == Some([1, 1]) || seen == Some([2, 2]), "{seen:?}");
        writer.join().unwrap();
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
        let other = Arc::clone(&table);
        let splitter = loom::thread::spawn(move || {
            other.shape.store(Shape::new(3).0, Ordering::Release);
            other.ensure_ready(2, 0);
        });
        add(&table, key(2));
        splitter.join().unwrap();
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
                let next = Entry { state: entry.state.map(|word| word + 1), number: 0 };
                table.write(place, key(bucket as u64), next);
            }
            table.unlock(1);
            table.unlock(0);
        };
        let other = Arc::clone(&table);
        let transaction = loom::thread::spawn(move || both(&other));
        both(&table);
        transaction.join().unwrap();
        assert_eq!(look(&table, key(0)), Some([3, 3]));
        assert_eq!(look(&table, key(1)), Some([3, 3]));
    });
}
