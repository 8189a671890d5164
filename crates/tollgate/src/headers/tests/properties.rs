//! Properties of every possible decision.

use proptest::collection::vec;
use proptest::prelude::*;
use sfv::{BareItem, FieldType, Item, List, ListEntry, Parser};

use super::fixture::{Case, authenticated, bucket, decision, fixed, leaky, log, permits, speaking};
use crate::headers::{Answer, Dialect, FIELD_BYTES_MAX, HEADERS_MAX, HeaderPolicy};
use crate::outcome::{Source, Verdict};
use crate::policy::MATCHED_MAX;
use crate::quota::Quota;
use crate::rate::Rate;
use crate::store::Enforcement;
use crate::time::{Ticks, Timestamp};

/// Sets of dialects that together cover all of them.
const SPOKEN: [&[Dialect]; 4] = [
    &[Dialect::Ietf11, Dialect::XRateLimit, Dialect::Stripe],
    &[Dialect::IetfNext, Dialect::Discord, Dialect::OpenAi, Dialect::Anthropic, Dialect::Stripe],
    &[Dialect::Ietf07, Dialect::XRateLimitDelta],
    &[Dialect::Ietf06],
];

fn quotas() -> impl Strategy<Value = Quota> {
    let rate = (1..5_000_000u64, 1..400_000_000_000u64)
        .prop_map(|(units, micros)| Rate::per_ticks(units, Ticks::from_micros(micros.max(units))));
    prop_oneof![
        rate.clone().prop_filter_map("inexact", |rate| Quota::token_bucket(rate).ok()),
        (1..1_000u64, 1..100_000u64).prop_map(|(units, burst)| bucket(Rate::per_second(units).burst(burst))),
        (1..1_000u64, 0..1_000u64).prop_map(|(units, queue)| leaky(Rate::per_second(units), queue)),
        rate.prop_map(fixed),
        (1..65_536u64, 1..86_400u64)
            .prop_map(|(units, seconds)| log(Rate::per_ticks(units, Ticks::from_secs(seconds)))),
        (1..1_000u64, 1..100_000_000u64).prop_map(|(n, ttl)| permits(n, Ticks::from_micros(ttl))),
    ]
}

fn verdicts() -> impl Strategy<Value = Verdict> {
    let ticks = || prop_oneof![0..5_000_000u64, any::<u64>()].prop_map(Ticks::from_micros);
    prop_oneof![
        3 => Just(Verdict::Allow),
        1 => ticks().prop_map(Verdict::Wait),
        3 => ticks().prop_map(|retry_after| Verdict::Deny { retry_after }),
        1 => Just(Verdict::Never),
    ]
}

/// A limit with any outcome, possible or not: a store may be wrong, headers must still be sendable.
pub(super) fn cases() -> impl Strategy<Value = Case> {
    let sources = prop_oneof![
        2 => Just(Source::Exact),
        1 => Just(Source::Lease),
        1 => Just(Source::Open),
        1 => Just(Source::Local),
        1 => Just(Source::Closed),
        1 => Just(Source::Full),
    ];
    let enforcements = prop_oneof![4 => Just(Enforcement::Enforced), 1 => Just(Enforcement::Shadow)];
    let names = prop_oneof!["[a-z]{1,12}", "\\PC{0,80}", "[\\x00-\\x7f]{0,70}"];
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>());
    (names, quotas(), verdicts(), sources, enforcements, any::<u64>(), numbers).prop_map(
        |(name, quota, verdict, source, enforcement, key_hash, (remaining, next, reset))| {
            let capacity = quota.capacity();
            let mut case = Case::new(&name, quota)
                .left(remaining % (capacity + 2), Ticks::from_micros(next), Ticks::from_micros(reset))
                .says(verdict)
                .sourced(source)
                .keyed(key_hash);
            case.enforcement = enforcement;
            case
        },
    )
}

pub(super) fn instants() -> impl Strategy<Value = Timestamp> {
    any::<u64>().prop_map(Timestamp::from_unix_micros)
}

fn answered(cases: &[Case], dialects: &[Dialect], now: Timestamp) -> Answer {
    Answer::of(&decision(cases), &speaking(dialects), authenticated(), now)
}

