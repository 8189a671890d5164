//! Sentences that people can check.

use super::{policy, warnings};

/// Every algorithm and every option has its words.
#[test]
fn limits_read_as_sentences() {
    for (fields, wanted) in [
        (
            "rate: 1/min, by: ip",
            "each ip may make 1 request a minute on average, 1 at once and at most 2 in any minute",
        ),
        (
            "rate: 300 per 5m",
            "everybody together may make 300 requests every 5 minutes on average, 300 at once and at most 600 in any 5 minutes",
        ),
        (
            "rate: 10/s, by: [tenant, ip], algorithm: gcra",
            "each pair of tenant and ip may make 10 requests a second on average, 10 at once and at most 20 in any second",
        ),
        (
            "rate: 10/day, by: [a, b, c]",
            "each combination of a, b and c may make 10 requests a day on average, 10 at once and at most 20 in any day",
        ),
        (
            "rate: 10/h, algorithm: fixed-window",
            "everybody together may make 10 requests in each window of one hour and at most 20 in any hour",
        ),
        (
            "rate: 10/h, algorithm: fixed-window, align: first-hit, by: [ip]",
            "each ip may make 10 requests in each window of one hour, which begins with the first request, \
             and at most 20 in any hour",
        ),
        (
            "rate: 10/week, algorithm: fixed-window, align: calendar",
            "everybody together may make 10 requests in each calendar week in UTC",
        ),
        (
            "rate: 10/2s, algorithm: sliding-window, estimate: interpolate",
            "everybody together may make about 10 requests in any 2 seconds",
        ),
        (
            "rate: 10/s, algorithm: sliding-log",
            "everybody together may make 10 requests in any second, each counted by its own time",
        ),
        (
            "rate: 10/s, algorithm: leaky-bucket, queue: 20",
            "everybody together may make 10 requests a second, evenly spaced, with up to 20 waiting their turn",
        ),
        (
            "rate: 10/s, algorithm: leaky-bucket, burst: 5",
            "everybody together may make 10 requests a second, evenly spaced after 5 at once, with none waiting",
        ),
        (
            "concurrency: 20, by: [api_key], permit_ttl: 5m",
            "each api_key may have 20 requests in flight; a permit returns by itself after 5 min",
        ),
        (
            "rate: 1k/s, cost: tokens",
            "everybody together may use 1,000 units a second on average, 1,000 at once and at most 2,000 in any second; \
             a request costs what its tokens says",
        ),
        (
            "rate: 1k/s, cost: 5",
            "everybody together may use 1,000 units a second on average, 1,000 at once and at most 2,000 in any second; a request counts as 5",
        ),
        (
            "rate: 1/s, when: {method: [GET, HEAD], path: /v1/*, host: '*'}",
            "when method is GET or HEAD and path matches /v1/* and host is anything, \
             everybody together may make 1 request a second on average, 1 at once and at most 2 in any second",
        ),
        (
            "rate: 1/s, mode: shadow",
            "everybody together may make 1 request a second on average, 1 at once and at most 2 in any second; only counted, never denied (shadow)",
        ),
        (
            "by: [k], rate: 1/s, enforce_percent: 5, on_store_failure: allow",
            "each k may make 1 request a second on average, 1 at once and at most 2 in any second; \
             while the store fails every request passes for 1 s, up to 4 times this node's share, then by this node's share; enforced for 5 % of keys, only counted for the others",
        ),
        (
            "rate: 1/s, on_store_failure: {first: local, deny_after: 60s}",
            "everybody together may make 1 request a second on average, 1 at once and at most 2 in any second; \
             while the store fails by this node's share, then after 1 min no request passes",
        ),
        (
            "rate: 1/s, on_store_failure: {first: allow, for: 200ms, up_to: unlimited, then: deny}",
            "everybody together may make 1 request a second on average, 1 at once and at most 2 in any second; \
             while the store fails every request passes for 200 ms, without a bound, then no request passes",
        ),
        (
            "rate: 1/s, on_store_failure: {first: allow, for: 2s, up_to: 1, deny_after: 1m}",
            "everybody together may make 1 request a second on average, 1 at once and at most 2 in any second; while the store fails \
             every request passes for 2 s, up to this node's share, then by this node's share, then after 1 min no request passes",
        ),
        (
            "rate: 1/s, mode: off",
            "everybody together may make 1 request a second on average, 1 at once and at most 2 in any second; switched off",
        ),
        (
            "by: [t], tier_by: plan, tiers: {pro: 5, free: 1}, concurrency: 2, overrides: {e: 9, d: 8, c: 7, b: 6}",
            "each t may have, by its plan, 1 request in flight (free) or 5 requests in flight (pro); \
             with any other plan, 2 requests in flight; t b may have 6 requests in flight; t c may have 7 requests \
             in flight; t d may have 8 requests in flight; 1 more have quotas of their own; \
             a permit returns by itself after 1 min",
        ),
    ] {
        let policy = policy(&format!("limits: [{{name: a, {fields}}}]"));
        assert_eq!(policy.sentences(), [format!("a: {wanted}")], "{fields}");
    }
}

