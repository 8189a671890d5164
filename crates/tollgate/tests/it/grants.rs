//! `unlimited` and `deny` as values of a limit: what they mean in a policy, in decisions and in answers.

use pollster::block_on;
use tollgate::headers::Caller;
use tollgate::policy::{Grant, Limit};
use tollgate::store::{Answers, Charge, Hold, Store, StoreFailure};
use tollgate::{
    Answer, Audience, CheckRequest, Decision, Enforcement, Engine, ExpiringOverride, HeaderPolicy,
    LimitOverride, Policy, Quota, Rate, Reason, Scope, Source, Ticks, Timestamp, Verdict,
};

const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

const PLANS: &str = "
limits:
  - name: bad-bots
    when: { agent: '*bot*' }
    rate: deny
  - name: plan
    by: [tenant]
    tier_by: plan
    tiers: { free: 2/h, enterprise: unlimited, suspended: deny }
    overrides: { acme: unlimited, evil: deny }
  - name: all
    rate: 100/h
";

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

fn tenant<'a>(name: &'a str, plan: &'a str) -> CheckRequest<'a> {
    of(&[("tenant", name), ("plan", plan)])
}

/// Each limit with its answer: what is left of a counter, or what the policy says.
fn answers(decision: &Decision) -> Vec<(&str, String)> {
    let one = |status: tollgate::LimitStatus<'_>| match (status.quota, status.outcome.verdict) {
        (Some(_), _) => status.outcome.remaining.to_string(),
        (None, verdict) => format!("{verdict:?} by {}", status.source.name()),
    };
    decision.limits().map(|status| (status.limit.name(), one(status))).collect()
}

/// An unlimited key passes however often it asks, gets no number, and is still counted by the other limits.
#[test]
fn unlimited_charges_nothing_and_shows_no_number() {
    let engine = engine(PLANS);
    for request in [tenant("big", "enterprise"), tenant("acme", "free")] {
        for _ in 0..10 {
            assert!(engine.try_check(&request, T0).unwrap().is_allowed());
        }
    }
    let last = engine.try_check(&tenant("big", "enterprise"), T0).unwrap();
    assert_eq!(answers(&last), [("plan", "Allow by policy".to_owned()), ("all", "79".to_owned())]);
    let audience = Audience { caller: Caller::Authenticated, ..Audience::default() };
    let answer = Answer::of(&last, &HeaderPolicy::default(), audience, T0);
    let headers: Vec<&str> = answer.headers.iter().map(|(_, value)| value).collect();
    assert!(headers.iter().all(|value| !value.contains("plan")), "{headers:?}");
}

/// A denied key gets a 403 without a time to retry, and nothing is charged, neither there nor elsewhere.
#[test]
fn deny_is_a_403_that_charges_nothing() {
    let engine = engine(PLANS);
    let requests = [
        (tenant("x", "suspended"), "plan"),
        (tenant("evil", "free"), "plan"),
        (of(&[("agent", "badbot/1")]), "bad-bots"),
    ];
    for (request, cause) in requests {
        let denied = engine.try_check(&request, T0).unwrap();
        assert_eq!(denied.verdict(), Verdict::Forbidden);
        assert_eq!((denied.reason(), denied.cause_name()), (Some(Reason::Forbidden), Some(cause)));
        assert_eq!(denied.retry_after(), None);
        let audience = Audience { caller: Caller::Authenticated, ..Audience::default() };
        let answer = Answer::of(&denied, &HeaderPolicy::default(), audience, T0);
        assert_eq!(answer.status, 403);
        assert_eq!(answer.headers.get("Retry-After"), None);
        let body = answer.body.expect("a refusal says why").text;
        let expected = format!(
            "{{\"type\":\"urn:tollgate:problem:denied-by-policy\",\"title\":\"Request is denied by policy\",\
             \"status\":403,\"detail\":\"{cause}: deny\",\"cause\":\"{cause}\",\"violated-policies\":[\"{cause}\"],\
             \"reason\":\"denied-by-policy\",\"retryable\":false}}"
        );
        assert_eq!(body, expected);
        // An anonymous caller gets neither the limit nor its name.
        let anonymous = tollgate::headers::Exposure::RetryAfter;
        let hidden = HeaderPolicy { anonymous, ..HeaderPolicy::default() };
        let stranger = Answer::of(&denied, &hidden, Audience::default(), T0);
        assert_eq!(stranger.status, 403);
        assert!(!stranger.body.expect("a refusal says why").text.contains(cause));
    }
    assert_eq!(answers(&engine.try_check(&CheckRequest::new(), T0).unwrap()), [("all", "99".to_owned())]);
}

