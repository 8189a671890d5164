//! The quota service itself: what a client of the protocol is answered, and that it shares counters with the other wires.

use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
use tonic::Code;

use crate::program::Server;
use crate::rls::{Client, question, shown};
pub(crate) use tollgate_testkit::rlqs::{Quotas, usage};

const POLICY: &str = "
domain: api
limits:
  - {name: per-key, by: [api_key], rate: 100/h}
  - {name: fast, by: [tenant], rate: 500/s, burst: 1000}
  - {name: considered, by: [plan], rate: 1/h, mode: shadow}
";

/// Usage that an Envoy reports counts for RLS and HTTP, and their usage is not assigned.
#[test]
fn counters_are_shared() {
    let server = Server::start(POLICY);
    let client = Client::new(server.grpc.unwrap());
    let mut quotas = Quotas::open(&client);
    assert_eq!(quotas.report(&[("tenant", "a")], 1), "875 and 5000 every 10 s for 15 s");
    let key = [("api_key", "k1")];
    assert_eq!(quotas.report(&key, 1), "96 and 2777 every 100000 s for 15 s");
    assert_eq!(server.remaining("k1"), 99);
    assert_eq!(
        shown(&client.ask(question("api", 50, "api_key=k1")).unwrap()),
        "OK: OK per-key 100/HOUR left 49 in 1"
    );
    assert_eq!(quotas.report(&key, 20), "24 and 2777 every 100000 s for 15 s");
    assert_eq!(server.remaining("k1"), 29);
    assert_eq!(server.metric("tollgate_rlqs_reported_requests_total{outcome=\"allow\"}"), 22);
    assert_eq!(server.metric("tollgate_rlqs_streams"), 1);
    assert_eq!(server.metric("tollgate_rlqs_subscriptions"), 2);
}

/// A bucket without a limit may pass: one that no limit is about, one in shadow, and one of another domain. What cannot be counted
/// may not, nor what an operator blocks.
#[test]
fn buckets_without_a_limit_are_free() {
    let server = Server::start(POLICY);
    let client = Client::new(server.grpc.unwrap());
    let mut quotas = Quotas::open(&client);
    assert_eq!(quotas.report(&[("colour", "red")], 1), "ALLOW_ALL for 15 s");
    assert_eq!(quotas.report(&[("plan", "free")], 1), "ALLOW_ALL for 15 s");
    assert_eq!(quotas.report(&[("api_key", &"x".repeat(5_000))], 1), "DENY_ALL for 15 s");
    let mut elsewhere = Quotas::open(&client);
    assert_eq!(elsewhere.report_in("other", &[("api_key", "k1")], 1), "ALLOW_ALL for 15 s");
    assert_eq!(server.remaining("k1"), 100);
}

/// A message that the protocol does not know ends its stream, and says what would be accepted.
#[test]
fn bad_messages_are_reported() {
    let server = Server::start(POLICY);
    let client = Client::new(server.grpc.unwrap());
    let key = || vec![usage(&[("api_key", "k1")], 1)];
    let no_id = || vec![BucketQuotaUsage { bucket_id: None, ..usage(&[], 1) }];
    let cases = [
        (vec![("", key())], "the first message of a stream names the domain"),
        (vec![("api", key()), ("other", key())], "it was \"api\" in the first message"),
        (vec![("api", no_id())], "send at least one key"),
        (vec![("api", vec![usage(&[], 1)])], "send at least one key"),
        (vec![("api", vec![usage(&[("", "x")], 1)])], "a key is empty"),
    ];
    for (messages, reported) in cases {
        let mut quotas = Quotas::open(&client);
        messages.into_iter().for_each(|(domain, usages)| quotas.send(domain, usages));
        let error = loop {
            if let Err(error) = quotas.answer() {
                break error;
            }
        };
        assert_eq!(error.code(), Code::InvalidArgument, "{reported}");
        assert!(error.message().contains(reported), "{error}");
    }
    // Other streams go on, and a later message need not repeat the domain.
    let mut quotas = Quotas::open(&client);
    quotas.send("api", key());
    quotas.answer().unwrap();
    quotas.send("", key());
    quotas.answer().unwrap();
}

/// A stopping server ends its streams, says so, and does not wait for them.
#[test]
fn streams_end_with_the_server() {
    let mut server = Server::start(POLICY);
    let client = Client::new(server.grpc.unwrap());
    let mut quotas = Quotas::open(&client);
    quotas.report(&[("api_key", "k1")], 1);
    server.signal("-TERM");
    assert_eq!(quotas.answer().unwrap_err().code(), Code::Unavailable);
    server.await_log("\"stopped\"");
    assert_eq!(server.wait().code(), Some(0));
}
