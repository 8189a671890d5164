//! Policies swapped while requests are decided: no decision is lost, and no bound is passed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tollgate::algorithm::gcra::{self, Gcra};
use tollgate::engine::SwapError;
use tollgate::policy::LimitBuilder;
use tollgate::{Engine, MemoryStore, Quota, Rate, Source, Ticks};

use crate::fixture::{ALGORITHMS, NOW, asking, bucket, limit, now_or_never, permits, policy};

const SWAPS: u64 = 1_000;

/// Swaps a thousand policies while two threads ask; tells how often each key was admitted and how many decisions were made.
fn under_load(engine: &Engine, keys: usize, next: impl Fn(u64) -> Vec<LimitBuilder>) -> (Vec<u64>, u64) {
    let admitted: Vec<AtomicU64> = (0..keys).map(|_| AtomicU64::new(0)).collect();
    let (stop, decisions) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for offset in 0..2 {
            let (admitted, stop, decisions) = (&admitted, &stop, &decisions);
            scope.spawn(move || {
                let mut turn = offset;
                while !stop.load(Ordering::Relaxed) {
                    turn += 1;
                    let decision = engine.try_check(&asking(&format!("k-{}", turn % keys), 1), NOW).unwrap();
                    assert_eq!(decision.limits().len(), 1, "every policy has the limit");
                    for status in decision.limits() {
                        assert_eq!(status.source, Source::Exact, "a decision was lost to a swap");
                    }
                    admitted[turn % keys].fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed);
                    decisions.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for swap in 0..SWAPS {
            let report = engine.swap(policy(next(swap)), NOW).expect("few quotas are in use");
            assert!(report.restarted.is_empty() && report.added.is_empty() && report.removed.is_empty());
            // Every key is asked under every policy. One that is not, and is full under a lower limit, is full under the next one, too.
            for (number, admitted) in admitted.iter().enumerate() {
                let decision = engine.try_check(&asking(&format!("k-{number}"), 1), NOW).unwrap();
                admitted.fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    (admitted.into_iter().map(AtomicU64::into_inner).collect(), decisions.into_inner())
}

/// A thousand swaps to and fro between 50 and 100 under two threads of load: no key is ever admitted more than 100 times at
/// one instant, and every decision was made by its counter. For every algorithm.
#[test]
fn a_thousand_swaps_under_load_lose_nothing_and_gift_nothing() {
    for (name, quota) in ALGORITHMS {
        let engine = Engine::builder()
            .policy(policy(vec![limit("limit", quota(50))]))
            .clock(tollgate::ManualClock::starting_at(NOW).clock())
            .build();
        let units = |swap: u64| if swap.is_multiple_of(2) { 100 } else { 50 };
        let (admitted, decisions) = under_load(&engine, 16, |swap| vec![limit("limit", quota(units(swap)))]);
        assert!(decisions > 0, "{name}: the load did not run");
        assert!(admitted.iter().all(|&count| count <= 100), "{name}: {admitted:?}");
        // The rest can still be charged: nothing was lost. The last policy has 50.
        let mut in_all = admitted;
        engine.swap(policy(vec![limit("limit", quota(100))]), NOW).expect("few quotas are in use");
        for (number, count) in in_all.iter_mut().enumerate() {
            while engine.try_check(&asking(&format!("k-{number}"), 1), NOW).unwrap().is_allowed() {
                *count += 1;
            }
        }
        assert!(in_all.iter().all(|&count| (50..=100).contains(&count)), "{name}: {in_all:?}");
    }
}

/// A thousand policies that all differ, as many as a limit can remember at a time.
#[test]
fn a_thousand_different_policies_under_load() {
    for (name, quota) in [ALGORITHMS[0], ALGORITHMS[3], ALGORITHMS[6]] {
        let engine = Engine::builder()
            .policy(policy(vec![limit("limit", quota(1_500))]))
            .clock(tollgate::ManualClock::starting_at(NOW).clock())
            .build();
        let (admitted, decisions) = under_load(&engine, 4, |swap| vec![limit("limit", quota(1_000 + swap))]);
        assert!(decisions > 0, "{name}: the load did not run");
        assert!(admitted.iter().all(|&count| count <= 1_999), "{name}: {admitted:?}");
    }
}

/// A limit that is changed more often than its counters can tell apart is refused, and the old policy stays in force. The
/// story: once the oldest were idle it was refused all the same, for ever, since numbers became free only with a swap.
#[test]
fn a_limit_changed_too_often_is_refused_until_it_rests() {
    let engine = Engine::builder()
        .policy(policy(vec![bucket("limit", 10)]))
        .clock(tollgate::ManualClock::starting_at(NOW).clock())
        .build();
    assert!(engine.try_check(&asking("k", 4), NOW).unwrap().is_allowed());
    let mut changes = 0;
    let refused = loop {
        match engine.swap(policy(vec![bucket("limit", 100 + changes)]), NOW) {
            Ok(_) => changes += 1,
            Err(refused) => break refused,
        }
        assert!(changes < 10_000, "it is never refused");
    };
    assert_eq!(refused, SwapError::TooManyQuotas { limit: "limit".to_owned() });
    assert!(changes >= 1_000, "refused after {changes} changes");
    assert_eq!(engine.policy().limits()[0].quotas()[0].capacity(), 100 + changes - 1, "the old policy stays");
    let left = |now| {
        let look = now_or_never(engine.operator().peek(&asking("k", 1), now));
        look.limits().next().map(|status| (status.outcome.remaining, status.source))
    };
    assert_eq!(left(NOW), Some((6, Source::Exact)), "and so does the counter");
    let later = NOW + Ticks::from_secs(2 * 3_600);
    assert!(engine.swap(policy(vec![bucket("limit", 7)]), later).is_ok());
    assert_eq!(left(later), Some((7, Source::Exact)));
}

/// Permits released while policies are swapped: none is lost.
#[test]
fn no_release_is_lost_to_a_swap() {
    let engine = Engine::builder()
        .policy(policy(vec![permits("in-flight", 4)]))
        .clock(tollgate::ManualClock::starting_at(NOW).clock())
        .build();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let mut decision = engine.try_check(&asking("k", 1), NOW).unwrap();
                    let permit = decision.take_permit().expect("two threads and at least two permits");
                    assert_eq!(now_or_never(engine.reservations().release(&permit, NOW)), Ok(()));
                }
            });
        }
        for swap in 0..SWAPS {
            engine
                .swap(policy(vec![permits("in-flight", 4 - swap % 3)]), NOW)
                .expect("few quotas are in use");
        }
        stop.store(true, Ordering::Relaxed);
    });
    engine.swap(policy(vec![permits("in-flight", 4)]), NOW).expect("few quotas are in use");
    let look = now_or_never(engine.operator().peek(&asking("k", 1), NOW));
    assert_eq!(look.limits().next().map(|status| status.outcome.remaining), Some(4));
}

