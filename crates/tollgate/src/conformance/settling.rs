//! Settlement of what was taken: reservations, permits, refunds, resets.

use super::fixture::{ALGORITHMS, Algorithm, BUCKET, HOUR, LINE, PERMITS, Rig, START, asking, on_plan};
use crate::decision::{Decision, Permit};
use crate::engine::{CommitError, Forgotten, Settled};
use crate::outcome::Verdict;
use crate::policy::{Cost, Mode};
use crate::request::CheckRequest;
use crate::store::Store;
use crate::time::{Ticks, Timestamp};

const LIFETIME: Ticks = Ticks::from_secs(30);

/// Runs all of this module.
pub async fn all<S: Store>(make: &impl Fn(Timestamp) -> S) {
    a_commit_below_the_estimate_gives_the_rest_back(make).await;
    a_commit_above_the_estimate_charges_what_there_is(make).await;
    a_commit_above_the_estimate_counts_by_the_keys_own_tier(make).await;
    a_cancelled_reservation_never_was(make).await;
    a_window_that_has_ended_is_not_given_back_to(make).await;
    a_reservation_that_expires_stays_charged(make).await;
    a_denied_reservation_holds_nothing(make).await;
    only_limits_that_count_the_cost_are_settled(make).await;
    a_reservation_survives_a_swap(make).await;
    waiters_keep_their_departures(make).await;
    a_permit_is_released_once(make).await;
    a_permit_comes_back_by_itself(make).await;
    a_renewed_permit_lives_on(make).await;
    a_permit_survives_a_swap(make).await;
    a_refund_gives_back_exactly(make).await;
    a_reset_forgets_all_or_the_named(make).await;
}

/// All algorithms whose units can be refunded by number.
fn countable() -> impl Iterator<Item = Algorithm> {
    ALGORITHMS.into_iter().filter(|each| each.name != PERMITS.name)
}

/// The algorithms that refund whatever was taken. A leaky bucket does not: a request in its queue keeps its slot.
fn refundable() -> impl Iterator<Item = Algorithm> {
    countable().filter(|each| each.name != LINE.name)
}

/// 6 reserved, 2 used: 4 are refunded.
pub(super) async fn a_commit_below_the_estimate_gives_the_rest_back<S: Store>(
    make: &impl Fn(Timestamp) -> S,
) {
    for algorithm in refundable() {
        let rig = Rig::new(make, vec![algorithm.limit("limit", 10)]);
        let (decision, reservation) =
            rig.engine.reservations().reserve(&asking("k", 6), LIFETIME, rig.now).await;
        assert!(decision.is_allowed());
        assert_eq!(rig.left("k", "limit").await, 4, "{}: charged at the estimate", algorithm.name);
        let settled =
            rig.engine.reservations().commit(&mut reservation.expect("it was admitted"), 2, rig.now).await;
        assert_eq!(settled, Ok(Settled { refunded: 4, charged: 0, unpaid: 0 }), "{}", algorithm.name);
        assert_eq!(rig.left("k", "limit").await, 8, "{}: settled", algorithm.name);
    }
}

/// 3 reserved, 8 used of 10: 5 more are charged. 3 reserved, 12 used: all 7 that are left are charged, and 2 are
/// unpaid.
pub(super) async fn a_commit_above_the_estimate_charges_what_there_is<S: Store>(
    make: &impl Fn(Timestamp) -> S,
) {
    for algorithm in countable() {
        for (actual, charged, unpaid) in [(3, 0, 0), (8, 5, 0), (10, 7, 0), (12, 7, 2)] {
            let rig = Rig::new(make, vec![algorithm.limit("limit", 10)]);
            let (_, reservation) =
                rig.engine.reservations().reserve(&asking("k", 3), LIFETIME, rig.now).await;
            let settled = rig
                .engine
                .reservations()
                .commit(&mut reservation.expect("it was admitted"), actual, rig.now)
                .await;
            assert_eq!(settled, Ok(Settled { refunded: 0, charged, unpaid }), "{}: {actual}", algorithm.name);
            assert_eq!(rig.left("k", "limit").await, 7 - charged, "{}: {actual}", algorithm.name);
        }
    }
}

