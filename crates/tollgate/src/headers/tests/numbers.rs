//! The rule of each number: windows, remaining units, and which limit is shown.

use super::fixture::{
    Case, NOW, answer, authenticated, bucket, contract, decision, fixed, header, leaky, log, millis, permits,
    secs, speaking,
};
use crate::algorithm::token_bucket::{self, TokenBucket};
use crate::headers::{Answer, Dialect, HeaderList, HeaderPolicy, Pacing, Unit};
use crate::outcome::{Source, Verdict};
use crate::quota::Quota;
use crate::rate::{PERIOD_MAX, Rate};

fn rate_limit(case: Case) -> String {
    header(case, Dialect::Ietf11, "RateLimit").unwrap()
}

fn policy(case: Case) -> String {
    header(case, Dialect::Ietf11, "RateLimit-Policy").unwrap()
}

/// A bucket's case after `taken` units and a charge of `cost`, by the arithmetic that decides.
fn charged(rate: Rate, taken: u64, cost: u64) -> Case {
    let quota = TokenBucket::new(rate).unwrap();
    let (state, _) = token_bucket::charge(&quota, token_bucket::State::default(), NOW, taken);
    let (_, outcome) = token_bucket::charge(&quota, state, NOW, cost);
    let mut case = Case::new("p", Quota::TokenBucket(quota));
    case.outcome = outcome;
    case
}

fn unpaced(case: Case) -> String {
    let policy = HeaderPolicy { pacing: Pacing::NextUnit, ..speaking(&[Dialect::Ietf11]) };
    let answer = Answer::of(&decision(&[case]), &policy, authenticated(), NOW);
    answer.headers.get("RateLimit").unwrap().to_owned()
}

