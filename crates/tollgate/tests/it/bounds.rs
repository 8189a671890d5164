//! Ways in which a client could get more than a limit allows; each is tried and fails.

use tollgate::{
    CheckRequest, Engine, Gate, ManualClock, MemoryStore, Policy, Secret, Source, Ticks, Timestamp,
};

use crate::executor::block_on;
use crate::fixture::{ALGORITHMS, asking, limit, policy};

/// A key that goes to and fro between a fast tier and a large one gets what each allows, and no more: its large quota is not
/// refilled under the fast one.
#[test]
fn changing_tiers_to_and_fro_refills_nothing() {
    let file = b"limits: [{name: x, by: [k], tier_by: plan, tiers: {free: 10/s, batch: 1000/day}}]";
    let start = Timestamp::from_unix_seconds(1_700_000_000);
    let engine = Engine::builder()
        .policy(Policy::compile("p", file).unwrap())
        .clock(tollgate::ManualClock::starting_at(start).clock())
        .build();
    let ask = |plan: &'static str, now| {
        let request = CheckRequest::new().with("k", "a").unwrap().with("plan", plan).unwrap();
        engine.try_check(&request, now).unwrap().is_allowed()
    };
    let mut batch = 0;
    for step in 0..20u64 {
        let now = start + Ticks::from_secs(2 * step);
        batch += (0..999).filter(|_| ask("batch", now)).count();
        assert!(ask("free", now));
    }
    assert!((999..=1_001).contains(&batch), "{batch}");
}

/// Time that a store cannot tell stands still: nothing refills before its origin, nor beyond what its states can hold.
#[test]
fn nothing_is_admitted_twice_outside_of_the_stores_time() {
    let made = Timestamp::from_unix_seconds(1_700_000_000);
    let day = 86_400;
    for offset in [-2_000 * day, -400 * day, -3_600, -1, 0, 1, 300 * day, 3_000 * day, 10_000 * day] {
        let seconds = u64::try_from(1_700_000_000i64 + offset).unwrap();
        for algorithm in ["token-bucket", "gcra"] {
            let file = format!("limits: [{{name: x, by: [k], rate: 1/h, burst: 2, algorithm: {algorithm}}}]");
            let engine = Engine::builder()
                .policy(Policy::compile("p", file.as_bytes()).unwrap())
                .clock(tollgate::ManualClock::starting_at(made).clock())
                .build();
            let request = CheckRequest::new().with("k", "a").unwrap();
            let now = Timestamp::from_unix_seconds(seconds);
            let admitted = (0..100).filter(|_| engine.try_check(&request, now).unwrap().is_allowed()).count();
            assert_eq!(admitted, 2, "{algorithm} {offset} s after the store was made");
        }
    }
}

/// The story: at the last instant that has a name a counter could not reach ahead of it, so each charge was forgotten at once
/// and everything was admitted. Time stands still a little earlier, and a store full of keys forgets nothing either.
#[test]
fn nothing_is_admitted_twice_at_the_end_of_time() {
    let ends = [Timestamp::LAST - Ticks::ONE, Timestamp::LAST, Timestamp::MAX - Ticks::ONE, Timestamp::MAX];
    let long_before = Timestamp::LAST - Ticks::from_secs(3 * 366 * 86_400);
    for (name, quota) in ALGORITHMS {
        for (made, now) in [long_before, Timestamp::LAST].iter().flat_map(|made| ends.map(|now| (made, now)))
        {
            let store = MemoryStore::new(1 << 17, *made);
            let engine =
                Engine::builder().policy(policy(vec![limit("limit", quota(3))])).store(store).build();
            let admitted = |key: &str| engine.try_check(&asking(key, 1), now).unwrap().is_allowed();
            assert_eq!((0..20).filter(|_| admitted("k")).count(), 3, "{name} at {now:?}");
            for other in 0..2_000 {
                admitted(&other.to_string());
            }
            assert!(!admitted("k"), "{name} at {now:?}");
        }
        let engine = Engine::builder()
            .policy(policy(vec![limit("limit", quota(3))]))
            .clock(tollgate::ManualClock::starting_at(Timestamp::MAX).clock())
            .build();
        let admitted = |_: &u32| engine.try_check(&asking("k", 1), Timestamp::MAX).unwrap().is_allowed();
        assert_eq!((0..20).filter(admitted).count(), 3, "{name}");
        let time = ManualClock::starting_at(Timestamp::MAX);
        let gate = Gate::builder(quota(3)).clock(time.clock()).build();
        assert_eq!((0..20).filter(|_| gate.check().is_allowed()).count(), 3, "{name}");
    }
}

