//! All or nothing under concurrent requests. The instant is fixed, so every sum is exact.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tollgate::policy::LimitBuilder;
use tollgate::{Engine, Gate, ManualClock, Source, Verdict};

use crate::fixture::{ALGORITHMS, NOW, asking, limit, now_or_never, policy};

const THREADS: u64 = 8;

/// The remaining units of each counter of a key.
fn left(engine: &Engine, key: &str) -> Vec<u64> {
    let look = now_or_never(engine.operator().peek(&asking(key, 1), NOW));
    look.limits().map(|status| status.outcome.remaining).collect()
}

/// Runs the same work on many threads that start together.
fn at_once(threads: u64, work: impl Fn(u64) + Sync) {
    let barrier = Barrier::new(usize::try_from(threads).expect("few"));
    thread::scope(|scope| {
        for number in 0..threads {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                barrier.wait();
                work(number);
            });
        }
    });
}

/// Two to five limits of different algorithms on one key, eight threads: exactly what the tightest allows is
/// admitted, and every counter is charged exactly that.
#[test]
fn the_tightest_limit_decides_and_all_counters_agree() {
    const TIGHT: u64 = 200;
    for count in 2..=5 {
        for first in 0..ALGORITHMS.len() {
            let tight = first % count;
            let capacity = |place: usize| {
                if place == tight { TIGHT } else { TIGHT + 300 + place as u64 }
            };
            let limits: Vec<LimitBuilder> = (0..count)
                .map(|place| {
                    let quota = ALGORITHMS[(first + 2 * place) % ALGORITHMS.len()].1;
                    limit(&format!("limit-{place}"), quota(capacity(place)))
                })
                .collect();
            let engine = Engine::builder()
                .policy(policy(limits))
                .clock(tollgate::ManualClock::starting_at(NOW).clock())
                .build();
            let admitted = AtomicU64::new(0);
            at_once(THREADS, |_| {
                for _ in 0..50 {
                    let decision = engine.try_check(&asking("k", 1), NOW).unwrap();
                    admitted.fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed);
                    assert!(decision.limits().all(|status| status.source == Source::Exact));
                }
            });
            assert_eq!(admitted.into_inner(), TIGHT, "{count} limits from {}", ALGORITHMS[first].0);
            let expected: Vec<u64> = (0..count).map(|place| capacity(place) - TIGHT).collect();
            assert_eq!(left(&engine, "k"), expected, "{count} limits from {}", ALGORITHMS[first].0);
        }
    }
}

/// Costs of many sizes, with counters per key and one for all: the shared counter is charged exactly the sum
/// of what was admitted, each key's exactly its own, and no unit was left that a denied request could have
/// had.
#[test]
fn costs_add_up_over_shared_and_own_counters() {
    for (name, quota) in ALGORITHMS {
        let all = tollgate::policy::Limit::new("all", quota(1_600)).cost(tollgate::policy::Cost::Asked);
        let engine = Engine::builder()
            .policy(policy(vec![limit("own", quota(300)), all]))
            .clock(tollgate::ManualClock::starting_at(NOW).clock())
            .build();
        let spent: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
        at_once(THREADS, |number| {
            for turn in 0..250 {
                let key = format!("k-{}", (number + turn) % THREADS);
                let cost = 1 + (turn * 7 + number) % 5;
                if engine.try_check(&asking(&key, cost), NOW).unwrap().is_allowed() {
                    let spent = &spent[usize::try_from((number + turn) % THREADS).expect("few")];
                    spent.fetch_add(cost, Ordering::Relaxed);
                }
            }
        });
        let spent: Vec<u64> = spent.into_iter().map(AtomicU64::into_inner).collect();
        let total: u64 = spent.iter().sum();
        assert_eq!(total, 1_600, "{name}: more was asked for than there was, in units of one");
        for (number, spent) in spent.iter().enumerate() {
            assert!(*spent <= 300, "{name}");
            assert_eq!(left(&engine, &format!("k-{number}")), [300 - spent, 0], "{name}: key {number}");
        }
    }
}

