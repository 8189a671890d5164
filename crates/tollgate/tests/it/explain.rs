//! `explain` lists every limit and never contradicts the decision: over random policies, requests and operator's overrides, the limits
//! that it says apply are those that a decision charges, and its verdict is the decision's.

use proptest::prelude::*;
use tollgate::engine::{Explanation, LIMITS_EXPLAINED_MAX};
use tollgate::policy::{Policy, Unmet};
use tollgate::{
    CheckRequest, Enforcement, Engine, ExpiringOverride, LimitOverride, MemoryStore, Reason, Scope, Secret,
    Source, Ticks, Timestamp,
};

use crate::fixture::{ALGORITHMS, asking, limit, policy};

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

fn explain(engine: &Engine, request: &CheckRequest<'_>, now: Timestamp) -> Explanation {
    pollster::block_on(engine.operator().explain(request, now))
}

const BY: [&str; 6] =
    ["", "by: [tenant], ", "by: [ip], ", "by: ['ip/24,48'], ", "by: [tenant, ip], ", "by: [plan], "];
const WHEN: [&str; 12] = [
    "",
    "when: {method: GET}, ",
    "when: {method: {not: GET}}, ",
    "when: {path: '/users/{id}'}, ",
    "when: {path: {not: [/login, '/users/*']}}, ",
    "when: {ip: 10.0.0.0/8}, ",
    "when: {ip: {not: ['10.0.0.0/8', '2001:db8::/32']}, method: [POST, PUT]}, ",
    "when: {plan: {not: '*'}}, ",
    "when: {plan: [free, p*]}, ",
    "when: \"plan != 'free'\", ",
    "when: \"has(tokens) && tokens > 2\", ",
    "when: \"method == 'GET' || path.startsWith('/users')\", ",
];
const AMOUNT: [&str; 10] = [
    "rate: 4/s, tier_by: plan, tiers: {free: unlimited, pro: deny}",
    "rate: 2/s",
    "rate: 3/min burst 2, algorithm: gcra",
    "rate: 2/min, algorithm: fixed-window",
    "rate: 3/s, algorithm: sliding-window",
    "rate: 3/s, algorithm: sliding-window, estimate: interpolate",
    "rate: 2/s, algorithm: sliding-log",
    "rate: 1/s, algorithm: leaky-bucket, queue: 2",
    "concurrency: 2",
    "rate: 4/s, tier_by: plan, tiers: {free: 1/s, pro: 9/s}",
];
const COST: [&str; 4] = ["", "cost: tokens, ", "cost: 'tokens + 1', ", ""];
const MODE: [&str; 4] = ["", "", "mode: shadow, ", "mode: off, "];

#[derive(Clone, Debug)]
struct Written {
    by: usize,
    when: usize,
    amount: usize,
    cost: usize,
    mode: usize,
    is_partial: bool,
}

impl Written {
    fn line(&self, number: usize) -> String {
        let amount = AMOUNT[self.amount];
        let cost = if amount.starts_with("concurrency") { "" } else { COST[self.cost] };
        let percent =
            if self.is_partial && self.by > 0 && self.mode < 2 { "enforce_percent: 50, " } else { "" };
        let (by, when, mode) = (BY[self.by], WHEN[self.when], MODE[self.mode]);
        format!("- {{name: l{number}, {by}{when}{cost}{mode}{percent}{amount}}}\n")
    }
}

fn limits() -> impl Strategy<Value = String> {
    let limit = (0..BY.len(), 0..WHEN.len(), 0..AMOUNT.len(), 0..COST.len(), 0..MODE.len(), any::<bool>());
    let written = limit.prop_map(|(by, when, amount, cost, mode, is_partial)| Written {
        by,
        when,
        amount,
        cost,
        mode,
        is_partial,
    });
    // `plan` cannot be both what a limit counts by and what it must be without.
    let written =
        written.prop_filter("never matches", |limit| !(BY[limit.by].contains("plan") && limit.when == 7));
    proptest::collection::vec(written, 0..8).prop_map(|limits| {
        let lines: String = limits.iter().enumerate().map(|(number, limit)| limit.line(number)).collect();
        if lines.is_empty() { "limits: []".to_owned() } else { format!("limits:\n{lines}") }
    })
}

type Asked = (Vec<(&'static str, &'static str)>, u64, u64);