/// The items of a field, after the field has been written back and compared.
fn items(field: &str) -> Vec<Item> {
    let list: List = Parser::new(field).parse().unwrap();
    assert_eq!(list.serialize().as_deref(), Some(field));
    let items = list.into_iter().map(|entry| match entry {
        ListEntry::Item(item) => item,
        ListEntry::InnerList(_) => panic!("an inner list in {field}"),
    });
    items.collect()
}

fn integer(item: &Item, key: &str) -> Option<i64> {
    item.params.get(key).map(|value| match value {
        BareItem::Integer(integer) => i64::from(*integer),
        other => panic!("{key} is {other:?}"),
    })
}

fn named(item: &Item) -> &str {
    match &item.bare_item {
        BareItem::String(name) => name.as_str(),
        other => panic!("not a string: {other:?}"),
    }
}

fn assert_structured(answer: &Answer) {
    let policies = answer.headers.get("RateLimit-Policy").map(items).unwrap_or_default();
    for policy in &policies {
        assert!(integer(policy, "q").unwrap() >= 0);
        assert!(integer(policy, "w").is_none_or(|window| window >= 1));
    }
    for item in answer.headers.get("RateLimit").map(items).unwrap_or_default() {
        let policy = policies.iter().find(|policy| named(policy) == named(&item)).unwrap();
        let remaining = integer(&item, "r").or_else(|| integer(&item, "a")).unwrap();
        assert!(remaining >= 0);
        assert!(integer(&item, "t").is_none_or(|window| window >= 0));
        assert!(policies.len() > 1 || remaining <= integer(policy, "q").unwrap());
    }
    if let Some(partition) = answer.headers.get("RateLimit-Partition") {
        items(partition);
    }
}

fn longest_run_of_digits(text: &str) -> usize {
    text.split(|character: char| !character.is_ascii_digit()).map(str::len).max().unwrap_or(0)
}

