//! The examples of the contract, dialect by dialect.

use super::fixture::{Case, answer, bucket, contract, fixed, header, lines, millis, secs, speaking};
use crate::headers::{Dialect, Dialects, access_control_expose_headers};
use crate::rate::Rate;

fn assert_speaks(dialect: Dialect, case: Case, expected: &[&str]) {
    let answer = answer(&[case], &[dialect]);
    assert_eq!(answer.status, 200);
    assert_eq!(answer.body, None);
    assert_eq!(lines(&answer), expected);
}

#[test]
fn ietf_dialects_are_those_of_the_contract() {
    assert_speaks(
        Dialect::Ietf11,
        contract("default"),
        &[r#"RateLimit-Policy: "default";q=100;w=60"#, r#"RateLimit: "default";r=20;t=12"#],
    );
    assert_speaks(
        Dialect::IetfNext,
        contract("default").by(&["user_id", "method"]),
        &[
            r#"RateLimit-Policy: "default";q=100;w=60"#,
            r#"RateLimit: "default";a=20;w=12;c=1"#,
            r#"RateLimit-Partition: "default";user_id;method"#,
        ],
    );
    assert_speaks(
        Dialect::Ietf07,
        contract("default"),
        &["RateLimit-Policy: 100;w=60", "RateLimit: limit=100, remaining=20, reset=12"],
    );
    assert_speaks(
        Dialect::Ietf06,
        contract("default"),
        &[
            "RateLimit-Limit: 100",
            "RateLimit-Remaining: 20",
            "RateLimit-Reset: 12",
            "RateLimit-Policy: 100;w=60",
        ],
    );
}

#[test]
fn x_ratelimit_dialects_are_those_of_the_contract() {
    assert_speaks(
        Dialect::XRateLimit,
        contract("core"),
        &[
            "X-RateLimit-Limit: 100",
            "X-RateLimit-Remaining: 20",
            "X-RateLimit-Reset: 1700000012",
            "X-RateLimit-Used: 80",
            "X-RateLimit-Resource: core",
        ],
    );
    assert_speaks(
        Dialect::XRateLimitDelta,
        contract("core"),
        &[
            "X-RateLimit-Limit: 100",
            "X-RateLimit-Remaining: 20",
            "X-RateLimit-Reset: 12",
            "X-RateLimit-Used: 80",
            "X-RateLimit-Resource: core",
        ],
    );
}

#[test]
fn vendor_dialects_are_those_of_the_contract() {
    assert_speaks(
        Dialect::Discord,
        contract("default"),
        &[
            "X-RateLimit-Limit: 100",
            "X-RateLimit-Remaining: 20",
            "X-RateLimit-Reset: 1700000012.000",
            "X-RateLimit-Reset-After: 12.000",
            "X-RateLimit-Bucket: ebada5168620c5fe",
        ],
    );
    assert_speaks(Dialect::Stripe, contract("default"), &[]);
    assert_speaks(
        Dialect::OpenAi,
        contract("default"),
        &[
            "x-ratelimit-limit-requests: 100",
            "x-ratelimit-remaining-requests: 20",
            "x-ratelimit-reset-requests: 12s",
        ],
    );
    assert_speaks(
        Dialect::Anthropic,
        contract("default"),
        &[
            "anthropic-ratelimit-requests-limit: 100",
            "anthropic-ratelimit-requests-remaining: 20",
            "anthropic-ratelimit-requests-reset: 2023-11-14T22:13:32Z",
        ],
    );
    assert_speaks(Dialect::Silent, contract("default"), &[]);
}

/// OpenAI's resets are Go durations, down to the milliseconds.
#[test]
fn durations_are_written_as_go_does() {
    let reset = |ticks| {
        let case = contract("default").left(20, ticks, ticks);
        header(case, Dialect::OpenAi, "x-ratelimit-reset-requests").unwrap()
    };
    assert_eq!(reset(secs(360)), "6m0s");
    assert_eq!(reset(millis(12)), "12ms");
    assert_eq!(reset(millis(1_500)), "1.5s");
    assert_eq!(reset(secs(3_600)), "1h0m0s");
    assert_eq!(reset(secs(0)), "0s");
}

/// The contract's full 429. It differs from the example in one point: the limit that still admits is not listed beside
/// the violated one, because its window could then be later than `Retry-After`, which the draft forbids.
#[test]
fn a_full_429() {
    let cases = [
        Case::new("burst", bucket(Rate::per_second(20))).left(4, millis(50), millis(800)),
        Case::new("daily", fixed(Rate::per_day(5_000))).left(0, secs(12), secs(12)).denied(secs(12)).keyed(1),
    ];
    let answer = answer(&cases, &[Dialect::Ietf11, Dialect::XRateLimit]);
    assert_eq!(answer.status, 429);
    assert_eq!(
        lines(&answer),
        [
            "Cache-Control: no-store",
            "Retry-After: 13",
            r#"RateLimit-Policy: "burst";q=20;w=1, "daily";q=5000;w=86400"#,
            r#"RateLimit: "daily";r=0;t=12"#,
            "X-RateLimit-Limit: 5000",
            "X-RateLimit-Remaining: 0",
            "X-RateLimit-Reset: 1700000012",
            "X-RateLimit-Used: 5000",
            "X-RateLimit-Resource: daily",
        ]
    );
    let body = answer.body.unwrap();
    assert_eq!(body.content_type, "application/problem+json");
    assert_eq!(
        body.text,
        concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
            r#""title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"#,
            r#""detail":"daily: 5000 per 86400 s","cause":"daily","violated-policies":["daily"],"#,
            r#""retry-after-ms":12000,"reason":"5,000 requests in each window of one day","retryable":true}"#
        )
    );
}