fn requests() -> impl Strategy<Value = Vec<Asked>> {
    let value = |name: &'static str, values: &'static [&'static str]| {
        proptest::option::weighted(0.7, proptest::sample::select(values))
            .prop_map(move |value| Some((name, value?)))
    };
    let attributes = (
        value("tenant", &["a", "b"]),
        value(
            "ip",
            &["10.0.0.1", "10.0.0.2", "192.0.2.1", "2001:db8::1", "2001:db8::2", "2001:db9::1", "none"],
        ),
        value("method", &["GET", "HEAD", "POST", "PUT"]),
        value("path", &["/users/7", "/login", "/users/7/x", "/"]),
        value("plan", &["free", "pro", "x"]),
        value("tokens", &["1", "3", "many"]),
    );
    let attributes = attributes
        .prop_map(|(a, b, c, d, e, f)| [a, b, c, d, e, f].into_iter().flatten().collect::<Vec<_>>());
    proptest::collection::vec((attributes, 0_u64..4, 0_u64..700_000), 1..12)
}

fn override_limit(engine: &Engine, kind: u8, number: usize, now: Timestamp) {
    let name = format!("l{number}");
    let until = now + Ticks::from_secs(3600);
    let kind = match kind {
        0 => LimitOverride::Off,
        1 => LimitOverride::Shadow,
        2 => LimitOverride::Percent(50),
        _ => return,
    };
    // A limit that is off, has no `by`, or does not exist refuses an override, which is fine here.
    let _ = engine.operator().set_override(Scope::Limit(&name), ExpiringOverride { kind, until }, now);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Explain agrees with the decision, for any policy, request and override.
    #[test]
    fn explanations_agree_with_decisions(
        file in limits(),
        asked in requests(),
        (kind, number) in (0_u8..6, 0_usize..8),
        block in proptest::option::weighted(0.2, proptest::sample::select(&["10.0.0.1", "10.0.0.0/8", "2001:db8::9"][..])),
    ) {
        let engine = engine(&file);
        let policy = engine.policy();
        let mut now = T0;
        override_limit(&engine, kind, number, now);
        if let Some(ip) = block {
            engine.operator().block(&of(&[("ip", ip)]), now + Ticks::from_secs(2), now).unwrap();
        }
        for (attributes, cost, step) in asked {
            now = now + Ticks::from_micros(step);
            let request = of(&attributes).cost(cost).unwrap();
            let explained = explain(&engine, &request, now);
            let decision = engine.try_check(&request, now).unwrap();
            let context = format!("{file}\n{attributes:?} cost {cost}\n{explained:#?}\n{decision:#?}");
            prop_assert_eq!(explained.is_allowed(), decision.is_allowed(), "{}", context);
            prop_assert_eq!(explained.meets_no_limit(), decision.meets_no_limit(), "{}", context);
            prop_assert_eq!(explained.fault.as_ref(), decision.fault(), "{}", context);
            // The limit that the decision names as the cause does not pass.
            for limit in explained.limits.iter().filter(|limit| decision.refused_by() == Some(&limit.name)) {
                let denies = limit.state.as_ref().is_some_and(|state| !state.admits);
                prop_assert!(denies || explained.block.is_some(), "{}: {}", limit.name, context);
            }
            prop_assert_eq!(explained.limits.len(), policy.limits().len());
            prop_assert_eq!(explained.left_off, 0);
            for limit in explained.limits.iter().filter(|limit| limit.state.is_none()) {
                prop_assert!(!limit.changes.is_empty(), "{} does not say why", limit.name);
            }
            // Where the request is refused before any counter is asked, the decision has no limits, or only those that refuse.
            if matches!(decision.reason(), Some(Reason::Fault | Reason::Blocked | Reason::Forbidden)) {
                continue;
            }
            let applied: Vec<(String, Enforcement, bool)> = explained
                .limits
                .iter()
                .filter_map(|limit| Some((limit.name.clone(), limit.state.as_ref()?)))
                .map(|(name, state)| (name, state.enforcement, state.admits))
                .collect();
            let charged: Vec<(String, Enforcement, bool)> = decision
                .limits()
                .map(|status| (status.limit.name().to_owned(), status.enforcement, status.outcome.is_allowed()))
                .collect();
            prop_assert_eq!(applied, charged, "{}", context);
        }
    }
}

