//! Every change from one policy to another is reported.

use super::super::compile::{FIELDS, limit};
use super::policy;
use crate::policy::Change;

/// For each field of a file, two files that differ in it alone.
const FILES: [(&str, &str, &str); 5] = [
    ("domain", "limits: []", "{domain: edge, limits: []}"),
    (
        "shard_by",
        "limits: [{name: a, by: [t], rate: 1/s}]",
        "{shard_by: t, limits: [{name: a, by: [t], rate: 1/s}]}",
    ),
    ("attributes", "{attributes: [t], limits: []}", "{attributes: [{t: address}], limits: []}"),
    (
        "defaults",
        "limits: [{name: a, rate: 1/s}]",
        "{defaults: {mode: shadow}, limits: [{name: a, rate: 1/s}]}",
    ),
    ("limits", "limits: []", "limits: [{name: a, rate: 1/s}]"),
];

/// For each field of a limit, two limits that differ in it alone.
const LIMITS: [(&str, &str, &str); 27] = [
    ("name", "name: a, rate: 1/s", "name: b, rate: 1/s"),
    ("when", "name: a, rate: 1/s, when: {p: x}", "name: a, rate: 1/s, when: {p: y}"),
    ("by", "name: a, rate: 1/s, by: [t]", "name: a, rate: 1/s, by: [u]"),
    ("extra_attributes", "name: a, rate: 1/s", "name: a, rate: 1/s, extra_attributes: none"),
    ("rate", "name: a, rate: 1/s", "name: a, rate: deny"),
    ("burst", "name: a, rate: 1/s", "name: a, rate: 1/s, burst: 5"),
    ("algorithm", "name: a, rate: 1/s", "name: a, rate: 1/s, algorithm: gcra"),
    (
        "align",
        "name: a, rate: 1/day, algorithm: fixed-window",
        "name: a, rate: 1/day, algorithm: fixed-window, align: first-hit",
    ),
    (
        "timezone",
        "name: a, rate: 1/day, algorithm: fixed-window, align: calendar",
        "name: a, rate: 1/day, algorithm: fixed-window, align: calendar, timezone: Europe/Rome",
    ),
    (
        "billing_day",
        "name: a, rate: 1/month, algorithm: fixed-window, align: calendar",
        "name: a, rate: 1/month, algorithm: fixed-window, align: calendar, billing_day: 15",
    ),
    (
        "precision",
        "name: a, rate: 1/min, algorithm: sliding-window",
        "name: a, rate: 1/min, algorithm: sliding-window, precision: 5",
    ),
    (
        "estimate",
        "name: a, rate: 1/min, algorithm: sliding-window",
        "name: a, rate: 1/min, algorithm: sliding-window, estimate: interpolate",
    ),
    (
        "queue",
        "name: a, rate: 1/s, algorithm: leaky-bucket",
        "name: a, rate: 1/s, algorithm: leaky-bucket, queue: 5",
    ),
    ("concurrency", "name: a, concurrency: 5", "name: a, concurrency: 6"),
    ("permit_ttl", "name: a, concurrency: 5", "name: a, concurrency: 5, permit_ttl: 5s"),
    ("tier_by", "name: a, tier_by: p, tiers: {x: 1/s}", "name: a, tier_by: q, tiers: {x: 1/s}"),
    ("tiers", "name: a, tier_by: p, tiers: {x: 1/s}", "name: a, tier_by: p, tiers: {x: 1/s, y: 2/s}"),
    (
        "overrides",
        "name: a, rate: 1/s, by: [t], overrides: {x: 2/s}",
        "name: a, rate: 1/s, by: [t], overrides: {x: 3/s}",
    ),
    ("cost", "name: a, rate: 9/s", "name: a, rate: 9/s, cost: 2"),
    ("mode", "name: a, rate: 1/s", "name: a, rate: 1/s, mode: off"),
    ("enforce_percent", "name: a, rate: 1/s, by: [t]", "name: a, rate: 1/s, by: [t], enforce_percent: 5"),
    ("on_store_failure", "name: a, rate: 1/s", "name: a, rate: 1/s, on_store_failure: deny"),
    ("consistency", "name: a, rate: 9/s", "name: a, rate: 9/s, consistency: leased"),
    (
        "lease",
        "name: a, rate: 9/s, consistency: leased",
        "name: a, rate: 9/s, consistency: leased, lease: {ttl: 1s}",
    ),
    ("block_for", "name: a, rate: 1/s, by: [t]", "name: a, rate: 1/s, by: [t], block_for: 1m"),
    ("count", "name: a, rate: 1/s, by: [t]", "name: a, rate: 1/s, by: [t], count: failures"),
    (
        "failures",
        "name: a, rate: 1/s, by: [t], count: failures",
        "name: a, rate: 1/s, by: [t], count: failures, failures: [401]",
    ),
];

