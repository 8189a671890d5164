//! The table against a plain map, under growth, pressure and threads.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Full, SlotEntry, Table};
use crate::key::{Fingerprint, Secret};
use crate::memory::budget::Budget;
use crate::memory::region::LINE_BYTES;

type Words = Table<3, 1>;
type Pairs = Table<2, 2>;

fn key(secret: &Secret, number: u64) -> Fingerprint {
    secret.text_key(&secret.prefix(&[b"test"]), format!("key-{number}").as_bytes())
}

fn add<const S: usize, const W: usize>(
    table: &Table<S, W>,
    key: Fingerprint,
    horizon: u64,
    by: u64,
) -> Result<u64, Full> {
    table.update(key, horizon, |held| {
        let mut state = held.map_or([0; W], |entry| entry.state);
        state.iter_mut().for_each(|word| *word += by);
        (Some(SlotEntry { state, number: 7 }), state[0])
    })
}

/// Xorshift: seeded, so that a failure repeats.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Whatever is added, through all growth and splits, the table holds what a map would hold.
#[test]
fn a_growing_table_holds_what_a_map_holds() {
    let secret = Secret::repeatable(1);
    let words = Words::new(Arc::new(Budget::new(64 << 20)), 0);
    let pairs = Pairs::new(Arc::new(Budget::new(64 << 20)), 0);
    let mut map: HashMap<u64, u64> = HashMap::new();
    let mut seed = 42;
    for _ in 0..200_000 {
        let number = random(&mut seed) % 50_000;
        let by = 1 + random(&mut seed) % 9;
        let expected = map.entry(number).and_modify(|sum| *sum += by).or_insert(by);
        assert_eq!(add(&words, key(&secret, number), 0, by), Ok(*expected));
        assert_eq!(add(&pairs, key(&secret, number), 0, by), Ok(*expected));
    }
    for (number, expected) in &map {
        let bucket = words.bucket(key(&secret, *number), 0);
        assert_eq!(words.get(bucket, key(&secret, *number)).map(|entry| entry.state[0]), Some(*expected));
    }
    assert_eq!(words.count(0), map.len() as u64);
    assert_eq!(pairs.count(0), map.len() as u64);
}

/// Removing frees the slot and nothing else.
#[test]
fn removing_a_key_leaves_the_others() {
    let secret = Secret::repeatable(2);
    let table = Words::new(Arc::new(Budget::new(1 << 20)), 0);
    for number in 0..1_000 {
        assert_eq!(add(&table, key(&secret, number), 0, 5), Ok(5));
    }
    for number in (0..1_000).step_by(2) {
        let bucket = table.bucket(key(&secret, number), 0);
        table.lock(bucket);
        assert!(table.remove(bucket, key(&secret, number)));
        table.unlock(bucket);
    }
    assert_eq!(table.count(0), 500);
    for number in 0..1_000 {
        let expected = if number % 2 == 0 { 1 } else { 6 };
        assert_eq!(add(&table, key(&secret, number), 0, 1), Ok(expected));
    }
}

/// When the budget is spent a new key is refused, never given a slot that still matters; one that no longer matters is taken.
#[test]
fn only_what_equals_absence_is_evicted() {
    let secret = Secret::repeatable(3);
    let budget = Arc::new(Budget::new(64 * LINE_BYTES));
    let table = Words::new(Arc::clone(&budget), 1_000);
    let kept: Vec<u64> =
        (0..10_000).filter(|&number| add(&table, key(&secret, number), 0, 100).is_ok()).collect();
    assert!(kept.len() > 64 && kept.len() <= 64 * 3, "{}", kept.len());
    assert!(budget.own_left() <= budget.total());
    // The flood goes on: nothing known is lost.
    for number in 10_000..20_000 {
        let _ = add(&table, key(&secret, number), 99, 100);
    }
    for &number in &kept {
        let bucket = table.bucket(key(&secret, number), 0);
        assert_eq!(table.get(bucket, key(&secret, number)).map(|entry| entry.state[0]), Some(100));
    }
    // At 100 every state equals absence; now the newcomers get the slots.
    let newcomers =
        (20_000..30_000).filter(|&number| add(&table, key(&secret, number), 100, 300).is_ok()).count();
    assert!(newcomers >= kept.len() / 2, "{newcomers} of {}", kept.len());
    assert!(budget.own_left() <= budget.total());
}

/// A key that has just become idle keeps its slot while the table may grow.
#[test]
fn idle_keys_stay_while_there_is_room() {
    let secret = Secret::repeatable(4);
    let table = Words::new(Arc::new(Budget::new(1 << 20)), 1_000);
    for number in 0..2_000 {
        assert!(add(&table, key(&secret, number), 500, 10).is_ok());
    }
    let resident = (0..2_000)
        .filter(|&number| table.find(table.bucket(key(&secret, number), 500), key(&secret, number)).is_some())
        .count();
    assert_eq!(resident, 2_000);
}

