//! `Gate` and `KeyedGate`: one limit, decided by the same arithmetic by all methods.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::algorithm::concurrency::Concurrency;
use tollgate::algorithm::sliding_log::SlidingLog;
use tollgate::algorithm::sliding_window::{Estimate, SlidingWindow};
use tollgate::{Gate, KeyedGate, ManualClock, Quota, Rate, Secret, Ticks, Verdict};

use crate::fixture::ALGORITHMS;

fn keyed(quota: Quota) -> (KeyedGate, ManualClock) {
    let time = ManualClock::new();
    (Gate::builder(quota).clock(time.clock()).keyed(), time)
}

fn ten() -> Quota {
    Quota::token_bucket(Rate::per_second(10)).expect("valid")
}

/// `check`, `check_n` and `charge` share one counter; 0 only queries; a cost above the capacity is never
/// admitted.
#[test]
fn all_methods_share_one_counter() {
    for (name, quota) in ALGORITHMS {
        let time = ManualClock::new();
        let gate = Gate::builder(quota(10)).clock(time.clock()).build();
        assert!(gate.check().is_allowed(), "{name}");
        assert!(gate.check_n(3).is_allowed(), "{name}");
        let outcome = gate.charge(2);
        assert!(outcome.is_allowed(), "{name}");
        assert_eq!((outcome.limit, outcome.remaining), (10, 4), "{name}");
        assert_eq!(gate.charge(0).remaining, 4, "{name}: a look takes nothing");
        assert!(matches!(gate.check_n(5), Verdict::Deny { .. }), "{name}");
        assert_eq!(gate.check_n(11), Verdict::Never, "{name}");
        assert_eq!(gate.clone().charge(4).remaining, 0, "{name}: clones share the counter");
        assert!(matches!(gate.check(), Verdict::Deny { .. }), "{name}");
    }
}

/// Retry advice is exact: one tick early is denied, on the tick is admitted.
#[test]
fn retry_advice_is_exact() {
    for (name, quota) in ALGORITHMS {
        for cost in [1, 3] {
            let time = ManualClock::new();
            let gate = Gate::builder(quota(4)).clock(time.clock()).build();
            // Half at one instant and half at another, so that not everything refills at once.
            assert!(gate.check_n(2).is_allowed());
            time.advance(Duration::from_millis(1));
            while gate.check().is_allowed() {}
            let Verdict::Deny { retry_after } = gate.check_n(cost) else { panic!("{name}: it is exhausted") };
            time.advance(Duration::from(retry_after - Ticks::ONE));
            assert!(!gate.check_n(cost).is_allowed(), "{name}: {cost} one tick early");
            time.advance(Duration::from_micros(1));
            assert!(gate.check_n(cost).is_allowed(), "{name}: {cost} on the tick");
        }
    }
}

/// A refund gives units back, at most to a full counter; a reset clears the counter.
#[test]
fn refunds_and_resets_free_units() {
    let is_given_back = |name: &str| name != "concurrency" && name != "leaky-bucket";
    for (name, quota) in ALGORITHMS.into_iter().filter(|(name, _)| is_given_back(name)) {
        let (gate, _) = keyed(quota(10));
        assert!(gate.check_n("a", 8).is_allowed() && gate.check_n("b", 8).is_allowed());
        gate.refund("a", 3, Ticks::ZERO);
        assert_eq!((gate.charge("a", 0).remaining, gate.charge("b", 0).remaining), (5, 2), "{name}");
        gate.refund("a", 99, Ticks::ZERO);
        assert_eq!(gate.charge("a", 0).remaining, 10, "{name}");
        gate.reset("b");
        assert_eq!(gate.charge("b", 0), gate.charge("never seen", 0), "{name}");
        let gate = Gate::builder(quota(10)).build();
        assert!(gate.check_n(10).is_allowed());
        gate.refund(4, Ticks::ZERO);
        assert!(gate.check_n(4).is_allowed(), "{name}");
        gate.reset();
        assert!(gate.check_n(10).is_allowed(), "{name}");
    }
}

