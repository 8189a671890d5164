//! A request is charged against every limit that it matches, or against none.

use super::fixture::{ALGORITHMS, Rig, asking, cause};
use crate::outcome::Verdict;
use crate::policy::{LimitBuilder, MATCHED_MAX};
use crate::store::Store;
use crate::time::Timestamp;

/// Runs all of this module.
pub async fn all<S: Store>(make: &impl Fn(Timestamp) -> S) {
    an_admission_charges_every_counter(make).await;
    a_denial_leaves_every_other_counter(make).await;
    a_cost_that_never_fits_leaves_every_counter(make).await;
    a_denial_among_the_most_limits_leaves_the_others(make).await;
    looking_changes_nothing(make).await;
}

/// An admitted request of cost 3 takes exactly 3 from the counter of every algorithm at once.
pub(super) async fn an_admission_charges_every_counter<S: Store>(make: &impl Fn(Timestamp) -> S) {
    let rig = Rig::new(make, ALGORITHMS.iter().map(|each| each.limit(each.name, 10)).collect());
    let decision = rig.check(&asking("k", 3)).await;
    assert!(decision.is_allowed());
    assert_eq!(decision.limits().len(), ALGORITHMS.len());
    for status in decision.limits() {
        assert_eq!(status.outcome.remaining, 7, "{}: as answered", status.limit.name());
    }
    for (name, outcome) in rig.peek("k").await {
        assert_eq!(outcome.remaining, 7, "{name}: as counted");
    }
}

/// For every pair of algorithms, one that denies and one that does not, in either order: the counter of the other is
/// exactly as before, and the denial names its cause and that cause's retry time.
pub(super) async fn a_denial_leaves_every_other_counter<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for tight in ALGORITHMS {
        for other in ALGORITHMS {
            let pair = || [tight.limit("tight", 3), other.limit("other", 10)];
            let mut reversed: Vec<LimitBuilder> = pair().into();
            reversed.reverse();
            for limits in [pair().into(), reversed] {
                let what = format!("{} denies beside {}", tight.name, other.name);
                let rig = Rig::new(make, limits);
                assert_eq!(rig.drain("k").await, 3, "{what}");
                let before = rig.peek("k").await;
                for cost in [1, 2, 3] {
                    let denied = rig.check(&asking("k", cost)).await;
                    assert!(
                        matches!(denied.verdict(), Verdict::Deny { .. }),
                        "{what}: {:?}",
                        denied.verdict()
                    );
                    assert_eq!(cause(&denied), "tight", "{what}");
                    let own = denied.limits().find(|status| status.limit.name() == "tight");
                    assert_eq!(own.and_then(|own| own.outcome.verdict.retry_after()), denied.retry_after());
                    let other = denied.limits().find(|status| status.limit.name() == "other");
                    assert_eq!(other.map(|status| status.outcome.remaining), Some(7), "{what}: as answered");
                    assert_eq!(rig.peek("k").await, before, "{what}: as counted");
                }
            }
        }
    }
}

/// A cost above one limit's capacity is reported differently than a denial that waiting cures, and charges nothing.
pub(super) async fn a_cost_that_never_fits_leaves_every_counter<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for tight in ALGORITHMS {
        let mut limits: Vec<LimitBuilder> =
            ALGORITHMS.iter().map(|each| each.limit(each.name, 100)).collect();
        limits.insert(3, tight.limit("tight", 5));
        let rig = Rig::new(make, limits);
        assert!(rig.admits("k", 2).await);
        let before = rig.peek("k").await;
        let decision = rig.check(&asking("k", 6)).await;
        assert_eq!(decision.verdict(), Verdict::Never, "{}", tight.name);
        assert_eq!(decision.retry_after(), None);
        assert_eq!(cause(&decision), "tight");
        assert_eq!(rig.peek("k").await, before, "{}", tight.name);
    }
}

/// With as many limits as one request may match, each of them in turn denying, the others are as before.
pub(super) async fn a_denial_among_the_most_limits_leaves_the_others<S: Store>(
    make: &impl Fn(Timestamp) -> S,
) {
    for tight in 0..MATCHED_MAX {
        let limit = |place: usize| {
            let units = if place == tight { 2 } else { 50 };
            ALGORITHMS[(place + tight) % ALGORITHMS.len()].limit(&format!("limit-{place}"), units)
        };
        let rig = Rig::new(make, (0..MATCHED_MAX).map(limit).collect());
        assert!(rig.admits("k", 2).await);
        let before = rig.peek("k").await;
        assert_eq!(before.len(), MATCHED_MAX);
        let denied = rig.check(&asking("k", 1)).await;
        assert_eq!(cause(&denied), format!("limit-{tight}"));
        assert_eq!(rig.peek("k").await, before, "limit-{tight} denied");
    }
}

/// A look takes nothing, whether the counter is unused, used or exhausted.
pub(super) async fn looking_changes_nothing<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for algorithm in ALGORITHMS {
        let rig = Rig::new(make, vec![algorithm.limit("limit", 4)]);
        for used in 0..=4 {
            let first = rig.peek("k").await;
            assert_eq!(first[0].1.remaining, 4 - used, "{}", algorithm.name);
            assert_eq!(rig.peek("k").await, first, "{}", algorithm.name);
            assert_eq!(rig.admits("k", 1).await, used < 4, "{}", algorithm.name);
        }
    }
}
