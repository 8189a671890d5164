//! The memory store at its limits: a clock that steps back, and no space for a counter.

use tollgate::policy::{LimitBuilder, Mode};
use tollgate::{Engine, MemoryStore, Source, Ticks, Timestamp};

use crate::fixture::{ALGORITHMS, HOUR, NOW, asking, bucket, limit, now_or_never, policy};

fn engine(limits: Vec<LimitBuilder>, bytes: u64, origin: Timestamp) -> Engine {
    Engine::builder().policy(policy(limits)).store(MemoryStore::new(bytes, origin)).build()
}

/// Regression: after the clock stepped back by ten hours a window was ten hours ahead. It was clamped for
/// each denial, but the clamp was not stored, so the key was denied for the whole step instead of one window.
#[test]
fn a_clock_that_steps_back_costs_at_most_a_window() {
    let step = Ticks::from_secs(36_000);
    for (name, quota) in ALGORITHMS {
        for beside in [false, true] {
            let mut limits = vec![limit("limit", quota(4))];
            if beside {
                limits.push(bucket("beside", 1_000)); // Two limits take the way of all or nothing, one the short way.
            }
            let engine = engine(limits, 1 << 20, NOW - step - step);
            while engine.try_check(&asking("k", 1), NOW).unwrap().is_allowed() {}
            let back = NOW - step;
            let mut admitted_after = None;
            // A caller that comes every ten minutes, for five hours.
            for turn in 0..30 {
                let now = back + Ticks::from_secs(600 * turn);
                if engine.try_check(&asking("k", 1), now).unwrap().is_allowed() {
                    admitted_after = Some(now.since(back));
                    break;
                }
            }
            let admitted_after = admitted_after.unwrap_or_else(|| panic!("{name}: denied for five hours"));
            // The rest of the clamped window, and one more.
            assert!(admitted_after <= HOUR + HOUR + Ticks::from_secs(600), "{name}: {admitted_after:?}");
        }
    }
}

/// Regression: a limit in shadow mode without space for its counter made the store write nothing at all. The
/// request passed, since shadow does not deny, and the enforced limits beside it were never charged.
#[test]
fn a_shadow_limit_without_space_does_not_disable_enforced_limits() {
    let log = ALGORITHMS.iter().find(|(name, _)| *name == "sliding-log").expect("it is one of them").1;
    // One counter of this log is larger than the whole store.
    let limits = vec![limit("watching", log(60_000)).mode(Mode::Shadow), bucket("enforced", 3)];
    let engine = engine(limits, 256 << 10, NOW);
    let mut admitted = 0;
    for _ in 0..10 {
        let decision = engine.try_check(&asking("k", 1), NOW).unwrap();
        if decision.is_allowed() {
            let watching = decision.limits().next().expect("it is reported");
            assert_eq!(watching.source, Source::Full, "the fault did not happen");
            assert!(!watching.outcome.is_allowed(), "the fault did not happen");
            admitted += 1;
        }
    }
    assert_eq!(admitted, 3);
}

/// An enforced limit without space for its counter denies, and the limits beside it are not charged.
#[test]
fn an_enforced_limit_without_space_denies_and_charges_nothing() {
    let log = ALGORITHMS.iter().find(|(name, _)| *name == "sliding-log").expect("it is one of them").1;
    let engine = engine(vec![limit("large", log(60_000)), bucket("beside", 3)], 256 << 10, NOW);
    for _ in 0..10 {
        let decision = engine.try_check(&asking("k", 1), NOW).unwrap();
        assert_eq!(decision.cause().map(|cause| cause.limit.name().to_owned()).as_deref(), Some("large"));
    }
    let look = now_or_never(engine.operator().peek(&asking("k", 1), NOW));
    let beside = look.limits().find(|status| status.limit.name() == "beside").expect("it answers");
    assert_eq!(beside.outcome.remaining, 3);
}