/// An unknown tier counts as the strictest one: `deny` before any rate, and any rate before `unlimited`.
#[test]
fn the_strictest_tier_is_deny_then_a_rate_then_unlimited() {
    let strictest = |tiers: &str| {
        let limits = format!("limits: [{{name: a, by: [k], tier_by: p, tiers: {{{tiers}}}}}]");
        engine(&limits).try_check(&of(&[("k", "1"), ("p", "unheard-of")]), T0).unwrap().verdict()
    };
    assert_eq!(strictest("a: unlimited, b: 1/s, c: deny, d: 2/s"), Verdict::Forbidden);
    assert_eq!(strictest("a: deny, b: unlimited"), Verdict::Forbidden);
    let limits = "limits: [{name: a, by: [k], tier_by: p, tiers: {x: unlimited, y: 1/h, z: 2/h}}]";
    let engine = engine(limits);
    for request in [of(&[("k", "1"), ("p", "unheard-of")]), of(&[("k", "2")])] {
        assert!(engine.try_check(&request, T0).unwrap().is_allowed());
        assert!(!engine.try_check(&request, T0).unwrap().is_allowed());
    }
}

/// A limit in shadow that would deny reports it and refuses nothing; off is not asked; a share of keys is denied.
#[test]
fn modes_hold_for_deny() {
    let of_mode = |more: &str| engine(&format!("limits: [{{name: a, by: [k], rate: deny, {more}}}]"));
    let shadow = of_mode("mode: shadow").try_check(&of(&[("k", "1")]), T0).unwrap();
    assert!(shadow.is_allowed());
    let status = shadow.limits().next().expect("the limit was asked");
    assert_eq!((status.enforcement, status.outcome.verdict), (Enforcement::Shadow, Verdict::Forbidden));
    assert_eq!(of_mode("mode: off").try_check(&of(&[("k", "1")]), T0).unwrap().limits().len(), 0);
    let some = of_mode("enforce_percent: 30");
    let keys: Vec<String> = (0..1_000).map(|key| key.to_string()).collect();
    let denied =
        keys.iter().filter(|key| !some.try_check(&of(&[("k", key)]), T0).unwrap().is_allowed()).count();
    assert!((200..400).contains(&denied), "{denied}");
    // And what an operator rules holds, too.
    let engine = of_mode("mode: enforce");
    let until = T0 + Ticks::from_secs(60);
    for kind in [LimitOverride::Off, LimitOverride::Shadow, LimitOverride::Percent(0)] {
        engine
            .operator()
            .set_override(Scope::Limit("a"), ExpiringOverride { kind, until }, T0)
            .expect("the limit is there");
        assert!(engine.try_check(&of(&[("k", "1")]), T0).unwrap().is_allowed(), "{kind:?}");
    }
    assert!(!engine.try_check(&of(&[("k", "1")]), until).unwrap().is_allowed(), "the override is over");
}

/// A store that never answers.
struct Down;

