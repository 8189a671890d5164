//! Policy swaps: counters are kept, a raise applies at once, a lowering clamps, and no key gains a burst.

use super::fixture::{ALGORITHMS, BUCKET, HOUR, KeptUnits, PERMITS, Rig, asking, on_plan, policy};
use crate::engine::SwapReport;
use crate::outcome::Verdict;
use crate::policy::{LimitBuilder, Policy};
use crate::store::Store;
use crate::time::{Ticks, Timestamp};
use crate::together::together;

/// Runs all of this module.
pub async fn all<S: Store>(make: &impl Fn(Timestamp) -> S) {
    a_raise_acts_immediately_and_gifts_nothing(make).await;
    a_raised_bucket_refills_at_the_new_rate(make).await;
    lowering_clamps_and_is_not_forgotten(make).await;
    lowering_below_what_was_used_denies(make).await;
    swapping_to_and_fro_never_admits_more(make).await;
    another_period_gifts_nothing(make).await;
    slowing_gifts_nothing_to_those_who_stay_quiet(make).await;
    an_idle_counter_is_not_lost_between_swaps(make).await;
    a_key_may_change_its_tier(make).await;
    an_override_acts_on_one_key(make).await;
    other_numbers_keep_counters_and_other_names_do_not(make).await;
}

/// An exhausted counter of 10 raised to 20: a window has the difference at once, a bucket waits for its refill, and a
/// key never seen has all 20.
pub(super) async fn a_raise_acts_immediately_and_gifts_nothing<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for algorithm in ALGORITHMS {
        let rig = Rig::new(make, vec![algorithm.limit("limit", 10)]);
        assert_eq!(rig.drain("k").await, 10);
        rig.swap(vec![algorithm.limit("limit", 20)]);
        let more = match algorithm.keeps {
            KeptUnits::Available => 0,
            KeptUnits::Used => 10,
        };
        assert_eq!(rig.left("k", "limit").await, more, "{}", algorithm.name);
        assert_eq!(rig.drain("k").await, more, "{}", algorithm.name);
        assert_eq!(rig.drain("new").await, 20, "{}", algorithm.name);
    }
}

/// The first unit after a raise from 10 to 20 an hour comes after 180 seconds, not after 360, and not one tick before.
pub(super) async fn a_raised_bucket_refills_at_the_new_rate<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for algorithm in
        ALGORITHMS.iter().filter(|each| matches!(each.name, "token-bucket" | "gcra" | "leaky-bucket"))
    {
        let mut rig = Rig::new(make, vec![algorithm.limit("limit", 10)]);
        assert_eq!(rig.drain("k").await, 10);
        rig.swap(vec![algorithm.limit("limit", 20)]);
        let denied = rig.check(&asking("k", 1)).await;
        assert_eq!(
            denied.verdict(),
            Verdict::Deny { retry_after: Ticks::from_secs(180) },
            "{}",
            algorithm.name
        );
        let swapped_at = rig.now;
        rig.now = swapped_at + Ticks::from_secs(180) - Ticks::ONE;
        assert!(!rig.admits("k", 1).await, "{}: one tick early", algorithm.name);
        rig.now = swapped_at + Ticks::from_secs(180);
        assert!(rig.admits("k", 1).await, "{}: on the tick", algorithm.name);
        assert!(!rig.admits("k", 1).await, "{}: and only one", algorithm.name);
    }
}

/// 2 of 10 used, then lowered to 5: a bucket is clamped to 5, a window has 3 left. Raised to 10 again, neither forgets.
pub(super) async fn lowering_clamps_and_is_not_forgotten<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for algorithm in ALGORITHMS {
        let rig = Rig::new(make, vec![algorithm.limit("limit", 10)]);
        assert!(rig.admits("k", 2).await);
        rig.swap(vec![algorithm.limit("limit", 5)]);
        let (lowered, raised) = match algorithm.keeps {
            KeptUnits::Available => (5, 4),
            KeptUnits::Used => (3, 7),
        };
        assert_eq!(rig.left("k", "limit").await, lowered, "{}: lowered", algorithm.name);
        assert!(rig.admits("k", 1).await);
        rig.swap(vec![algorithm.limit("limit", 10)]);
        assert_eq!(rig.left("k", "limit").await, raised, "{}: raised again", algorithm.name);
        assert_eq!(rig.drain("k").await, raised, "{}: raised again", algorithm.name);
    }
}

/// 8 of 10 used, then lowered to 5: a window is overdrawn and denies, a bucket has the 2 that it had. Raised again,
/// both have 2.
pub(super) async fn lowering_below_what_was_used_denies<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for algorithm in ALGORITHMS {
        let rig = Rig::new(make, vec![algorithm.limit("limit", 10)]);
        assert!(rig.admits("k", 8).await);
        rig.swap(vec![algorithm.limit("limit", 5)]);
        match algorithm.keeps {
            KeptUnits::Available => assert_eq!(rig.left("k", "limit").await, 2, "{}", algorithm.name),
            KeptUnits::Used => {
                assert_eq!(rig.left("k", "limit").await, 0, "{}", algorithm.name);
                let denied = rig.check(&asking("k", 1)).await;
                assert!(matches!(denied.verdict(), Verdict::Deny { .. }), "{}", algorithm.name);
            }
        }
        rig.swap(vec![algorithm.limit("limit", 10)]);
        assert_eq!(rig.drain("k").await, 2, "{}", algorithm.name);
    }
}

