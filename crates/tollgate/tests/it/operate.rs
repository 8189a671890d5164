//! Operator commands on a running engine: overrides, blocks, explanations, and the difference between policies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use tollgate::engine::{BLOCKS_MAX, BlockError, OVERRIDES_MAX, OverrideError};
use tollgate::headers::{Caller, Exposure};
use tollgate::policy::{Change, Choice, EXAMPLE, Mode, Unmet};
use tollgate::request::Spelling;
use tollgate::store::{Answers, Charge, Hold, Store, StoreFailure};
use tollgate::{
    Answer, Audience, Block, CheckRequest, Enforcement, Engine, ExpiringOverride, HeaderPolicy,
    LimitOverride, MemoryStore, Policy, Reason, Scope, Ticks, Timestamp,
};

const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
const HOUR: &str = "limits: [{name: a, by: [k], rate: 1/h}, {name: b, rate: 2/h}]";

fn policy(text: &str) -> Policy {
    Policy::compile("test", text.as_bytes()).expect("the policy is right")
}

fn engine(text: &str) -> Engine {
    Engine::builder().policy(policy(text)).clock(tollgate::ManualClock::starting_at(T0).clock()).build()
}

fn of<'a>(attributes: &[(&'a str, &'a str)]) -> CheckRequest<'a> {
    attributes.iter().fold(CheckRequest::new(), |request, (name, value)| {
        request.with(name, *value).expect("the attributes are within bounds")
    })
}

const fn secs(seconds: u64) -> Ticks {
    Ticks::from_secs(seconds)
}

/// A kill switch opens its limit at once and only its limit, and ends on its tick although nothing happens in between.
#[test]
fn a_kill_switch_ends_by_itself() {
    let engine = engine(HOUR);
    let request = of(&[("k", "x")]);
    assert!(engine.try_check(&request, T0).unwrap().is_allowed());
    assert_eq!(engine.try_check(&request, T0).unwrap().cause_name(), Some("a"));
    let until = T0 + secs(60);
    engine
        .operator()
        .set_override(Scope::Limit("a"), ExpiringOverride { kind: LimitOverride::Off, until }, T0)
        .unwrap();
    let open = engine.try_check(&request, T0).unwrap();
    assert!(open.is_allowed());
    assert_eq!(open.limits().map(|status| status.limit.name()).collect::<Vec<_>>(), ["b"]);
    let other = engine.try_check(&request, until - Ticks::ONE).unwrap();
    assert_eq!(other.cause_name(), Some("b"), "the other limit was not killed");
    assert_eq!(engine.try_check(&of(&[("k", "x")]), until).unwrap().limits().len(), 2);
    assert!(engine.operator().overrides(until).list().1.is_empty());
}

/// All limits at once, and what is milder holds where two overrides meet.
#[test]
fn the_milder_override_holds() {
    let engine = engine(HOUR);
    let request = of(&[("k", "x")]);
    let rule = |scope, kind| {
        engine.operator().set_override(scope, ExpiringOverride { kind, until: T0 + secs(60) }, T0).unwrap()
    };
    rule(Scope::All, LimitOverride::Off);
    rule(Scope::Limit("a"), LimitOverride::Percent(100));
    assert_eq!(engine.try_check(&request, T0).unwrap().limits().len(), 0);
    rule(Scope::All, LimitOverride::Shadow);
    let enforcements = |now| {
        engine.try_check(&request, now).unwrap().limits().map(|status| status.enforcement).collect::<Vec<_>>()
    };
    assert_eq!(enforcements(T0), [Enforcement::Shadow, Enforcement::Shadow]);
    assert!(engine.operator().lift_override(Scope::All, T0));
    assert!(!engine.operator().lift_override(Scope::All, T0));
    assert_eq!(enforcements(T0), [Enforcement::Enforced, Enforcement::Enforced]);
}

/// A limit put in shadow counts apart: what it was counted at as an enforced one is there when it decides again.
#[test]
fn an_override_of_shadow_touches_no_enforced_counter() {
    let engine = engine("limits: [{name: a, by: [k], rate: 2/h}]");
    let request = of(&[("k", "x")]);
    assert!(engine.try_check(&request, T0).unwrap().is_allowed());
    engine
        .operator()
        .set_override(
            Scope::Limit("a"),
            ExpiringOverride { kind: LimitOverride::Shadow, until: T0 + secs(5) },
            T0,
        )
        .unwrap();
    for _ in 0..5 {
        assert!(engine.try_check(&request, T0).unwrap().is_allowed());
    }
    let after = T0 + secs(5);
    assert!(engine.try_check(&request, after).unwrap().is_allowed());
    assert!(!engine.try_check(&request, after).unwrap().is_allowed());
}