/// The story: a commit above the estimate was charged by the limit's first quota, whatever tier the key had. A key of a
/// large tier was then clamped to the smallest, and lost nearly all its units.
pub(super) async fn a_commit_above_the_estimate_counts_by_the_keys_own_tier<S: Store>(
    make: &impl Fn(Timestamp) -> S,
) {
    for algorithm in countable() {
        let tiers = [("free", algorithm.quota(10)), ("pro", algorithm.quota(1_000))];
        let rig = Rig::new(make, vec![algorithm.limit("limit", 10).tiers("plan", tiers)]);
        let request = on_plan("k", "pro", 100);
        let (_, reservation) = rig.engine.reservations().reserve(&request, LIFETIME, rig.now).await;
        let settled =
            rig.engine.reservations().commit(&mut reservation.expect("it was admitted"), 300, rig.now).await;
        assert_eq!(settled, Ok(Settled { refunded: 0, charged: 200, unpaid: 0 }), "{}", algorithm.name);
        let look = rig.engine.operator().peek(&request, rig.now).await;
        let left = look.limits().next().map(|status| status.outcome.remaining);
        assert_eq!(left, Some(700), "{}", algorithm.name);
    }
}

/// After a cancellation every counter, permits included, is as before the reservation.
pub(super) async fn a_cancelled_reservation_never_was<S: Store>(make: &impl Fn(Timestamp) -> S) {
    let each = ALGORITHMS.iter().filter(|each| each.name != LINE.name);
    let rig = Rig::new(make, each.map(|each| each.limit(each.name, 10)).collect());
    let mut decision = rig.check(&asking("k", 2)).await;
    assert!(decision.take_permit().is_some());
    let before = rig.peek("k").await;
    let (_, reservation) = rig.engine.reservations().reserve(&asking("k", 5), LIFETIME, rig.now).await;
    assert_ne!(rig.peek("k").await, before);
    let settled = rig.engine.reservations().cancel(&mut reservation.expect("it was admitted"), rig.now).await;
    assert_eq!(settled, Ok(Settled { refunded: 5, charged: 0, unpaid: 0 }));
    assert_eq!(rig.peek("k").await, before);
    // A limit in shadow that had no room took nothing, so nothing is refunded to it.
    let rig = Rig::new(make, vec![BUCKET.limit("a", 10), BUCKET.limit("watching", 3).mode(Mode::Shadow)]);
    assert!(rig.admits("k", 2).await);
    let (_, reservation) = rig.engine.reservations().reserve(&asking("k", 4), LIFETIME, rig.now).await;
    assert!(
        rig.engine.reservations().cancel(&mut reservation.expect("it was admitted"), rig.now).await.is_ok()
    );
    assert_eq!((rig.left("k", "a").await, rig.left("k", "watching").await), (8, 1));
}

/// The story: a window from the first hit was taken to have begun with the reservation. It had begun long before, so
/// units cancelled after its end were refunded to the next one. One tick before its end they are refunded in full.
pub(super) async fn a_window_that_has_ended_is_not_given_back_to<S: Store>(make: &impl Fn(Timestamp) -> S) {
    let first_hit = ALGORITHMS.iter().find(|each| each.name == "fixed-window, first hit");
    let first_hit = first_hit.expect("it is one of them");
    for (cancelled_after, refunded) in [(HOUR - Ticks::ONE, 4), (HOUR, 0)] {
        let mut rig = Rig::new(make, vec![first_hit.limit("limit", 10)]);
        assert!(rig.admits("k", 1).await);
        rig.now = START + HOUR - Ticks::from_secs(1);
        let (_, reservation) = rig.engine.reservations().reserve(&asking("k", 4), HOUR, rig.now).await;
        rig.now = START + cancelled_after;
        assert!(rig.admits("k", 5).await);
        let before = rig.left("k", "limit").await;
        let settled =
            rig.engine.reservations().cancel(&mut reservation.expect("it was admitted"), rig.now).await;
        assert_eq!(settled, Ok(Settled { refunded, charged: 0, unpaid: 0 }), "{cancelled_after:?}");
        assert_eq!(rig.left("k", "limit").await, before + refunded, "{cancelled_after:?}");
    }
}

/// One tick before its end a reservation can be settled; at its end it stays charged at the estimate.
pub(super) async fn a_reservation_that_expires_stays_charged<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for (settled_after, settles) in [(LIFETIME - Ticks::ONE, true), (LIFETIME, false), (HOUR, false)] {
        let fixed =
            ALGORITHMS.iter().find(|each| each.name == "fixed-window, epoch").expect("it is one of them");
        let rig = Rig::new(make, vec![fixed.limit("limit", 10)]);
        let (_, reservation) = rig.engine.reservations().reserve(&asking("k", 6), LIFETIME, rig.now).await;
        let mut reservation = reservation.expect("it was admitted");
        assert_eq!(reservation.expires_at(), rig.now + LIFETIME);
        let settled = rig.engine.reservations().cancel(&mut reservation, rig.now + settled_after).await;
        assert_eq!(settled.is_ok(), settles, "{settled_after:?}");
        if !settles {
            assert_eq!(settled, Err(CommitError::Expired));
        }
        assert_eq!(rig.left("k", "limit").await, if settles { 10 } else { 4 });
    }
}