/// Threads that add to the same keys while the table grows lose nothing.
#[test]
fn threads_lose_no_update() {
    let secret = Secret::repeatable(5);
    let table = Words::new(Arc::new(Budget::new(64 << 20)), 0);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (table, secret) = (&table, &secret);
            scope.spawn(move || {
                for step in 0..30_000u64 {
                    let shared = step % 64;
                    let own = 1_000 + thread * 100_000 + step;
                    assert!(add(table, key(secret, shared), 0, 1).is_ok());
                    assert_eq!(add(table, key(secret, own), 0, 3), Ok(3));
                }
            });
        }
    });
    let total: u64 = (0..64)
        .map(|number| table.get(table.bucket(key(&secret, number), 0), key(&secret, number)))
        .map(|entry| entry.map_or(0, |entry| entry.state[0]))
        .sum();
    assert_eq!(total, 4 * 30_000);
    assert_eq!(table.count(0), 64 + 4 * 30_000);
}

/// A read beside a writer never sees half of a two-word state.
#[test]
fn reads_are_never_torn() {
    let secret = Secret::repeatable(6);
    let table = Pairs::new(Arc::new(Budget::new(1 << 20)), 0);
    let hot = key(&secret, 1);
    assert!(add(&table, hot, 0, 1).is_ok());
    std::thread::scope(|scope| {
        scope.spawn(|| (0..200_000).for_each(|_| assert!(add(&table, hot, 0, 1).is_ok())));
        scope.spawn(|| {
            for _ in 0..200_000 {
                let seen = table.update(hot, 0, |held| (None, held.map(|entry| entry.state)));
                assert!(matches!(seen, Ok(Some([one, other])) if one == other), "{seen:?}");
            }
        });
    });
}

/// A walk misses nothing that was there when it began, though the table grows, splits its buckets and is charged while it is
/// handed out; and what it tells of a key last is at least what the key had at the beginning.
#[test]
fn a_walk_misses_nothing_while_the_table_grows() {
    let secret = Secret::repeatable(3);
    let table = Words::new(Arc::new(Budget::new(64 << 20)), 0);
    let old: Vec<Fingerprint> = (0..4_000).map(|number| key(&secret, number)).collect();
    old.iter().for_each(|&key| assert_eq!(add(&table, key, 0, 5), Ok(5)));
    let buckets = table.shape(crate::sync::Ordering::Acquire).buckets();
    let (mut seen, mut next) = (HashMap::new(), 4_000);
    let walked = table.walk(0, |slots| {
        for slot in slots {
            seen.insert((slot.key.tag, slot.key.rest >> super::REST_SHIFT), slot.entry);
        }
        if next > 16_000 {
            return Ok(());
        }
        for number in next..next + 3_000 {
            assert_eq!(add(&table, key(&secret, number), 0, 1), Ok(1));
        }
        assert!(add(&table, old[usize::try_from(next).unwrap_or(0) % old.len()], 0, 1).is_ok());
        next += 3_000;
        Ok(())
    });
    assert!(walked.is_ok() && next > 10_000);
    assert!(table.shape(crate::sync::Ordering::Acquire).buckets() > 2 * buckets, "it did not grow");
    for key in old {
        let entry = seen.get(&(key.tag, key.rest >> super::REST_SHIFT));
        assert!(entry.is_some_and(|entry| entry.state[0] >= 5 && entry.number == 7), "{entry:?}");
    }
}

/// Entries exported from one table and put into another are found by their keys.
#[test]
fn a_table_is_filled_again() {
    let secret = Secret::repeatable(4);
    let [from, to] = [(); 2].map(|()| Pairs::new(Arc::new(Budget::new(8 << 20)), 0));
    for number in 1..3_000 {
        assert_eq!(add(&from, key(&secret, number), 0, number), Ok(number));
    }
    // Those up to a thousand no longer matter.
    let copied = from.walk(0, |slots| {
        slots.iter().for_each(|&slot| assert_eq!(to.put_back(slot, 1_000), Ok(slot.entry.state[0] > 1_000)));
        Ok(())
    });
    assert!(copied.is_ok());
    assert_eq!(to.count(0), 1_999);
    for number in 1..3_000 {
        let key = key(&secret, number);
        let entry = to.get(to.bucket(key, 0), key);
        let expected = (number > 1_000).then_some(SlotEntry { state: [number; 2], number: 7 });
        assert_eq!(entry, expected);
    }
}
