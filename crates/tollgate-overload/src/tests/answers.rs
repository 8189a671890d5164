//! The answer to a refusal for lack of capacity: always a 503.

use std::collections::HashSet;

use super::T0;
use crate::{Cause, Priority, Refusal};
use tollgate::headers::{Accepts, Audience, Caller, DenialStatus, Disclosure, HeaderPolicy};
use tollgate::time::Ticks;

const CAUSES: [Cause; 7] = [
    Cause::Capacity,
    Cause::Shed,
    Cause::Concurrency,
    Cause::Rate,
    Cause::QueueFull,
    Cause::QueueDelay,
    Cause::Deadline,
];

fn known() -> Audience {
    Audience { caller: Caller::Authenticated, ..Audience::default() }
}

fn seconds(refusal: &Refusal, identity: u64, now: tollgate::Timestamp) -> u64 {
    let answer = refusal.answer(&HeaderPolicy::default(), known(), identity, now);
    answer.headers.get("retry-after").unwrap().parse().unwrap()
}

/// The whole answer, to the letter.
#[test]
fn a_refusal_is_a_503_with_a_problem_body() {
    let refusal = Cause::Shed.refusal(Priority::Read);
    let answer = refusal.answer(&HeaderPolicy::default(), known(), 7, T0);
    assert_eq!(answer.status, 503);
    assert_eq!(answer.headers.get("Cache-Control"), Some("no-store"));
    let body = answer.body.unwrap();
    assert_eq!(body.content_type, "application/problem+json");
    let problem: serde_json::Value = serde_json::from_str(&body.text).unwrap();
    let millis = problem["retry-after-ms"].as_u64().unwrap();
    assert!((1_000..=5_000).contains(&millis), "{millis}");
    assert_eq!(
        problem,
        serde_json::json!({
            "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "title": "Request cannot be satisfied due to temporary server capacity constraints",
            "status": 503,
            "detail": "worker-shedder: read",
            "violated-policies": ["worker-shedder"],
            "retry-after-ms": millis,
            "reason": "shed",
            "retryable": true,
        })
    );
}

/// Never a 429, whatever the cause and the operator's choice for denials.
#[test]
fn a_refusal_is_never_a_429() {
    for denial in [DenialStatus::TooManyRequests, DenialStatus::ServiceUnavailable] {
        let policy = HeaderPolicy { denial, ..HeaderPolicy::default() };
        for cause in CAUSES {
            for priority in Priority::ALL {
                let answer = cause.refusal(priority).answer(&policy, Audience::default(), 1, T0);
                assert_eq!(answer.status, 503);
                assert!(answer.body.unwrap().text.contains(cause.as_str()));
            }
        }
    }
}

/// Retry delays cover 1 to 5 seconds and are stable per caller for a while. They grow with the share of
/// refusals.
#[test]
fn retry_delays_are_jittered_and_stable() {
    let refusal = Cause::Concurrency.refusal(Priority::Write);
    let delays: HashSet<u64> = (0..500).map(|identity| seconds(&refusal, identity, T0)).collect();
    assert_eq!(delays, HashSet::from([1, 2, 3, 4, 5]));
    assert_eq!(seconds(&refusal, 9, T0), seconds(&refusal, 9, T0 + Ticks::from_millis(4_999)));
    let turns: HashSet<u64> =
        (0..50).map(|turn| seconds(&refusal, 9, T0 + Ticks::from_secs(5 * turn))).collect();
    assert!(turns.len() > 1);
    let worst: HashSet<u64> =
        (0..500).map(|identity| seconds(&refusal.with_pressure(2_000), identity, T0)).collect();
    assert_eq!(worst, HashSet::from([5, 6, 7, 8, 9]));
}

/// An anonymous caller gets the cause and a `Retry-After`, but no names or numbers.
#[test]
fn anonymous_callers_learn_only_the_cause() {
    let refusal = Cause::QueueDelay.refusal(Priority::Critical);
    let silent = HeaderPolicy { disclosure: Disclosure::Never, ..HeaderPolicy::default() };
    for (policy, audience) in [(HeaderPolicy::default(), Audience::default()), (silent, known())] {
        let answer = refusal.answer(&policy, audience, 7, T0);
        let text = answer.body.unwrap().text;
        assert!(!text.contains("critical") && !text.contains("violated") && !text.contains("ms"), "{text}");
        assert!(text.contains("queue-delay"));
        assert!(answer.headers.get("Retry-After").is_some());
    }
    let plain = Audience { accepts: Accepts::Text, ..known() };
    let body = refusal.answer(&HeaderPolicy::default(), plain, 7, T0).body.unwrap();
    assert_eq!(body.content_type, "text/plain; charset=utf-8");
    assert!(body.text.contains("queue: critical\nRetry after "), "{}", body.text);
}

/// A cause belongs to one controller, and names are unique.
#[test]
fn causes_have_names() {
    let names: HashSet<&str> = CAUSES.iter().map(|cause| cause.as_str()).collect();
    assert_eq!(names.len(), CAUSES.len());
    assert_eq!(Cause::Deadline.refusal(Priority::Test).to_string(), "queue: deadline (test)");
}