/// A denied reservation holds nothing that could be refunded.
pub(super) async fn a_denied_reservation_holds_nothing<S: Store>(make: &impl Fn(Timestamp) -> S) {
    let rig = Rig::new(make, vec![BUCKET.limit("a", 10), PERMITS.limit("b", 3)]);
    assert!(rig.admits("k", 2).await);
    let before = rig.peek("k").await;
    let (decision, reservation) = rig.engine.reservations().reserve(&asking("k", 2), LIFETIME, rig.now).await;
    assert!(!decision.is_allowed() && reservation.is_none());
    assert_eq!(rig.peek("k").await, before);
}

/// A limit with a fixed cost keeps it, and beside a limit that computes its cost the others count requests.
pub(super) async fn only_limits_that_count_the_cost_are_settled<S: Store>(make: &impl Fn(Timestamp) -> S) {
    let fixed = BUCKET.limit("fixed", 10).cost(Cost::Units(2));
    let rig = Rig::new(make, vec![fixed, BUCKET.limit("asked", 10)]);
    let (_, reservation) = rig.engine.reservations().reserve(&asking("k", 6), LIFETIME, rig.now).await;
    assert!(
        rig.engine
            .reservations()
            .commit(&mut reservation.expect("it was admitted"), 1, rig.now)
            .await
            .is_ok()
    );
    assert_eq!((rig.left("k", "fixed").await, rig.left("k", "asked").await), (8, 9));

    let computed = BUCKET.limit("computed", 100).cost(Cost::Attribute("tokens".to_owned()));
    let rig = Rig::new(make, vec![computed, BUCKET.limit("asked", 10)]);
    let request: CheckRequest<'_> =
        asking("k", 1).with("tokens", 60).expect("the suite's requests are valid");
    let (_, reservation) = rig.engine.reservations().reserve(&request, LIFETIME, rig.now).await;
    let settled =
        rig.engine.reservations().commit(&mut reservation.expect("it was admitted"), 25, rig.now).await;
    assert_eq!(settled, Ok(Settled { refunded: 35, charged: 0, unpaid: 0 }));
    assert_eq!((rig.left("k", "computed").await, rig.left("k", "asked").await), (75, 9));
}

/// A reservation made under one policy is settled under the next; if its limit is gone, nothing happens.
pub(super) async fn a_reservation_survives_a_swap<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for algorithm in refundable() {
        let rig = Rig::new(make, vec![algorithm.limit("limit", 10)]);
        let (_, kept) = rig.engine.reservations().reserve(&asking("k", 4), LIFETIME, rig.now).await;
        let (_, orphan) = rig.engine.reservations().reserve(&asking("k", 3), LIFETIME, rig.now).await;
        rig.swap(vec![algorithm.limit("limit", 11)]);
        assert!(
            rig.engine.reservations().commit(&mut kept.expect("it was admitted"), 1, rig.now).await.is_ok()
        );
        let left = rig.left("k", "limit").await;
        assert!(left == 6 || left == 7, "{}: {left}", algorithm.name);
        rig.swap(vec![BUCKET.limit("another", 5)]);
        assert!(
            rig.engine.reservations().cancel(&mut orphan.expect("it was admitted"), rig.now).await.is_ok()
        );
        assert_eq!(rig.left("k", "another").await, 5, "{}", algorithm.name);
    }
}

/// Whichever waiters leave a queue, from its end or from its middle, and whatever is refunded to it: later requests
/// depart later, one interval apart.
pub(super) async fn waiters_keep_their_departures<S: Store>(make: &impl Fn(Timestamp) -> S) {
    let interval = Ticks::from_secs(360);
    for gone in [&[1_usize, 2][..], &[2, 1], &[3], &[3, 2, 1], &[1, 3], &[0], &[0, 1, 2], &[]] {
        let mut rig = Rig::new(make, vec![LINE.limit("line", 10)]);
        let mut leaves = Vec::new();
        let mut reservations = Vec::new();
        for _ in 0..4 {
            let (decision, reservation) =
                rig.engine.reservations().reserve(&asking("k", 1), LIFETIME, rig.now).await;
            leaves.push(rig.now + wait_of(&decision));
            reservations.push(reservation.expect("there is room in the line"));
            rig.now = rig.now + Ticks::from_secs(1);
        }
        for &place in gone {
            assert!(rig.engine.reservations().cancel(&mut reservations[place], rig.now).await.is_ok());
        }
        assert!(rig.engine.ledger().refund(&asking("k", 2), &[], Ticks::ZERO, rig.now).await.is_ok());
        for _ in 0..3 {
            leaves.push(rig.now + wait_of(&rig.check(&asking("k", 1)).await));
        }
        // The first has departed before any waiter leaves, so its slot was used.
        let stayed = (0..leaves.len()).filter(|place| *place == 0 || !gone.contains(place));
        let stayed: Vec<Timestamp> = stayed.map(|place| leaves[place]).collect();
        let is_apart = |pair: &[Timestamp]| pair[1] >= pair[0] + interval;
        assert!(stayed.windows(2).all(is_apart), "{gone:?} went away: {stayed:?}");
    }
}

