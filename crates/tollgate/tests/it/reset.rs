//! A reset is about every counter that the named attributes may have been counted by, and says which there were.

use pollster::block_on;
use tollgate::engine::Forgotten;
use tollgate::request::Spelling;
use tollgate::store::StoreFailure;
use tollgate::{
    CheckRequest, Engine, ExpiringOverride, LimitOverride, MemoryStore, Policy, Scope, Secret, Source,
};
use tollgate::{Ticks, Timestamp};

const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

fn engine(file: &str) -> Engine {
    Engine::builder()
        .policy(Policy::compile("policy.yaml", file.as_bytes()).expect("the policy is right"))
        .clock(tollgate::ManualClock::starting_at(T0).clock())
        .build()
}

fn of<'a>(attributes: &[(&'a str, &'a str)]) -> CheckRequest<'a> {
    attributes.iter().fold(CheckRequest::new(), |request, (name, value)| {
        request.with(name, *value).expect("the attributes are within bounds")
    })
}

fn passes(engine: &Engine, attributes: &[(&str, &str)]) -> bool {
    engine.try_check(&of(attributes), T0).unwrap().is_allowed()
}

fn reset(engine: &Engine, attributes: &[(&str, &str)], limits: &[&str]) -> Result<Forgotten, StoreFailure> {
    block_on(engine.operator().reset(&of(attributes), limits, T0))
}

fn forgot(counters: &[&str], untouched: &[&str]) -> Result<Forgotten, StoreFailure> {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Ok(Forgotten { counters: names(counters), untouched: names(untouched), shared: Vec::new() })
}

