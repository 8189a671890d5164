//! A store of which one part is away: the limits whose counters are there stay exact.

use std::sync::atomic::Ordering;

use tollgate::Decision;
use tollgate::store::StoreFailure;

use super::{Fleet, PARTS};
use crate::fixture::{NOW, asking, bucket, now_or_never, policy};

/// A fleet of one, and a key whose two limits are kept in different parts of the store; the parts of both.
fn apart() -> (Fleet, String, [usize; 2]) {
    let fleet = Fleet::new(2, || policy(vec![bucket("one", 10), bucket("two", 6)]));
    for attempt in 0.. {
        let key = format!("k{attempt}");
        let part_of = |limit: usize| {
            (0..PARTS).find(|&part| {
                fleet.shared.down[part].store(true, Ordering::SeqCst);
                let decision = now_or_never(fleet.engines[0].operator().peek(&asking(&key, 1), NOW));
                fleet.shared.down[part].store(false, Ordering::SeqCst);
                decision.limits().nth(limit).is_some_and(|status| status.source.name() == "local")
            })
        };
        let parts = [part_of(0).expect("it has one"), part_of(1).expect("it has one")];
        if parts[0] != parts[1] {
            return (fleet, key, parts);
        }
    }
    unreachable!("some key has its counters apart")
}

fn sources(decision: &Decision) -> Vec<(&'static str, u64)> {
    decision.limits().map(|status| (status.source.name(), status.outcome.remaining)).collect()
}

/// Only the counter that is away is stood in for, and a denial of either charges neither.
#[test]
fn reachable_shards_stay_exact() {
    let (fleet, key, [first, second]) = apart();
    let check = |cost| fleet.check(0, &key, cost, NOW);
    assert_eq!(sources(&check(1)), [("exact", 9), ("exact", 5)]);
    fleet.shared.down[first].store(true, Ordering::SeqCst);
    // The share of ten is five, of which one is used.
    assert_eq!(sources(&check(2)), [("local", 2), ("exact", 3)]);
    let denied = check(3);
    assert!(!denied.is_allowed());
    assert_eq!(
        sources(&denied),
        [("local", 2), ("exact", 3)],
        "the share denies, and the store is not charged"
    );
    assert_eq!(sources(&check(2)), [("local", 0), ("exact", 1)]);
    fleet.shared.down[first].store(false, Ordering::SeqCst);
    assert_eq!(sources(&check(0)), [("exact", 5), ("exact", 1)], "the store got the report");
    // Now the store denies, and the share is not charged.
    fleet.shared.down[second].store(true, Ordering::SeqCst);
    let local = |decision: &Decision| sources(decision)[1];
    assert_eq!(local(&check(0)), ("local", 0), "its share is used up");
    fleet.shared.down[second].store(false, Ordering::SeqCst);
}

/// The store's denial is given back here.
#[test]
fn a_denial_by_the_store_refunds_the_share() {
    let (fleet, key, [_, second]) = apart();
    for _ in 0..2 {
        assert!(fleet.check(1, &key, 5, NOW).is_allowed() || fleet.check(1, &key, 1, NOW).is_allowed());
    }
    // Of ten and six, four and none are left; this node has used nothing of its shares of five and three.
    fleet.shared.down[second].store(true, Ordering::SeqCst);
    let look = sources(&fleet.check(0, &key, 0, NOW));
    assert_eq!(look, [("exact", 4), ("local", 3)]);
    let denied = fleet.check(0, &key, 3, NOW);
    assert!(denied.is_allowed());
    assert_eq!(sources(&denied), [("exact", 1), ("local", 0)]);
    fleet.shared.down[second].store(false, Ordering::SeqCst);
    let (fleet, key, [_, second]) = apart();
    assert!(fleet.check(1, &key, 6, NOW).is_allowed());
    fleet.shared.down[second].store(true, Ordering::SeqCst);
    assert!(fleet.check(0, &key, 2, NOW).is_allowed());
    let denied = fleet.check(0, &key, 3, NOW);
    assert!(!denied.is_allowed());
    assert_eq!(sources(&denied), [("exact", 2), ("local", 1)], "neither was charged");
    let fallback = fleet.engines[0].maintenance().fallback().expect("the store can be away");
    assert_eq!(fallback.deferred_held, 1);
    assert_eq!(now_or_never(fleet.engines[0].maintenance().reconcile(NOW)), Err(StoreFailure::Unreachable));
}

/// A node that is cut off counts by its share; the others are exact.
#[test]
fn a_node_alone_may_be_cut_off() {
    let fleet = Fleet::new(2, || policy(vec![bucket("limit", 10)]));
    fleet.see(NOW);
    fleet.cuts[0].store(true, Ordering::SeqCst);
    let admitted = |node| (0..20).filter(|_| fleet.check(node, "k", 1, NOW).is_allowed()).count();
    assert_eq!((admitted(0), admitted(1)), (5, 10));
}