/// However often a limit changes between 10 and 20 at one instant, a window admits 20 in all and a bucket 10.
pub(super) async fn swapping_to_and_fro_never_admits_more<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for algorithm in ALGORITHMS {
        let rig = Rig::new(make, vec![algorithm.limit("limit", 10)]);
        let mut admitted = 0;
        for turn in 0..40 {
            admitted += rig.drain("k").await;
            rig.swap(vec![algorithm.limit("limit", if turn % 2 == 0 { 20 } else { 10 })]);
        }
        let bound = match algorithm.keeps {
            KeptUnits::Available => 10,
            KeptUnits::Used => 20,
        };
        assert_eq!(admitted, bound, "{}", algorithm.name);
    }
}

/// An exhausted counter stays exhausted when its period is made longer or shorter.
pub(super) async fn another_period_gifts_nothing<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for algorithm in RATED {
        let of = |rate: &str| rated(algorithm, rate);
        for other in ["10/day", "10/min", "20/day"] {
            let rig = Rig::new(make, Vec::new());
            rig.engine.swap(of("10/h"), rig.now).expect("few quotas are in use");
            assert_eq!(rig.drain("k").await, 10, "{algorithm}");
            let report = rig.engine.swap(of(other), rig.now).expect("few quotas are in use");
            assert_eq!(report.changed, ["limit"], "{algorithm}: {other}");
            let keeps_used = algorithm.starts_with("sliding") || algorithm.starts_with("fixed");
            let bound = if keeps_used && other.starts_with("20") { 10 } else { 0 };
            assert_eq!(rig.drain("k").await, bound, "{algorithm}: 10/h becomes {other}");
        }
    }
}

/// Every algorithm with a rate, as a policy file names it.
const RATED: [&str; 6] =
    ["token-bucket", "gcra", "fixed-window", "sliding-window", "sliding-log", "leaky-bucket, queue: 9"];

fn rated(algorithm: &str, rate: &str) -> Policy {
    let text = format!("limits: [{{name: limit, by: [key], algorithm: {algorithm}, rate: {rate}}}]");
    Policy::compile("policy.yaml", text.as_bytes()).expect("the suite's policies are valid")
}

/// Sends requests of many other keys, so that a store reuses the slot of every key that it may forget.
async fn send_other_keys<S: Store>(rig: &Rig<S>) {
    for hundred in 0..20 {
        let one = |number| async move {
            let key = format!("other-{hundred}-{number}-{}", rig.now.unix_micros());
            rig.engine.check(&asking(&key, 1), rig.now).await;
        };
        together((0..100).map(one)).await;
    }
}

/// Counters exhausted under 10 a minute that becomes 10 a day. Long after they would have been full again, a key that
/// stayed quiet gets the same answer as one that kept asking. The story: the quiet key was forgotten, and began anew
/// with all 10.
pub(super) async fn slowing_gifts_nothing_to_those_who_stay_quiet<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for algorithm in RATED {
        let mut rig = Rig::new(make, Vec::new());
        rig.engine.swap(rated(algorithm, "10/min"), rig.now).expect("few quotas are in use");
        let drained = [rig.drain("quiet").await, rig.drain("asking").await];
        rig.engine.swap(rated(algorithm, "10/day"), rig.now).expect("few quotas are in use");
        for _ in 0..5 {
            rig.now = rig.now + Ticks::from_secs(60);
            assert!(!rig.admits("asking", 1).await, "{algorithm}: the day is not over");
            send_other_keys(&rig).await;
        }
        let [quiet, asking] = [rig.peek("quiet").await, rig.peek("asking").await];
        assert_eq!(quiet, asking, "{algorithm}: {drained:?} were drained");
        assert_eq!(rig.drain("quiet").await, 0, "{algorithm}: a gift");
    }
}

/// 10 an hour becomes 10 a day and 10 an hour again: units that came back in between are counted at the rates that were
/// active, whether or not the key was charged meanwhile.
pub(super) async fn an_idle_counter_is_not_lost_between_swaps<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for algorithm in ["token-bucket", "gcra", "leaky-bucket, queue: 9", "sliding-log"] {
        let mut rig = Rig::new(make, Vec::new());
        rig.engine.swap(rated(algorithm, "10/h"), rig.now).expect("few quotas are in use");
        for key in ["quiet", "asking"] {
            assert_eq!(rig.drain(key).await, 10, "{algorithm}");
        }
        for rate in ["10/day", "10/h"] {
            rig.engine.swap(rated(algorithm, rate), rig.now).expect("few quotas are in use");
            let _ = rig.check(&asking("asking", 10)).await;
            rig.now = rig.now + Ticks::from_secs(1_500);
            let _ = rig.check(&asking("asking", 10)).await;
            send_other_keys(&rig).await;
        }
        assert_eq!(rig.peek("quiet").await, rig.peek("asking").await, "{algorithm}");
        assert_eq!(rig.drain("quiet").await, rig.drain("asking").await, "{algorithm}");
    }
}

