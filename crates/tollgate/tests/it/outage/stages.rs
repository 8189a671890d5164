//! The order of a limit's stages, their budgets, and how many nodes share it.

use std::sync::atomic::Ordering;

use tollgate::policy::{OnStoreFailure, Stages};
use tollgate::{Engine, ExpiringOverride, LimitOverride, Policy, Scope, Ticks};

use super::{Fleet, after, source};
use crate::fixture::{NOW, asking, bucket, now_or_never, policy};

const STAGED: OnStoreFailure = OnStoreFailure::Staged(Stages {
    open_for: Ticks::from_secs(1),
    open_up_to: None,
    deny_after: Some(Ticks::from_secs(60)),
});

/// From exact over open and local to closed, and back: in this order, each for its time to the tick.
#[test]
fn stages_follow_each_other() {
    let fleet = Fleet::of(1, || bucket("limit", 1_000).on_store_failure(STAGED));
    assert_eq!(source(&fleet.check(0, "k", 1, NOW)), "exact");
    fleet.shared.set(true);
    let steps = [
        (0, "open"),
        (999_999, "open"),
        (1_000_000, "local"),
        (59_999_999, "local"),
        (60_000_000, "closed"),
        (90_000_000, "closed"),
    ];
    for (at, wanted) in steps {
        assert_eq!(source(&fleet.check(0, "k", 1, after(at))), wanted, "after {at} µs");
    }
    fleet.shared.set(false);
    assert_eq!(source(&fleet.check(0, "k", 1, after(91_000_000))), "exact");
    // It fails again before it was well for half a minute: the outage goes on.
    fleet.shared.set(true);
    assert_eq!(source(&fleet.check(0, "k", 1, after(110_000_000))), "closed");
    // And after more than that it is another one.
    fleet.shared.set(false);
    assert_eq!(source(&fleet.check(0, "k", 1, after(111_000_000))), "exact");
    fleet.shared.set(true);
    assert_eq!(source(&fleet.check(0, "k", 1, after(141_000_000))), "open");
    assert_eq!(source(&fleet.check(0, "k", 1, after(300_000_000))), "closed", "silence is no health");
    let fallback = fleet.engines[0].maintenance().fallback().expect("the store can be away");
    assert_eq!((fallback.open, fallback.local, fallback.closed), (3, 2, 4));
    assert_eq!(fallback.open_for, Ticks::from_micros(999_999));
}

/// A clock that steps back does not open a limit again.
#[test]
fn a_clock_that_steps_back_opens_nothing() {
    let fleet = Fleet::of(1, || bucket("limit", 1_000).on_store_failure(OnStoreFailure::Allow));
    let start = NOW + Ticks::from_secs(3_600);
    fleet.see(start);
    fleet.shared.set(true);
    let at = |seconds: u64| source(&fleet.check(0, "k", 1, NOW + Ticks::from_secs(seconds)));
    assert_eq!(at(3_600), "open");
    assert_eq!(at(3_602), "local");
    for seconds in [3_600, 1, 0, 3_601, 3_603] {
        assert_eq!(at(seconds), "local", "at {seconds} s");
    }
}

/// A store that comes and goes once a second for ten minutes leaves limits open for a second in all.
#[test]
fn a_flapping_store_opens_once() {
    let fleet = Fleet::of(1, || bucket("limit", 100_000).on_store_failure(OnStoreFailure::Allow));
    fleet.see(NOW);
    let mut sources = [0u32; 3];
    for tick in 0..60_000u64 {
        fleet.shared.set(tick % 100 < 50);
        let decision = fleet.check(0, "k", 1, after(tick * 10_000));
        let place = ["open", "local", "exact"].iter().position(|name| *name == source(&decision));
        sources[place.expect("a source")] += 1;
    }
    let [open, local, exact] = sources;
    assert_eq!(open, 50, "half of the first second");
    assert_eq!((local, exact), (30_000 - 50, 30_000));
    assert!(
        fleet.engines[0].maintenance().fallback().expect("the store can be away").open_for
            <= Ticks::from_secs(1)
    );
}

/// However often the store is well for long enough and then away again, limits are open for five seconds in ten minutes at most.
#[test]
fn open_time_has_a_budget() {
    let fleet = Fleet::of(1, || bucket("limit", 1_000_000).on_store_failure(OnStoreFailure::Allow));
    fleet.see(NOW);
    let mut open = Vec::new();
    for tick in 0..36_000u64 {
        let at = tick * 50_000;
        fleet.shared.set(at % 33_000_000 < 1_500_000);
        if source(&fleet.check(0, "k", 1, after(at))) == "open" {
            open.push(at);
        }
    }
    let most =
        open.iter().map(|&from| open.iter().filter(|&&at| (from..from + 600_000_000).contains(&at)).count());
    let most = most.max().unwrap_or(0);
    assert!((90..=110).contains(&most), "{most} answers of 20 a second, in five seconds");
    assert!(open.len() > 250, "the budget comes back: {}", open.len());
}

/// An open limit lets a key pass up to a multiple of this node's share, and then only by the share; another key is not touched.
#[test]
fn an_open_limit_has_a_ceiling() {
    let fleet = Fleet::of(2, || bucket("limit", 100).on_store_failure(OnStoreFailure::Allow));
    fleet.see(NOW);
    fleet.shared.set(true);
    let sources: Vec<_> = (0..250).map(|_| fleet.check(0, "k", 1, NOW)).collect();
    let open = sources.iter().filter(|decision| source(decision) == "open").count();
    assert_eq!(open, 4 * 50);
    assert!(sources[200..].iter().all(|decision| source(decision) == "local" && !decision.is_allowed()));
    assert_eq!(source(&fleet.check(0, "other", 1, NOW)), "open");
}

