//! Deferred charges are reported to the store once after an outage.

use std::sync::atomic::Ordering;

use tollgate::algorithm::sliding_log::SlidingLog;
use tollgate::engine::{DEFERRED_MAX, Reconciled};
use tollgate::policy::{OnStoreFailure, Stages};
use tollgate::store::StoreFailure;
use tollgate::{Quota, Rate, Ticks};

use super::{Fleet, after, source};
use crate::fixture::{ALGORITHMS, HOUR, NOW, asking, bucket, limit, now_or_never, permits, policy};

fn left(fleet: &Fleet, key: &str) -> u64 {
    let decision = now_or_never(fleet.engines[0].operator().peek(&asking(key, 1), NOW));
    decision.limits().next().expect("one limit").outcome.remaining
}

/// A node that admitted 4 of 10 units of one key while its store was away. The store is back.
fn owing_four() -> Fleet {
    let fleet = Fleet::of(1, || bucket("limit", 10));
    fleet.see(NOW);
    fleet.shared.set(true);
    assert!(fleet.check(0, "k", 4, NOW).is_allowed());
    fleet.shared.set(false);
    fleet
}

/// Each key is reported once, with all admitted units, and only when the store answers.
#[test]
fn every_key_is_reported_once() {
    let fleet = Fleet::of(1, || bucket("limit", 10));
    fleet.see(NOW);
    fleet.shared.set(true);
    for key in ["a", "b", "c"] {
        for _ in 0..4 {
            assert!(fleet.check(0, key, 1, NOW).is_allowed());
        }
    }
    let engine = &fleet.engines[0];
    assert_eq!(now_or_never(engine.maintenance().reconcile(NOW)), Err(StoreFailure::Unreachable));
    assert_eq!(engine.maintenance().fallback().map(|fallback| fallback.deferred_held), Some(3));
    fleet.shared.set(false);
    assert_eq!(now_or_never(engine.maintenance().reconcile(NOW)), Ok(Reconciled { settled: 3, left: 0 }));
    assert_eq!(now_or_never(engine.maintenance().reconcile(NOW)), Ok(Reconciled::default()));
    assert_eq!(fleet.shared.debits.load(Ordering::SeqCst), 3);
    assert_eq!([left(&fleet, "a"), left(&fleet, "b"), left(&fleet, "c")], [6, 6, 6]);
    let fallback = engine.maintenance().fallback().expect("the store can be away");
    assert_eq!((fallback.deferred_settled, fallback.deferred_dropped, fallback.deferred_held), (3, 0, 0));
}

/// A debit whose answer is lost is not sent again.
#[test]
fn a_lost_answer_is_not_asked_again() {
    let fleet = owing_four();
    fleet.see(NOW);
    fleet.shared.unanswered.store(1, Ordering::SeqCst);
    let engine = &fleet.engines[0];
    assert_eq!(now_or_never(engine.maintenance().reconcile(NOW)), Err(StoreFailure::Unanswered));
    assert_eq!(left(&fleet, "k"), 6);
    assert_eq!(left(&fleet, "k"), 6);
    let fallback = engine.maintenance().fallback().expect("the store can be away");
    assert_eq!((fallback.deferred_settled, fallback.deferred_dropped, fallback.deferred_held), (0, 1, 0));
    assert_eq!(fleet.shared.debits.load(Ordering::SeqCst), 1);
}

/// Deferred charges shrink with time: units come back by themselves.
#[test]
fn a_deferred_charge_shrinks() {
    let fleet = Fleet::of(1, || bucket("limit", 60));
    fleet.see(NOW);
    fleet.shared.set(true);
    assert!(fleet.check(0, "k", 30, NOW).is_allowed());
    assert!(fleet.check(0, "old", 1, NOW).is_allowed());
    // One unit comes back each minute; ten of the thirty have.
    let later = NOW + Ticks::from_secs(600);
    fleet.shared.set(false);
    fleet.settle(later);
    let decision = now_or_never(fleet.engines[0].operator().peek(&asking("k", 1), later));
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
    let decision = now_or_never(fleet.engines[0].operator().peek(&asking("k", 1), end));
    let left = decision.limits().next().map(|status| status.outcome.remaining);
    assert!(left.is_some_and(|left| left <= 2), "an hour's worth was used in the last hour: {left:?}");
    assert!(now_or_never(fleet.engines[0].check(&asking("k", 60), end + Ticks::from_secs(60))).is_allowed());
}

/// The book of debts is bounded; what does not fit is counted.
#[test]
fn deferred_charges_are_bounded() {
    let fleet = Fleet::of(1, || bucket("limit", 5));
    fleet.see(NOW);
    fleet.shared.set(true);
    for key in 0..DEFERRED_MAX + 50 {
        assert!(fleet.check(0, &key.to_string(), 1, NOW).is_allowed());
    }
    let fallback = fleet.engines[0].maintenance().fallback().expect("the store can be away");
    assert_eq!((fallback.deferred_held, fallback.deferred_dropped), (DEFERRED_MAX, 50));
    assert!(fallback.bytes < 10 << 20);
    fleet.shared.set(false);
    fleet.settle(NOW);
    let fallback = fleet.engines[0].maintenance().fallback().expect("the store can be away");
    assert_eq!((fallback.deferred_held, fallback.deferred_settled), (0, DEFERRED_MAX as u64));
}