fn tiers(algorithm: super::fixture::Algorithm) -> Vec<LimitBuilder> {
    let tiers = [("free", algorithm.quota(10)), ("pro", algorithm.quota(20))];
    vec![algorithm.limit("limit", 10).tiers("plan", tiers)]
}

/// A key that changes its tier and back keeps its counter and gains nothing, where both tiers forget after the same
/// time.
pub(super) async fn a_key_may_change_its_tier<S: Store>(make: &impl Fn(Timestamp) -> S) {
    // The wide bucket has the same rate with another burst, so its tiers forget after different times.
    for algorithm in ALGORITHMS.into_iter().filter(|algorithm| algorithm.name != "token-bucket, wide") {
        let rig = Rig::new(make, tiers(algorithm));
        let look = async |plan: &str| {
            let decision = rig.engine.operator().peek(&on_plan("k", plan, 1), rig.now).await;
            decision.limits().next().map(|status| status.outcome.remaining)
        };
        assert!(rig.check(&on_plan("k", "free", 4)).await.is_allowed());
        assert_eq!(look("free").await, Some(6), "{}", algorithm.name);
        let upgraded = match algorithm.keeps {
            KeptUnits::Available => 6,
            KeptUnits::Used => 16,
        };
        assert_eq!(look("pro").await, Some(upgraded), "{}: upgraded", algorithm.name);
        assert!(rig.check(&on_plan("k", "pro", 5)).await.is_allowed());
        assert_eq!(look("free").await, Some(1), "{}: back again", algorithm.name);
        let mut admitted = 0;
        for turn in 0..60 {
            let plan = if turn % 2 == 0 { "pro" } else { "free" };
            admitted += u64::from(rig.check(&on_plan("k", plan, 1)).await.is_allowed());
        }
        assert_eq!(9 + admitted, if upgraded == 6 { 10 } else { 20 }, "{}: in all", algorithm.name);
    }
}

/// An override added live applies to its key at once and to no other.
pub(super) async fn an_override_acts_on_one_key<S: Store>(make: &impl Fn(Timestamp) -> S) {
    for algorithm in ALGORITHMS {
        let rig = Rig::new(make, vec![algorithm.limit("limit", 10)]);
        assert!(rig.admits("vip", 1).await && rig.admits("k", 1).await);
        rig.swap(vec![algorithm.limit("limit", 10).override_for("vip", algorithm.quota(30))]);
        let left = if algorithm.keeps == KeptUnits::Used { 29 } else { 9 };
        assert_eq!(rig.left("vip", "limit").await, left, "{}", algorithm.name);
        assert_eq!(rig.left("k", "limit").await, 9, "{}", algorithm.name);
        let unseen = rig.check(&asking("vip", 11)).await.is_allowed();
        assert_eq!(unseen, algorithm.keeps == KeptUnits::Used, "{}", algorithm.name);
    }
}

/// The report distinguishes changed, added, removed and restarted limits, and the counters behave accordingly.
pub(super) async fn other_numbers_keep_counters_and_other_names_do_not<S: Store>(
    make: &impl Fn(Timestamp) -> S,
) {
    let before = || {
        let buckets = ["changed", "renamed", "restarted"].map(|name| BUCKET.limit(name, 10));
        buckets.into_iter().chain([PERMITS.limit("same", 10)]).collect()
    };
    let rig = Rig::new(make, before());
    assert!(rig.admits("k", 4).await);
    assert_eq!(rig.swap(before()), SwapReport::default(), "the same policy changes nothing");
    let log = ALGORITHMS.iter().find(|each| each.name == "sliding-log").expect("it is one of them");
    let after = vec![
        BUCKET.limit("changed", 5),
        BUCKET.limit("renamed-since", 10),
        PERMITS.limit("same", 10),
        log.limit("restarted", 10),
    ];
    let report = rig.swap(after);
    assert_eq!(report.changed, ["changed"]);
    assert_eq!(report.added, ["renamed-since"]);
    assert_eq!(report.removed, ["renamed"]);
    assert_eq!(report.restarted, ["restarted"]);
    assert_eq!(rig.left("k", "changed").await, 5, "kept and clamped");
    assert_eq!(rig.left("k", "same").await, 6, "kept");
    assert_eq!(rig.left("k", "renamed-since").await, 10, "a new name is a new counter");
    assert_eq!(rig.left("k", "restarted").await, 10, "another algorithm counts anew");
    let other_by = vec![BUCKET.limit("changed", 5).by(["key", "plan"])];
    let report = rig.engine.swap(policy(other_by), rig.now + HOUR).expect("few quotas are in use");
    assert_eq!(report.restarted, ["changed"], "other attributes are other counters");
}
