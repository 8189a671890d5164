//! The headers that each caller gets: disclosure levels, exposure of anonymous callers, and limits in shadow.

use super::fixture::{Case, NOW, answer, authenticated, bucket, contract, decision, lines, millis, secs};
use crate::headers::{Answer, Audience, Caller, Dialect, Disclosure, Exposure, HeaderPolicy};
use crate::outcome::Verdict;
use crate::rate::Rate;

const DISCLOSURES: [&str; 4] = ["always", "near-exhaustion", "denied-only", "never"];
const EXPOSURES: [&str; 3] = ["none", "retry-after", "full"];

fn answered(case: Case, disclosure: &str, exposure: &str, caller: Caller) -> Answer {
    let policy = HeaderPolicy {
        disclosure: disclosure.parse().unwrap(),
        anonymous: exposure.parse().unwrap(),
        ..HeaderPolicy::default()
    };
    let audience = Audience { caller, ..authenticated() };
    Answer::of(&decision(&[case]), &policy, audience, NOW)
}

fn plenty() -> Case {
    contract("p").left(21, secs(12), secs(12))
}

fn near() -> Case {
    contract("p").left(20, secs(12), secs(12))
}

fn denied() -> Case {
    contract("p").left(0, secs(12), secs(12)).denied(secs(12))
}

/// Which levels show quotas, for a limit with plenty left, near exhaustion, and denied.
#[test]
fn levels_of_disclosure() {
    let shown = |case: Case, level: &str| {
        let answer = answered(case, level, "none", Caller::Authenticated);
        let quota = answer.headers.get("RateLimit").is_some();
        assert_eq!(quota, answer.headers.get("X-RateLimit-Limit").is_some());
        assert_eq!(quota, answer.headers.get("RateLimit-Policy").is_some());
        quota
    };
    assert_eq!(DISCLOSURES.map(|level| shown(plenty(), level)), [true, false, false, false]);
    assert_eq!(DISCLOSURES.map(|level| shown(near(), level)), [true, true, false, false]);
    assert_eq!(DISCLOSURES.map(|level| shown(denied(), level)), [true, true, true, false]);
}

/// Near exhaustion, only limits that are nearly exhausted are listed, although another limit would be exhausted sooner.
#[test]
fn near_exhaustion_lists_only_what_is_near() {
    let policy = HeaderPolicy { disclosure: Disclosure::NearExhaustion, ..HeaderPolicy::default() };
    let cases = [Case::new("second", bucket(Rate::per_second(10))).left(9, millis(100), millis(100)), near()];
    let answer = Answer::of(&decision(&cases), &policy, authenticated(), NOW);
    assert_eq!(answer.headers.get("RateLimit"), Some(r#""p";r=20;t=12"#));
}

/// A refusal says when to retry at every level but the one that hides everything from strangers.
#[test]
fn retry_after_survives_all_but_total_silence() {
    for disclosure in DISCLOSURES {
        for exposure in EXPOSURES {
            let authenticated = answered(denied(), disclosure, exposure, Caller::Authenticated);
            assert!(authenticated.headers.get("Retry-After").is_some());
            let anonymous = answered(denied(), disclosure, exposure, Caller::Anonymous);
            let silent = (disclosure, exposure) == ("never", "none");
            assert_eq!(anonymous.headers.get("Retry-After").is_none(), silent, "{disclosure} {exposure}");
            assert_eq!(anonymous.status, 429);
        }
    }
}

/// Strangers get one body, whichever limit denied them and however long it takes.
#[test]
fn anonymous_refusals_are_all_alike() {
    let first = answered(denied(), "always", "none", Caller::Anonymous);
    let other = Case::new("tenant-42", bucket(Rate::per_hour(3))).denied(secs(900));
    let second = answered(other, "always", "none", Caller::Anonymous);
    assert_eq!(first.body, second.body);
    assert_eq!(lines(&first).len(), 2);
    assert_eq!(
        first.body.unwrap().text,
        concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
            r#""title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"retryable":true}"#
        )
    );
    let costly = answered(denied().says(Verdict::Never), "always", "retry-after", Caller::Anonymous);
    assert!(!costly.body.unwrap().text.contains("max-cost"));
}

#[test]
fn full_exposure_shows_strangers_everything() {
    let anonymous = answered(denied(), "always", "full", Caller::Anonymous);
    let authenticated = answered(denied(), "always", "full", Caller::Authenticated);
    assert_eq!(anonymous, authenticated);
}

/// The story: `X-RateLimit-*` never appeared at the gateway, because every caller there counted as a stranger. By
/// default a caller sees the limits that it owns, with or without an identity.
#[test]
fn callers_see_their_own_limits_by_default() {
    let names = |case: Case| {
        let answer = Answer::of(&decision(&[case]), &HeaderPolicy::default(), Audience::default(), NOW);
        answer.headers.iter().map(|(name, _)| name).collect::<Vec<_>>().join(" ")
    };
    let quota = "RateLimit-Policy RateLimit X-RateLimit-Limit X-RateLimit-Remaining X-RateLimit-Reset X-RateLimit-Used X-RateLimit-Resource";
    assert_eq!(names(near()), quota);
    assert_eq!(names(denied()), format!("Cache-Control Retry-After {quota}"));
    assert_eq!(HeaderPolicy::default().anonymous, Exposure::Full);
}

/// With `anonymous: retry-after` a caller without an identity learns when to retry and nothing else.
#[test]
fn the_rest_can_be_hidden_from_callers_without_an_identity() {
    let anonymous = answered(denied(), "always", "retry-after", Caller::Anonymous);
    let names: Vec<_> = anonymous.headers.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["Cache-Control", "Retry-After"]);
    assert!(answered(near(), "always", "retry-after", Caller::Anonymous).headers.is_empty());
    assert!(
        answered(near(), "always", "retry-after", Caller::Authenticated).headers.get("RateLimit").is_some()
    );
}

