//! The example of the documentation, whole.

use super::super::{Consistency, EXAMPLE, Mode, OnStoreFailure, Policy};
use super::policy;
use crate::request::CheckRequest;

/// Every limit of the example means what its sentence says, and nothing about it is doubtful.
#[test]
fn the_example_compiles_to_these_sentences() {
    let policy = Policy::compile("example.yaml", EXAMPLE.as_bytes()).unwrap();
    let warnings = policy.warnings();
    assert_eq!(warnings.to_string(), "");
    assert_eq!(policy.domain(), Some("api"));
    assert_eq!(policy.shard_by(), Some("tenant"));
    assert_eq!(
        policy.sentences(),
        [
            "per-key: each api_key may make 100 requests a second on average, 200 at once and at most 300 in any second",
            "login: when method is POST and path is /login, each ip may make 5 requests in any minute; \
             while the store fails no request passes",
            "plan: each tenant may make, by its plan, 10 requests a second on average, 10 at once and at most 20 in any second (free), \
             100 requests a second on average, 200 at once and at most 300 in any second (pro) or 1,000 requests a second on average, \
             2,000 at once and at most 3,000 in any second (enterprise); with any other plan, or none, it counts as free; \
             tenant acme may make 5,000 requests a second on average, 5,000 at once and at most 10,000 in any second",
            "monthly: each tenant may make 1,000,000 requests in each calendar month in Europe/Rome; \
             while the store fails no request passes",
            "tokens: when path.startsWith('/v1/chat'), each tenant may use 100,000 units a minute on average, \
             100,000 at once and at most 200,000 in any minute; a request costs prompt_tokens + max_tokens",
            "in-flight: each api_key may have 20 requests in flight; a permit returns by itself after 30 s",
            "platform: everybody together may make 500,000 requests a second on average, 500,000 at once and at most 1,000,000 in any second; \
             counted in leases",
        ]
    );
}

/// The fields that sentences leave out have the values of the file, or the defaults of the documentation.
#[test]
fn the_example_keeps_modes_and_defaults() {
    let policy = policy(EXAMPLE);
    for limit in policy.limits() {
        assert_eq!((limit.mode(), limit.enforce_percent()), (Mode::Enforce, 100), "{}", limit.name());
    }
    let by_name = |name: &str| policy.limits().iter().find(|limit| limit.name() == name).unwrap();
    assert_eq!(by_name("per-key").on_store_failure(), OnStoreFailure::Local);
    assert_eq!(by_name("login").on_store_failure(), OnStoreFailure::Deny);
    assert_eq!(by_name("per-key").consistency(), Consistency::Exact);
    assert_eq!(by_name("platform").consistency(), Consistency::Leased);
}

/// A chat request meets the limits that it should, in the policy's order, each at its own cost.
#[test]
fn the_example_matches_a_chat_request() {
    let policy = policy(EXAMPLE);
    let request = CheckRequest::new()
        .with("path", "/v1/chat/completions")
        .and_then(|request| request.with("method", "POST"))
        .and_then(|request| request.with("tenant", "globex"))
        .and_then(|request| request.with("plan", "pro"))
        .and_then(|request| request.with("api_key", "k-1"))
        .and_then(|request| request.with("prompt_tokens", 300))
        .and_then(|request| request.with("max_tokens", "200"))
        .unwrap();
    let matches = policy.matches(&request).unwrap();
    let found: Vec<(&str, u64, u64)> = matches
        .iter()
        .map(|found| {
            let limit = &policy.limits()[found.limit as usize];
            (limit.name(), limit.quota(found.quota).unwrap().capacity(), found.cost)
        })
        .collect();
    assert_eq!(
        found,
        [
            ("per-key", 200, 1),
            ("plan", 200, 1),
            ("monthly", 1_000_000, 1),
            ("tokens", 100_000, 500),
            ("in-flight", 20, 1),
            ("platform", 500_000, 1),
        ]
    );
    assert_eq!([matches[0].by[0], matches[1].by[0]], [4, 2]);
    assert_eq!(matches[5].by, [0; 8], "it counts by nothing");
}
