//! `block_for`: a key that a limit denied too often is refused for a while.

use pollster::block_on;
use tollgate::headers::Caller;
use tollgate::policy::{Limit, Penalty};
use tollgate::{
    Answer, Audience, CheckRequest, Decision, Engine, HeaderPolicy, Policy, Quota, Rate, Reason, Source,
    Ticks, Timestamp,
};

const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
const LOGIN: &str = "
limits:
  - {name: login, by: [k], rate: 2/s, block_for: {after: 3, in: 10s, for: 60s}}
";

fn policy(text: &str) -> Policy {
    Policy::compile("test", text.as_bytes()).expect("the policy is right")
}

fn engine(text: &str) -> Engine {
    Engine::builder().policy(policy(text)).clock(tollgate::ManualClock::starting_at(T0).clock()).build()
}

fn key(value: &str) -> CheckRequest<'_> {
    CheckRequest::new().with("k", value).expect("it fits")
}

const fn secs(seconds: u64) -> Ticks {
    Ticks::from_secs(seconds)
}

/// Makes requests at one instant, and tells the reason of each answer.
fn ask(engine: &Engine, request: &CheckRequest<'_>, times: usize, now: Timestamp) -> Vec<Option<Reason>> {
    (0..times).map(|_| engine.try_check(request, now).unwrap().reason()).collect()
}

fn source(decision: &Decision) -> Source {
    decision.limits().next().expect("the limit applies").source
}

/// The denial that is one too many begins the block and says so; it ends on its tick, although the key went on asking.
#[test]
fn a_block_is_exact_and_not_extended() {
    let engine = engine(LOGIN);
    let expected = [None, None, Some(Reason::Quota), Some(Reason::Quota), Some(Reason::Penalty)];
    assert_eq!(ask(&engine, &key("a"), 5, T0), expected);
    let blocked = engine.try_check(&key("a"), T0 + secs(20)).unwrap();
    assert_eq!((blocked.reason(), blocked.cause_name()), (Some(Reason::Penalty), Some("login")));
    assert_eq!((blocked.retry_after(), source(&blocked)), (Some(secs(40)), Source::Penalty));
    assert_eq!(engine.try_check(&key("b"), T0).unwrap().reason(), None, "another key is not blocked");
    let end = T0 + secs(60);
    assert_eq!(engine.try_check(&key("a"), end - Ticks::ONE).unwrap().retry_after(), Some(Ticks::ONE));
    assert!(engine.try_check(&key("a"), end).unwrap().is_allowed());
    // It takes as many denials again.
    assert_eq!(ask(&engine, &key("a"), 3, end), [None, Some(Reason::Quota), Some(Reason::Quota)]);
    assert_eq!(engine.try_check(&key("a"), end).unwrap().retry_after(), Some(secs(60)));
}

/// Denials that are too far apart, or too few, block no key; nor do looks, and requests that can never pass.
#[test]
fn only_denials_in_time_count() {
    let engine = engine(LOGIN);
    assert_eq!(ask(&engine, &key("a"), 4, T0).last(), Some(&Some(Reason::Quota)));
    for _ in 0..9 {
        assert!(block_on(engine.operator().peek(&key("a"), T0)).is_allowed());
        let never = key("a").cost(3).expect("it fits");
        assert_eq!(engine.try_check(&never, T0).unwrap().reason(), Some(Reason::Cost));
    }
    let later = T0 + secs(10);
    assert_eq!(
        ask(&engine, &key("a"), 4, later).last(),
        Some(&Some(Reason::Quota)),
        "the first two are forgotten"
    );
    assert_eq!(engine.try_check(&key("a"), later).unwrap().reason(), Some(Reason::Penalty));
}

/// Where a counter needs longer than the block, the advice is the counter's: it is true in any case.
#[test]
fn the_advice_is_the_longer_wait() {
    let engine = engine("limits: [{name: l, by: [k], rate: 2/h, block_for: {after: 1, in: 1s, for: 60s}}]");
    ask(&engine, &key("a"), 2, T0);
    let denied = engine.try_check(&key("a"), T0).unwrap();
    assert_eq!((denied.reason(), denied.retry_after()), (Some(Reason::Penalty), Some(secs(1_800))));
    let again = engine.try_check(&key("a"), T0 + secs(30)).unwrap();
    assert_eq!(again.retry_after(), Some(secs(1_770)));
    // A request one tick early is denied, which is one denial too many again.
    let early = T0 + secs(1_800) - Ticks::ONE;
    assert_eq!(engine.try_check(&key("a"), early).unwrap().retry_after(), Some(secs(60)));
    assert!(engine.try_check(&key("a"), early + secs(60)).unwrap().is_allowed());
}