/// Every limit is listed with its reason, also one that has nothing to do with the request.
#[test]
fn every_limit_is_listed() {
    let engine = engine(
        "limits:
- {name: key, by: [api_key], rate: 5/h}
- {name: login, by: [ip], rate: 5/h, when: {path: /login, ip: {not: 10.0.0.0/8}}}
- {name: off, rate: 5/h, mode: off}
",
    );
    let explained = explain(&engine, &of(&[("path", "/a"), ("ip", "10.0.0.1")]), T0);
    assert!(explained.is_allowed() && explained.meets_no_limit());
    let reasons: Vec<(&str, Vec<String>)> =
        explained.limits.iter().map(|limit| (limit.name.as_str(), limit.changes.clone())).collect();
    assert_eq!(
        reasons,
        [
            (
                "login",
                vec![
                    "path is \"/a\", and it applies to /login only".to_owned(),
                    "ip is \"10.0.0.1\", and it applies to all but 10.0.0.0/8".to_owned()
                ]
            ),
            ("off", vec!["it is off in the policy".to_owned()]),
            ("key", vec!["the request has no api_key".to_owned()]),
        ]
    );
    assert_eq!(explained.limits[1].unmet, [Unmet::Off]);
}

/// The story: a request whose cost could not be computed was refused because of a limit of which `explain` said that it passes, with
/// nothing to hold the request back. The others are listed at their own costs.
#[test]
fn a_limit_that_cannot_compute_its_cost_denies() {
    let engine = engine(
        "limits:
- {name: free, by: [t], rate: 10/h}
- {name: size, by: [t], rate: 10/h, cost: size}
- {name: sum, by: [t], rate: 10/h, cost: 'size + 1', enforce_percent: 0}
- {name: quiet, by: [t], rate: 10/h, cost: size, mode: shadow}
",
    );
    let explained = explain(&engine, &of(&[("t", "x")]), T0);
    assert!(!explained.is_allowed());
    let shown: Vec<(&str, Option<bool>, &str)> = explained
        .limits
        .iter()
        .map(|limit| {
            (limit.name.as_str(), limit.state.as_ref().map(|state| state.admits), &*limit.changes[0])
        })
        .collect();
    let cause = "its cost cannot be computed, so nothing passes: the attribute size is missing";
    assert_eq!(shown[0], ("free", Some(true), "it admits the request: 10 of 10 are left"));
    assert_eq!(shown[1], ("size", Some(false), cause));
    assert_eq!(
        (shown[2].0, shown[2].1, shown[2].2.starts_with("its cost cannot")),
        ("sum", Some(false), true)
    );
    assert_eq!((shown[3].0, shown[3].1), ("quiet", None));
    assert_eq!(explained.limits[0].state.as_ref().map(|state| state.cost), Some(1));
}

/// The story: memory was full, new keys shared counters that were used up and were denied, and `explain` said of each that it passes
/// with all of its quota left.
#[test]
fn a_full_memory_is_explained_as_decided() {
    for (name, quota) in ALGORITHMS {
        let limits = |count: usize| {
            let each = [("limit", 2), ("other", 3)].into_iter().take(count);
            each.map(|(name, units)| limit(name, quota(units))).collect::<Vec<_>>()
        };
        for limits in [1, 2].map(limits) {
            let store = MemoryStore::new(1 << 17, T0);
            let engine =
                Engine::builder().policy(policy(limits)).store(store).secret(Secret::repeatable(7)).build();
            let check = |key: &str| engine.try_check(&asking(key, 1), T0).unwrap();
            let is_refused = |number: &u32| {
                let decision = check(&format!("k{number}"));
                !decision.is_allowed() && decision.limits().any(|status| status.source != Source::Exact)
            };
            let full = (0..1_000_000).find(is_refused).expect("memory is bounded");
            let mut crowded = 0;
            for number in full..full + 40 {
                let key = format!("new-{number}");
                let explained = explain(&engine, &asking(&key, 1), T0);
                let decision = check(&key);
                assert_eq!(
                    explained.is_allowed(),
                    decision.is_allowed(),
                    "{name}: {explained:?} {decision:?}"
                );
                let shown = explained.limits.iter().filter_map(|limit| Some(limit.state.as_ref()?.source));
                crowded += shown.filter(|source| *source != Source::Exact).count();
            }
            assert!(crowded > 0, "{name}: some of them have no room");
            let known = explain(&engine, &asking("k0", 0), T0);
            let source = known.limits[0].state.as_ref().map(|state| state.source);
            assert_eq!(source, Some(Source::Exact), "{name}: one that has its own counter");
        }
    }
}

/// A policy of many limits is listed up to a bound, with how many are left out.
#[test]
fn a_long_list_says_what_it_leaves_out() {
    let lines: String = (0..300).map(|n| format!("- {{name: l{n}, by: [k{n}], rate: 1/s}}\n")).collect();
    let engine = engine(&format!("limits:\n{lines}"));
    let explained = explain(&engine, &of(&[("k299", "x")]), T0);
    assert_eq!(
        (explained.limits.len(), explained.left_off),
        (LIMITS_EXPLAINED_MAX, 300 - LIMITS_EXPLAINED_MAX)
    );
    assert_eq!(explained.limits[0].name, "l299");
}

