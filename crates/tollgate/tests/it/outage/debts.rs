//! What the store is told after an outage, and that it is told once.

use std::sync::atomic::Ordering;

use tollgate::store::StoreFailure;
use tollgate::{DEBTS_MAX, Replayed, Ticks};

use super::{Fleet, after};
use crate::fixture::{NOW, asking, bucket, now_or_never, permits, policy};

fn left(fleet: &Fleet, key: &str) -> u64 {
    let decision = now_or_never(fleet.engines[0].peek(&asking(key, 1), NOW));
    decision.limits().next().expect("one limit").outcome.remaining
}

/// Each key is told about once, with all that was admitted, and only when the store is there.
#[test]
fn every_key_is_told_about_once() {
    let fleet = Fleet::of(1, || bucket("limit", 10));
    fleet.see(NOW);
    fleet.shared.set(true);
    for key in ["a", "b", "c"] {
        for _ in 0..4 {
            assert!(fleet.check(0, key, 1, NOW).is_allowed());
        }
    }
    let engine = &fleet.engines[0];
    assert_eq!(now_or_never(engine.settle_debts(NOW)), Err(StoreFailure::Unreachable));
    assert_eq!(engine.stand_in().map(|told| told.debts_held), Some(3));
    fleet.shared.set(false);
    assert_eq!(now_or_never(engine.settle_debts(NOW)), Ok(Replayed { told: 3, left: 0 }));
    assert_eq!(now_or_never(engine.settle_debts(NOW)), Ok(Replayed::default()));
    assert_eq!(fleet.shared.debits.load(Ordering::SeqCst), 3);
    assert_eq!([left(&fleet, "a"), left(&fleet, "b"), left(&fleet, "c")], [6, 6, 6]);
    let told = engine.stand_in().expect("told");
    assert_eq!((told.debts_replayed, told.debts_dropped, told.debts_held), (3, 0, 0));
}

/// A debit whose answer is lost is not sent again.
#[test]
fn a_lost_answer_is_not_asked_again() {
    let fleet = Fleet::of(1, || bucket("limit", 10));
    fleet.see(NOW);
    fleet.shared.set(true);
    assert!(fleet.check(0, "k", 4, NOW).is_allowed());
    fleet.shared.set(false);
    fleet.see(NOW);
    fleet.shared.unanswered.store(1, Ordering::SeqCst);
    let engine = &fleet.engines[0];
    assert_eq!(now_or_never(engine.settle_debts(NOW)), Err(StoreFailure::Unanswered));
    assert_eq!(left(&fleet, "k"), 6);
    assert_eq!(left(&fleet, "k"), 6);
    let told = engine.stand_in().expect("told");
    assert_eq!((told.debts_replayed, told.debts_dropped, told.debts_held), (0, 1, 0));
    assert_eq!(fleet.shared.debits.load(Ordering::SeqCst), 1);
}

/// What was admitted long ago is owed no more: units come back by themselves.
#[test]
fn a_debt_fades() {
    let fleet = Fleet::of(1, || bucket("limit", 60));
    fleet.see(NOW);
    fleet.shared.set(true);
    assert!(fleet.check(0, "k", 30, NOW).is_allowed());
    assert!(fleet.check(0, "old", 1, NOW).is_allowed());
    // One unit comes back each minute; ten of the thirty have.
    let later = NOW + Ticks::from_secs(600);
    fleet.shared.set(false);
    fleet.settle(later);
    let decision = now_or_never(fleet.engines[0].peek(&asking("k", 1), later));
    assert_eq!(decision.limits().next().map(|status| status.outcome.remaining), Some(40));
    assert_eq!(fleet.shared.debits.load(Ordering::SeqCst), 1, "the other owes nothing");
}

/// A key owes a burst at most, however long the outage was.
#[test]
fn a_key_owes_a_burst_at_most() {
    let fleet = Fleet::of(1, || bucket("limit", 3_600));
    fleet.see(NOW);
    fleet.shared.set(true);
    for second in 0..9_000u64 {
        let _ = fleet.check(0, "k", 2, after(second * 1_000_000));
    }
    let end = after(9_000_000_000);
    fleet.shared.set(false);
    fleet.settle(end);
    let decision = now_or_never(fleet.engines[0].peek(&asking("k", 1), end));
    let left = decision.limits().next().map(|status| status.outcome.remaining);
    assert!(left.is_some_and(|left| left <= 2), "an hour's worth was used in the last hour: {left:?}");
    assert!(now_or_never(fleet.engines[0].check(&asking("k", 60), end + Ticks::from_secs(60))).is_allowed());
}