/// Regression: the store of a gate had 64 KiB, whatever the quota. A log of over two thousand units, or as
/// many permits, did not fit, and the gate denied all requests.
#[test]
fn a_gate_has_memory_for_its_own_counter() {
    let log = SlidingLog::new(Rate::per_hour(65_536)).map(Quota::SlidingLog);
    let permits = Concurrency::new(1_000_000, Ticks::from_secs(60)).map(Quota::Concurrency);
    let window =
        SlidingWindow::new(Rate::per_hour(1_000_000), 60, Estimate::Strict).map(Quota::SlidingWindow);
    for quota in [log, permits, window] {
        let quota = quota.expect("valid");
        let (name, capacity) = (quota.algorithm(), quota.capacity());
        let gate = Gate::builder(quota).build();
        assert!(gate.check().is_allowed(), "{name}");
        assert_eq!(gate.charge(1).remaining, capacity - 2, "{name}");
    }
}

/// Each kind of key identifies its own counter, and the parts of a pair are delimited.
#[test]
fn each_kind_of_key_has_its_own_counter() {
    let (gate, _) = keyed(Quota::gcra(Rate::per_hour(1)).expect("valid"));
    let text = String::from("text");
    assert!(gate.check(&text).is_allowed());
    assert!(!gate.check("text").is_allowed(), "owned and borrowed text are one key");
    assert!(!gate.check(&"text").is_allowed());
    assert!(!gate.check(b"text".as_slice()).is_allowed(), "and so are its bytes");
    assert!(gate.check(&7u64).is_allowed() && gate.check(&8u64).is_allowed());
    let (four, six): (IpAddr, IpAddr) = ([127, 0, 0, 1].into(), [0; 16].into());
    assert!(gate.check(&four).is_allowed() && gate.check(&six).is_allowed());
    assert!(gate.check(&("ab", "c")).is_allowed());
    assert!(gate.check(&("a", "bc")).is_allowed());
    assert!(gate.check(&("", "abc")).is_allowed());
    assert!(gate.check("abc").is_allowed());
    assert!(!gate.check(&("ab", "c")).is_allowed());
    assert!(gate.check("").is_allowed() && !gate.check("").is_allowed());
}

/// Regression: the length of a part shared a word with its first bytes and had sixteen bits. Texts of 65,536
/// bytes and more overflowed it, and two keys that differed in the first byte shared a counter.
#[test]
fn long_keys_are_distinct() {
    let (gate, _) = keyed(Quota::gcra(Rate::per_hour(1)).expect("valid"));
    for length in [65_530, 65_533, 65_534, 65_535, 65_536, 65_537, 70_000, 131_072] {
        for first in [b'a', b'b', b'c'] {
            let mut key = vec![b'x'; length];
            key[0] = first;
            assert!(gate.check(key.as_slice()).is_allowed(), "{length} bytes that start with {first}");
            assert!(
                !gate.check(key.as_slice()).is_allowed(),
                "{length} bytes that start with {first}, again"
            );
        }
    }
}

/// `check_at` decides at the given instant, whatever the clock says.
#[test]
fn an_instant_already_read_is_used() {
    let (gate, time) = keyed(Quota::gcra(Rate::per_second(1).burst(1)).expect("valid"));
    let now = time.now();
    assert!(gate.check_at("k", now).is_allowed());
    assert!(!gate.check_at("k", now + Ticks::from_micros(999_999)).is_allowed());
    assert!(gate.check_at("k", now + Ticks::from_secs(1)).is_allowed());
}

/// A batch decides exactly like single calls, with repeated keys and several groups.
#[test]
fn a_batch_equals_single_decisions() {
    for (name, quota) in ALGORITHMS {
        let keys: Vec<u64> = (0..100).map(|number| number * number % 23).collect();
        let ((batch, _), (single, _)) = (keyed(quota(3)), keyed(quota(3)));
        for _ in 0..3 {
            let mut verdicts = Vec::new();
            batch.check_batch(&keys, |index, verdict| verdicts.push((index, verdict)));
            let expected: Vec<(usize, Verdict)> =
                keys.iter().enumerate().map(|(index, key)| (index, single.check(key))).collect();
            assert_eq!(verdicts, expected, "{name}");
        }
    }
}