/// Reading and writing a counter are one step: of two hundred threads that race for one unit exactly one gets
/// it, through the engine with one limit and with two, and through the gate.
#[test]
fn one_unit_is_granted_once_among_two_hundred_threads() {
    for (name, quota) in ALGORITHMS {
        let one = Engine::builder()
            .policy(policy(vec![limit("limit", quota(1))]))
            .clock(tollgate::ManualClock::starting_at(NOW).clock())
            .build();
        let two = Engine::builder()
            .policy(policy(vec![limit("a", quota(1)), limit("b", quota(2))]))
            .clock(tollgate::ManualClock::starting_at(NOW).clock())
            .build();
        let gate = Gate::builder(quota(1)).clock(ManualClock::starting_at(NOW).clock()).keyed();
        let admitted: [AtomicU64; 3] = Default::default();
        at_once(200, |_| {
            let verdicts = [
                one.try_check(&asking("k", 1), NOW).unwrap().verdict(),
                two.try_check(&asking("k", 1), NOW).unwrap().verdict(),
                gate.check("k"),
            ];
            for (admitted, verdict) in admitted.iter().zip(verdicts) {
                admitted.fetch_add(u64::from(verdict.is_allowed()), Ordering::Relaxed);
            }
        });
        assert_eq!(admitted.map(AtomicU64::into_inner), [1, 1, 1], "{name}");
        assert_eq!(left(&two, "k"), [0, 1], "{name}");
    }
}

/// Thousands of new keys from eight threads while the table grows: each key is admitted exactly as often as
/// its limit allows, so no counter was lost, doubled or mixed up.
#[test]
fn no_counter_is_lost_while_the_table_grows() {
    const KEYS: u64 = 2_000;
    for (name, quota) in ALGORITHMS {
        let engine = Engine::builder()
            .policy(policy(vec![limit("limit", quota(5))]))
            .clock(tollgate::ManualClock::starting_at(NOW).clock())
            .build();
        let admitted: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        at_once(THREADS, |number| {
            for turn in 0..KEYS {
                let key = (turn + number * 13) % KEYS;
                if engine.try_check(&asking(&format!("k-{key}"), 1), NOW).unwrap().is_allowed() {
                    admitted[usize::try_from(key).expect("few")].fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        assert!(admitted.into_iter().all(|count| count.into_inner() == 5), "{name}");
        assert_eq!(engine.store().usage(NOW).keys, KEYS, "{name}");
    }
}

/// Permits taken and released by eight threads: the limit is never exceeded, and all are back at the end.
#[test]
fn permits_never_exceed_the_limit() {
    const PERMITS: u64 = 3;
    let engine = Engine::builder()
        .policy(policy(vec![crate::fixture::permits("in-flight", PERMITS)]))
        .clock(tollgate::ManualClock::starting_at(NOW).clock())
        .build();
    let in_flight = AtomicU64::new(0);
    let admitted = AtomicU64::new(0);
    at_once(THREADS, |_| {
        for _ in 0..400 {
            let mut decision = engine.try_check(&asking("k", 1), NOW).unwrap();
            if let Some(permit) = decision.take_permit() {
                let now_in_flight = in_flight.fetch_add(1, Ordering::SeqCst) + 1;
                assert!(now_in_flight <= PERMITS, "{now_in_flight} in flight");
                thread::yield_now();
                in_flight.fetch_sub(1, Ordering::SeqCst);
                admitted.fetch_add(1, Ordering::Relaxed);
                assert_eq!(now_or_never(engine.reservations().release(&permit, NOW)), Ok(()));
            } else {
                assert!(matches!(decision.verdict(), Verdict::Deny { .. }));
            }
        }
    });
    assert!(admitted.into_inner() > 0);
    assert_eq!(left(&engine, "k"), [PERMITS]);
}