/// New keys without space share a counter and are decided by it; known keys keep theirs, for every algorithm.
#[test]
fn new_keys_share_a_counter_when_memory_is_full() {
    for (name, quota) in ALGORITHMS.into_iter().filter(|(name, _)| !name.contains("wide")) {
        let engine = engine(vec![limit("limit", quota(4))], 128 << 10, NOW);
        let mut known = 0;
        let mut shared = 0;
        for number in 0..20_000 {
            let decision = engine.try_check(&asking(&format!("k-{number}"), 1), NOW).unwrap();
            match decision.limits().next().expect("it answers").source {
                Source::Exact if shared == 0 => known = number + 1,
                Source::Exact => {}
                Source::Overflow => shared += 1,
                other => panic!("{name}: {other:?}"),
            }
        }
        assert!(known > 100 && shared > 1_000, "{name}: {known} known, {shared} without room");
        for number in 0..known {
            let key = format!("k-{number}");
            let left = now_or_never(engine.operator().peek(&asking(&key, 1), NOW))
                .limits()
                .next()
                .map(|s| s.outcome.remaining);
            assert_eq!(left, Some(3), "{name}: {key} was known before the store was full");
            let drained =
                (0..5).filter(|_| engine.try_check(&asking(&key, 1), NOW).unwrap().is_allowed()).count();
            // Permits take memory as they are granted. The reserve for known keys is finite.
            let is_sure = name != "concurrency" || number < 20;
            assert!(drained == 3 || drained < 3 && !is_sure, "{name}: {key} was admitted {drained} times");
        }
        assert!(engine.store().usage(NOW).overflow_keys <= 8, "{name}: new keys share eight counters");
    }
}

/// Regression: 37,000 keys of the example's `in-flight` limit filled 64 MiB, because each took memory for all
/// twenty permits. A key takes memory for what is in flight: at most 200 bytes for one permit, more for more,
/// and none once they are returned.
#[test]
fn a_permit_takes_memory_for_what_is_in_flight() {
    const KEYS: u64 = 100_000;
    let engine = engine(vec![crate::fixture::permits("in-flight", 20)], 64 << 20, NOW);
    let idle = engine.store().usage(NOW).bytes;
    let used = || engine.store().usage(NOW).bytes - idle;
    let take = |key: u64| {
        let mut decision = engine.try_check(&asking(&key.to_string(), 1), NOW).unwrap();
        let source = decision.limits().next().map(|status| status.source);
        assert_eq!((decision.is_allowed(), source), (true, Some(Source::Exact)), "key {key}");
        decision.take_permit().expect("it is admitted")
    };
    let mut permits: Vec<_> = (0..KEYS).map(take).collect();
    assert!(used() <= 200 * KEYS, "{} bytes a key", used() / KEYS);
    // Twenty permits of one key are exact, and take more.
    let one = used();
    permits.extend((1..20).map(|_| take(7)));
    assert!(used() > one && !engine.try_check(&asking("7", 1), NOW).unwrap().is_allowed());
    assert!(used() - one < 20 * 100, "{} bytes for 19 more", used() - one);
    for permit in permits {
        now_or_never(engine.reservations().release(&permit, NOW)).expect("memory does not fail");
    }
    assert_eq!((used(), engine.store().usage(NOW).keys), (0, 0));
}

/// When memory is full of permits, new keys share counters and report it. A known key may use the reserve for
/// more permits. When that is used up it is denied, never admitted beyond its limit or counted elsewhere.
#[test]
fn known_keys_use_the_reserve_for_permits() {
    let engine = engine(vec![crate::fixture::permits("in-flight", 1_000)], 256 << 10, NOW);
    let ask = |key: &str| {
        let decision = engine.try_check(&asking(key, 1), NOW).unwrap();
        let source = decision.limits().next().expect("the limit answers").source;
        (decision.is_allowed(), source)
    };
    assert_eq!(ask("known"), (true, Source::Exact));
    let shared = (0..).map(|key: u64| ask(&key.to_string())).find(|answer| answer.1 != Source::Exact);
    assert_eq!(shared, Some((true, Source::Overflow)), "new keys share a counter");
    let answers: Vec<_> = (0..1_000).map(|_| ask("known")).collect();
    let admitted = answers.iter().filter(|answer| answer.0).count();
    assert!((10..1_000).contains(&admitted), "{admitted}");
    assert!(answers.iter().all(|&(allowed, source)| allowed == (source == Source::Exact)));
    let refused = engine.try_check(&asking("known", 1), NOW).unwrap();
    assert_eq!(refused.limits().next().map(|status| status.source), Some(Source::Full));
    assert!(refused.explanation().expect("it is refused").contains("memory is full"));
}