/// The usage of a store.
#[test]
fn usage_counts_keys_that_are_not_idle() {
    let (gate, time) = keyed(ten());
    for key in 0..100u64 {
        assert!(gate.check(&key).is_allowed());
    }
    assert_eq!(gate.usage().keys, 100);
    assert_eq!(gate.usage().overflow_keys, 0);
    assert_eq!(gate.quota().capacity(), 10);
    time.advance(Duration::from_secs(1));
    assert_eq!(gate.usage().keys, 0, "all have refilled and equal keys never seen");
}

/// One step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Charge { key: u64, cost: u64 },
    Refund { key: u64, units: u64 },
    Reset { key: u64 },
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..4u64;
    let step = prop_oneof![
        8 => (key.clone(), 0..6u64).prop_map(|(key, cost)| Step::Charge { key, cost }),
        1 => (key.clone(), 0..4u64).prop_map(|(key, units)| Step::Refund { key, units }),
        1 => key.prop_map(|key| Step::Reset { key }),
        3 => (0..2_000_000u64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    /// Keys do not interfere: a key gets the same answers among others as alone.
    #[test]
    fn keys_do_not_interfere(steps in steps(), algorithm in 0..ALGORITHMS.len(), seed in any::<u64>()) {
        let (_, quota) = ALGORITHMS[algorithm];
        let time = ManualClock::new();
        let make = || Gate::builder(quota(5)).clock(time.clock()).secret(Secret::repeatable(seed)).keyed();
        let together = make();
        let mut alone: HashMap<u64, KeyedGate> = HashMap::new();
        for step in steps {
            match step {
                Step::Charge { key, cost } => {
                    let alone = alone.entry(key).or_insert_with(make);
                    prop_assert_eq!(together.charge(&key, cost), alone.charge(&key, cost));
                }
                Step::Refund { key, units } => {
                    together.refund(&key, units, Ticks::ZERO);
                    alone.entry(key).or_insert_with(make).refund(&key, units, Ticks::ZERO);
                }
                Step::Reset { key } => {
                    together.reset(&key);
                    alone.entry(key).or_insert_with(make).reset(&key);
                }
                Step::Pass(micros) => time.advance(Duration::from_micros(micros)),
            }
        }
    }

    /// The fast path for one unit and the slow path decide alike, whatever the history.
    #[test]
    fn the_fast_path_decides_like_the_slow_path(
        units in 1..1_000u64,
        micros in 1..10_000_000u64,
        burst in 1..50u64,
        gaps in prop::collection::vec(0..3_000_000u64, 1..200),
    ) {
        let rate = Rate::per_ticks(units, Ticks::from_micros(micros.max(units))).burst(burst);
        let Ok(quota) = Quota::token_bucket(rate) else { return Ok(()) };
        let time = ManualClock::new();
        let make = || Gate::builder(quota.clone()).clock(time.clock()).build();
        let (short, whole) = (make(), make());
        for gap in gaps {
            prop_assert_eq!(short.check(), whole.charge(1).verdict);
            time.advance(Duration::from_micros(gap));
        }
    }
}

/// A leaky bucket is not a reservoir: its gate spaces requests and never takes the fast path.
#[test]
fn a_leaky_gate_spaces_requests() {
    let time = ManualClock::new();
    let quota = Quota::leaky_bucket(Rate::per_second(10), 0).unwrap();
    let gate = Gate::builder(quota).clock(time.clock()).keyed();
    for _ in 0..3 {
        assert_eq!(gate.check("a"), Verdict::Allow);
        assert!(matches!(gate.check("a"), Verdict::Deny { retry_after } if retry_after.ceil_millis() == 100));
        time.advance(std::time::Duration::from_millis(100));
    }
}