/// A share of keys is enforced, and the same keys each time.
#[test]
fn a_percentage_is_of_keys() {
    let engine = engine("limits: [{name: a, by: [k], rate: 1/h}]");
    engine
        .operator()
        .set_override(
            Scope::Limit("a"),
            ExpiringOverride { kind: LimitOverride::Percent(30), until: T0 + secs(60) },
            T0,
        )
        .unwrap();
    let keys: Vec<String> = (0..1_000).map(|key| key.to_string()).collect();
    let enforced = |key: &String| {
        let decision = engine.try_check(&of(&[("k", key)]), T0).unwrap();
        decision.limits().next().unwrap().enforcement == Enforcement::Enforced
    };
    let first: Vec<bool> = keys.iter().map(enforced).collect();
    let share = first.iter().filter(|&&enforced| enforced).count();
    assert!((230..370).contains(&share), "{share}");
    assert_eq!(keys.iter().map(enforced).collect::<Vec<_>>(), first);
}

/// A reload keeps overrides and blocks, for limits that it changes too.
#[test]
fn a_reload_keeps_what_the_operator_said() {
    let engine = engine(HOUR);
    let until = T0 + secs(60);
    engine
        .operator()
        .set_override(Scope::Limit("a"), ExpiringOverride { kind: LimitOverride::Off, until }, T0)
        .unwrap();
    engine.operator().block(&of(&[("k", "bad")]), until, T0).unwrap();
    engine.swap(policy("limits: [{name: a, by: [k], rate: 1/day}]"), T0).unwrap();
    assert_eq!(engine.try_check(&of(&[("k", "x")]), T0).unwrap().limits().len(), 0);
    assert_eq!(engine.try_check(&of(&[("k", "bad")]), T0).unwrap().reason(), Some(Reason::Blocked));
}

/// A limit in shadow never refuses, so a request whose cost cannot be computed passes it; enforced, it would be a fault.
#[test]
fn an_override_of_shadow_is_no_fault() {
    let engine = engine("limits: [{name: a, cost: tokens, rate: 5/h}]");
    let request = CheckRequest::new();
    assert!(engine.try_check(&request, T0).unwrap().fault().is_some());
    engine
        .operator()
        .set_override(
            Scope::Limit("a"),
            ExpiringOverride { kind: LimitOverride::Shadow, until: T0 + secs(5) },
            T0,
        )
        .unwrap();
    assert!(engine.try_check(&request, T0).unwrap().is_allowed());
}

/// An impossible override is refused with the accepted ones.
#[test]
fn overrides_that_are_refused() {
    let engine = engine("limits: [{name: a, rate: 1/h}, {name: gone, rate: 1/h, mode: off}]");
    let rule = |name, kind| {
        engine.operator().set_override(Scope::Limit(name), ExpiringOverride { kind, until: T0 + secs(5) }, T0)
    };
    assert_eq!(rule("c", LimitOverride::Off), Err(OverrideError::UnknownLimit("c".into())));
    assert_eq!(rule("gone", LimitOverride::Shadow), Err(OverrideError::OffInPolicy("gone".into())));
    assert_eq!(rule("a", LimitOverride::Percent(101)), Err(OverrideError::Percent(101)));
}