proptest! {
    /// Every RateLimit field is a structured field with the intended meaning: it parses, and is written back unchanged.
    #[test]
    fn structured_fields_round_trip(cases in vec(cases(), 0..8), now in instants()) {
        assert_structured(&answered(&cases, &[Dialect::Ietf11], now));
        assert_structured(&answered(&cases, &[Dialect::IetfNext], now));
        let legacy = answered(&cases, &[Dialect::Ietf07], now);
        if let Some(field) = legacy.headers.get("RateLimit") {
            let dictionary: sfv::Dictionary = Parser::new(field).parse().unwrap();
            prop_assert_eq!(dictionary.len(), 3);
        }
        let policies = legacy.headers.get("RateLimit-Policy").map(items).unwrap_or_default();
        prop_assert!(policies.iter().all(|policy| matches!(policy.bare_item, BareItem::Integer(_))));
    }

    /// Headers can be sent whatever the names of the limits and whatever a store answers, and only announced ones are
    /// sent.
    #[test]
    fn every_header_is_sendable(cases in vec(cases(), 0..=MATCHED_MAX), now in instants()) {
        for dialects in SPOKEN {
            let answer = answered(&cases, dialects, now);
            prop_assert!(answer.headers.len() <= HEADERS_MAX);
            for (name, value) in answer.headers.iter() {
                prop_assert!(!value.is_empty() && value.len() <= FIELD_BYTES_MAX);
                prop_assert!(value.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{}: {}", name, value);
                let announced = dialects.iter().any(|dialect| dialect.headers().contains(&name));
                prop_assert!(announced || ["Cache-Control", "Retry-After"].contains(&name), "{}", name);
                prop_assert!(answer.headers.iter().filter(|(other, _)| *other == name).count() == 1);
                // The bucket's name is a hash, which may happen to have digits only.
                let is_number = name != "X-RateLimit-Bucket" && value.bytes().all(|byte| byte.is_ascii_digit());
                prop_assert!(!is_number || longest_run_of_digits(value) <= 15, "{}: {}", name, value);
            }
        }
    }

    /// Retry-After is a whole number, at least 1, never before any window that is listed beside it, and never later
    /// than that by more than the jitter. It is present exactly on denials. These are the caller's own fault only if
    /// the limits were counted.
    #[test]
    fn retry_after_follows_the_window(cases in vec(cases(), 0..6), now in instants()) {
        let decision = decision(&cases);
        let answer = Answer::of(&decision, &speaking(&[Dialect::Ietf11]), authenticated(), now);
        let retry_after = answer.headers.get("Retry-After").map(|value| value.parse::<i64>().unwrap());
        prop_assert_eq!(retry_after.is_some(), decision.retry_after().is_some());
        if let Some(retry_after) = retry_after {
            let listed = answer.headers.get("RateLimit").map(items).unwrap_or_default();
            // A concurrency limit has no window; its wait is a second.
            let wait = listed.iter().map(|item| integer(item, "t").unwrap_or(1)).max();
            prop_assert!(retry_after >= 1 && Some(retry_after) >= wait);
            // The advice in the JSON of a decision is never later than the header: jitter is only added.
            let advice = decision.retry_advice().map(|advice| advice.ceil_seconds());
            prop_assert!(advice.is_some_and(|advice| i64::try_from(advice).unwrap() <= retry_after));
            let counted = decision.limits().all(|status| status.source.is_counted());
            if let Some(wait) = wait && counted {
                prop_assert!(retry_after <= wait + (wait + 9).div_euclid(10).clamp(1, 30));
            }
            prop_assert_eq!(answer.status, if wait.is_some() { 429 } else { 503 });
        }
    }

    /// The headers alone equal those of the whole answer.
    #[test]
    fn headers_alone_are_those_of_the_answer(cases in vec(cases(), 0..6), now in instants()) {
        let decision = decision(&cases);
        for dialects in SPOKEN {
            let whole = Answer::of(&decision, &speaking(dialects), authenticated(), now);
            prop_assert_eq!(whole.headers, Answer::headers_of(&decision, &speaking(dialects), authenticated(), now));
        }
    }

    /// The same key gets the same advice in the same window, whatever the microsecond.
    #[test]
    fn retry_after_is_stable(key in any::<u64>(), wait in 1..86_400u64, offset in 0..86_400_000_000u64) {
        let day = Timestamp::from_unix_seconds(19_000 * 86_400);
        let wait = Ticks::from_secs(wait);
        let case = Case::new("p", fixed(Rate::per_day(9))).left(0, wait, wait).says(Verdict::Deny { retry_after: wait }).keyed(key);
        let first = answered(std::slice::from_ref(&case), &[Dialect::Ietf11], day);
        let later = answered(&[case], &[Dialect::Ietf11], day + Ticks::from_micros(offset));
        prop_assert_eq!(first, later);
    }

    /// A limit in shadow changes nothing that a caller sees.
    #[test]
    fn shadow_changes_nothing(cases in vec(cases(), 0..6), now in instants()) {
        let enforced: Vec<Case> = cases.iter().filter(|case| case.enforcement == Enforcement::Enforced).cloned().collect();
        for dialects in SPOKEN {
            prop_assert_eq!(answered(&cases, dialects, now), answered(&enforced, dialects, now));
        }
    }

    /// Bodies are JSON whatever the names of the limits, and agree with the status and the headers.
    #[test]
    fn problems_are_json(cases in vec(cases(), 0..6), now in instants()) {
        let answer = Answer::of(&decision(&cases), &HeaderPolicy::default(), authenticated(), now);
        prop_assert_eq!(answer.body.is_some(), answer.status != 200);
        if let Some(body) = answer.body {
            let problem: serde_json::Value = serde_json::from_str(&body.text).unwrap();
            prop_assert_eq!(problem["status"].as_u64(), Some(u64::from(answer.status)));
            prop_assert_eq!(problem["retryable"].as_bool(), Some(answer.headers.get("Retry-After").is_some()));
            prop_assert_eq!(problem["retry-after-ms"].is_u64(), answer.headers.get("Retry-After").is_some());
        }
    }

    /// A policy never advertises more than the quota's own rate.
    #[test]
    fn policies_never_overstate(quota in quotas()) {
        let rate = quota.rate();
        let answer = answered(&[Case::new("p", quota)], &[Dialect::Ietf11], Timestamp::default());
        let policy = &items(answer.headers.get("RateLimit-Policy").unwrap())[0];
        if let (Some(rate), Some(window)) = (rate, integer(policy, "w")) {
            let advertised = i128::from(integer(policy, "q").unwrap()) * i128::from(rate.period().as_micros());
            prop_assert!(advertised <= i128::from(rate.units()) * i128::from(window) * 1_000_000);
        }
    }
}
