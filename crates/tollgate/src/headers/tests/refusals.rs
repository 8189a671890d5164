//! Refusals: statuses, bodies, and when to retry.

use super::fixture::{
    Case, NOW, answer, authenticated, bucket, contract, decision, faulty, fixed, leaky, lines, permits, secs,
    speaking,
};
use crate::headers::{Accepts, Answer, Audience, DenialStatus, Dialect, Exposure, HeaderPolicy, Unit};
use crate::outcome::{Source, Verdict};
use crate::policy::Fault;
use crate::rate::Rate;

fn denied() -> Case {
    contract("p").left(0, secs(12), secs(12)).denied(secs(12))
}

/// A cost above the capacity can never pass: 400, no advice to retry, and the cost that would pass.
#[test]
fn a_cost_above_the_capacity_is_a_bad_request() {
    let cases = [
        Case::new("large", bucket(Rate::per_second(50))).says(Verdict::Never),
        Case::new("small", bucket(Rate::per_second(10))).says(Verdict::Never),
        denied(),
    ];
    let answer = answer(&cases, &[Dialect::Stripe, Dialect::OpenAi]);
    assert_eq!(answer.status, 400);
    assert_eq!(answer.headers.get("Retry-After"), None);
    assert_eq!(answer.headers.get("retry-after-ms"), None);
    assert_eq!(answer.headers.get("Cache-Control"), Some("no-store"));
    assert_eq!(answer.headers.get("Stripe-Should-Retry"), Some("false"));
    assert_eq!(answer.headers.get("Stripe-Rate-Limited-Reason"), None);
    assert_eq!(answer.headers.get("x-should-retry"), Some("false"));
    assert_eq!(
        answer.body.unwrap().text,
        concat!(
            r#"{"type":"urn:tollgate:problem:cost-exceeds-capacity","#,
            r#""title":"Request costs more than can ever be admitted at once","status":400,"#,
            r#""detail":"small: at most 10 at once","cause":"small","violated-policies":["large","small","p"],"#,
            r#""max-cost":10,"reason":"10 requests a second, burst 10; the request costs more than the 10 that can pass at once","#,
            r#""retryable":false}"#
        )
    );
}

/// The story: a limit that was closed because its store was unreachable was answered as an exhausted quota. The caller
/// did nothing wrong, so it is a 503 with a short retry time, without numbers that were never counted, and without a
/// vendor's words for quotas.
#[test]
fn an_uncounted_denial_is_unavailable() {
    for source in [Source::Closed, Source::Full] {
        let case = Case::new("p", bucket(Rate::per_second(10))).denied(secs(1)).sourced(source);
        let policy = speaking(&[Dialect::Ietf11, Dialect::Discord, Dialect::Stripe]);
        let retry_after = |key| {
            let answer = Answer::of(&decision(&[case.clone().keyed(key)]), &policy, authenticated(), NOW);
            assert_eq!(answer.status, 503);
            answer.headers.get("Retry-After").unwrap().parse::<u64>().unwrap()
        };
        let spread: std::collections::BTreeSet<u64> = (0..200).map(retry_after).collect();
        assert!(spread.into_iter().eq(1..=5), "not all at once");
        let answer = Answer::of(&decision(std::slice::from_ref(&case)), &policy, authenticated(), NOW);
        let retry = answer.headers.get("Retry-After").unwrap().to_owned();
        assert_eq!(
            lines(&answer),
            [
                "Cache-Control: no-store",
                &format!("Retry-After: {retry}"),
                r#"RateLimit-Policy: "p";q=10;w=1"#,
                "Stripe-Should-Retry: true",
            ]
        );
        assert_eq!(
            answer.body.unwrap().text,
            concat!(
                r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","#,
                r#""title":"Request cannot be satisfied due to temporary server capacity constraints","status":503,"#,
                r#""detail":"p: cannot be counted now","cause":"p","violated-policies":["p"],"retry-after-ms":1000,"#,
                r#""reason":"limiter-unavailable","retryable":true}"#
            )
        );
    }
}

