//! The sketch against exact counts.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::random::scrambled;

fn fill(ids: impl IntoIterator<Item = u64>) -> (Sketch, HashMap<u64, u64>) {
    let (mut sketch, mut exact) = (Sketch::default(), HashMap::new());
    for id in ids {
        *exact.entry(id).or_insert(0) += 1;
        let denial = Denial { at: Timestamp::from_unix_seconds(1), retry_after: None };
        let verdict = match id % 4 {
            0 | 2 => KeyVerdict::Denied(denial),
            1 => KeyVerdict::WouldDeny,
            _ => KeyVerdict::Passed,
        };
        let outcome = KeyOutcome { verdict, source: Some(Source::Lease) };
        sketch.add(id, 1, outcome, |entry| entry.key = id.to_string());
    }
    (sketch, exact)
}

/// A stream of keys in which the n-th key comes about 1/n as often as the first. The seed determines the order.
fn zipf(seed: u64, keys: u64, length: usize) -> impl Iterator<Item = u64> {
    let weights: Vec<u64> = (1..=keys).map(|rank| 1_000_000 / rank).collect();
    let ends: Vec<u64> = weights
        .iter()
        .scan(0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        })
        .collect();
    let all = ends.last().copied().unwrap_or(1);
    (0..length as u64).map(move |turn| {
        let drawn = scrambled(seed.wrapping_add(turn)) % all;
        ends.partition_point(|end| *end <= drawn) as u64
    })
}

/// Fewer keys than the maximum are counted exactly, including id 0.
#[test]
fn few_keys_are_exact() {
    let (sketch, exact) = fill((0..20_000).map(|n| n * n % 1_009));
    assert_eq!(sketch.entries().count(), exact.len());
    for entry in sketch.entries() {
        assert_eq!((entry.certain(), entry.key.clone()), (exact[&entry.id], entry.id.to_string()));
        assert_eq!(entry.denied, if entry.id % 2 == 0 { entry.certain() } else { 0 });
        assert_eq!(entry.would_deny, if entry.id % 4 == 1 { entry.certain() } else { 0 });
        assert_eq!(entry.last_denial.is_some(), entry.denied > 0);
    }
}

/// A flood of keys that come once does not displace frequent keys, and takes no more memory.
#[test]
fn a_flood_does_not_hide_the_frequent() {
    let noise = (0..200_000_u64).map(|n| 1_000 + n);
    let stream = noise.enumerate().flat_map(|(n, id)| [id, (n % 20) as u64]);
    let (sketch, exact) = fill(stream);
    assert_eq!(sketch.entries().count(), PLACES);
    for id in 0..20 {
        let entry = sketch.entries().find(|entry| entry.id == id).expect("a frequent key is there");
        assert!(entry.certain() <= exact[&id] && exact[&id] <= entry.count);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Counts are never too low, and exceed the truth by at most one in PLACES of all events. The ten most frequent
    /// keys of a zipf stream are the ten that the sketch names.
    #[test]
    fn zipf_streams_keep_their_order(seed: u64, keys in 2_000_u64..50_000) {
        let length = 60_000;
        let (sketch, exact) = fill(zipf(seed, keys, length));
        prop_assert!(sketch.entries().count() <= PLACES);
        let allowance = (length / PLACES) as u64;
        for entry in sketch.entries() {
            let true_count = exact[&entry.id];
            prop_assert!(entry.certain() <= true_count && true_count <= entry.count);
            prop_assert!(entry.error <= allowance, "{entry:?}");
            prop_assert_eq!(entry.key.clone(), entry.id.to_string());
        }
        for (id, count) in &exact {
            prop_assert!(*count <= allowance || sketch.places.contains_key(id), "{id} came {count} times");
        }
        let mut named: Vec<&SketchEntry> = sketch.entries().collect();
        named.sort_by_key(|entry| std::cmp::Reverse(entry.certain()));
        let mut counts: Vec<u64> = exact.values().copied().collect();
        counts.sort_unstable_by(|one, other| other.cmp(one));
        for entry in &named[..10] {
            // Two keys that come about equally often may be swapped.
            prop_assert!(exact[&entry.id] + allowance >= counts[9], "{entry:?}");
        }
    }
}

/// A key is marked if one decision was counted as several, and a later key in the same entry is not.
#[test]
fn a_shared_entry_is_an_estimate() {
    let mut sketch = Sketch::default();
    let outcome = KeyOutcome { verdict: KeyVerdict::Passed, source: None };
    (0..PLACES as u64).for_each(|id| sketch.add(id, 16, outcome, |_| ()));
    sketch.add(u64::MAX, 1, outcome, |_| ());
    let exact: Vec<u64> = sketch.entries().filter(|entry| !entry.is_estimated).map(SketchEntry::id).collect();
    assert_eq!(exact, [u64::MAX]);
}