/// A reservation that time has long given back is worth nothing when it is cancelled.
#[test]
fn cancelling_gives_back_only_what_still_counts() {
    for algorithm in ["token-bucket", "gcra", "fixed-window", "sliding-window", "sliding-log"] {
        let file = format!("limits: [{{name: x, by: [k], rate: 10/min, algorithm: {algorithm}}}]");
        let start = Timestamp::from_unix_seconds(1_700_000_000);
        let engine = Engine::builder()
            .policy(Policy::compile("p", file.as_bytes()).unwrap())
            .clock(tollgate::ManualClock::starting_at(start).clock())
            .build();
        let request = CheckRequest::new().with("k", "a").unwrap().cost(10).unwrap();
        let mut reservations = Vec::new();
        for step in 0..20 {
            let now = start + Ticks::from_secs(130 * step);
            let (decision, reservation) =
                block_on(engine.reservations().reserve(&request, Ticks::from_secs(7_200), now));
            assert!(decision.is_allowed(), "{algorithm}");
            reservations.extend(reservation);
        }
        let now = start + Ticks::from_secs(130 * 20);
        let one = CheckRequest::new().with("k", "a").unwrap();
        let mut admitted = 0;
        for mut reservation in reservations {
            while engine.try_check(&one, now).unwrap().is_allowed() {
                admitted += 1;
            }
            let _ = block_on(engine.reservations().cancel(&mut reservation, now));
        }
        assert!(admitted <= 10, "{algorithm}: {admitted}");
    }
}

/// A limit in shadow never refuses, not even a request that it cannot count, and not for being one too many.
#[test]
fn a_shadow_limit_never_refuses() {
    let mut file = "limits:\n- {name: real, by: [k], rate: 5/h}\n- {name: trial, mode: shadow, by: [k], rate: 5/h, cost: tokens}\n"
        .to_owned();
    for number in 0..40 {
        file.push_str(&format!("- {{name: s{number}, mode: shadow, by: [k], rate: 1/h}}\n"));
    }
    let start = Timestamp::from_unix_seconds(1_700_000_000);
    let engine = Engine::builder()
        .policy(Policy::compile("p", file.as_bytes()).unwrap())
        .clock(tollgate::ManualClock::starting_at(start).clock())
        .build();
    let request = CheckRequest::new().with("k", "a").unwrap();
    assert_eq!((0..10).filter(|_| engine.try_check(&request, start).unwrap().is_allowed()).count(), 5);
}

/// A limit that is removed and comes back finds its counters, under whatever numbers.
#[test]
fn a_limit_that_comes_back_finds_its_counters() {
    let compile = |file: &str| Policy::compile("p", file.as_bytes()).unwrap();
    let with = |rate: &str| format!("limits: [{{name: x, by: [k], rate: {rate}, on_store_failure: allow}}]");
    let without = "limits: [{name: other, rate: 1000/s}]";
    let start = Timestamp::from_unix_seconds(1_700_000_000);
    let engine = Engine::builder()
        .policy(compile(&with("100/day")))
        .clock(tollgate::ManualClock::starting_at(start).clock())
        .build();
    let request = CheckRequest::new().with("k", "a").unwrap();
    let drain = || (0..500).filter(|_| engine.try_check(&request, start).unwrap().is_allowed()).count();
    engine.swap(compile(&with("110/day")), start).unwrap();
    assert_eq!(drain(), 110);
    engine.swap(compile(without), start).unwrap();
    engine.swap(compile(&with("110/day")), start).unwrap();
    assert_eq!(drain(), 0);
    engine.swap(compile(without), start).unwrap();
    engine.swap(compile(&with("120/day")), start).unwrap();
    assert_eq!(drain(), 0);
}

/// A flood on one kind of limit, long past, leaves room for the counters of every other kind.
#[test]
fn a_flood_leaves_room_for_other_kinds() {
    let start = Timestamp::from_unix_seconds(1_700_000_000);
    let file = "limits:
- {name: flooded, by: [ip], rate: 10/h}
- {name: sliding, by: [user], algorithm: sliding-window, rate: 5/min}
- {name: fixed, by: [user], algorithm: fixed-window, rate: 5/min}";
    let store = MemoryStore::new(4 << 20, start);
    let engine =
        Engine::builder().policy(Policy::compile("p", file.as_bytes()).unwrap()).store(store).build();
    for number in 0..150_000 {
        let ip = format!("{number}");
        let _ = engine.try_check(&CheckRequest::new().with("ip", &ip).unwrap(), start).unwrap();
    }
    let later = start + Ticks::from_secs(7 * 86_400);
    for number in 0..500 {
        let user = format!("u{number}");
        let decision = engine.try_check(&CheckRequest::new().with("user", &user).unwrap(), later).unwrap();
        assert!(decision.is_allowed(), "{user}");
        assert!(decision.limits().all(|status| status.source == Source::Exact), "{user}");
    }
}