/// The book of debts is bounded; what does not fit is counted.
#[test]
fn debts_are_bounded() {
    let fleet = Fleet::of(1, || bucket("limit", 5));
    fleet.see(NOW);
    fleet.shared.set(true);
    for key in 0..DEBTS_MAX + 50 {
        assert!(fleet.check(0, &key.to_string(), 1, NOW).is_allowed());
    }
    let told = fleet.engines[0].stand_in().expect("told");
    assert_eq!((told.debts_held, told.debts_dropped), (DEBTS_MAX, 50));
    assert!(told.bytes < 10 << 20);
    fleet.shared.set(false);
    fleet.settle(NOW);
    let told = fleet.engines[0].stand_in().expect("told");
    assert_eq!((told.debts_held, told.debts_replayed), (0, DEBTS_MAX as u64));
}

/// A policy that takes over in an outage keeps debts, and drops those of a limit that is gone.
#[test]
fn debts_outlive_a_swap() {
    let fleet = Fleet::of(1, || bucket("limit", 10));
    fleet.see(NOW);
    fleet.shared.set(true);
    assert!(fleet.check(0, "k", 4, NOW).is_allowed());
    let engine = &fleet.engines[0];
    engine.swap(policy(vec![bucket("limit", 20)]), NOW).expect("few quotas");
    fleet.shared.set(false);
    fleet.settle(NOW);
    // Ten of ten were there when the bucket grew to twenty, and a full one stays full.
    assert_eq!(left(&fleet, "k"), 16);
    fleet.shared.set(true);
    assert!(fleet.check(0, "k", 1, NOW).is_allowed());
    engine.swap(policy(vec![bucket("another", 20)]), NOW).expect("few quotas");
    fleet.shared.set(false);
    assert_eq!(now_or_never(engine.settle_debts(NOW)), Ok(Replayed::default()));
}

/// In an outage nodes have shares of the places in flight. A place is given back where it was taken, and one that outlasts the outage is
/// taken from the store, too, and given back there.
#[test]
fn places_in_flight_are_shared() {
    let fleet = Fleet::of(2, || permits("in-flight", 4));
    fleet.see(NOW);
    fleet.shared.set(true);
    let mut held: Vec<_> = (0..2)
        .flat_map(|node| [node; 3])
        .filter_map(|node| fleet.check(node, "k", 1, NOW).take_permit().map(|permit| (node, permit)))
        .collect();
    assert_eq!(held.len(), 4);
    let (node, permit) = held.remove(0);
    assert_eq!(now_or_never(fleet.engines[node].release(&permit, NOW)), Ok(()));
    assert!(fleet.check(node, "k", 1, NOW).take_permit().is_some_and(|permit| {
        held.push((node, permit));
        true
    }));
    fleet.shared.set(false);
    fleet.settle(NOW);
    assert_eq!(left(&fleet, "k"), 0, "four are still in flight");
    for (node, permit) in &held {
        assert_eq!(now_or_never(fleet.engines[*node].release(permit, NOW)), Ok(()));
    }
    assert_eq!(left(&fleet, "k"), 4);
}

/// What is given back in the store while a debt of the same key waits is given back once.
#[test]
fn a_refund_beside_a_debt_is_no_gift() {
    let fleet = Fleet::of(2, || bucket("limit", 20));
    assert!(fleet.check(0, "k", 5, NOW).is_allowed());
    fleet.shared.set(true);
    assert!(fleet.check(0, "k", 4, NOW).is_allowed());
    fleet.shared.set(false);
    assert_eq!(now_or_never(fleet.engines[0].refund(&asking("k", 3), NOW)), Ok(()));
    assert_eq!(left(&fleet, "k"), 20 - 5 - 4 + 3);
    assert_eq!(left(&fleet, "k"), 20 - 5 - 4 + 3);
}

/// A refund that has begun is finished when the store is back; one that has not is told, and may be asked again.
#[test]
fn a_refund_is_given_once() {
    let fleet = Fleet::new(1, || policy(vec![bucket("first", 10), bucket("second", 10)]));
    assert!(fleet.check(0, "k", 8, NOW).is_allowed());
    let engine = &fleet.engines[0];
    let all = || -> Vec<u64> {
        let decision = now_or_never(engine.peek(&asking("k", 1), NOW));
        decision.limits().map(|status| status.outcome.remaining).collect()
    };
    fleet.shared.set(true);
    assert_eq!(now_or_never(engine.refund(&asking("k", 3), NOW)), Err(StoreFailure::Unreachable));
    fleet.shared.set(false);
    assert_eq!(all(), [2, 2]);
    // The first counter's answer is lost: it is not given to again, and the second is given to.
    fleet.shared.unanswered.store(1, Ordering::SeqCst);
    assert_eq!(now_or_never(engine.refund(&asking("k", 3), NOW)), Err(StoreFailure::Unanswered));
    assert_eq!(all(), [5, 5]);
}