/// `domain: edge` was added, `policy diff` said "1 unchanged" with status 0, and the server answered no other domain any more. Each field
/// that a file or a limit may have is compared: one that is new and is not in these tables fails here. And the field is named: a change of
/// `algorithm` alone was "changed a: rate".
#[test]
fn every_field_is_compared() {
    let limit_files = |limit: &str| format!("limits: [{{{limit}}}]");
    let files = FILES.map(|(field, before, after)| (field, before.to_owned(), after.to_owned()));
    let limits = LIMITS.map(|(field, before, after)| (field, limit_files(before), limit_files(after)));
    let known = |fields: &[&str], field: &&str| fields.contains(field);
    assert!(FIELDS.iter().all(|field| known(&FILES.map(|(field, ..)| field), field)), "{FIELDS:?}");
    assert!(limit::FIELDS.iter().all(|field| known(&LIMITS.map(|(field, ..)| field), field)));
    for (field, before, after) in &limits[1..] {
        let difference = policy(before).difference(&policy(after));
        let [Change::Changed { fields, .. }] = &difference.changes[..] else { panic!("{difference:?}") };
        assert_eq!(fields, &[*field], "{before} -> {after}");
    }
    for (field, before, after) in files.into_iter().chain(limits) {
        let (before, after) = (policy(&before), policy(&after));
        for (one, other) in [(&before, &after), (&after, &before)] {
            let difference = one.difference(other);
            assert!(!difference.is_empty(), "{field}: {difference:?}");
        }
        assert!(before.difference(&before).is_empty(), "{field}");
    }
}

/// A change of the whole file is reported in words of its own.
#[test]
fn changes_of_the_whole_file_are_reported() {
    let before = policy("limits: [{name: a, by: [t], rate: 1/s}]");
    let after = policy(
        "{domain: edge, shard_by: t, attributes: [t, {u: address}], limits: [{name: a, by: [t], rate: 1/s}]}",
    );
    let changes: Vec<String> = before
        .difference(&after)
        .fields
        .into_iter()
        .map(|change| format!("{}: {} -> {}", change.field, change.before, change.after))
        .collect();
    assert_eq!(
        changes,
        [
            "domain: answers every domain -> answers the domain edge only",
            "shard_by: keys share no slot -> keys of one t share a slot",
            "attributes: declares no attributes -> declares t, u (address)",
        ]
    );
    assert_eq!(before.difference(&after).unchanged, 1);
}

/// Regression: a change of one tier was "changed a: rate, tiers" though the limit has no rate, and a change of `burst` or
/// `queue` named overrides that had not changed, because they inherit it.
#[test]
fn fields_that_did_not_change_are_not_named() {
    for (before, after, wanted) in [
        (
            "by: [t], tier_by: p, tiers: {x: 1/s, y: 9/s}",
            "by: [t], tier_by: p, tiers: {x: 2/s, y: 9/s}",
            "tiers",
        ),
        (
            "by: [t], tier_by: p, tiers: {x: 1/s burst 5, y: 9/s}",
            "by: [t], tier_by: p, tiers: {x: 1/s burst 6, y: 9/s}",
            "tiers",
        ),
        (
            "by: [t], rate: 1/s, burst: 5, overrides: {k: 2/s}",
            "by: [t], rate: 1/s, burst: 6, overrides: {k: 2/s}",
            "burst",
        ),
        (
            "by: [t], rate: 9/s, burst: 9, overrides: {k: 2/s}",
            "by: [t], rate: 9/s, overrides: {k: 2/s}",
            "burst",
        ),
        ("by: [t], rate: 9/s, burst: 9", "by: [t], rate: 9/s", ""),
        ("by: [t], rate: 9/s burst 9", "by: [t], rate: 9/s", ""),
        ("by: [t], rate: 9/s burst 5", "by: [t], rate: 9/s, burst: 5", ""),
        ("by: [t], rate: 9/s burst 5", "by: [t], rate: 8/s burst 5", "rate"),
        ("by: [t], rate: 9/s", "by: [t], rate: 8/s", "rate"),
        ("by: [t], rate: 9/s burst 5", "by: [t], rate: 9/s burst 6", "burst"),
        (
            "by: [t], rate: 9/s, algorithm: leaky-bucket, queue: 5, overrides: {k: 2/s}",
            "by: [t], rate: 9/s, algorithm: leaky-bucket, queue: 6, overrides: {k: 2/s}",
            "queue",
        ),
        (
            "by: [t], rate: 9/s, overrides: {k: 2/s}",
            "by: [t], rate: 9/s, algorithm: leaky-bucket, overrides: {k: 2/s}",
            "algorithm",
        ),
        (
            "by: [t], rate: deny, overrides: {k: 2/s burst 3}",
            "by: [t], rate: deny, overrides: {k: 2/s burst 4}",
            "overrides",
        ),
        (
            "by: [t], rate: 9/s burst 3, overrides: {k: 2/s}",
            "by: [t], rate: unlimited, overrides: {k: 2/s}",
            "rate",
        ),
        ("by: [t], tier_by: p, tiers: {x: 1/s}", "by: [t], rate: 1/s, tier_by: p, tiers: {x: 1/s}", "rate"),
        (
            "by: [t], concurrency: 5, overrides: {k: 9}",
            "by: [t], concurrency: 6, overrides: {k: 9}",
            "concurrency",
        ),
    ] {
        let file = |limit: &str| policy(&format!("limits: [{{name: a, {limit}}}]"));
        for (one, other) in [(before, after), (after, before)] {
            let difference = file(one).difference(&file(other));
            let named = match &difference.changes[..] {
                [Change::Changed { fields, .. }] => fields.join(", "),
                _ => String::new(),
            };
            assert_eq!(named, wanted, "{one} -> {other}");
        }
    }
}

/// The order of a list means nothing: a policy with the same statuses and values in another order is the same.
#[test]
fn another_order_is_no_change() {
    let one = policy(
        "limits: [{name: a, by: [t], rate: 9/h, count: failures, failures: [401, 403], when: {m: [a, b], n: c}}]",
    );
    let other = policy(
        "limits: [{name: a, by: [t], rate: 9/h, count: failures, failures: [403, 401], when: {n: c, m: [b, a]}}]",
    );
    assert!(one.difference(&other).is_empty(), "{:?}", one.difference(&other));
}