/// The overrides of one engine are resumed by the next, whatever its policy, without those that have ended; too many are refused whole.
#[test]
fn overrides_are_resumed() {
    let before = engine(HOUR);
    let expiring = |kind, seconds| ExpiringOverride { kind, until: T0 + secs(seconds) };
    before.operator().set_override(Scope::Limit("a"), expiring(LimitOverride::Percent(10), 5), T0).unwrap();
    before.operator().set_override(Scope::Limit("b"), expiring(LimitOverride::Off, 9), T0).unwrap();
    let (overrides, later) = (before.operator().overrides(T0).list(), T0 + secs(5));
    let after = engine("limits: [{name: a, rate: 1/h}]");
    after.operator().resume_overrides(overrides, later).unwrap();
    assert_eq!(
        after.operator().overrides(later).list(),
        (None, vec![("b".to_owned(), expiring(LimitOverride::Off, 9))])
    );
    after.swap(policy(HOUR), later).unwrap();
    for _ in 0..3 {
        assert!(after.try_check(&CheckRequest::new(), later).unwrap().is_allowed(), "b is off");
    }
    let wrong = (Some(expiring(LimitOverride::Percent(101), 9)), Vec::new());
    assert_eq!(after.operator().resume_overrides(wrong, later), Err(OverrideError::Percent(101)));
    let many =
        (0..=OVERRIDES_MAX).map(|number| (number.to_string(), expiring(LimitOverride::Off, 9))).collect();
    assert_eq!(after.operator().resume_overrides((None, many), later), Err(OverrideError::TooMany));
    assert_eq!(after.operator().overrides(later).list().1.len(), 1);
}

/// A store that never answers.
struct Down(Arc<AtomicBool>);