/// All or nothing: only the limit that denied counts a denial, and a blocked request is charged nowhere.
#[test]
fn only_the_limit_that_denied_counts() {
    let limits = "
limits:
  - {name: login, by: [k], rate: 2/s, block_for: {after: 1, in: 1s, for: 60s}}
  - {name: all, rate: 5/h}
  - {name: flight, by: [k], concurrency: 9}
";
    let engine = engine(limits);
    // The platform denies: no key is blocked for that.
    let large = key("a").cost(1).expect("it fits");
    for second in 0..5 {
        assert!(engine.try_check(&large, T0 + secs(second)).unwrap().is_allowed());
    }
    assert_eq!(engine.try_check(&large, T0 + secs(9)).unwrap().cause_name(), Some("all"));
    assert_eq!(engine.try_check(&large, T0 + secs(9)).unwrap().reason(), Some(Reason::Quota));
    // The key is denied and blocked: what it asks for meanwhile is charged nowhere, and no permit is given.
    let engine = self::engine(limits);
    ask(&engine, &key("a"), 3, T0);
    for _ in 0..5 {
        let mut blocked = engine.try_check(&key("a"), T0 + secs(30)).unwrap();
        assert_eq!(blocked.reason(), Some(Reason::Penalty));
        assert!(blocked.take_permit().is_none());
    }
    let left = engine.try_check(&key("b").looking(), T0 + secs(30)).unwrap();
    let all = left.limits().find(|status| status.limit.name() == "all").expect("it applies");
    assert_eq!(all.outcome.remaining, 3);
}

/// A reset takes the block back, and the denials with it; `explain` shows it and says so.
#[test]
fn a_reset_takes_it_back() {
    let engine = engine(LOGIN);
    ask(&engine, &key("a"), 5, T0);
    let explanation = block_on(engine.operator().explain(&key("a"), T0 + secs(1)));
    let state = explanation.limits[0].state.as_ref().expect("it applies");
    assert!(!state.admits && state.source == Source::Penalty);
    assert_eq!(
        explanation.limits[0].changes,
        ["denied for another 59 s after 3 denials; `tollgate reset` ends that"]
    );
    let forgotten = block_on(engine.operator().reset(&key("a"), &[], T0 + secs(1))).unwrap();
    assert_eq!(forgotten.counters.len() + forgotten.untouched.len(), 1);
    let expected = [None, None, Some(Reason::Quota), Some(Reason::Quota), Some(Reason::Penalty)];
    assert_eq!(ask(&engine, &key("a"), 5, T0 + secs(1)), expected);
}

/// Nothing is kept of a key once its block is over, and nothing of one that was never denied.
#[test]
fn nothing_is_left_over() {
    let engine = engine(LOGIN);
    let keys: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    for name in &keys {
        assert!(engine.try_check(&key(name), T0).unwrap().is_allowed());
    }
    assert_eq!(engine.store().usage(T0).keys, 200, "a key that was never denied has one counter");
    for name in &keys {
        ask(&engine, &key(name), 5, T0);
    }
    assert!(engine.store().usage(T0).keys > 400);
    assert_eq!(engine.store().usage(T0 + secs(61)).keys, 0);
}

/// In shadow no key is blocked. A change of policy, a change of tier and a snapshot keep a block.
#[test]
fn modes_swaps_and_snapshots() {
    let shadow = LOGIN.replace("rate", "mode: shadow, rate");
    assert_eq!(ask(&engine(&shadow), &key("a"), 9, T0), [None; 9]);
    let engine = engine(LOGIN);
    ask(&engine, &key("a"), 5, T0);
    engine.swap(policy(&LOGIN.replace("2/s", "9/s")), T0).expect("it can be put in force");
    assert_eq!(engine.try_check(&key("a"), T0 + secs(5)).unwrap().reason(), Some(Reason::Penalty));
    let mut bytes = Vec::new();
    engine.maintenance().snapshots().write(T0 + secs(5), &mut bytes).expect("memory can be written");
    let snapshot =
        tollgate::Snapshot::read(1 << 20, T0 + secs(5), &mut bytes.as_slice()).expect("it is whole");
    let (restored, _) = snapshot.restore(policy(LOGIN), |memory| memory, T0 + secs(5)).expect("it fits");
    assert_eq!(restored.try_check(&key("a"), T0 + secs(5)).unwrap().retry_after(), Some(secs(55)));
    let tiers = "
limits:
  - {name: l, by: [k], tier_by: p, tiers: {x: 1/s, y: 1/day}, block_for: {after: 1, in: 1s, for: 60s}}
";
    let engine = self::engine(tiers);
    let of = |tier: &'static str| key("a").with("p", tier).expect("it fits");
    ask(&engine, &of("x"), 2, T0);
    assert_eq!(engine.try_check(&of("y"), T0 + secs(9)).unwrap().reason(), Some(Reason::Penalty));
}

