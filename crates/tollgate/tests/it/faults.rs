//! Requests that are themselves at fault: refused without asking a counter, and never admitted later.

use tollgate::policy::{Cost, Expression, Fault, Limit, MATCHED_MAX};
use tollgate::{CheckRequest, Decision, Engine, Policy, Ticks, Value, Verdict};

use crate::fixture::{NOW, bucket, now_or_never, per_hour, policy};

fn engine() -> Engine {
    let by_attribute = bucket("by-attribute", 100).cost(Cost::Attribute("tokens".to_owned()));
    Engine::builder()
        .policy(policy(vec![bucket("beside", 100), by_attribute]))
        .clock(tollgate::ManualClock::starting_at(NOW).clock())
        .build()
}

fn ask<'a>(engine: &Engine, tokens: impl Into<Value<'a>>) -> Decision {
    let request = CheckRequest::new().with("key", "k").and_then(|request| request.with("tokens", tokens));
    engine.try_check(&request.expect("valid"), NOW).unwrap()
}

/// A fault refuses for ever, names its limit, and charges nothing.
fn assert_fault(engine: &Engine, decision: &Decision, said: &str) {
    assert_eq!(decision.verdict(), Verdict::Never);
    assert_eq!(decision.limits().len(), 0, "no counter was asked");
    let Some(Fault::Cost { limit, reason }) = decision.fault() else { panic!("{:?}", decision.fault()) };
    assert_eq!(limit, "by-attribute");
    assert!(reason.contains(said), "{reason}");
    let request = CheckRequest::new().with("key", "k").expect("valid");
    let look = now_or_never(engine.operator().peek(&request, NOW));
    assert!(look.limits().all(|status| status.outcome.remaining == 100), "nothing was charged");
}

/// A cost that is missing, negative, not a number, or beyond all bounds.
#[test]
fn a_cost_that_cannot_be_computed_is_a_fault() {
    let engine = engine();
    let request = CheckRequest::new().with("key", "k").expect("valid");
    assert_fault(&engine, &engine.try_check(&request, NOW).unwrap(), "missing");
    for number in [-1, i64::MIN, i64::MAX, 1 << 53] {
        assert_fault(&engine, &ask(&engine, number), "accepted: whole numbers");
    }
    for text in
        ["-1", "+1", "", " 5", "5 ", "1e3", "0x10", "NaN", "99999999999999999999999", "\u{663}", "a\0b"]
    {
        // An empty text is all digits, and still no number.
        assert_fault(&engine, &ask(&engine, text), "accepted: whole numbers");
    }
    assert!(ask(&engine, 40).is_allowed() && ask(&engine, "60").is_allowed(), "and these are none");
    assert!(matches!(ask(&engine, 1).verdict(), Verdict::Deny { .. }));
}

/// A cost that is valid and above the capacity is the limit's answer, not a fault of the request.
#[test]
fn a_huge_cost_is_never_admitted_and_no_fault() {
    let engine = engine();
    let decision = ask(&engine, (1i64 << 53) - 1);
    assert_eq!(decision.verdict(), Verdict::Never);
    assert!(decision.fault().is_none());
    assert_eq!(decision.cause().map(|cause| cause.limit.name().to_owned()).as_deref(), Some("by-attribute"));
    assert!(CheckRequest::new().cost(1 << 53).is_err(), "the edge refuses a larger one");
}

/// An expression that overflows, divides by zero, or answers with what is no cost.
#[test]
fn an_expression_that_has_no_answer_is_a_fault() {
    for (text, tokens) in [
        ("tokens * 9223372036854775807", 2),
        ("10 / tokens", 0),
        ("0 - tokens", 1),
        ("tokens + other", 1),
        ("dyn(tokens > 3)", 1),
    ] {
        let cost = Cost::Computed(Expression::new(text).expect("it is valid CEL"));
        let engine = Engine::builder()
            .policy(policy(vec![bucket("beside", 100), bucket("by-attribute", 100).cost(cost)]))
            .clock(tollgate::ManualClock::starting_at(NOW).clock())
            .build();
        assert_fault(&engine, &ask(&engine, tokens), "");
    }
}

/// More limits than one decision may charge is a fault, at exactly one more.
#[test]
fn too_many_limits_are_a_fault() {
    for (count, refused) in [(MATCHED_MAX, false), (MATCHED_MAX + 1, true)] {
        let limits = (0..count)
            .map(|number| Limit::new(&format!("limit-{number}"), per_hour(5)).by(["key"]).when("key", "*"));
        let engine = Engine::builder()
            .policy(policy(limits.collect()))
            .clock(tollgate::ManualClock::starting_at(NOW).clock())
            .build();
        let request = CheckRequest::new().with("key", "k").expect("valid");
        let decision = engine.try_check(&request, NOW).unwrap();
        assert_eq!(decision.is_allowed(), !refused);
        assert_eq!(decision.fault(), refused.then_some(&Fault::TooManyLimits));
        assert_eq!(decision.limits().len(), if refused { 0 } else { count });
        assert_eq!(
            now_or_never(engine.ledger().refund(&request, &[], Ticks::ZERO, NOW)),
            Ok(()),
            "nothing to give back, and no panic"
        );
    }
}

/// A request that meets no limit passes, and a faulty one among others changes nothing for those.
#[test]
fn a_request_that_matches_no_limit_passes() {
    let engine = Engine::builder()
        .policy(Policy::new(Vec::new()).expect("valid"))
        .clock(tollgate::ManualClock::starting_at(NOW).clock())
        .build();
    let requests = [CheckRequest::new(), CheckRequest::new().with("key", "k").expect("valid")];
    for decision in requests.iter().map(|request| engine.try_check(request, NOW).unwrap()) {
        assert_eq!(decision.verdict(), Verdict::Allow);
        assert_eq!(decision.limits().len(), 0);
    }
    let engine = self::engine();
    let asked: Vec<CheckRequest<'_>> = [60, 60, -1, 40, 1]
        .map(|tokens| {
            CheckRequest::new().with("key", "k").and_then(|r| r.with("tokens", tokens)).expect("valid")
        })
        .into();
    let allowed = asked.iter().filter(|request| engine.try_check(request, NOW).unwrap().is_allowed());
    assert_eq!(allowed.count(), 2);
}