impl Store for Down {
    async fn charge(&self, _: &[Charge<'_>], _: Timestamp) -> Result<Answers, StoreFailure> {
        self.0.store(true, Ordering::SeqCst);
        Err(StoreFailure::Unreachable)
    }
    async fn refund(&self, _: &[Charge<'_>], _: Timestamp) -> Result<(), StoreFailure> {
        Err(StoreFailure::Unreachable)
    }
    async fn reset(&self, _: &[Charge<'_>], _: Timestamp) -> Result<(), StoreFailure> {
        Err(StoreFailure::Unreachable)
    }
    fn hold(&self, _: &Hold) {}
}

/// With the store down a closed limit can be killed, and a key blocked.
#[test]
fn the_operator_needs_no_store() {
    let asked = Arc::new(AtomicBool::new(false));
    let limits = "limits: [{name: a, by: [k], rate: 1/h, on_store_failure: deny}]";
    let engine = Engine::builder().policy(policy(limits)).store(Down(Arc::clone(&asked))).build();
    let request = of(&[("k", "x")]);
    pollster::block_on(async {
        assert_eq!(engine.check(&request, T0).await.reason(), Some(Reason::Unavailable));
        assert!(asked.load(Ordering::SeqCst), "the store was asked, and is down");
        engine
            .operator()
            .set_override(Scope::All, ExpiringOverride { kind: LimitOverride::Off, until: T0 + secs(5) }, T0)
            .unwrap();
        assert!(engine.check(&request, T0).await.is_allowed());
        engine.operator().block(&request, T0 + secs(5), T0).unwrap();
        assert_eq!(engine.check(&request, T0).await.reason(), Some(Reason::Blocked));
    });
}

/// A block denies the requests that have all of its attributes, gives its end, and ends on its tick. Nothing is charged meanwhile.
#[test]
fn a_block_is_true_about_its_end() {
    let engine = engine("limits: [{name: a, by: [k], rate: 1/h}]");
    let until = T0 + Ticks::from_millis(2_500);
    let block = engine.operator().block(&of(&[("k", "x"), ("region", "eu")]), until, T0).unwrap();
    let blocked = of(&[("region", "eu"), ("k", "x"), ("path", "/")]);
    let denied = engine.try_check(&blocked, T0).unwrap();
    assert_eq!(denied.reason(), Some(Reason::Blocked));
    assert_eq!(denied.retry_after(), Some(Ticks::from_millis(2_500)));
    assert_eq!((denied.cause_name(), denied.block()), (Some(Block::NAME), Some(&*block)));
    assert_eq!(block.to_string(), "blocked by an operator until 2023-11-14T22:13:23Z");
    for other in [of(&[("k", "x")]), of(&[("k", "y"), ("region", "eu")]), of(&[("region", "eu")])] {
        assert_ne!(engine.try_check(&other, T0).unwrap().reason(), Some(Reason::Blocked));
    }
    assert!(!engine.try_check(&blocked, until - Ticks::ONE).unwrap().is_allowed());
    let free = engine.try_check(&of(&[("k", "z"), ("region", "eu")]), until).unwrap();
    assert!(free.is_allowed());
    assert_eq!(
        engine.try_check(&blocked, until).unwrap().cause_name(),
        Some("a"),
        "k=x was charged once, without region"
    );
    assert!(engine.operator().blocks(until).is_empty());
}

/// The descriptors of a request have the attributes of a block together. A descriptor that repeats another changes
/// nothing.
#[test]
fn a_block_holds_over_several_descriptors() {
    let engine = engine(HOUR);
    let block = engine.operator().block(&of(&[("k", "x"), ("path", "/y")]), T0 + secs(3), T0).unwrap();
    let ask = |requests: &[CheckRequest<'_>]| {
        let request = requests.iter().cloned().reduce(CheckRequest::and).unwrap();
        engine.try_check(&request, T0).unwrap()
    };
    let (key, path) = (of(&[("k", "x"), ("region", "eu")]), of(&[("path", "/y")]));
    for descriptors in [&[key.clone(), path.clone()][..], &[path.clone(), key.clone(), path, key.clone()]] {
        assert_eq!(ask(descriptors).block(), Some(&*block));
    }
    let elsewhere = of(&[("path", "/z"), ("l", "x")]);
    assert_eq!(ask(&[key, elsewhere]).block(), None, "no request has its path");
}

/// A block on a path or a host holds for their other spellings, as conditions of limits do.
#[test]
fn a_block_holds_for_other_spellings() {
    let engine = engine(HOUR);
    let block = engine
        .operator()
        .block(&of(&[("path", "/login"), ("host", "a.test:8443")]), T0 + secs(3), T0)
        .unwrap();
    let ask = |path: &str, port: &str| {
        let loose = tollgate::path::loose_path(path);
        let mut request = CheckRequest::new();
        request.push_spelled("path", path, Spelling::LoosePath(&loose)).unwrap();
        request.push_spelled("host", "a.test", Spelling::AsIs(port)).unwrap();
        pollster::block_on(engine.check(&request, T0)).block().is_some()
    };
    assert!(block.until() > T0 && ask("/login", "a.test:8443") && ask("/LOGIN;x/", "a.test:8443"));
    assert!(ask("/login.json", "a.test:8443"));
    assert!(!ask("/logins", "a.test:8443") && !ask("/login", "a.test:1"));
}

/// A block on `/Login` held for `/Login` alone: requests came with `/login` as their loose form, and the block kept its capital. A block
/// holds for all that a limit on its path holds for.
#[test]
fn a_block_in_capitals_holds_for_every_case() {
    let engine = engine(HOUR);
    engine.operator().block(&of(&[("path", "/Login"), ("k", "x")]), T0 + secs(3), T0).unwrap();
    let policy = policy("limits: [{ name: l, when: { path: /Login }, rate: 1/h }]");
    for path in ["/Login", "/LOGIN", "/login", "/login/", "/login.a.b.json", "/LOG%C4%B1N", "/log%C4%B0n;x"] {
        let loose = tollgate::path::loose_path(path);
        let mut request = of(&[("k", "x")]);
        request.push_spelled("path", path, Spelling::LoosePath(&loose)).unwrap();
        assert_eq!(policy.matches(&request).unwrap().len(), 1, "{path}");
        assert!(pollster::block_on(engine.check(&request, T0)).block().is_some(), "{path}");
        // A path that no protocol has spelled is compared alike.
        let plain = of(&[("k", "x"), ("path", path)]);
        assert!(pollster::block_on(engine.check(&plain, T0)).block().is_some(), "{path}");
    }
    let exactly = |path| {
        let mut request = of(&[("k", "x")]);
        request.push_spelled("path", path, Spelling::AsIs(path)).unwrap();
        pollster::block_on(engine.check(&request, T0)).block().is_some()
    };
    assert!(exactly("/Login") && !exactly("/login"), "where paths are compared exactly, so are blocks");
}

/// The story: a block of an address said that it was in force, and denied no one where the config has IPv6 clients count by other than
/// 64 bits, or a caller sent a network around it. It holds for whatever a policy's `when: {ip: …}, rate: deny` holds for.
#[test]
fn a_block_holds_for_networks_that_overlap_it() {
    for (blocked, given, holds) in [
        ("2001:db8::1", "2001:db8::/48", true),
        ("2001:db8::1", "2001:db8::/56", true),
        ("2001:db8::1", "2001:db8::1/128", true),
        ("2001:db8::1", "2001:db8::2", true),
        ("2001:db8::/64", "2001:db8::1/128", true),
        ("2001:db8::/63", "2001:db8::1/128", true),
        ("2001:db8::1/128", "2001:db8::/48", true),
        ("2001:db8::1/128", "2001:db8::1", true),
        ("2001:db8::1/128", "2001:db8::2", false),
        ("2001:db8::1", "2001:db8:0:1::/64", false),
        ("2001:db8::1", "2001:db9::/48", false),
        ("10.0.0.0/8", "10.0.0.0/7", true),
        ("10.0.0.0/8", "0.0.0.0/0", true),
        ("10.1.2.3", "10.1.0.0/16", true),
        ("10.1.2.3", "10.1.2.4", false),
    ] {
        let engine = engine(HOUR);
        let block = engine.operator().block(&of(&[("ip", blocked)]), T0 + secs(3), T0).unwrap();
        let request = of(&[("ip", given), ("k", "x")]);
        assert_eq!(engine.try_check(&request, T0).unwrap().block().is_some(), holds, "{blocked} and {given}");
        let network = block.attributes()[0].1.clone();
        let as_policy = format!("limits: [{{name: d, rate: deny, when: {{ip: '{network}'}}}}]");
        assert_eq!(
            !self::engine(&as_policy).try_check(&request, T0).unwrap().is_allowed(),
            holds,
            "{network} and {given}"
        );
        // The output is accepted as input.
        assert!(engine.operator().unblock(&of(&[("ip", network.as_str())]), T0), "{network}");
        assert!(engine.operator().blocks(T0).is_empty());
    }
}

/// A block of an address and something else holds for requests that have both.
#[test]
fn a_block_holds_with_other_attributes_beside_an_address() {
    let engine = engine(HOUR);
    engine.operator().block(&of(&[("ip", "2001:db8::1"), ("k", "x")]), T0 + secs(3), T0).unwrap();
    let ask = |ip, k| engine.try_check(&of(&[("ip", ip), ("k", k)]), T0).unwrap().block().is_some();
    assert!(ask("2001:db8::/48", "x") && ask("2001:db8::9", "x"));
    assert!(!ask("2001:db8::/48", "y") && !ask("2001:db9::1", "x"));
}

/// The answer to a blocked request says when to come back, exactly, and the reason only to callers that may see it.
#[test]
fn a_blocked_request_gets_the_end_of_the_block() {
    let engine = engine(HOUR);
    engine.operator().block(&of(&[("k", "x")]), T0 + secs(90), T0).unwrap();
    let denied = engine.try_check(&of(&[("k", "x")]), T0).unwrap();
    let known = Audience { caller: Caller::Authenticated, ..Audience::default() };
    let answer = Answer::of(&denied, &HeaderPolicy::default(), known, T0);
    assert_eq!((answer.status, answer.headers.get("Retry-After")), (429, Some("90")));
    let body = answer.body.unwrap().text;
    for expected in [
        "#abnormal-usage-detected",
        r#""reason":"operator-block""#,
        r#""retry-after-ms":90000"#,
        r#""retryable":true"#,
        "blocked by an operator until 2023-11-14T22:14:50Z",
    ] {
        assert!(body.contains(expected), "{expected} is not in {body}");
    }
    let hidden = HeaderPolicy { anonymous: Exposure::RetryAfter, ..HeaderPolicy::default() };
    let stranger = Answer::of(&denied, &hidden, Audience::default(), T0);
    assert_eq!(stranger.headers.get("Retry-After"), Some("90"));
    assert!(!stranger.body.unwrap().text.contains("operator"));
}

/// A blocked caller cannot reserve either.
#[test]
fn a_block_stops_reservations() {
    let engine = engine(HOUR);
    engine.operator().block(&of(&[("k", "x")]), T0 + secs(90), T0).unwrap();
    let (decision, reservation) =
        pollster::block_on(engine.reservations().reserve(&of(&[("k", "x")]), secs(5), T0));
    assert!(reservation.is_none() && decision.block().is_some());
}

/// Blocks are bounded; one of the same attributes is replaced, whatever their order, and one that has ended makes room.
#[test]
fn blocks_are_bounded() {
    let engine = engine(HOUR);
    assert_eq!(engine.operator().block(&CheckRequest::new(), T0 + secs(1), T0), Err(BlockError::Everybody));
    engine.operator().block(&of(&[("k", "x"), ("l", "y")]), T0 + secs(1), T0).unwrap();
    engine.operator().block(&of(&[("l", "y"), ("k", "x")]), T0 + secs(9), T0).unwrap();
    assert_eq!(engine.operator().blocks(T0).len(), 1);
    assert!(engine.operator().unblock(&of(&[("k", "x"), ("l", "y")]), T0));
    assert!(!engine.operator().unblock(&of(&[("k", "x"), ("l", "y")]), T0));
    engine.operator().block(&CheckRequest::new().with("n", 5).unwrap(), T0 + secs(1), T0).unwrap();
    assert!(
        !engine.try_check(&of(&[("n", "5")]), T0).unwrap().is_allowed(),
        "a number and its text are the same"
    );
}

/// A program that decides by rules of its own looks up blocks by names and values of any length, several of a name, and overrides
/// about all limits. Each ends on its tick.
#[test]
fn blocks_and_overrides_can_be_asked_for() {
    let engine = engine(HOUR);
    let long = "v".repeat(100_000);
    let pairs = [("k", long.as_str()), ("k", "x"), ("l", "y")];
    assert_eq!(
        (engine.operator().blocked(&pairs, T0), engine.operator().overrides(T0).of_all()),
        (None, None)
    );
    engine.operator().block(&of(&[("k", "x"), ("m", "z")]), T0 + secs(9), T0).unwrap();
    assert_eq!(engine.operator().blocked(&pairs, T0), None, "one of its attributes is missing");
    engine.operator().block(&of(&[("l", "y")]), T0 + secs(1), T0).unwrap();
    let longest = engine.operator().block(&of(&[("k", "x"), ("l", "y")]), T0 + secs(2), T0).unwrap();
    assert_eq!(engine.operator().blocked(&pairs, T0), Some(longest));
    assert_eq!(engine.operator().blocked(&pairs, T0 + secs(2)), None);
    let expiring = ExpiringOverride { kind: LimitOverride::Off, until: T0 + secs(1) };
    engine.operator().set_override(Scope::Limit("a"), expiring, T0).unwrap();
    assert_eq!(engine.operator().overrides(T0).of_all(), None);
    engine.operator().set_override(Scope::All, expiring, T0).unwrap();
    assert_eq!(engine.operator().overrides(T0).of_all(), Some(LimitOverride::Off));
    assert_eq!(engine.operator().overrides(T0 + secs(1)).of_all(), None);
}

/// There are no more blocks than may be, and those that have ended make room.
#[test]
fn no_more_blocks_than_may_be() {
    let engine = engine(HOUR);
    let add = |number: usize, now| {
        let key = number.to_string();
        engine.operator().block(&of(&[("k", &key)]), now + secs(1), now).map(drop)
    };
    for number in 0..BLOCKS_MAX {
        add(number, T0).unwrap();
    }
    assert_eq!(add(BLOCKS_MAX, T0), Err(BlockError::TooMany));
    assert_eq!(add(0, T0), Ok(()), "one that is there is replaced");
    assert_eq!(add(BLOCKS_MAX, T0 + secs(2)), Ok(()));
}

fn explained(engine: &Engine, request: &CheckRequest<'_>) -> Vec<tollgate::engine::Explained> {
    pollster::block_on(engine.operator().explain(request, T0)).limits
}

/// The built-in policy, explained for a login: what applies, what does not, and why.
#[test]
fn the_example_is_explained() {
    let engine = engine(EXAMPLE);
    let request =
        of(&[("api_key", "k"), ("path", "/login"), ("method", "GET"), ("tenant", "t"), ("plan", "free")]);
    let limits = explained(&engine, &request);
    let find = |name: &str| limits.iter().find(|limit| limit.name == name).unwrap();
    let applied: Vec<&str> = limits.iter().filter(|l| l.state.is_some()).map(|l| l.name.as_str()).collect();
    assert_eq!(applied, ["per-key", "plan", "monthly", "in-flight", "platform"]);
    let login = find("login");
    assert_eq!(
        login.unmet,
        [
            Unmet::Missing { attribute: "ip".into() },
            Unmet::Differs { attribute: "method".into(), given: "GET".into(), accepted: vec!["POST".into()] }
        ]
    );
    assert_eq!(find("tokens").unmet, [Unmet::False { expression: "path.startsWith('/v1/chat')".into() }]);
    let plan = find("plan");
    let state = plan.state.as_ref().unwrap();
    assert_eq!(state.choice, Choice::Tier { by: vec![("plan".into(), "free".into())] });
    assert_eq!(state.allowance, "10 requests a second on average, 10 at once and at most 20 in any second");
    assert!(
        plan.changes.iter().any(|change| change.starts_with("with plan=pro it may make 100")),
        "{:?}",
        plan.changes
    );
    assert_eq!(find("per-key").state.as_ref().unwrap().outcome.remaining, 200, "nothing was charged");
    let acme = of(&[("tenant", "acme"), ("plan", "free")]);
    let acme = explained(&engine, &acme);
    let choice = &acme.iter().find(|l| l.name == "plan").unwrap().state.as_ref().unwrap().choice;
    assert_eq!(*choice, Choice::Override { attribute: "tenant".into(), value: "acme".into() });
}

/// A refusal is explained with the time at which the next unit returns, and that time is true.
#[test]
fn an_explanation_names_when_the_next_unit_returns() {
    let engine = engine("limits: [{name: a, by: [k], rate: 2/s burst 1}]");
    let request = of(&[("k", "x")]);
    assert!(engine.try_check(&request, T0).unwrap().is_allowed());
    let limits = explained(&engine, &request);
    let state = limits[0].state.as_ref().unwrap();
    assert!(!state.admits);
    assert_eq!(limits[0].changes[0], "0 of 1 are left: it admits the request in 500 ms");
    let back = T0 + state.outcome.next_unit_after;
    assert!(!engine.try_check(&request, back - Ticks::ONE).unwrap().is_allowed());
    assert!(engine.try_check(&request, back).unwrap().is_allowed());
    let dear = explained(&engine, &request.cost(5).unwrap());
    assert_eq!(dear[0].changes[0], "a cost of 5 never passes: at most 1 at once");
}

/// Rulings show: what an operator turned off does not apply, and says so.
#[test]
fn an_explanation_shows_overrides() {
    let engine = engine(HOUR);
    engine
        .operator()
        .set_override(
            Scope::Limit("a"),
            ExpiringOverride { kind: LimitOverride::Off, until: T0 + secs(9) },
            T0,
        )
        .unwrap();
    engine
        .operator()
        .set_override(
            Scope::Limit("b"),
            ExpiringOverride { kind: LimitOverride::Shadow, until: T0 + secs(9) },
            T0,
        )
        .unwrap();
    let limits = explained(&engine, &of(&[("k", "x")]));
    let [b, a] = &limits[..] else { panic!("{limits:?}") };
    assert_eq!((a.mode, a.state.is_some(), a.unmet.len()), (Mode::Off, false, 0));
    assert!(a.changes[0].contains("an operator has turned it off"), "{:?}", a.changes);
    assert_eq!(b.mode, Mode::Shadow);
    assert!(b.changes[1].contains("an operator has put it in shadow"), "{:?}", b.changes);
}

proptest! {
    /// Explain lists exactly the limits that the engine charges, for any request.
    #[test]
    fn explanations_agree_with_decisions(given in proptest::collection::btree_map(
        prop_oneof![Just("api_key"), Just("ip"), Just("method"), Just("path"), Just("tenant"), Just("plan"), Just("prompt_tokens"), Just("max_tokens")],
        prop_oneof![Just("POST"), Just("/login"), Just("/v1/chat"), Just("free"), Just("acme"), Just("7")],
        0..8,
    )) {
        let engine = engine(EXAMPLE);
        let policy = engine.policy();
        let request = given.iter().fold(CheckRequest::new(), |r, (name, value)| r.with(name, *value).unwrap());
        let looking = request.clone().looking();
        let matched: Vec<u32> = policy.matches(&looking).unwrap().iter().map(|matched| matched.limit).collect();
        let met: Vec<u32> = (0u32..).zip(policy.limits()).filter(|(_, limit)| limit.unmet(request.first()).is_empty()).map(|(n, _)| n).collect();
        prop_assert_eq!(&matched, &met);
        let names: Vec<String> = explained(&engine, &request).into_iter().filter(|l| l.state.is_some()).map(|l| l.name).collect();
        let charged: Vec<String> = engine.try_check(&looking, T0).unwrap().limits().map(|status| status.limit.name().to_owned()).collect();
        prop_assert_eq!(names, charged);
    }
}

/// Two policies side by side: each change with its fields and both sentences, and what is equal is not listed.
#[test]
fn policies_are_compared_by_what_they_mean() {
    let old = policy(
        "limits: [{name: a, by: [k], rate: 1/s}, {name: b, rate: 2/s}, {name: c, by: [t], rate: 1/s, overrides: {w: 2/s, x: 2/s, y: 2/s, z: 2/s}}]",
    );
    let new = policy(
        "limits: [{name: c, by: [t], rate: 1/s, overrides: {w: 2/s, x: 2/s, y: 2/s, z: 3/s}}, {name: a, by: [k], rate: 3/s, mode: shadow}, {name: d, rate: 1/h}]",
    );
    let difference = old.difference(&new);
    assert_eq!(difference.unchanged, 0);
    let [a, b, c, d] = &difference.changes[..] else { panic!("{difference:?}") };
    assert!(
        matches!(a, Change::Changed { name, fields, .. } if name == "a" && *fields == ["rate", "mode"]),
        "{a:?}"
    );
    assert!(matches!(b, Change::Removed { name, .. } if name == "b"));
    assert!(
        matches!(c, Change::Changed { fields, .. } if *fields == ["overrides"]),
        "a sentence leaves the fourth out"
    );
    assert!(
        matches!(d, Change::Added { name, sentence } if name == "d" && sentence.starts_with("d: everybody"))
    );
    assert_eq!(policy(EXAMPLE).difference(&policy(EXAMPLE)).changes, []);
    assert_eq!(policy(EXAMPLE).difference(&policy(EXAMPLE)).unchanged, 7);
}

/// A reload of a policy with another domain, condition or mode reported nothing: only numbers were compared.
#[test]
fn a_swap_reports_every_change() {
    let engine =
        engine("limits: [{name: a, by: [k], rate: 1/s}, {name: b, rate: 2/s}, {name: c, rate: 3/s}]");
    let next = policy(
        "{domain: edge, limits: [{name: a, by: [k], rate: 1/s, when: {p: x}}, {name: b, rate: 2/s, mode: off}, {name: c, rate: 3/s}]}",
    );
    let report = engine.swap(next, T0).unwrap();
    assert_eq!(report.changed, ["a", "b"]);
    assert_eq!(report.fields.iter().map(|change| change.field).collect::<Vec<_>>(), ["domain"]);
    assert!(report.added.is_empty() && report.removed.is_empty() && report.restarted.is_empty());
}

/// A block named a pattern, and held for no request. It is refused, and so is a spelling that no request has.
#[test]
fn a_block_is_of_values_that_requests_have() {
    let engine = engine(HOUR);
    for (name, value, accepted) in [
        ("path", "/v1/*", "`when: { path: /v1/* }`"),
        ("path", "/café", "path: /caf%C3%A9"),
        ("method", "get", "method: GET"),
        ("host", "a.test.", "host: a.test"),
        ("tenant", "acme-*", "`when: { tenant: acme-* }`"),
    ] {
        let refused =
            engine.operator().block(&of(&[(name, value)]), T0 + secs(3), T0).unwrap_err().to_string();
        assert!(refused.contains(accepted), "{name}={value}: {refused}");
    }
    assert!(engine.operator().blocks(T0).is_empty());
    engine.operator().block(&of(&[("path", "/caf%C3%A9")]), T0 + secs(3), T0).unwrap();
    for path in ["/café", "/caf%c3%a9", "/x/../caf%C3%A9"] {
        assert_eq!(
            engine.try_check(&of(&[("path", path)]), T0).unwrap().reason(),
            Some(Reason::Blocked),
            "{path}"
        );
    }
}

/// A memory store is as good as any for these, so that the engine's own type is used once.
#[test]
fn overrides_work_on_any_store() {
    let engine = Engine::builder().policy(policy(HOUR)).store(MemoryStore::new(1 << 20, T0)).build();
    engine
        .operator()
        .set_override(Scope::All, ExpiringOverride { kind: LimitOverride::Off, until: T0 + secs(1) }, T0)
        .unwrap();
    assert!(pollster::block_on(engine.check(&of(&[("k", "x")]), T0)).is_allowed());
}