/// The caller gets a 429 with the end of the block and its reason.
#[test]
fn the_answer_names_the_block() {
    let engine = engine(LOGIN);
    ask(&engine, &key("a"), 5, T0);
    let blocked = engine.try_check(&key("a"), T0).unwrap();
    let audience = Audience { caller: Caller::Authenticated, ..Audience::default() };
    let answer = Answer::of(&blocked, &HeaderPolicy::default(), audience, T0);
    assert_eq!((answer.status, answer.headers.get("Retry-After")), (429, Some("60")));
    let body = answer.body.expect("a refusal says why").text;
    assert!(body.contains("\"detail\":\"login: blocked for 60 s after 3 denials in 10 s\""), "{body}");
    assert!(body.contains("abnormal-usage-detected") && body.contains("\"retryable\":true"), "{body}");
}

/// The sentence says it, the short form has defaults, and what makes no sense is refused.
#[test]
fn sentences_and_findings() {
    let sentence = |fields: &str| {
        policy(&format!("limits: [{{name: l, by: [k], rate: 1/s, block_for: {fields}}}]"))
            .sentences()
            .remove(0)
    };
    assert!(sentence("10m").ends_with("; after 5 denials in any minute a key is refused for 10 min"));
    assert!(sentence("30s").ends_with("; after 5 denials in any 30 seconds a key is refused for 30 s"));
    assert!(
        sentence("{after: 1, for: 1h}").ends_with("; after 1 denial in any minute a key is refused for 1 h")
    );
    let findings = |fields: &str| {
        let text = format!("limits: [{{name: l, rate: 1/s, {fields}}}]");
        Policy::compile("p", text.as_bytes()).map_or_else(|findings| findings.to_string(), |_| String::new())
    };
    assert!(findings("block_for: 10m").contains("a limit without `by` would block everybody"));
    let cases = [
        ("{after: 3}", "block_for.for: missing"),
        ("{after: 0, for: 1m}", "block_for.after: is out of range; accepted: 1 to 1000 denials"),
        ("{in: 2m, for: 1m}", "block_for.in: is out of range; accepted: 1s up to the time of the block"),
        ("{for: 31 days}", "block_for.for: is out of range; accepted: 1s to 30 days"),
        ("soon", "block_for: soon is not a unit of time"),
        ("{for: 1m, until: 2m}", "block_for.until: unknown field"),
        ("[1m]", "block_for: is a list; accepted: a time such as 10m, or a table"),
    ];
    for (fields, expected) in cases {
        let found = findings(&format!("by: [k], block_for: {fields}"));
        assert!(found.contains(expected), "{fields}: {found}");
    }
    let penalty = Penalty::new(2, secs(1), secs(5)).expect("it is right");
    let quota = Quota::token_bucket(Rate::per_hour(1)).expect("it is exact");
    let built = Policy::new(vec![Limit::new("l", quota).by(["k"]).block_for(penalty)]).expect("it is right");
    assert!(built.sentences()[0].contains("after 2 denials in any second"));
}

/// `explain` said "refused for another 20 s" of a key whose counter needed a minute: after 20 s it was still denied. It says both times, and
/// the later one is the decision's, whatever the request costs; and it takes nothing.
#[test]
fn explanations_have_the_longer_wait() {
    let engine = engine("limits: [{name: l, by: [k], rate: 3/h, block_for: {after: 1, in: 1s, for: 60s}}]");
    ask(&engine, &key("a"), 4, T0);
    let now = T0 + secs(30);
    for (cost, minutes) in [(1, 19), (2, 39), (3, 59)] {
        let counter = minutes * 60 + 30;
        let request = key("a").cost(cost).expect("it fits");
        let explained = block_on(engine.operator().explain(&request, now));
        let state = explained.limits[0].state.as_ref().expect("it applies");
        assert_eq!((state.source, state.refused_for), (Source::Penalty, Some(secs(30))));
        assert_eq!(state.outcome.verdict.retry_after(), Some(secs(counter)));
        assert_eq!(state.outcome.remaining, 0, "the counter is shown, too");
        let said = &explained.limits[0].changes[0];
        assert!(
            said.contains("another 30 s after 1 denial,") && said.contains(&format!("in {minutes} min 30 s")),
            "{said}"
        );
        assert_eq!(engine.try_check(&request, now).unwrap().retry_after(), Some(secs(counter)));
    }
    // A block that lasts longer than the counter needs is the time to wait.
    let engine = self::engine(LOGIN);
    ask(&engine, &key("a"), 5, T0);
    let explained = block_on(engine.operator().explain(&key("a"), T0 + secs(20)));
    let state = explained.limits[0].state.as_ref().expect("it applies");
    assert_eq!(state.outcome.verdict.retry_after(), Some(secs(40)));
    assert!(!explained.limits[0].changes[0].contains("counter"), "{:?}", explained.limits[0].changes);
    assert!(engine.try_check(&key("a"), T0 + secs(60)).unwrap().is_allowed(), "nothing was taken");
}