/// A limit without `by` belongs to the platform. Its remaining units would show callers how busy others are, so no
/// dialect and no body names it or has its numbers; a refusal still says when to retry.
#[test]
fn limits_of_the_platform_are_never_shown() {
    let platform = || Case::new("platform", bucket(Rate::per_second(7))).by(&[]);
    let dialects = [Dialect::Ietf11, Dialect::IetfNext, Dialect::Ietf07, Dialect::Ietf06, Dialect::OpenAi];
    for dialect in dialects {
        let allowed = answer(&[platform().left(3, secs(1), secs(1))], &[dialect]);
        assert!(allowed.headers.is_empty(), "{:?}", lines(&allowed));
        let beside = answer(&[platform().left(0, secs(1), secs(1)), near()], &[dialect]);
        assert_eq!(lines(&beside), lines(&answer(&[near()], &[dialect])));
        let refused = answer(&[platform().denied(secs(9)), near()], &[dialect]);
        let text = format!("{}{}", lines(&refused).join("\n"), refused.body.as_ref().unwrap().text);
        assert!(!text.contains("platform") && !text.contains("=7"), "{text}");
        assert!(refused.headers.get("Retry-After").is_some() && refused.status == 429, "{text}");
    }
    let both = answer(&[platform().denied(secs(9)), denied()], &[Dialect::Ietf11]);
    assert!(both.body.unwrap().text.contains(r#""cause":"p","violated-policies":["p"]"#));
    let costly = answer(&[platform().says(Verdict::Never)], &[Dialect::Ietf11]);
    assert_eq!((costly.status, costly.body.unwrap().text.contains("at most 7")), (400, false));
}

/// A limit in shadow is on trial. It is in no header and no body, even when it would have denied.
#[test]
fn shadow_limits_are_never_shown() {
    for dialect in [Dialect::Ietf11, Dialect::IetfNext, Dialect::Ietf07, Dialect::Ietf06, Dialect::Discord] {
        let shadow = Case::new("trial", bucket(Rate::per_second(7))).denied(secs(999)).in_shadow();
        let alone = answer(std::slice::from_ref(&shadow), &[dialect]);
        assert_eq!((alone.status, alone.headers.is_empty(), alone.body), (200, true, None));
        let with = answer(&[shadow, denied()], &[dialect]);
        assert_eq!(with, answer(&[denied()], &[dialect]));
    }
}

#[test]
fn levels_are_known_by_name() {
    assert_eq!("near-exhaustion".parse(), Ok(Disclosure::NearExhaustion));
    assert!("sometimes".parse::<Disclosure>().is_err());
    let unknown = "some".parse::<Exposure>().unwrap_err().to_string();
    assert_eq!(unknown, r#"exposure: unknown name "some"; accepted: none, retry-after, full"#);
}