/// An operator finds the counter of an address however it is written, and a block holds for all that counts as one client.
#[test]
fn operators_name_addresses_as_limits_count_them() {
    let engine = engine("limits: [{name: a, by: [ip], rate: 5/h}]");
    assert!(engine.try_check(&of(&[("ip", "2001:db8::1")]), T0).unwrap().is_allowed());
    assert!(engine.try_check(&of(&[("ip", "2001:db8::/64")]), T0).unwrap().is_allowed());
    for spelling in ["2001:db8::1", "2001:DB8:0:0::7", "2001:db8::/64"] {
        let explained = explain(&engine, &of(&[("ip", spelling)]), T0);
        assert_eq!(explained.limits[0].state.as_ref().unwrap().outcome.remaining, 3, "{spelling}");
    }
    let reset =
        pollster::block_on(engine.operator().reset(&of(&[("ip", "2001:db8::ffff")]), &["a"], T0)).unwrap();
    assert_eq!(reset.counters.len() + reset.untouched.len(), 1);
    let until = T0 + Ticks::from_secs(60);
    let block = engine.operator().block(&of(&[("ip", "2001:db8::1")]), until, T0).unwrap();
    assert_eq!(block.attributes(), [("ip".to_owned(), "2001:db8::/64".to_owned())]);
    assert!(!engine.try_check(&of(&[("ip", "2001:db8::2")]), T0).unwrap().is_allowed());
    assert!(engine.try_check(&of(&[("ip", "2001:db8:0:1::2")]), T0).unwrap().is_allowed());
    assert!(engine.operator().unblock(&of(&[("ip", "2001:db8::3")]), T0));
    engine.operator().block(&of(&[("ip", "10.0.0.0/8")]), until, T0).unwrap();
    engine.operator().block(&of(&[("ip", "192.0.2.1"), ("path", "/x")]), until, T0).unwrap();
    assert!(!engine.try_check(&of(&[("ip", "10.9.9.9")]), T0).unwrap().is_allowed());
    assert!(!engine.try_check(&of(&[("ip", "::ffff:10.9.9.9")]), T0).unwrap().is_allowed());
    assert!(engine.try_check(&of(&[("ip", "11.9.9.9")]), T0).unwrap().is_allowed());
    assert!(engine.try_check(&of(&[("ip", "192.0.2.1"), ("path", "/y")]), T0).unwrap().is_allowed());
    assert!(!engine.try_check(&of(&[("ip", "192.0.2.1"), ("path", "/x")]), T0).unwrap().is_allowed());
    let refused = engine.operator().block(&of(&[("ip", "localhost")]), until, T0).unwrap_err();
    assert!(refused.to_string().contains("accepted: addresses and networks"), "{refused}");
}

/// Every address of an IPv6 network is one key.
#[test]
fn one_network_is_one_key() {
    let engine = engine("limits: [{name: a, by: [ip], rate: 1/h, burst: 4}]");
    for address in ["2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8::/64"] {
        assert!(engine.try_check(&of(&[("ip", address)]), T0).unwrap().is_allowed(), "{address}");
    }
    assert!(!engine.try_check(&of(&[("ip", "2001:db8::4")]), T0).unwrap().is_allowed());
    assert!(engine.try_check(&of(&[("ip", "2001:db9::4")]), T0).unwrap().is_allowed());
}

/// A share of the keys of a limit that has one key is refused, and an override about all limits leaves such a limit as it is.
#[test]
fn a_share_of_one_key_is_refused() {
    let engine = engine("limits: [{name: all, rate: 1/h}, {name: key, by: [k], rate: 9/h}]");
    let expiring = ExpiringOverride { kind: LimitOverride::Percent(0), until: T0 + Ticks::from_secs(60) };
    let refused = engine.operator().set_override(Scope::Limit("all"), expiring, T0).unwrap_err();
    assert!(refused.to_string().contains("limit \"all\" has no `by`"), "{refused}");
    engine.operator().set_override(Scope::All, expiring, T0).unwrap();
    assert!(engine.try_check(&of(&[("k", "x")]), T0).unwrap().is_allowed());
    let denied = engine.try_check(&of(&[("k", "x")]), T0).unwrap();
    assert_eq!(denied.cause().unwrap().limit.name(), "all");
    assert_eq!(
        denied.limits().map(|status| status.enforcement).collect::<Vec<_>>(),
        [Enforcement::Enforced, Enforcement::Shadow]
    );
}