/// By default the product sends the draft's headers and `X-RateLimit-*`.
#[test]
fn default_dialects() {
    let default: Vec<Dialect> = Dialects::default().iter().collect();
    assert_eq!(default, [Dialect::Ietf11, Dialect::XRateLimit]);
}

#[test]
fn dialects_are_known_by_name() {
    for name in [
        "ietf-11",
        "ietf-next",
        "ietf-07",
        "ietf-06",
        "x-ratelimit",
        "x-ratelimit-delta",
        "discord",
        "stripe",
        "openai",
        "anthropic",
        "none",
    ] {
        assert_eq!(name.parse::<Dialect>().unwrap().name(), name);
    }
    assert_eq!("aws".parse(), Ok(Dialect::Silent));
    let unknown = "ietf-12".parse::<Dialect>().unwrap_err();
    assert!(unknown.to_string().contains("accepted: ietf-11, ietf-next"), "{unknown}");
}

/// Two dialects that give one header two meanings are rejected when they are configured, not mixed in an answer.
#[test]
fn dialects_that_share_a_header_exclude_each_other() {
    let conflict = Dialects::new([Dialect::XRateLimit, Dialect::Ietf11, Dialect::Discord]).unwrap_err();
    assert_eq!((conflict.first, conflict.second), (Dialect::XRateLimit, Dialect::Discord));
    assert!(Dialects::new([Dialect::Ietf11, Dialect::Ietf06]).is_err());
    assert!(Dialects::new([Dialect::Stripe, Dialect::Silent]).is_err());
    assert!(Dialects::new([Dialect::Stripe, Dialect::Stripe]).is_ok());
    let many = Dialects::new([Dialect::OpenAi, Dialect::Discord, Dialect::Ietf07, Dialect::Anthropic]);
    assert_eq!(many.unwrap().iter().count(), 4);
}

#[test]
fn browsers_are_shown_what_the_dialects_send() {
    let policy = speaking(&[Dialect::Ietf11, Dialect::Stripe]);
    assert_eq!(
        access_control_expose_headers(policy.dialects),
        "Retry-After, RateLimit-Policy, RateLimit, Stripe-Rate-Limited-Reason, Stripe-Should-Retry"
    );
}