/// The story: a penalty, a block and a policy's `deny` had words on other protocols, and none in a problem. Every
/// refusal names its cause and says why; a stranger sees neither, except for the words that the type already contains.
#[test]
fn every_refusal_has_a_cause_and_a_reason() {
    let case = || Case::new("p", bucket(Rate::per_second(10)));
    let shown = |case: Case, audience: Audience| {
        let answer = Answer::of(&decision(&[case]), &HeaderPolicy::default(), audience, NOW);
        let body: serde_json::Value = serde_json::from_str(&answer.body.unwrap().text).unwrap();
        let text = |name: &str| body[name].as_str().map(str::to_owned);
        (text("cause"), text("reason"))
    };
    let quota = "10 requests a second, burst 10";
    for (case, reason, is_public) in [
        (case().denied(secs(1)), quota, false),
        (case().denied(secs(1)).sourced(Source::Penalty), "penalty", false),
        (case().denied(secs(1)).sourced(Source::Closed), "limiter-unavailable", true),
        (case().says(Verdict::Forbidden), "denied-by-policy", true),
    ] {
        let known = (Some("p".to_owned()), Some(reason.to_owned()));
        assert_eq!(shown(case.clone(), authenticated()), known, "{reason}");
        let policy = HeaderPolicy { anonymous: Exposure::RetryAfter, ..HeaderPolicy::default() };
        let answer = Answer::of(&decision(&[case]), &policy, Audience::default(), NOW);
        let body = answer.body.unwrap().text;
        assert!(!body.contains("cause"), "{body}");
        assert_eq!(body.contains(&format!(r#""reason":"{reason}""#)), is_public, "{body}");
    }
}

/// A caller with an exhausted quota gets that reason, whatever else could not be counted. The retry time still covers
/// both limits.
#[test]
fn a_quota_used_up_comes_before_a_closed_limit() {
    let closed = Case::new("closed", bucket(Rate::per_second(10))).denied(secs(1)).sourced(Source::Closed);
    let answer = answer(&[closed, denied()], &[Dialect::Ietf11]);
    assert_eq!(answer.status, 429);
    assert_eq!(answer.headers.get("RateLimit"), Some(r#""p";r=0;t=12"#));
    assert!(answer.body.unwrap().text.contains(r#""violated-policies":["p","closed"]"#));
}

#[test]
fn too_many_bytes_are_content_too_large() {
    let mut policy = HeaderPolicy::default();
    policy.units.insert("upload".to_owned(), Unit::Bytes);
    let case = Case::new("upload", bucket(Rate::per_second(10))).says(Verdict::Never);
    let answer = Answer::of(&decision(&[case]), &policy, authenticated(), NOW);
    assert_eq!(answer.status, 413);
    assert!(answer.body.unwrap().text.contains(r#""status":413"#));
}

/// A request at fault gets an answer that says what is wrong with it, but not which limit found out: it may be one in
/// shadow.
#[test]
fn a_fault_is_a_bad_request_of_its_own_type() {
    let fault =
        Fault::Cost { limit: "secret".to_owned(), reason: "tokens: \"many\" is no number".to_owned() };
    let answer = Answer::of(&faulty(fault), &HeaderPolicy::default(), authenticated(), NOW);
    assert_eq!(answer.status, 400);
    assert_eq!(lines(&answer), ["Cache-Control: no-store"]);
    assert_eq!(
        answer.body.unwrap().text,
        concat!(
            r#"{"type":"urn:tollgate:problem:cost-not-computable","title":"Request does not say what it costs","#,
            r#""status":400,"detail":"tokens: \"many\" is no number","cause":"request","#,
            r#""reason":"tokens: \"many\" is no number","retryable":false}"#
        )
    );
    let answer = Answer::of(&faulty(Fault::TooManyLimits), &HeaderPolicy::default(), authenticated(), NOW);
    assert!(answer.body.unwrap().text.contains("urn:tollgate:problem:too-many-limits"));
}

/// A body may quote the request, but only up to a bounded length.
#[test]
fn explanations_are_bounded() {
    let fault = Fault::Cost { limit: "p".to_owned(), reason: "é".repeat(100_000) };
    let answer = Answer::of(&faulty(fault), &HeaderPolicy::default(), authenticated(), NOW);
    assert!(answer.body.unwrap().text.len() < 4_608, "the explanation is its detail and its reason");
}

#[test]
fn text_is_sent_to_those_who_read_no_json() {
    let audience = Audience { accepts: Accepts::Text, ..authenticated() };
    let answer = Answer::of(&decision(&[denied()]), &speaking(&[Dialect::Discord]), audience, NOW);
    let body = answer.body.unwrap();
    assert_eq!(body.content_type, "text/plain; charset=utf-8");
    let retry = answer.headers.get("Retry-After").unwrap();
    assert_eq!(
        body.text,
        format!(
            "Request cannot be satisfied as assigned quota has been exceeded.\np: 100 per 60 s\nRetry after {retry} s.\n"
        )
    );
}

/// The story: a limit of `3/s burst 6` was explained as "6 per 2 s", which its policy does not say.
#[test]
fn a_burst_is_explained_as_the_policy_has_it() {
    for (rate, expected) in [
        ("3/s burst 6", "a: 3 per second, burst 6"),
        ("100/min burst 1", "a: 100 per 60 s, burst 1"),
        ("100/min", "a: 100 per 60 s"),
        ("2/s", "a: 2 per 1 s"),
    ] {
        let case = Case::new("a", bucket(rate.parse().unwrap())).left(0, secs(1), secs(1)).denied(secs(1));
        let text = answer(&[case], &[]).body.unwrap().text;
        assert!(text.contains(&format!("\"detail\":\"{expected}\"")), "{rate}: {text}");
    }
}

#[test]
fn json_is_sent_wherever_a_range_covers_it() {
    for accept in [
        "*/*",
        "application/json",
        "text/html, application/*;q=0.5",
        "Application/Problem+JSON",
        "text/html,*/*;q=0.8",
    ] {
        assert_eq!(Accepts::from_header(accept), Accepts::Json, "{accept}");
    }
    for accept in ["text/html", "text/plain, application/json;q=0", "*/*; q=0.000", "", "application/jsonx"] {
        assert_eq!(Accepts::from_header(accept), Accepts::Text, "{accept}");
    }
}

/// A single setting makes denials look like NGINX's.
#[test]
fn denials_can_be_503_for_old_clients() {
    let policy = HeaderPolicy { denial: DenialStatus::ServiceUnavailable, ..HeaderPolicy::default() };
    let answer = Answer::of(&decision(&[denied()]), &policy, authenticated(), NOW);
    assert_eq!(answer.status, 503);
    assert!(answer.body.unwrap().text.contains(r#""status":503"#));
}

#[test]
fn discord_denials_name_their_scope() {
    let scope = |case: Case| {
        let answer = answer(&[case], &[Dialect::Discord]);
        let global = answer.headers.get("X-RateLimit-Global").is_some();
        let body = answer.body.unwrap();
        assert_eq!(body.content_type, "application/json");
        let object: serde_json::Value = serde_json::from_str(&body.text).unwrap();
        assert_eq!(object["global"], global);
        let retry = object["retry_after"].as_f64().unwrap();
        assert!((12.0..=13.2).contains(&retry), "{retry}");
        answer.headers.get("X-RateLimit-Scope").unwrap().to_owned()
    };
    assert_eq!(scope(denied()), "global");
    assert_eq!(scope(denied().only_on("/login")), "user");
    assert_eq!(scope(denied().by(&[])), "shared");
}

#[test]
fn stripe_denials_name_their_reason() {
    let reason = |case: Case| {
        let answer = answer(&[case], &[Dialect::Stripe]);
        assert_eq!(answer.headers.get("Stripe-Should-Retry"), Some("true"));
        answer.headers.get("Stripe-Rate-Limited-Reason").unwrap().to_owned()
    };
    let in_flight = Case::new("p", permits(1, secs(30))).left(0, secs(30), secs(30)).denied(secs(30));
    assert_eq!(reason(denied()), "global-rate");
    assert_eq!(reason(denied().only_on("/login")), "endpoint-rate");
    assert_eq!(reason(in_flight.clone()), "global-concurrency");
    assert_eq!(reason(in_flight.only_on("/login")), "endpoint-concurrency");
}

fn retry_after(case: Case, now: crate::Timestamp) -> u64 {
    let answer = Answer::of(&decision(&[case]), &HeaderPolicy::default(), authenticated(), now);
    answer.headers.get("Retry-After").unwrap().parse().unwrap()
}

/// Clients of one herd are spread over a tenth of the wait, and no further than half a minute.
#[test]
fn keys_get_different_seconds() {
    let seconds_of = |wait: u64| {
        let case = |key| {
            Case::new("p", fixed(Rate::per_day(1)))
                .left(0, secs(wait), secs(wait))
                .denied(secs(wait))
                .keyed(key)
        };
        let mut seconds: Vec<u64> = (0..2_000).map(|key| retry_after(case(key), NOW)).collect();
        seconds.sort_unstable();
        seconds.dedup();
        seconds
    };
    assert_eq!(seconds_of(1), [1, 2]);
    assert_eq!(seconds_of(100), (100..=110).collect::<Vec<_>>());
    assert_eq!(seconds_of(10_000), (10_000..=10_030).collect::<Vec<_>>());
}

/// A client that asks again during its window gets the same instant, within rounding.
#[test]
fn a_key_gets_one_reset_instant_for_a_window() {
    let midnight = crate::Timestamp::from_unix_seconds(20_000 * 86_400);
    for key in 0..50 {
        let instants: Vec<u64> = (0..200)
            .map(|elapsed| {
                let wait = secs(200 - elapsed);
                let case =
                    Case::new("p", fixed(Rate::per_day(1))).left(0, wait, wait).denied(wait).keyed(key);
                elapsed + retry_after(case, midnight + secs(elapsed))
            })
            .collect();
        assert!(instants.iter().all(|&instant| (200..=220).contains(&instant)));
        assert!(instants.windows(2).all(|pair| pair[0].abs_diff(pair[1]) <= 1), "{instants:?}");
    }
}

/// Waiting is no refusal, whatever else is listed.
#[test]
fn allowed_answers_have_no_refusal_headers() {
    let shaped = Case::new("p", leaky(Rate::per_second(1), 3)).says(Verdict::Wait(secs(2)));
    let answer = answer(&[shaped], &[Dialect::Ietf11, Dialect::Discord, Dialect::Stripe, Dialect::OpenAi]);
    for name in ["Cache-Control", "Retry-After", "Stripe-Should-Retry", "x-should-retry", "X-RateLimit-Scope"]
    {
        assert_eq!(answer.headers.get(name), None, "{name}");
    }
}