fn wait_of(decision: &Decision) -> Ticks {
    match decision.verdict() {
        Verdict::Wait(wait) => wait,
        verdict => {
            assert_eq!(verdict, Verdict::Allow);
            Ticks::ZERO
        }
    }
}

async fn permit<S: Store>(rig: &Rig<S>) -> Option<Permit> {
    rig.check(&asking("k", 1)).await.take_permit()
}

/// A release returns one permit; releasing it again, or a permit of another holder, changes nothing.
pub(super) async fn a_permit_is_released_once<S: Store>(make: &impl Fn(Timestamp) -> S) {
    let rig = Rig::new(make, vec![PERMITS.limit("in-flight", 2), BUCKET.limit("rate", 100)]);
    let first = permit(&rig).await.expect("two permits are free");
    let second = permit(&rig).await.expect("one permit is free");
    assert!(permit(&rig).await.is_none(), "both are taken");
    assert_ne!(first.id(), second.id());
    for _ in 0..3 {
        assert!(rig.engine.reservations().release(&first, rig.now).await.is_ok());
        assert_eq!(rig.left("k", "in-flight").await, 1, "released once, however often");
    }
    let third = permit(&rig).await.expect("the place is free again");
    assert!(rig.engine.reservations().release(&first, rig.now).await.is_ok());
    assert_eq!(rig.left("k", "in-flight").await, 0, "the old permit does not free the new one's place");
    assert!(rig.engine.reservations().release(&second, rig.now).await.is_ok());
    assert!(rig.engine.reservations().release(&third, rig.now).await.is_ok());
    assert_eq!(rig.left("k", "in-flight").await, 2);
    assert_eq!(rig.left("k", "rate").await, 97, "a permit gives back its place and nothing else");
    assert!(
        rig.engine.operator().peek(&asking("k", 1), rig.now).await.take_permit().is_none(),
        "a look takes no place"
    );
}

/// The permit of a crashed holder comes back exactly when it expires, and a late release frees no other permit.
pub(super) async fn a_permit_comes_back_by_itself<S: Store>(make: &impl Fn(Timestamp) -> S) {
    let mut rig = Rig::new(make, vec![PERMITS.limit("in-flight", 1)]);
    let lost = permit(&rig).await.expect("the place is free");
    let denied = rig.check(&asking("k", 1)).await;
    assert_eq!(denied.retry_after(), Some(HOUR));
    let taken_at = rig.now;
    rig.now = taken_at + HOUR - Ticks::ONE;
    assert!(permit(&rig).await.is_none(), "one tick early");
    rig.now = taken_at + HOUR;
    let next = permit(&rig).await.expect("it expired");
    assert!(rig.engine.reservations().release(&lost, rig.now).await.is_ok());
    assert!(permit(&rig).await.is_none(), "a late release frees no other permit");
    assert!(rig.engine.reservations().release(&next, rig.now).await.is_ok());
    assert!(permit(&rig).await.is_some());
}

/// A permit that is renewed in time lives on, however long, and takes no further permit; one that has expired stays
/// gone.
pub(super) async fn a_renewed_permit_lives_on<S: Store>(make: &impl Fn(Timestamp) -> S) {
    let mut rig = Rig::new(make, vec![PERMITS.limit("in-flight", 2)]);
    let held = permit(&rig).await.expect("two permits are free");
    let lost = permit(&rig).await.expect("one permit is free");
    assert_eq!(held.ttl(), HOUR);
    for _ in 0..5 {
        rig.now = rig.now + HOUR - Ticks::ONE;
        assert!(rig.engine.reservations().renew(&held, rig.now).await.is_ok());
    }
    assert_eq!(rig.left("k", "in-flight").await, 1, "one lives, and one has expired");
    assert!(rig.engine.reservations().renew(&lost, rig.now).await.is_ok());
    assert_eq!(rig.left("k", "in-flight").await, 1, "an expired permit does not come back");
    rig.swap(vec![PERMITS.limit("in-flight", 3)]);
    rig.now = rig.now + HOUR - Ticks::ONE;
    assert!(rig.engine.reservations().renew(&held, rig.now).await.is_ok());
    rig.now = rig.now + HOUR - Ticks::ONE;
    assert_eq!(rig.left("k", "in-flight").await, 2, "nor does a change of policy end it");
    assert!(rig.engine.reservations().release(&held, rig.now).await.is_ok());
    assert!(rig.engine.reservations().renew(&held, rig.now).await.is_ok());
    assert_eq!(rig.left("k", "in-flight").await, 3, "a released permit stays released");
    let crashed = permit(&rig).await.expect("a permit is free");
    assert!(rig.engine.reservations().renew(&crashed, rig.now).await.is_ok());
    rig.now = rig.now + HOUR;
    assert_eq!(rig.left("k", "in-flight").await, 3, "the permit of a crashed holder expires");
}