/// A policy that takes over in an outage keeps debts, and drops those of a limit that is gone.
#[test]
fn deferred_charges_outlive_a_swap() {
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
    assert_eq!(now_or_never(engine.maintenance().reconcile(NOW)), Ok(Reconciled::default()));
}

/// In an outage nodes have shares of the permits in flight. A permit is given back where it was taken, and one that outlasts the outage is
/// taken from the store, too, and given back there.
#[test]
fn permits_are_shared_between_nodes() {
    let fleet = Fleet::of(2, || permits("in-flight", 4));
    fleet.see(NOW);
    fleet.shared.set(true);
    let mut held: Vec<_> = (0..2)
        .flat_map(|node| [node; 3])
        .filter_map(|node| fleet.check(node, "k", 1, NOW).take_permit().map(|permit| (node, permit)))
        .collect();
    assert_eq!(held.len(), 4);
    let (node, permit) = held.remove(0);
    assert_eq!(now_or_never(fleet.engines[node].reservations().release(&permit, NOW)), Ok(()));
    assert!(fleet.check(node, "k", 1, NOW).take_permit().is_some_and(|permit| {
        held.push((node, permit));
        true
    }));
    fleet.shared.set(false);
    fleet.settle(NOW);
    assert_eq!(left(&fleet, "k"), 0, "four are still in flight");
    for (node, permit) in &held {
        assert_eq!(now_or_never(fleet.engines[*node].reservations().release(permit, NOW)), Ok(()));
    }
    assert_eq!(left(&fleet, "k"), 4);
}

/// A refund in the store while a charge of the same key is deferred is made once.
#[test]
fn a_refund_and_a_deferred_charge_are_netted_once() {
    let fleet = Fleet::of(2, || bucket("limit", 20));
    assert!(fleet.check(0, "k", 5, NOW).is_allowed());
    fleet.shared.set(true);
    assert!(fleet.check(0, "k", 4, NOW).is_allowed());
    fleet.shared.set(false);
    assert_eq!(
        now_or_never(fleet.engines[0].ledger().refund(&asking("k", 3), &[], Ticks::ZERO, NOW)),
        Ok(())
    );
    assert_eq!(left(&fleet, "k"), 20 - 5 - 4 + 3);
    assert_eq!(left(&fleet, "k"), 20 - 5 - 4 + 3);
}

/// A refund that has begun is finished when the store is back; one that has not begun is an error, and may be repeated.
#[test]
fn a_refund_is_given_once() {
    let fleet = Fleet::new(1, || policy(vec![bucket("first", 10), bucket("second", 10)]));
    assert!(fleet.check(0, "k", 8, NOW).is_allowed());
    let engine = &fleet.engines[0];
    let all = || -> Vec<u64> {
        let decision = now_or_never(engine.operator().peek(&asking("k", 1), NOW));
        decision.limits().map(|status| status.outcome.remaining).collect()
    };
    fleet.shared.set(true);
    assert_eq!(
        now_or_never(engine.ledger().refund(&asking("k", 3), &[], Ticks::ZERO, NOW)),
        Err(StoreFailure::Unreachable)
    );
    fleet.shared.set(false);
    assert_eq!(all(), [2, 2]);
    // The first counter's answer is lost: it is not given to again, and the second is given to.
    fleet.shared.unanswered.store(1, Ordering::SeqCst);
    assert_eq!(
        now_or_never(engine.ledger().refund(&asking("k", 3), &[], Ticks::ZERO, NOW)),
        Err(StoreFailure::Unanswered)
    );
    assert_eq!(all(), [5, 5]);
}

/// The story: 5 of 10 in an hour pass, are given back while the store is away, and an hour later all 10 pass. Then the store got a report
/// of the 5, took the oldest that it knew of, and gave back 5 of those of a moment ago.
#[test]
fn a_refund_that_the_store_gets_late_is_of_its_own_time() {
    for (name, quota) in ALGORITHMS {
        if ["leaky-bucket", "concurrency"].contains(&name) {
            continue; // One gives nothing back, the other by names.
        }
        let fleet = Fleet::new(2, || policy(vec![limit("first", quota(10)), limit("second", quota(10))]));
        assert!(fleet.check(0, "k", 5, NOW).is_allowed(), "{name}");
        // The first counter is given to, and the store is gone before the second.
        fleet.shared.lasts.store(1, Ordering::SeqCst);
        let refunded = now_or_never(fleet.engines[0].ledger().refund(&asking("k", 5), &[], Ticks::ZERO, NOW));
        assert_eq!((refunded, fleet.shared.failures.load(Ordering::SeqCst)), (Ok(()), 1), "{name}");
        fleet.shared.set(false);
        let later = NOW + HOUR + HOUR;
        let passed = (0..20).filter(|_| fleet.check(1, "k", 1, later).is_allowed()).count();
        assert_eq!(passed, 10, "{name}");
        fleet.settle(later);
        assert_eq!(
            fleet.engines[0].maintenance().fallback().unwrap().deferred_held,
            0,
            "{name}: the store got the report"
        );
        assert!(!fleet.check(1, "k", 1, later).is_allowed(), "{name}: ten were kept in this instant");
    }
}