/// A swap that is applied late, when a key is next charged, has the effect of an immediate one: a key that stays quiet through a random history of
/// policies, in a store full of others, ends where the pure functions end that are applied at every change.
#[test]
fn carrying_over_late_is_carrying_over_at_once() {
    let rates = [
        Rate::per_second(5),
        Rate::per_minute(7).burst(20),
        Rate::per_hour(30),
        Rate::per_day(50),
        Rate::per_second(2).burst(40),
    ];
    let mut seed = 0x5eed_0001_u64;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for history in 0..60 {
        let mut now = NOW;
        let mut current = Gcra::new(rates[0]).unwrap();
        let store = MemoryStore::new(1 << 20, NOW);
        let engine =
            Engine::builder().policy(policy(vec![limit("limit", Quota::Gcra(current))])).store(store).build();
        let cost = 1 + random(5);
        assert!(engine.try_check(&asking("quiet", cost), now).unwrap().is_allowed());
        let mut state = gcra::charge(current.reservoir(), gcra::State::default(), now, cost).0;
        for _ in 0..1 + random(5) {
            now = now + Ticks::from_millis(random(40_000));
            let next = Gcra::new(rates[usize::try_from(random(5)).unwrap()]).unwrap();
            if next != current {
                state = gcra::inherit(next.reservoir(), current.reservoir(), state, now);
            }
            engine.swap(policy(vec![limit("limit", Quota::Gcra(next))]), now).expect("few quotas are in use");
            current = next;
            for number in 0..400 {
                let _ = engine
                    .try_check(&asking(&format!("{history}-{number}-{}", now.unix_micros()), 1), now)
                    .unwrap();
            }
        }
        now = now + Ticks::from_millis(random(60_000));
        let expected = gcra::charge(current.reservoir(), state, now, 0).1;
        let look = now_or_never(engine.operator().peek(&asking("quiet", 1), now));
        let outcome = look.limits().next().map(|status| status.outcome).unwrap();
        assert_eq!(
            (outcome.remaining, outcome.reset_after),
            (expected.remaining, expected.reset_after),
            "history {history}"
        );
    }
}

/// The story: a reload back to an algorithm that the limit had before said "restarted", and its counters went on where they were. The
/// report says which of the two it is, also for a limit that was gone meanwhile.
#[test]
fn a_limit_that_is_again_what_it_was_resumes() {
    let bucket = || policy(vec![bucket("limit", 10)]);
    let gcra = || policy(vec![limit("limit", Quota::gcra(Rate::per_hour(10)).expect("valid"))]);
    let engine =
        Engine::builder().policy(bucket()).clock(tollgate::ManualClock::starting_at(NOW).clock()).build();
    let left = || {
        let decision = now_or_never(engine.operator().peek(&asking("k", 1), NOW));
        decision.limits().map(|status| status.outcome.remaining).collect::<Vec<_>>()
    };
    assert!(engine.try_check(&asking("k", 6), NOW).unwrap().is_allowed());
    let report = engine.swap(gcra(), NOW).expect("few quotas are in use");
    assert_eq!((report.restarted, report.resumed), (vec!["limit".to_owned()], vec![]));
    assert_eq!(left(), [10]);
    let report = engine.swap(bucket(), NOW).expect("few quotas are in use");
    assert_eq!((report.restarted, report.resumed), (vec![], vec!["limit".to_owned()]));
    assert_eq!(left(), [4]);
    engine.swap(policy(vec![]), NOW).expect("few quotas are in use");
    let report = engine.swap(bucket(), NOW).expect("few quotas are in use");
    assert_eq!((report.added, report.resumed), (vec!["limit".to_owned()], vec!["limit".to_owned()]));
    assert_eq!(left(), [4]);
    // Once nothing of it matters any more it is new.
    engine.swap(gcra(), NOW).expect("few quotas are in use");
    let later = NOW + Ticks::from_secs(86_400);
    let report = engine.swap(bucket(), later).expect("few quotas are in use");
    assert_eq!((report.restarted, report.resumed), (vec!["limit".to_owned()], vec![]));
}