/// A permit acquired under one policy is released under the next, whether the limit was raised, lowered or removed.
pub(super) async fn a_permit_survives_a_swap<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for limit in [1, 2, 5, 9] {
        let rig = Rig::new(make, vec![PERMITS.limit("in-flight", 5)]);
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(permit(&rig).await.expect("a permit is free"));
        }
        rig.swap(vec![PERMITS.limit("in-flight", limit)]);
        assert_eq!(rig.left("k", "in-flight").await, limit.saturating_sub(3), "{limit}");
        for (released, permit) in (1u64..).zip(&held) {
            assert!(rig.engine.reservations().release(permit, rig.now).await.is_ok());
            assert_eq!(rig.left("k", "in-flight").await, limit.saturating_sub(3 - released), "{limit}");
        }
        rig.swap(vec![BUCKET.limit("another", 5)]);
        assert!(rig.engine.reservations().release(&held[0], rig.now).await.is_ok());
        assert_eq!(rig.left("k", "another").await, 5);
    }
}

/// A refund returns what was taken and never more: an unused counter has its capacity, not above it.
pub(super) async fn a_refund_gives_back_exactly<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for algorithm in refundable() {
        let rig = Rig::new(make, vec![algorithm.limit("limit", 10)]);
        assert!(rig.admits("k", 7).await);
        assert!(rig.admits("other", 7).await);
        assert!(rig.engine.ledger().refund(&asking("k", 2), &[], Ticks::ZERO, rig.now).await.is_ok());
        assert_eq!(rig.left("k", "limit").await, 5, "{}", algorithm.name);
        assert_eq!(rig.left("other", "limit").await, 3, "{}", algorithm.name);
        assert!(rig.engine.ledger().refund(&asking("k", 50), &[], Ticks::ZERO, rig.now).await.is_ok());
        assert!(
            rig.engine.ledger().refund(&asking("never-seen", 50), &[], Ticks::ZERO, rig.now).await.is_ok()
        );
        for key in ["k", "never-seen"] {
            assert_eq!(rig.left(key, "limit").await, 10, "{}: {key}", algorithm.name);
            assert_eq!(rig.drain(key).await, 10, "{}: {key}", algorithm.name);
        }
    }
}

/// A reset covers the counters of one key: all of them, or only those of the named limits.
pub(super) async fn a_reset_forgets_all_or_the_named<S: Store>(make: &impl Fn(Timestamp) -> S) {
    let rig = Rig::new(make, ALGORITHMS.iter().map(|each| each.limit(each.name, 10)).collect());
    for key in ["k", "other"] {
        assert!(rig.admits(key, 4).await);
    }
    let named = [BUCKET.name, PERMITS.name, "no such limit"];
    let forgotten = |report: Forgotten| (report.counters.len(), report.untouched.len());
    assert_eq!(
        rig.engine.operator().reset(&asking("k", 1), &named, rig.now).await.map(forgotten),
        Ok((2, 0))
    );
    for (name, outcome) in rig.peek("k").await {
        let left = if named.contains(&name.as_str()) { 10 } else { 6 };
        assert_eq!(outcome.remaining, left, "{name}");
    }
    let all = rig.engine.operator().reset(&asking("k", 1), &[], rig.now).await.map(forgotten);
    assert_eq!(all, Ok((ALGORITHMS.len() - 2, 2)));
    let again = rig.engine.operator().reset(&asking("k", 1), &[], rig.now).await.map(forgotten);
    assert_eq!(again, Ok((0, ALGORITHMS.len())));
    assert!(rig.peek("k").await.iter().all(|(_, outcome)| outcome.remaining == 10));
    assert!(rig.peek("other").await.iter().all(|(_, outcome)| outcome.remaining == 6));
}