/// A process that has never seen its store counts by its share: a restart is no way around a limit. Of an unknown number of nodes it is
/// one of three.
#[test]
fn a_cold_start_is_never_open() {
    let fleet = Fleet::counting(1, 0, || policy(vec![bucket("limit", 30).on_store_failure(STAGED)]));
    fleet.shared.set(true);
    let admitted = (0..20).filter(|_| {
        let decision = fleet.check(0, "k", 1, NOW);
        assert_eq!(source(&decision), "local");
        decision.is_allowed()
    });
    assert_eq!(admitted.count(), 10);
    assert_eq!(source(&fleet.check(0, "k", 1, after(60_000_000))), "closed");
    assert_eq!(fleet.engines[0].maintenance().fallback().map(|fallback| fallback.nodes), Some(3));
}

/// While the store is away the number of nodes may grow, which makes shares smaller at once, and not shrink.
#[test]
fn nodes_may_only_grow_in_an_outage() {
    let fleet = Fleet::of(2, || bucket("limit", 40));
    fleet.see(NOW);
    fleet.shared.set(true);
    let admitted = |most: u32| (0..most).filter(|_| fleet.check(0, "k", 1, NOW).is_allowed()).count();
    let nodes = || fleet.engines[0].maintenance().fallback().map(|fallback| fallback.nodes);
    assert_eq!(admitted(5), 5);
    fleet.nodes.store(1, Ordering::SeqCst);
    assert_eq!(admitted(5), 5);
    assert_eq!(nodes(), Some(2));
    fleet.nodes.store(8, Ordering::SeqCst);
    assert_eq!(admitted(20), 0, "ten are used, and the new share is five");
    assert_eq!(nodes(), Some(8));
    fleet.nodes.store(2, Ordering::SeqCst);
    assert_eq!(admitted(20), 0);
    // Well again for half a minute, it may shrink.
    fleet.shared.set(false);
    fleet.see(after(1_000_000));
    assert_eq!(nodes(), Some(8));
    fleet.see(after(31_000_000));
    assert_eq!(nodes(), Some(2));
}

/// An operator's switches work with the store down, and so does a new policy.
#[test]
fn operators_are_heard_in_an_outage() {
    let fleet = Fleet::of(1, || bucket("limit", 1).on_store_failure(OnStoreFailure::Deny));
    fleet.shared.set(true);
    let engine = &fleet.engines[0];
    assert!(!fleet.check(0, "k", 1, NOW).is_allowed());
    let off = ExpiringOverride { kind: LimitOverride::Off, until: after(10_000_000) };
    engine.operator().set_override(Scope::Limit("limit"), off, NOW).expect("there is such a limit");
    assert!(fleet.check(0, "k", 1, NOW).is_allowed());
    assert!(!fleet.check(0, "k", 1, after(10_000_000)).is_allowed());
    let shadow = ExpiringOverride { kind: LimitOverride::Shadow, until: after(30_000_000) };
    engine.operator().set_override(Scope::All, shadow, after(10_000_000)).expect("it is valid");
    assert!(fleet.check(0, "k", 1, after(20_000_000)).is_allowed());
    engine.swap(policy(vec![bucket("limit", 5)]), after(30_000_000)).expect("few quotas");
    let admitted = (0..9).filter(|_| fleet.check(0, "k", 1, after(30_000_000)).is_allowed()).count();
    assert_eq!(admitted, 5);
    engine.swap(policy(vec![bucket("limit", 9)]), after(30_000_000)).expect("few quotas");
    assert!(!fleet.check(0, "k", 1, after(30_000_000)).is_allowed(), "a larger bucket is no gift");
}

/// A store that answers at once is never away, and nothing stands in for it.
#[test]
fn memory_has_nothing_beside_it() {
    let engine = Engine::builder()
        .policy(policy(vec![bucket("limit", 5)]))
        .clock(tollgate::ManualClock::starting_at(NOW).clock())
        .build();
    for _ in 0..9 {
        let _ = engine.try_check(&asking("k", 1), NOW).unwrap();
        let _ = now_or_never(engine.reservations().reserve(&asking("k", 1), Ticks::from_secs(1), NOW));
    }
    assert_eq!(engine.maintenance().fallback(), None);
}

/// The stages of a file do what the file says.
#[test]
fn stages_are_read_from_a_file() {
    let text = "limits: [{name: limit, by: [key], rate: 9/s, on_store_failure: {first: allow, for: 200ms, then: deny}}]";
    let fleet = Fleet::new(1, || Policy::compile("policy.yaml", text.as_bytes()).expect("it is valid"));
    fleet.see(NOW);
    fleet.shared.set(true);
    let steps = [(0, "open"), (199_999, "open"), (200_000, "closed")];
    for (at, wanted) in steps {
        assert_eq!(source(&fleet.check(0, "k", 1, after(at))), wanted, "after {at} µs");
    }
}

/// Where the store tells how long the part of a counter has been away, that is what counts, and not what was seen here.
#[test]
fn the_store_may_report_how_long_it_is_away() {
    let fleet = Fleet::of(1, || bucket("limit", 1_000).on_store_failure(STAGED));
    fleet.see(NOW);
    fleet.shared.set(true);
    for (away, wanted) in
        [(0, "open"), (999_999, "open"), (1_000_000, "local"), (60_000_000, "closed"), (5, "open")]
    {
        fleet.away.store(away, Ordering::SeqCst);
        assert_eq!(source(&fleet.check(0, "k", 1, after(away))), wanted, "away for {away} µs");
    }
}