impl Store for Down {
    async fn charge(&self, charges: &[Charge<'_>], _: Timestamp) -> Result<Answers, StoreFailure> {
        if charges.is_empty() { Ok(Answers::new()) } else { Err(StoreFailure::Unreachable) }
    }
    async fn refund(&self, _: &[Charge<'_>], _: Timestamp) -> Result<(), StoreFailure> {
        Err(StoreFailure::Unreachable)
    }
    async fn reset(&self, _: &[Charge<'_>], _: Timestamp) -> Result<(), StoreFailure> {
        Err(StoreFailure::Unreachable)
    }
    fn hold(&self, _: &Hold) {}
}

/// With the store down `deny` still denies with 403, and `unlimited` still passes, where a counted key of the same limit does not.
#[test]
fn values_without_a_counter_need_no_store() {
    let limits = "
limits:
  - {name: a, by: [k], rate: 1/h, on_store_failure: deny, overrides: {vip: unlimited, evil: deny}}
";
    let engine = Engine::builder().policy(policy(limits)).store(Down).build();
    let reason = |key: &str| block_on(engine.check(&of(&[("k", key)]), T0)).reason();
    assert_eq!([reason("vip"), reason("evil")], [None, Some(Reason::Forbidden)]);
    assert_eq!(reason("other"), Some(Reason::Unavailable));
}

/// Reservations and permits: what is denied reserves nothing, and what is unlimited gives nothing back.
#[test]
fn reservations_and_permits() {
    let limits = "
limits:
  - {name: flight, by: [k], concurrency: 1, overrides: {vip: unlimited, evil: deny}}
  - {name: tokens, by: [k], rate: 10/h, cost: tokens, overrides: {vip: unlimited}}
";
    let engine = engine(limits);
    let minute = Ticks::from_secs(60);
    // No cost is needed where nothing is charged.
    let (decision, reservation) = block_on(engine.reservations().reserve(&of(&[("k", "vip")]), minute, T0));
    assert!(decision.is_allowed());
    let settled = block_on(engine.reservations().commit(&mut reservation.expect("it passes"), 7, T0));
    assert_eq!(settled.map(|settled| (settled.refunded, settled.charged)), Ok((0, 0)));
    assert!(engine.try_check(&of(&[("k", "vip")]), T0).unwrap().take_permit().is_none());
    let (decision, reservation) =
        block_on(engine.reservations().reserve(&of(&[("k", "evil"), ("tokens", "1")]), minute, T0));
    assert_eq!((decision.reason(), reservation.is_none()), (Some(Reason::Forbidden), true));
    let before = block_on(engine.ledger().debit(&of(&[("k", "evil"), ("tokens", "1")]), |_, cost| cost, T0));
    assert_eq!(before.reason(), Some(Reason::Forbidden));
    assert_eq!(
        block_on(engine.operator().reset(&of(&[("k", "vip")]), &[], T0)),
        Ok(tollgate::engine::Forgotten::default())
    );
}

/// `explain` names the value that was chosen, and says that no waiting helps.
#[test]
fn explanations_name_the_value() {
    let engine = engine(PLANS);
    let explain = |request: &CheckRequest<'_>| {
        let explanation = block_on(engine.operator().explain(request, T0));
        let limit = explanation.limits.into_iter().find(|limit| limit.name == "plan").expect("it applies");
        let state = limit.state.expect("it applies");
        (state.admits, state.source, state.allowance, limit.changes)
    };
    let (admits, source, allowance, changes) = explain(&tenant("x", "enterprise"));
    assert!(admits && source == Source::Policy && allowance == "any number of requests");
    assert_eq!(changes, ["it admits every such request, and counts none"]);
    let (admits, _, allowance, changes) = explain(&tenant("x", "suspended"));
    assert!(!admits && allowance == "no requests");
    assert_eq!(
        changes,
        [
            "the policy denies it, and waiting does not help",
            "with plan=free it may make 2 requests an hour on average, 2 at once and at most 4 in any hour"
        ]
    );
}

/// A change of policy from a rate to `unlimited` or `deny` and back keeps what was counted.
#[test]
fn counters_outlive_a_time_without_them() {
    let with = |rate: &str| policy(&format!("limits: [{{name: a, by: [k], rate: {rate}}}]"));
    let engine =
        Engine::builder().policy(with("2/h")).clock(tollgate::ManualClock::starting_at(T0).clock()).build();
    let request = of(&[("k", "1")]);
    assert!(engine.try_check(&request, T0).unwrap().is_allowed());
    assert!(engine.try_check(&request, T0).unwrap().is_allowed());
    for (value, verdict) in [("unlimited", Verdict::Allow), ("deny", Verdict::Forbidden)] {
        engine.swap(with(value), T0).expect("it can be put in force");
        assert_eq!(engine.try_check(&request, T0).unwrap().verdict(), verdict);
    }
    engine.swap(with("2/h"), T0).expect("it can be put in force");
    assert_eq!(engine.try_check(&request, T0).unwrap().reason(), Some(Reason::Quota));
}

/// A snapshot of an engine with such limits can be read back, and decides as before.
#[test]
fn snapshots_keep_them() {
    let engine = engine(PLANS);
    assert!(engine.try_check(&tenant("x", "free"), T0).unwrap().is_allowed());
    let mut bytes = Vec::new();
    engine.maintenance().snapshots().write(T0, &mut bytes).expect("memory can be written");
    let snapshot = tollgate::Snapshot::read(1 << 20, T0, &mut bytes.as_slice()).expect("it was just written");
    let (restored, _) = snapshot.restore(policy(PLANS), |memory| memory, T0).expect("it fits");
    assert_eq!(restored.try_check(&tenant("x", "suspended"), T0).unwrap().reason(), Some(Reason::Forbidden));
    assert_eq!(answers(&restored.try_check(&tenant("x", "free"), T0).unwrap())[0], ("plan", "0".to_owned()));
}

/// A policy check prints the meaning of each limit, its problems, and settings without effect.
#[test]
fn sentences_and_findings() {
    let sentences = policy(PLANS).sentences();
    assert_eq!(sentences[0], "bad-bots: when agent matches *bot*, every request is denied with 403");
    assert_eq!(
        sentences[1],
        "plan: each tenant may make, by its plan, no requests (suspended), 2 requests an hour on average, 2 at \
         once and at most 4 in any hour (free) or any number of requests (enterprise); with any other plan, or none, it counts as suspended; \
         tenant acme may make any number of requests; tenant evil may make no requests"
    );
    let findings = |text: &str| match Policy::compile("p", text.as_bytes()) {
        Ok(policy) => policy.warnings().to_string(),
        Err(findings) => findings.to_string(),
    };
    let misspelt = findings("limits: [{name: a, rate: unlimted}]");
    assert!(misspelt.contains("unlimted is unknown; did you mean unlimited?"), "{misspelt}");
    assert!(misspelt.ends_with(", unlimited, or deny"), "{misspelt}");
    let idle = findings("limits: [{name: a, rate: unlimited}]");
    assert!(idle.contains("warning") && idle.contains("the limit does nothing"), "{idle}");
    let vain = findings("limits: [{name: a, rate: deny, burst: 5, on_store_failure: allow}]");
    assert!(
        vain.contains(".burst: it has no effect") && vain.contains(".on_store_failure: it has no"),
        "{vain}"
    );
}

/// Limits made in Rust take the same values.
#[test]
fn limits_made_in_rust_take_them() {
    let quota = Quota::token_bucket(Rate::per_hour(1)).expect("it is exact");
    let limits = vec![
        Limit::new("plan", quota.clone())
            .by(["k"])
            .override_for("vip", Grant::Unlimited)
            .tiers("plan", [("gone", Grant::Deny), ("paid", Grant::Quota(quota))]),
        Limit::new("bots", Grant::Deny).when("agent", "bot"),
    ];
    let engine = Engine::builder()
        .policy(Policy::new(limits).expect("they are right"))
        .clock(tollgate::ManualClock::starting_at(T0).clock())
        .build();
    assert!(engine.try_check(&of(&[("k", "vip"), ("plan", "gone")]), T0).unwrap().is_allowed());
    assert!(!engine.try_check(&of(&[("k", "x"), ("plan", "gone")]), T0).unwrap().is_allowed());
    assert_eq!(engine.try_check(&of(&[("agent", "bot")]), T0).unwrap().cause_name(), Some("bots"));
}

const REGIONS: &str = "
limits:
  - name: plan
    by: [tenant]
    tier_by: [plan, region]
    rate: 1/h
    tiers:
      pro: { eu: 3/h, us: 4/h, '*': 2/h }
      '*': { moon: unlimited }
      banned: { '*': deny }
";

/// A tier by two attributes is that of both values, else that of one with any other value, else the limit's own rate.
#[test]
fn tiers_by_two_attributes() {
    let engine = engine(REGIONS);
    let grant = |attributes: &[(&str, &str)]| {
        let request = of(attributes).with("tenant", "t").expect("it fits").looking();
        let decision = engine.try_check(&request, T0).unwrap();
        let status = decision.limits().next().expect("the limit applies");
        match status.quota {
            Some(quota) => quota.capacity().to_string(),
            None => format!("{:?}", status.outcome.verdict),
        }
    };
    assert_eq!(grant(&[("plan", "pro"), ("region", "eu")]), "3");
    assert_eq!(grant(&[("region", "us"), ("plan", "pro")]), "4");
    assert_eq!(grant(&[("plan", "pro"), ("region", "mars")]), "2");
    assert_eq!(grant(&[("plan", "pro")]), "2");
    assert_eq!(grant(&[("plan", "free"), ("region", "moon")]), "Allow");
    assert_eq!(grant(&[("region", "moon")]), "Allow");
    assert_eq!(grant(&[("plan", "banned"), ("region", "moon")]), "Forbidden");
    assert_eq!(grant(&[("plan", "free"), ("region", "eu")]), "1");
    assert_eq!(grant(&[]), "1");
    // No value can pretend to be a pair of values, and a long one is none.
    assert_eq!(grant(&[("plan", "pro\u{1f}eu"), ("region", "")]), "1");
    assert_eq!(grant(&[("plan", &"p".repeat(300)), ("region", "eu")]), "1");
    let explanation =
        block_on(engine.operator().explain(&of(&[("tenant", "t"), ("plan", "pro"), ("region", "mars")]), T0));
    let state = explanation.limits[0].state.as_ref().expect("it applies");
    assert_eq!(state.choice.to_string(), "the tier plan=pro and region=*");
    assert_eq!(
        policy(REGIONS).sentences(),
        [
            "plan: each tenant may make, by its plan and region, no requests (banned, any other region), 2 requests an \
          hour on average, 2 at once and at most 4 in any hour (pro, any other region), 3 requests an hour on average, 3 at once and at most 6 in any hour (pro, eu), \
          4 requests an hour on average, 4 at once and at most 8 in any hour (pro, us) or any number of requests (any other plan, moon); with \
          any other plan and region, 1 request an hour on average, 1 at once and at most 2 in any hour"
        ]
    );
}

/// Without a rate of its own such a limit takes the strictest tier for what it does not know. Each pair whose quota forgets after
/// another time counts apart, and a snapshot keeps all of it.
#[test]
fn tiers_by_two_attributes_are_kept() {
    let limits = "
limits:
  - {name: a, by: [t], tier_by: [p, r], tiers: {x: {y: 2/h, z: 5/day}}}
";
    let engine = engine(limits);
    let request = |r: &'static str| of(&[("t", "1"), ("p", "x"), ("r", r)]);
    assert_eq!(answers(&engine.try_check(&request("y"), T0).unwrap())[0].1, "1");
    assert_eq!(answers(&engine.try_check(&request("z"), T0).unwrap())[0].1, "4");
    assert_eq!(answers(&engine.try_check(&request("unheard-of"), T0).unwrap())[0].1, "3");
    let mut bytes = Vec::new();
    engine.maintenance().snapshots().write(T0, &mut bytes).expect("memory can be written");
    let snapshot = tollgate::Snapshot::read(1 << 20, T0, &mut bytes.as_slice()).expect("it was just written");
    let (restored, _) = snapshot.restore(policy(limits), |memory| memory, T0).expect("it fits");
    assert_eq!(answers(&restored.try_check(&request("z"), T0).unwrap())[0].1, "2");
    assert_eq!(answers(&restored.try_check(&request("y"), T0).unwrap())[0].1, "0");
}

/// Tables and rates at the wrong depth are reported with what would be accepted.
#[test]
fn mismatched_tiers_are_reported() {
    let findings = |text: &str| match Policy::compile("p", text.as_bytes()) {
        Ok(policy) => policy.warnings().to_string(),
        Err(findings) => findings.to_string(),
    };
    let cases = [
        ("tier_by: [a, b], tiers: {x: 1/s}", "tiers.x: is a single value; accepted: a table by b, such as"),
        ("tier_by: [a, b], tiers: {x: {}}", "tiers.x: is empty"),
        ("tier_by: [a, b], tiers: {x: {y: {z: 1/s}}}", "tiers.x.y: is a table"),
        ("tier_by: a, tiers: {x: {y: 1/s}}", "is a table, and tier_by names one attribute"),
        ("tier_by: a, tiers: {x: 1/s, '*': 2/s}", "a tier for any other value is the limit's own rate"),
        ("tier_by: [a, b, c], tiers: {x: {y: 1/s}}", "a list of 3 attributes"),
        ("tier_by: [], tiers: {x: 1/s}", "a list of 0 attributes"),
        ("tier_by: [a, a], tiers: {x: {y: 1/s}}", "a is named twice"),
        ("tier_by: [a, b]", "tier_by without tiers"),
    ];
    for (fields, expected) in cases {
        let found = findings(&format!("limits: [{{name: l, {fields}}}]"));
        assert!(found.contains(expected), "{fields}: {found}");
    }
}

/// Months that begin on a billing day: the sentence says so, the counter follows, and what makes no sense is refused.
#[test]
fn billing_months() {
    let limits = "
limits:
  - {name: m, by: [k], rate: 1/month, algorithm: fixed-window, align: calendar, timezone: UTC, billing_day: 31}
";
    assert_eq!(
        policy(limits).sentences(),
        ["m: each k may make 1 request in each month from day 31 or its last day on in UTC"]
    );
    let engine = Engine::builder()
        .policy(policy(limits))
        .clock(tollgate::ManualClock::starting_at(Timestamp::from_unix_seconds(1_709_078_400)).clock())
        .build();
    // 2024-02-28 00:00, 2024-02-28 23:59:59, 2024-02-29 00:00, 2024-03-30 23:59:59, 2024-03-31 00:00.
    let instants = [1_709_078_400, 1_709_164_799, 1_709_164_800, 1_711_843_199, 1_711_843_200];
    let allowed = instants.map(|second| {
        engine.try_check(&of(&[("k", "1")]), Timestamp::from_unix_seconds(second)).unwrap().is_allowed()
    });
    assert_eq!(allowed, [true, false, true, false, true]);
    let findings = |fields: &str| {
        let text = format!("limits: [{{name: l, algorithm: fixed-window, {fields}}}]");
        Policy::compile("p", text.as_bytes()).map_or_else(|findings| findings.to_string(), |_| String::new())
    };
    assert!(findings("rate: 1/month, billing_day: 5").contains("align: calendar with it"));
    assert!(
        findings("rate: 1/week, align: calendar, billing_day: 5")
            .contains("only months begin on a billing day")
    );
    assert!(findings("rate: 1/month, align: calendar, billing_day: 0").contains("there is no day 0"));
    assert!(findings("rate: 1/month, align: calendar, billing_day: 32").contains("32 is too large"));
}