/// And within its time it gives back what it took.
#[test]
fn a_refund_that_the_store_gets_in_time_makes_room() {
    let fleet = Fleet::new(2, || policy(vec![bucket("first", 10), bucket("second", 10)]));
    assert!(fleet.check(0, "k", 5, NOW).is_allowed());
    fleet.shared.lasts.store(1, Ordering::SeqCst);
    assert_eq!(
        now_or_never(fleet.engines[0].ledger().refund(&asking("k", 5), &[], Ticks::ZERO, NOW)),
        Ok(())
    );
    fleet.shared.set(false);
    fleet.settle(NOW);
    assert_eq!((0..20).filter(|_| fleet.check(1, "k", 1, NOW).is_allowed()).count(), 10);
}

/// The story: 5 of 10 in 10 s pass at 0 s. At 9 s the store goes away, 3 of them are given back here and 3 others pass here. Set off
/// against each other nothing was owed, so at 10 s the store had forgotten the 5, knew of none of the 3, and gave 10 more.
#[test]
fn a_refund_is_not_set_off_against_later_units() {
    let rate = Rate::per_ticks(10, Ticks::from_secs(10));
    let log = || limit("second", Quota::SlidingLog(SlidingLog::new(rate).unwrap()));
    let fleet = Fleet::new(1, || policy(vec![bucket("first", 1_000), log()]));
    assert!(fleet.check(0, "k", 5, NOW).is_allowed());
    let at = |seconds| NOW + Ticks::from_secs(seconds);
    fleet.shared.lasts.store(1, Ordering::SeqCst);
    let age = at(9).since(NOW);
    assert_eq!(now_or_never(fleet.engines[0].ledger().refund(&asking("k", 3), &[], age, at(9))), Ok(()));
    assert!(fleet.check(0, "k", 3, at(9)).is_allowed(), "decided here");
    fleet.shared.set(false);
    fleet.settle(at(9));
    let kept = 3 + (0..20).filter(|_| fleet.check(0, "k", 1, at(11)).is_allowed()).count();
    assert!(kept <= 10, "{kept} were kept since 9 s");
}

/// Units that an open limit admitted are reported to the store, also beyond this node's share, and the fleet admits no more than that twice.
/// An outage once left 88 of 90 units although 36 had passed.
#[test]
fn units_of_an_open_limit_are_reported() {
    let open = Stages { open_for: Ticks::from_secs(1), open_up_to: Some(4), deny_after: None };
    let fleet = Fleet::of(3, || bucket("limit", 90).on_store_failure(OnStoreFailure::Staged(open)));
    fleet.see(NOW);
    fleet.shared.set(true);
    for _ in 0..36 {
        assert!(
            fleet.check(0, "k", 1, NOW).is_allowed(),
            "a node's share is 30, and four times that may pass"
        );
    }
    fleet.shared.set(false);
    fleet.settle(NOW);
    assert_eq!(left(&fleet, "k"), 54);
    fleet.settle(NOW);
    assert_eq!(left(&fleet, "k"), 54, "each unit is reported once");
}

/// The story: a client asks all the time, and the store misses deadlines. While its breaker ramped up, a few calls passed and what this
/// node had admitted meanwhile was not reported, so store and node each gave a whole quota: 1.8 times the limit.
#[test]
fn a_part_that_comes_back_slowly_gets_the_report_first() {
    let fleet = owing_four();
    // The store answers, and says that the part is not well yet.
    fleet.away.store(1, Ordering::SeqCst);
    fleet.shared.unwell.store(true, Ordering::SeqCst);
    let decision = fleet.check(0, "k", 1, NOW);
    assert_eq!((source(&decision), fleet.shared.debits.load(Ordering::SeqCst)), ("exact", 1));
    assert_eq!(left(&fleet, "k"), 5);
}

/// While what a key owes cannot be reported the store is not asked about it: it would admit the same units again.
#[test]
fn a_key_that_owes_is_not_asked_about() {
    let fleet = owing_four();
    fleet.see(NOW);
    // Of the next calls only a report would be the first, and its answer is lost.
    fleet.shared.unanswered.store(1, Ordering::SeqCst);
    let decision = fleet.check(0, "k", 1, NOW);
    assert_eq!((source(&decision), fleet.shared.debits.load(Ordering::SeqCst)), ("local", 1));
    assert_eq!(left(&fleet, "k"), 5, "the report that was done and the unit since then");
}