/// An idle entry of a full shard is evicted for a new key.
#[test]
fn released_permits_make_room_everywhere() {
    let start = Timestamp::from_unix_seconds(1_700_000_000);
    let file = b"limits: [{name: x, by: [k], concurrency: 100, permit_ttl: 1h}]";
    let store = MemoryStore::new(256 << 10, start);
    let engine = Engine::builder().policy(Policy::compile("p", file).unwrap()).store(store).build();
    let ask = |key: &str| engine.try_check(&CheckRequest::new().with("k", key).unwrap(), start).unwrap();
    let mut permits = Vec::new();
    for number in 0..2_000 {
        permits.extend(ask(&format!("filler-{number}")).take_permit());
    }
    assert!(ask("new").limits().all(|status| status.source != Source::Exact), "the shelf is full");
    for permit in &permits {
        block_on(engine.reservations().release(permit, start)).unwrap();
    }
    for number in 0..20 {
        let decision = ask(&format!("later-{number}"));
        assert!(decision.limits().all(|status| status.source == Source::Exact), "{number}");
    }
}

/// A log raised from 10 to 5,000 an hour in a store that is full: a known key has what was taken for it, and more only where
/// there is room. The story: it grew without asking, past the bytes that the store was given.
#[test]
fn a_raised_quota_outgrows_no_budget() {
    let start = Timestamp::from_unix_seconds(1_700_000_000);
    let of = |units: u64| {
        let file = format!("limits: [{{name: x, by: [k], rate: {units}/h, algorithm: sliding-log}}]");
        Policy::compile("p", file.as_bytes()).unwrap()
    };
    let admitted = |crowd: usize| {
        let store = MemoryStore::new(1 << 20, start);
        let engine = Engine::builder().policy(of(10)).store(store).secret(Secret::repeatable(1)).build();
        let ask = |key: &str, now| {
            let request = CheckRequest::new().with("k", key).unwrap();
            engine.try_check(&request, now).unwrap().is_allowed()
        };
        assert!(ask("known", start));
        (0..crowd).for_each(|number| {
            let _ = ask(&format!("other-{number}"), start);
        });
        engine.swap(of(5_000), start).unwrap();
        // Each at an instant of its own, so that each takes an entry.
        let instants = (1..5_000).map(|step| start + Ticks::from_micros(step));
        let admitted = instants.filter(|&now| ask("known", now)).count();
        let usage = engine.store().usage(start);
        assert!(usage.bytes <= usage.capacity_bytes, "{usage:?}");
        admitted
    };
    assert_eq!(admitted(0), 4_999, "with room a raise acts at once");
    let full = admitted(20_000);
    assert!((9..100).contains(&full), "{full} admitted in a full store");
}

/// A key that gets an override live is counted by it from that instant on, also if it asks only later. The story: it went on
/// refilling under the quota that everybody else still has, and found a burst.
#[test]
fn an_override_acts_from_the_swap_on() {
    let start = Timestamp::from_unix_seconds(1_700_000_000);
    let of = |overrides: &str| {
        let file = format!("limits: [{{name: x, by: [k], rate: 100/h{overrides}}}]");
        Policy::compile("p", file.as_bytes()).unwrap()
    };
    let engine =
        Engine::builder().policy(of("")).clock(tollgate::ManualClock::starting_at(start).clock()).build();
    let admitted = |key: &str, now| {
        let request = CheckRequest::new().with("k", key).unwrap();
        (0..200).filter(|_| engine.try_check(&request, now).unwrap().is_allowed()).count()
    };
    assert_eq!((admitted("abuser", start), admitted("other", start)), (100, 100));
    engine.swap(of(", overrides: {abuser: 10/h burst 100}"), start).unwrap();
    let later = start + Ticks::from_secs(3_600);
    assert_eq!((admitted("abuser", later), admitted("other", later)), (10, 100));
}

/// Tiers that begin to count apart are other counters, and the swap says so. The story: everybody's counter began anew, and the
/// report called it a change that kept them.
#[test]
fn tiers_that_begin_to_count_apart_are_in_the_swap_report() {
    let start = Timestamp::from_unix_seconds(1_700_000_000);
    let of = |pro: &str| {
        let file =
            format!("limits: [{{name: x, by: [k], tier_by: plan, tiers: {{free: 10/h, pro: {pro}}}}}]");
        Policy::compile("p", file.as_bytes()).unwrap()
    };
    let engine =
        Engine::builder().policy(of("20/h")).clock(tollgate::ManualClock::starting_at(start).clock()).build();
    let together = engine.swap(of("30/h"), start).unwrap();
    assert_eq!((together.changed, together.restarted), (vec!["x".to_owned()], vec![]));
    let apart = engine.swap(of("30/h burst 60"), start).unwrap();
    assert_eq!((apart.changed, apart.restarted), (vec![], vec!["x".to_owned()]));
}