/// A limit in shadow with a penalty said that a key "is refused" and that it is "never denied".
#[test]
fn a_penalty_in_shadow_refuses_no_key() {
    let sentence = |mode: &str| {
        let file = format!("limits: [{{name: a, by: [k], rate: 1/s, block_for: 1m, mode: {mode}}}]");
        policy(&file).sentences().remove(0)
    };
    assert!(sentence("enforce").contains("a key is refused for"), "{}", sentence("enforce"));
    assert!(!sentence("shadow").contains("refused"), "{}", sentence("shadow"));
}

/// A tier for every other pair is read back as such: `policy check` said that other pairs count as the strictest tier, or have the limit's
/// own rate, and neither was so.
#[test]
fn a_tier_for_every_other_pair_is_read_back() {
    let tiers = "tier_by: [plan, region], tiers: {free: {\"*\": 2/h}, \"*\": {\"*\": 4/h}}";
    let policy = policy(&format!("limits: [{{name: a, by: [tenant], {tiers}}}]"));
    let sentence = policy.limits()[0].sentence();
    assert!(
        sentence.contains("4 requests an hour on average, 4 at once and at most 8 in any hour (any other plan, any other region)"),
        "{sentence}"
    );
    assert!(!sentence.contains("it counts as"), "{sentence}");

    let said = warnings(&format!("limits: [{{name: a, by: [tenant], rate: 9/h, {tiers}}}]")).to_string();
    assert!(said.contains("no request has it"), "{said}");
}

/// A report that leaves the house had the names of keys with overrides, and of keys that a condition names.
#[test]
fn a_sentence_without_keys_names_none() {
    for (fields, shown) in [
        ("by: [user], rate: 5/s, overrides: {zoe: 9/s, mia: 7/s}", "; 2 by user have quotas of their own"),
        (
            "by: [user], rate: 5/s, when: {user: zoe, path: /export}",
            "when user meets a condition and path is /export",
        ),
        ("by: [user], rate: 5/s, when: {user: {not: zoe}}", "when user meets a condition"),
        ("by: [user], rate: 5/s, when: 'user == \"zoe\"'", "when user meets a condition"),
        ("by: [user], rate: 5/s, tier_by: user, tiers: {zoe: 9/s}", ", or another quota by its user"),
    ] {
        let policy = policy(&format!("limits: [{{name: a, {fields}}}]"));
        let (named, hidden) = (policy.limits()[0].sentence(), policy.limits()[0].sentence_without_keys());
        assert!(named.contains("zoe"), "{named}");
        assert!(hidden.contains(shown) && !hidden.contains("zoe") && !hidden.contains("mia"), "{hidden}");
    }
}