/// With pacing, a client that spreads the remaining units over the window keeps the sustained rate; without it, the
/// answer shows when the next unit comes.
#[test]
fn an_allowed_answer_advertises_the_next_unit_or_the_pace() {
    let case = charged(Rate::per_minute(100), 79, 1);
    assert_eq!(rate_limit(case.clone()), r#""p";r=20;t=12"#);
    assert_eq!(unpaced(case), r#""p";r=20;t=1"#);
    assert_eq!(rate_limit(charged(Rate::per_minute(1), 0, 1)), r#""p";r=0;t=60"#);
}

#[test]
fn an_untouched_limit_has_no_effective_window() {
    assert_eq!(rate_limit(charged(Rate::per_minute(100), 0, 0)), r#""p";r=100"#);
    let legacy = header(charged(Rate::per_minute(100), 0, 0), Dialect::Ietf07, "RateLimit");
    assert_eq!(legacy.unwrap(), "limit=100, remaining=100, reset=60");
}

/// A denial with units left is not stretched by pacing: ten of these twenty refill in 6 s, and then the request passes.
#[test]
fn a_denial_advertises_its_wait_exactly() {
    let case = charged(Rate::per_minute(100), 80, 30);
    assert_eq!(rate_limit(case.clone()), r#""p";r=20;t=6"#);
    let answer = answer(&[case], &[Dialect::Ietf11]);
    let retry: u64 = answer.headers.get("Retry-After").unwrap().parse().unwrap();
    assert!((6..=7).contains(&retry), "{retry}");
}

#[test]
fn a_fixed_window_advertises_its_end() {
    let case = Case::new("p", fixed(Rate::per_hour(10))).left(9, millis(1_200), millis(1_200));
    assert_eq!(rate_limit(case), r#""p";r=9;t=2"#);
}

#[test]
fn a_sliding_log_is_paced_as_a_bucket() {
    let case = Case::new("p", log(Rate::per_minute(10))).left(5, secs(3), secs(60));
    assert_eq!(rate_limit(case.clone()), r#""p";r=5;t=30"#);
    assert_eq!(unpaced(case), r#""p";r=5;t=3"#);
}

/// The window is the time in which the capacity comes back, so capacity over window is the sustained rate and never
/// more.
#[test]
fn policies_never_promise_more_than_the_rate() {
    assert_eq!(policy(Case::new("p", bucket(Rate::per_second(100).burst(200)))), r#""p";q=200;w=2"#);
    assert_eq!(policy(Case::new("p", bucket(Rate::per_minute(60).burst(10)))), r#""p";q=10;w=10"#);
    // The example of docs/http.md.
    assert_eq!(policy(Case::new("p", bucket(Rate::per_minute(30).burst(20)))), r#""p";q=20;w=40"#);
    assert_eq!(policy(Case::new("p", bucket(Rate::per_minute(30)))), r#""p";q=30;w=60"#);
    assert_eq!(policy(Case::new("p", bucket(Rate::per_second(3).burst(10)))), r#""p";q=10;w=4"#);
    assert_eq!(policy(Case::new("p", bucket(Rate::per_second(100).burst(10)))), r#""p";q=10;w=1"#);
    assert_eq!(policy(Case::new("p", leaky(Rate::per_second(1), 9))), r#""p";q=10;w=10"#);
    assert_eq!(policy(Case::new("p", fixed(Rate::per_ticks(5, millis(1_500))))), r#""p";q=5;w=2"#);
}

/// Permits come back when requests end, so the expiry of one is no reason to wait.
#[test]
fn concurrency_has_a_unit_and_no_window() {
    let case = Case::new("in-flight", permits(20, secs(30))).left(3, secs(30), secs(30));
    assert_eq!(policy(case.clone()), r#""in-flight";q=20;qu="concurrent-requests""#);
    assert_eq!(rate_limit(case.clone()), r#""in-flight";r=3"#);
    let denied = answer(&[case.left(0, secs(30), secs(30)).denied(secs(30))], &[Dialect::Ietf11]);
    assert_eq!(denied.headers.get("RateLimit"), Some(r#""in-flight";r=0"#));
    let retry: u64 = denied.headers.get("Retry-After").unwrap().parse().unwrap();
    assert!((1..=2).contains(&retry), "{retry}");
    let body = denied.body.unwrap().text;
    assert!(body.contains(r#""detail":"in-flight: 20 at once""#), "{body}");
    assert!(body.contains(r#""retry-after-ms":1000"#), "{body}");
}

#[test]
fn units_other_than_requests_are_named() {
    let mut policy = speaking(&[Dialect::Ietf11, Dialect::OpenAi]);
    policy.units.insert("tokens".to_owned(), Unit::Tokens);
    policy.units.insert("upload".to_owned(), Unit::Bytes);
    let cases = [
        contract("requests"),
        Case::new("tokens", bucket(Rate::per_minute(100_000))).left(500, secs(1), secs(60)),
        Case::new("upload", bucket(Rate::per_minute(60_000))),
    ];
    let answer = Answer::of(&decision(&cases), &policy, authenticated(), NOW);
    assert_eq!(
        answer.headers.get("RateLimit-Policy"),
        Some(concat!(
            r#""requests";q=100;w=60, "tokens";q=100000;qu="tollgate-tokens";w=60, "#,
            r#""upload";q=60000;qu="content-bytes";w=60"#
        ))
    );
    assert_eq!(answer.headers.get("x-ratelimit-remaining-requests"), Some("20"));
    assert_eq!(answer.headers.get("x-ratelimit-remaining-tokens"), Some("500"));
    assert_eq!(answer.headers.get("x-ratelimit-reset-tokens"), Some("1m0s"));
}

/// A thousand left of half a million a second are gone in 2 ms, fifty left of a hundred a second last half a second.
#[test]
fn the_tightest_limit_is_the_one_exhausted_soonest() {
    let cases = [
        Case::new("per-key", bucket(Rate::per_second(100))).left(50, millis(10), millis(500)),
        Case::new("platform", bucket(Rate::per_second(500_000))).left(1_000, millis(1), secs(1)),
    ];
    let answer = answer(&cases, &[Dialect::Ietf11, Dialect::XRateLimit]);
    assert_eq!(answer.headers.get("RateLimit"), Some(r#""platform";r=1000;t=1"#));
    assert_eq!(answer.headers.get("X-RateLimit-Resource"), Some("platform"));
}

#[test]
fn every_violated_limit_is_listed_and_the_longest_wait_comes_first() {
    let cases = [
        Case::new("second", bucket(Rate::per_second(10))).left(0, millis(100), secs(1)).denied(millis(100)),
        Case::new("fine", bucket(Rate::per_second(1_000))).left(1, millis(1), secs(1)),
        Case::new("hour", bucket(Rate::per_hour(60))).left(0, secs(60), secs(3_600)).denied(secs(60)),
    ];
    let answer = answer(&cases, &[Dialect::Ietf11, Dialect::XRateLimit]);
    assert_eq!(answer.headers.get("RateLimit"), Some(r#""hour";r=0;t=60, "second";r=0;t=1"#));
    assert_eq!(answer.headers.get("X-RateLimit-Limit"), Some("60"));
    assert!(answer.body.unwrap().text.contains(r#""violated-policies":["hour","second"]"#));
}

/// A shaping limit has admitted the request, so the answer is that of an allowed one, with the delay beside it.
#[test]
fn a_wait_is_allowed_with_its_duration() {
    let quota = leaky(Rate::per_second(10), 5);
    let cases = [
        contract("other"),
        Case::new("shape", quota).left(3, millis(100), millis(300)).says(Verdict::Wait(millis(201))),
    ];
    let answer = answer(&cases, &[Dialect::Ietf11]);
    assert_eq!((answer.status, answer.body.is_none()), (200, true));
    assert_eq!(answer.headers.get("RateLimit"), Some(r#""shape";r=3;t=1;tollgate-wait=201"#));
    assert_eq!(answer.headers.get("Retry-After"), None);
}

#[test]
fn numbers_that_did_not_come_from_the_counter_are_marked() {
    for source in [Source::Overflow, Source::Lease, Source::DenyCache, Source::Local] {
        let marked = rate_limit(contract("p").sourced(source));
        assert_eq!(marked, r#""p";r=20;t=12;tollgate-approx"#);
    }
}

/// The story: while the store did not answer, a key's first request got `limit 5, used 5, remaining 0`. The limit was
/// the policy's, and the remaining units were those of this node's share, which is 1. All numbers must come from the
/// counter that counts.
#[test]
fn all_numbers_of_a_share_are_those_of_the_share() {
    let mut case = Case::new("p", fixed(Rate::per_ticks(5, secs(3_600)))).sourced(Source::Local);
    (case.outcome.limit, case.outcome.remaining) = (1, 0);
    let shown = |name: &str| header(case.clone(), Dialect::XRateLimit, name);
    let numbers = ["X-RateLimit-Limit", "X-RateLimit-Used", "X-RateLimit-Remaining"].map(shown);
    assert_eq!(numbers.map(Option::unwrap_or_default), ["1", "1", "0"]);
}

/// A limit that admitted a request because its store did not answer has no numbers; its policy is still shown.
#[test]
fn an_open_limit_shows_its_policy_only() {
    let open = Case::new("open", bucket(Rate::per_second(1))).sourced(Source::Open);
    let alone = answer(std::slice::from_ref(&open), &[Dialect::Ietf11, Dialect::XRateLimit]);
    assert_eq!(alone.headers.iter().collect::<Vec<_>>(), [("RateLimit-Policy", r#""open";q=1;w=1"#)]);
    let beside = answer(&[open, contract("p")], &[Dialect::Ietf11]);
    assert_eq!(beside.headers.get("RateLimit"), Some(r#""p";r=20;t=12"#));
}

/// Structured fields hold 15 digits: no quota has more, and any other number that might is capped.
#[test]
fn numbers_fit_their_fields() {
    let fastest = fixed(Rate::per_ticks(316_224_000_000_000, PERIOD_MAX));
    assert_eq!(policy(Case::new("p", fastest)), r#""p";q=316224000000000;w=31622400"#);
    let mut headers = HeaderList::default();
    headers.number("X-RateLimit-Limit", u64::MAX);
    assert_eq!(headers.get("x-ratelimit-limit"), Some("999999999999999"));
}

/// Names are data: they cannot end a string, a header, or a response.
#[test]
fn hostile_names_are_escaped_or_replaced() {
    assert_eq!(rate_limit(contract(r#"a"b\c"#)), r#""a\"b\\c";r=20;t=12"#);
    for hostile in ["a\r\nSet-Cookie: x", "naïve", "", " padded ", "\u{7f}", &"x".repeat(65)] {
        let answer = answer(&[contract(hostile).denied(secs(1))], &[Dialect::Ietf11, Dialect::XRateLimit]);
        let shown = answer.headers.get("X-RateLimit-Resource").unwrap();
        assert!(shown.starts_with("limit-") && shown.len() == 22, "{shown}");
        assert!(answer.headers.get("RateLimit").unwrap().starts_with(&format!("\"{shown}\"")));
        assert!(answer.body.unwrap().text.contains(&format!("[\"{shown}\"]")));
    }
}

/// If a structured field cannot name a dimension, the partition is left out; a caller's values are never in it.
#[test]
fn partitions_are_named_only_where_all_dimensions_can_be() {
    let partition =
        |by: &[&'static str]| header(contract("p").by(by), Dialect::IetfNext, "RateLimit-Partition");
    assert_eq!(partition(&["tenant"]).unwrap(), r#""p";tenant"#);
    assert_eq!(partition(&["tenant", "Upper"]), None);
    assert_eq!(partition(&["a;b=1"]), None);
    assert_eq!(partition(&[]), None);
}