/// The story: `reset ip=192.0.2.1` found nothing, because the limit by ip has a condition on the path, and no path was named. The
/// client stayed locked out. What contradicts the condition still finds nothing.
#[test]
fn a_condition_on_what_is_not_named_may_have_held() {
    let engine = engine(
        "limits:
- {name: login, when: {path: /login, method: {not: GET}}, by: [ip], rate: 1/h}
- {name: cel, when: \"path.startsWith('/login')\", by: [ip], rate: 1/h}
- {name: pair, by: [user, ip], rate: 1/h}
",
    );
    let (client, login) = (("ip", "192.0.2.1"), ("path", "/login"));
    let post = [client, login, ("method", "POST")];
    for limits in [&[][..], &["login", "cel"][..]] {
        assert!(passes(&engine, &post) && !passes(&engine, &post));
        assert_eq!(reset(&engine, &[client], limits), forgot(&["login", "cel"], &[]));
        assert!(passes(&engine, &post), "{limits:?}");
        assert_eq!(reset(&engine, &[client], limits), forgot(&["login", "cel"], &[]));
        assert_eq!(reset(&engine, &[client], limits), forgot(&[], &["login", "cel"]));
    }
    assert!(passes(&engine, &post));
    let none = forgot(&[], &[]);
    assert_eq!(reset(&engine, &[client, ("path", "/other")], &[]), none);
    assert_eq!(reset(&engine, &[("user", "u")], &[]), none, "it counts by both");
    assert_eq!(reset(&engine, &[client, ("method", "GET")], &[]), forgot(&["cel"], &[]));
    assert!(!passes(&engine, &post));
}

/// The story: tiers of different periods have counters of their own. `reset tenant=t1` forgot the counter of the tier that a request
/// without a plan gets, said so, and the tenant, who has another plan, stayed locked out.
#[test]
fn every_tier_that_is_left_open_is_forgotten() {
    let engine = engine(
        "limits:
- {name: plan, by: [tenant], tier_by: plan, tiers: {free: 1/h, pro: 1/day, ent: 1/min, all: unlimited}, overrides: {own: 1/h}}
- {name: two, by: [user], tier_by: [plan, region], tiers: {free: {eu: 1/h, '*': 1/day}, pro: {'*': 1/min}}}
",
    );
    let plans = [("plan", "free"), ("plan", "pro"), ("plan", "ent")];
    let tenant = ("tenant", "t1");
    let spend = |name: (&'static str, &'static str)| {
        for plan in plans {
            assert!(passes(&engine, &[name, plan]) && !passes(&engine, &[name, plan]), "{name:?} {plan:?}");
        }
    };
    spend(tenant);
    assert_eq!(reset(&engine, &[tenant], &[]), forgot(&["plan", "plan", "plan"], &[]));
    spend(tenant);
    assert_eq!(reset(&engine, &[tenant, ("plan", "pro")], &[]), forgot(&["plan"], &[]), "one is named");
    assert!(passes(&engine, &[tenant, ("plan", "pro")]) && !passes(&engine, &[tenant, ("plan", "free")]));
    assert!(passes(&engine, &[("tenant", "own"), ("plan", "ent")]));
    assert_eq!(reset(&engine, &[("tenant", "own")], &[]), forgot(&["plan"], &[]), "it has one quota");
    let (user, eu) = (("user", "u"), ("region", "eu"));
    for (plan, region) in [("free", "eu"), ("free", "us"), ("pro", "eu")] {
        assert!(passes(&engine, &[user, ("plan", plan), ("region", region)]));
    }
    assert_eq!(reset(&engine, &[user, ("plan", "pro")], &[]), forgot(&["two"], &[]));
    assert_eq!(reset(&engine, &[user, eu], &[]), forgot(&["two", "two"], &[]), "an unknown plan may be any");
}

/// The story: while an operator had a limit off or in shadow, a reset was about the counter of the shadow, and the one that decides
/// afterwards stayed as it was.
#[test]
fn an_override_hides_no_counter() {
    let engine = engine("limits: [{name: a, by: [k], rate: 1/h}]");
    for kind in [LimitOverride::Off, LimitOverride::Shadow, LimitOverride::Percent(0)] {
        assert!(passes(&engine, &[("k", "x")]) && !passes(&engine, &[("k", "x")]));
        let expiring = ExpiringOverride { kind, until: T0 + Ticks::from_secs(60) };
        engine.operator().set_override(Scope::All, expiring, T0).expect("it may be expiring about");
        assert_eq!(
            reset(&engine, &[("k", "x")], &[]).map(|report| report.counters),
            Ok(vec!["a".to_owned()])
        );
        assert!(engine.operator().lift_override(Scope::All, T0));
        assert!(passes(&engine, &[("k", "x")]), "{kind:?}");
        reset(&engine, &[("k", "x")], &[]).expect("memory answers");
    }
}

/// A key that a limit has blocked counts as forgotten, also when the counter that led to it is full again.
#[test]
fn a_block_that_outlasts_its_counter_is_reported() {
    let engine = engine("limits: [{name: a, by: [k], rate: 1/s, block_for: {after: 1, for: 1h}}]");
    assert!(passes(&engine, &[("k", "x")]) && !passes(&engine, &[("k", "x")]));
    let later = T0 + Ticks::from_secs(60);
    assert!(!engine.try_check(&of(&[("k", "x")]), later).unwrap().is_allowed());
    assert_eq!(block_on(engine.operator().reset(&of(&[("k", "x")]), &[], later)), forgot(&["a"], &[]));
    assert!(engine.try_check(&of(&[("k", "x")]), later).unwrap().is_allowed());
}

/// A reset clears the counters of every form of the attributes: that of a gateway, and that of a program whose paths are compared as they
/// are.
#[test]
fn every_reading_is_forgotten() {
    let engine = engine(
        "limits: [{name: login, when: {path: /login}, by: [ip], rate: 1/h}, {name: path, by: [path], rate: 1/h}]",
    );
    let mut given = of(&[("ip", "192.0.2.1")]);
    given.push_spelled("path", "/LOGIN/", Spelling::AsIs("/LOGIN/")).expect("it is short");
    let mut read = of(&[("ip", "192.0.2.1")]);
    read.push_spelled("path", "/LOGIN/", Spelling::LoosePath("/login")).expect("it is short");
    assert!(engine.try_check(&read, T0).unwrap().is_allowed());
    assert_eq!(block_on(engine.operator().reset(&given, &["login"], T0)), forgot(&[], &[]));
    let both = block_on(engine.operator().reset(&read.clone().and(given), &[], T0));
    assert_eq!(both, forgot(&["login", "path"], &[]));
    assert!(engine.try_check(&read, T0).unwrap().is_allowed());
}

/// The story: with memory full a new key counts in a counter that others share. Its reset said that no counter existed, and it stayed
/// denied. A shared counter is not one key's to forget, so that is what is said.
#[test]
fn a_shared_counter_stays_and_is_reported() {
    let policy = Policy::compile("p", b"limits: [{name: a, by: [k], rate: 1/h}]").expect("it is right");
    let engine = Engine::builder()
        .policy(policy)
        .store(MemoryStore::new(1 << 17, T0))
        .secret(Secret::repeatable(7))
        .build();
    let is_shared = |number: u32| {
        let key = format!("k{number}");
        let decision = engine.try_check(&of(&[("k", &key)]), T0).unwrap();
        let shared = decision.limits().any(|status| status.source == Source::Overflow);
        shared && !decision.is_allowed()
    };
    let full = (0..1_000_000).find(|number| is_shared(*number)).expect("memory is bounded");
    let key = format!("k{full}");
    let forgotten = reset(&engine, &[("k", &key)], &[]).expect("memory answers");
    assert_eq!((forgotten.counters.len(), forgotten.shared), (0, vec!["a".to_owned()]));
    assert!(!passes(&engine, &[("k", &key)]));
    assert_eq!(reset(&engine, &[("k", "k0")], &[]), forgot(&["a"], &[]), "one that has its own");
}

/// A reservation of 3, a reset, 3 more requests, and then the reservation was cancelled: its 3 units came back a second time, so that 6
/// passed since the reset where 3 may. A refund of what the reset has wiped is dropped, by every algorithm; one of what was charged since
/// is made, and so is one of another key.
#[test]
fn a_reservation_of_before_a_reset_gives_nothing_back() {
    for algorithm in [
        "algorithm: token-bucket",
        "algorithm: gcra",
        "algorithm: fixed-window",
        "algorithm: sliding-window",
        "algorithm: sliding-log",
    ] {
        let engine = engine(&format!("limits: [{{name: a, by: [k], rate: 3/h, {algorithm}}}]"));
        let three = |key| of(&[("k", key)]).cost(3).expect("a cost within bounds");
        let at = |millis| T0 + Ticks::from_millis(millis);
        let reserve =
            |key, now| block_on(engine.reservations().reserve(&three(key), Ticks::from_secs(60), now)).1;
        let mut before = reserve("x", at(0)).expect("it passes");
        let mut committed = reserve("z", at(0)).expect("it passes");
        let mut other = reserve("y", at(0)).expect("it passes");
        for key in ["x", "z"] {
            assert_eq!(
                block_on(engine.operator().reset(&of(&[("k", key)]), &[], at(1))).unwrap().counters,
                ["a"]
            );
        }
        let mut since = reserve("x", at(2)).expect("the reset gave all of it back");
        assert!(reserve("z", at(2)).is_some());
        let settled = block_on(engine.reservations().cancel(&mut before, at(3))).unwrap();
        assert_eq!(settled.refunded, 0, "{algorithm}");
        assert_eq!(
            block_on(engine.reservations().commit(&mut committed, 1, at(3))).unwrap().refunded,
            0,
            "{algorithm}"
        );
        let left = |key| {
            engine
                .try_check(&of(&[("k", key)]).looking(), at(4))
                .unwrap()
                .limits()
                .next()
                .unwrap()
                .outcome
                .remaining
        };
        assert_eq!((left("x"), left("z"), left("y")), (0, 0, 0), "{algorithm}");
        assert_eq!(
            block_on(engine.reservations().cancel(&mut since, at(4))).unwrap().refunded,
            3,
            "{algorithm}"
        );
        assert_eq!(
            block_on(engine.reservations().cancel(&mut other, at(4))).unwrap().refunded,
            3,
            "{algorithm}"
        );
        assert_eq!((left("x"), left("y")), (3, 3), "{algorithm}");
    }
}

/// Another node of the fleet has reset a key: a reservation that this node made before gives nothing back, and one of another key does.
#[test]
fn a_reset_at_another_node_reaches_reservations() {
    let engine = engine("limits: [{name: a, by: [k], rate: 3/h}]");
    let at = |millis| T0 + Ticks::from_millis(millis);
    let reserve = |key| {
        let three = of(&[("k", key)]).cost(3).expect("a cost within bounds");
        block_on(engine.reservations().reserve(&three, Ticks::from_secs(60), at(0))).1.expect("it passes")
    };
    let (mut known, mut other) = (reserve("x"), reserve("y"));
    let keys = engine.operator().reset_keys(&of(&[("k", "x")]), &[], at(1));
    assert_eq!(keys.len(), 1);
    engine.maintenance().apply_remote_reset(&keys, at(1));
    assert_eq!(block_on(engine.reservations().cancel(&mut known, at(2))).unwrap().refunded, 0);
    assert_eq!(block_on(engine.reservations().cancel(&mut other, at(2))).unwrap().refunded, 3);
}
