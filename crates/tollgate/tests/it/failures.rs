//! `count: failures`: a limit that counts only failed responses.

use pollster::block_on;
use tollgate::engine::CommitError;
use tollgate::policy::{Ended, Failures};
use tollgate::{CheckRequest, Engine, Policy, Reservation, Ticks, Timestamp};

const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
const LIFETIME: Ticks = Ticks::from_secs(60);
const LOGIN: &str = "
limits:
  - {name: login, by: [k], rate: 3/h, count: failures, failures: [401, 5xx]}
  - {name: any, by: [k], rate: 4/h, count: failures}
  - {name: all, rate: 100/h}
";

fn policy(text: &str) -> Policy {
    Policy::compile("test", text.as_bytes()).expect("the policy is right")
}

fn request() -> CheckRequest<'static> {
    CheckRequest::new().with("k", "a").expect("it fits")
}

/// Decides about a request; what awaits its end, if it passes.
fn ask(engine: &Engine, now: Timestamp) -> Option<Reservation> {
    let decision = engine.try_check(&request(), now).unwrap();
    engine.reservations().awaiting(&decision, LIFETIME, now)
}

fn left(engine: &Engine, now: Timestamp) -> Vec<u64> {
    engine
        .try_check(&request().looking(), now)
        .unwrap()
        .limits()
        .map(|status| status.outcome.remaining)
        .collect()
}

/// Successes take nothing for good, failures do, each limit by its own list; other limits count every request.
#[test]
fn only_failures_stay_counted() {
    let engine =
        Engine::builder().policy(policy(LOGIN)).clock(tollgate::ManualClock::starting_at(T0).clock()).build();
    let after = |status: u16| {
        let mut awaiting = ask(&engine, T0).expect("it passes");
        block_on(engine.reservations().report(&mut awaiting, Ended::Status(status), T0))
            .expect("memory answers");
        left(&engine, T0)
    };
    assert_eq!(after(200), [3, 4, 99]);
    assert_eq!(after(401), [2, 3, 98]);
    assert_eq!(after(404), [2, 2, 97]);
    assert_eq!(after(503), [1, 1, 96]);
    assert_eq!(after(302), [1, 1, 95]);
}

/// However many are under way at once, no more than the limit are admitted; those that end well make room again.
#[test]
fn no_more_than_the_limit_are_under_way() {
    let engine =
        Engine::builder().policy(policy(LOGIN)).clock(tollgate::ManualClock::starting_at(T0).clock()).build();
    let mut under_way: Vec<_> = (0..9).filter_map(|_| ask(&engine, T0)).collect();
    assert_eq!(under_way.len(), 3);
    for awaiting in &mut under_way {
        block_on(engine.reservations().report(awaiting, Ended::Succeeded, T0)).expect("memory answers");
    }
    assert_eq!(left(&engine, T0), [3, 4, 97]);
    let mut failed: Vec<_> = (0..9).filter_map(|_| ask(&engine, T0)).collect();
    for awaiting in &mut failed {
        block_on(engine.reservations().report(awaiting, Ended::Failed, T0)).expect("memory answers");
    }
    assert!(ask(&engine, T0).is_none(), "three have failed");
}

/// An outcome that is not reported in time stays counted, and nothing is refunded twice.
#[test]
fn an_end_is_reported_once_and_in_time() {
    let engine =
        Engine::builder().policy(policy(LOGIN)).clock(tollgate::ManualClock::starting_at(T0).clock()).build();
    let mut late = ask(&engine, T0).expect("it passes");
    let reported = block_on(engine.reservations().report(&mut late, Ended::Succeeded, T0 + LIFETIME));
    assert_eq!(reported, Err(CommitError::Expired));
    let mut once = ask(&engine, T0).expect("it passes");
    let settled =
        block_on(engine.reservations().report(&mut once, Ended::Succeeded, T0)).expect("memory answers");
    assert_eq!(settled.refunded, 1);
    let again = block_on(engine.reservations().report(&mut once, Ended::Succeeded, T0));
    assert_eq!(again, Err(CommitError::AlreadySettled));
    assert_eq!(left(&engine, T0), [2, 3, 98]);
}

/// A reservation is settled by its own end, and a limit that counts all awaits nothing.
#[test]
fn reservations_settle_them() {
    let engine =
        Engine::builder().policy(policy(LOGIN)).clock(tollgate::ManualClock::starting_at(T0).clock()).build();
    let (_, reservation) = block_on(engine.reservations().reserve(&request(), LIFETIME, T0));
    block_on(engine.reservations().cancel(&mut reservation.expect("it passes"), T0)).expect("memory answers");
    assert_eq!(left(&engine, T0), [3, 4, 100]);
    let plain = Engine::builder()
        .policy(policy("limits: [{name: a, by: [k], rate: 3/h}]"))
        .clock(tollgate::ManualClock::starting_at(T0).clock())
        .build();
    let decision = plain.try_check(&request(), T0).unwrap();
    assert!(plain.reservations().awaiting(&decision, LIFETIME, T0).is_none());
}

/// Statuses and classes are read, and the sentence and the findings say what they mean.
#[test]
fn sentences_and_findings() {
    let failures = Failures::read(["401", "5xx", "401"]).expect("they are statuses");
    assert_eq!(failures.to_string(), "401, 5xx");
    for wrong in ["99", "600", "6xx", "xx", "4x", "0xx", ""] {
        assert_eq!(Failures::read(["401", wrong]), Err(wrong));
    }
    assert_eq!(
        policy("limits: [{name: a, by: [k], rate: 3/h, count: failures}]").sentences(),
        [
            "a: each k may make 3 failed requests an hour on average, 3 at once and at most 6 in any hour; only responses 4xx, 5xx count"
        ]
    );
    let findings = |fields: &str| {
        let text = format!("limits: [{{name: l, {fields}}}]");
        Policy::compile("p", text.as_bytes()).map_or_else(|findings| findings.to_string(), |_| String::new())
    };
    assert!(findings("rate: 1/s, failures: [401]").contains("count: failures with it"));
    assert!(findings("rate: 1/s, count: failures, failures: []").contains("an empty list counts nothing"));
    assert!(findings("rate: 1/s, count: failures, failures: [abc]").contains("abc is not a status"));
    assert!(findings("rate: 1/s, count: failures, failures: 401").contains("failures: is a single value"));
    assert!(findings("rate: 1/s, count: failure").contains("did you mean failures?"));
    let leaky = findings("rate: 1/s, algorithm: leaky-bucket, count: failures");
    assert!(
        leaky.contains("leaky-bucket cannot count failures: a used queue slot cannot be refunded"),
        "{leaky}"
    );
    assert!(findings("concurrency: 5, count: failures").contains("concurrency cannot count failures"));
}
