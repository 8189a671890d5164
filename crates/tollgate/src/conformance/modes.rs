//! Limits in shadow, limits enforced for a percentage of the keys, and limits that are off.

use super::fixture::{ALGORITHMS, BUCKET, Rig, START, answers, asking};
use crate::headers::{Answer, Audience, Caller, HeaderPolicy};
use crate::outcome::Verdict;
use crate::policy::Mode;
use crate::store::{Enforcement, Store};
use crate::time::Timestamp;

/// Runs all of this module.
pub async fn all<S: Store>(make: &impl Fn(Timestamp) -> S) {
    shadow_never_denies(make).await;
    shadow_never_touches_an_enforced_counter(make).await;
    shadow_is_not_counted_when_the_request_is_denied(make).await;
    shadow_is_not_in_the_answer(make).await;
    a_share_of_the_keys_is_enforced_and_stays_so(make).await;
    off_is_not_asked(make).await;
}

/// A limit in shadow reports what it would have done, for every algorithm, and the request passes all the same.
pub(super) async fn shadow_never_denies<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for algorithm in ALGORITHMS {
        let rig = Rig::new(make, vec![algorithm.limit("watched", 2).mode(Mode::Shadow)]);
        for turn in 0..5 {
            let decision = rig.check(&asking("k", 1)).await;
            assert_eq!(decision.verdict(), Verdict::Allow, "{}", algorithm.name);
            assert!(decision.cause().is_none());
            let watched = decision.limits().next().expect("it is reported");
            assert_eq!(watched.enforcement, Enforcement::Shadow);
            assert_eq!(watched.outcome.is_allowed(), turn < 2, "{}: turn {turn}", algorithm.name);
        }
    }
}

/// Beside a limit in shadow of any algorithm, an enforced one counts exactly as it does alone.
pub(super) async fn shadow_never_touches_an_enforced_counter<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for enforced in ALGORITHMS {
        for watching in ALGORITHMS {
            let alone = Rig::new(make, vec![enforced.limit("enforced", 4)]);
            let limits =
                vec![watching.limit("watching", 2).mode(Mode::Shadow), enforced.limit("enforced", 4)];
            let beside = Rig::new(make, limits);
            for _ in 0..6 {
                let one = alone.check(&asking("k", 1)).await;
                let two = beside.check(&asking("k", 1)).await;
                assert_eq!(one.verdict(), two.verdict(), "{} beside {}", enforced.name, watching.name);
                assert_eq!(answers(&one)[0], answers(&two)[1]);
                assert_eq!(alone.peek("k").await[0], beside.peek("k").await[1]);
            }
        }
    }
}

/// A request that an enforced limit denies was never made, so a limit in shadow does not count it.
pub(super) async fn shadow_is_not_counted_when_the_request_is_denied<S: Store>(
    make: &impl Fn(Timestamp) -> S,
) {
    for watching in ALGORITHMS {
        let limits = vec![watching.limit("watching", 9).mode(Mode::Shadow), BUCKET.limit("enforced", 2)];
        let rig = Rig::new(make, limits);
        assert_eq!(rig.drain("k").await, 2);
        let before = rig.peek("k").await;
        assert!(!rig.admits("k", 1).await);
        assert_eq!(rig.peek("k").await, before, "{}", watching.name);
        assert_eq!(rig.left("k", "watching").await, 7, "{}", watching.name);
    }
}

/// Callers see nothing of a limit in shadow: neither when it would have denied nor when another does.
pub(super) async fn shadow_is_not_in_the_answer<S: Store>(make: &impl Fn(Timestamp) -> S) {
    let limits = vec![BUCKET.limit("watching", 1).mode(Mode::Shadow), BUCKET.limit("enforced", 3)];
    let rig = Rig::new(make, limits);
    let audience = Audience { caller: Caller::Authenticated, ..Audience::default() };
    for _ in 0..5 {
        let decision = rig.check(&asking("k", 1)).await;
        let answer = Answer::of(&decision, &HeaderPolicy::default(), audience, START);
        assert!(answer.headers.iter().any(|(_, value)| value.contains("enforced")));
        assert!(answer.headers.iter().all(|(_, value)| !value.contains("watching")), "{:?}", answer.headers);
        assert!(answer.body.is_none_or(|body| !body.text.contains("watching")));
    }
}

/// `enforce_percent` selects about that percentage of the keys, the same ones each time, keeps them when the percentage
/// is raised, and only they are ever denied.
pub(super) async fn a_share_of_the_keys_is_enforced_and_stays_so<S: Store>(make: &impl Fn(Timestamp) -> S) {
    const KEYS: usize = 600;
    let rig = Rig::new(make, vec![BUCKET.limit("limit", 1).enforce_percent(30)]);
    let first = enforcements(&rig, KEYS).await;
    let share = first.iter().filter(|&&enforcement| enforcement == Enforcement::Enforced).count();
    // 180 expected, six standard deviations either way.
    assert!((112..=248).contains(&share), "{share} of {KEYS} keys are enforced");
    assert_eq!(enforcements(&rig, KEYS).await, first, "the same keys the second time");
    for (number, enforcement) in first.iter().enumerate() {
        let denied = !rig.admits(&format!("k-{number}"), 1).await;
        assert_eq!(denied, *enforcement == Enforcement::Enforced, "key {number} after its unit is used");
    }
    rig.swap(vec![BUCKET.limit("limit", 1).enforce_percent(60)]);
    let raised = enforcements(&rig, KEYS).await;
    for (before, after) in first.iter().zip(&raised) {
        assert!(
            *before == Enforcement::Shadow || *after == Enforcement::Enforced,
            "an enforced key was let go"
        );
    }
    let share = raised.iter().filter(|&&enforcement| enforcement == Enforcement::Enforced).count();
    assert!((288..=432).contains(&share), "{share} of {KEYS} keys are enforced at 60 per cent");
}

/// The enforcement of each key. The first round uses up a key's only unit.
async fn enforcements<S: Store>(rig: &Rig<S>, keys: usize) -> Vec<Enforcement> {
    let mut enforcements = Vec::with_capacity(keys);
    for number in 0..keys {
        let decision = rig.check(&asking(&format!("k-{number}"), 1)).await;
        enforcements.push(decision.limits().next().expect("it answers").enforcement);
    }
    enforcements
}

/// A limit that is off is neither asked nor counted, and counts again from where it was when it is switched on.
pub(super) async fn off_is_not_asked<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for algorithm in ALGORITHMS {
        let rig = Rig::new(make, vec![algorithm.limit("limit", 3)]);
        assert!(rig.admits("k", 1).await);
        rig.swap(vec![algorithm.limit("limit", 3).mode(Mode::Off)]);
        for _ in 0..5 {
            let decision = rig.check(&asking("k", 1)).await;
            assert!(decision.is_allowed());
            assert_eq!(decision.limits().len(), 0);
        }
        rig.swap(vec![algorithm.limit("limit", 3)]);
        assert_eq!(rig.left("k", "limit").await, 2, "{}", algorithm.name);
    }
}
