//! The quota service itself: what a client of the protocol is answered, and that it shares counters with the other wires.

use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::bucket_action::BucketAction;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_service_client::RateLimitQuotaServiceClient;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::{
    BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
};
use envoy_types::pb::envoy::r#type::v3::rate_limit_strategy::{BlanketRule, Strategy};
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::program::Server;
use crate::redis::Redis;
use crate::rls::{Client, question, shown};
use crate::shared::{on, quick};

/// A stream to the server, as an Envoy has one.
pub(crate) struct Quotas<'c> {
    client: &'c Client,
    reports: mpsc::Sender<RateLimitQuotaUsageReports>,
    answers: Streaming<RateLimitQuotaResponse>,
}

impl<'c> Quotas<'c> {
    pub(crate) fn open(client: &'c Client) -> Self {
        let (reports, sent) = mpsc::channel(8);
        let call = async {
            let mut quotas = RateLimitQuotaServiceClient::new(client.channel.clone());
            quotas.stream_rate_limit_quotas(ReceiverStream::new(sent)).await
        };
        let answers = client.wait(call).unwrap().into_inner();
        Self { client, reports, answers }
    }

    fn send(&self, domain: &str, usages: Vec<BucketQuotaUsage>) {
        let reports = RateLimitQuotaUsageReports { domain: domain.to_owned(), bucket_quota_usages: usages };
        self.client.wait(self.reports.send(reports)).unwrap();
    }

    fn next(&mut self) -> Result<RateLimitQuotaResponse, Status> {
        self.client.wait(self.answers.message()).map(|answer| answer.expect("the stream goes on"))
    }

    /// Reports about one bucket, and what is answered about it, as text.
    pub(crate) fn report(&mut self, bucket: &[(&str, &str)], allowed: u64) -> String {
        self.report_in("api", bucket, allowed)
    }

    fn report_in(&mut self, domain: &str, bucket: &[(&str, &str)], allowed: u64) -> String {
        self.send(domain, vec![usage(bucket, allowed)]);
        let answer = self.next().unwrap();
        assert_eq!(answer.bucket_action.len(), 1);
        let action = &answer.bucket_action[0];
        assert_eq!(action.bucket_id, usage(bucket, 0).bucket_id);
        match action.bucket_action.as_ref().unwrap() {
            BucketAction::AbandonAction(_) => "abandon".to_owned(),
            BucketAction::QuotaAssignmentAction(assigned) => {
                let ttl = assigned.assignment_time_to_live.unwrap().seconds;
                let strategy = match assigned.rate_limit_strategy.unwrap().strategy.unwrap() {
                    Strategy::BlanketRule(rule) => {
                        BlanketRule::try_from(rule).unwrap().as_str_name().to_owned()
                    }
                    Strategy::TokenBucket(bucket) => {
                        let fill =
                            (bucket.tokens_per_fill.unwrap().value, bucket.fill_interval.unwrap().seconds);
                        format!("{} and {} every {} s", bucket.max_tokens, fill.0, fill.1)
                    }
                    Strategy::RequestsPerTimeUnit(_) => panic!("Envoy does not know it"),
                };
                format!("{strategy} for {ttl} s")
            }
        }
    }
}

fn usage(bucket: &[(&str, &str)], allowed: u64) -> BucketQuotaUsage {
    let bucket = bucket.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    BucketQuotaUsage {
        bucket_id: Some(BucketId { bucket }),
        time_elapsed: None,
        num_requests_allowed: allowed,
        num_requests_denied: 0,
    }
}

const POLICY: &str = "
domain: api
limits:
  - {name: per-key, by: [api_key], rate: 100/h}
  - {name: fast, by: [tenant], rate: 500/s, burst: 1000}
  - {name: considered, by: [plan], rate: 1/h, mode: shadow}
";

/// What an Envoy reports is gone for RLS and HTTP, and what is gone there is not assigned.
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

/// What no limit holds back may pass: a bucket that no limit is about, one in shadow, and one of another domain. What cannot be counted
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
fn bad_messages_are_told() {
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
    for (messages, told) in cases {
        let mut quotas = Quotas::open(&client);
        messages.into_iter().for_each(|(domain, usages)| quotas.send(domain, usages));
        let error = loop {
            if let Err(error) = quotas.next() {
                break error;
            }
        };
        assert_eq!(error.code(), Code::InvalidArgument, "{told}");
        assert!(error.message().contains(told), "{error}");
    }
    // Nobody else is hurt, and a later message need not repeat the domain.
    let mut quotas = Quotas::open(&client);
    quotas.send("api", key());
    quotas.next().unwrap();
    quotas.send("", key());
    quotas.next().unwrap();
}

/// A server that is told to stop lets go of its streams, says so, and does not wait for them.
#[test]
fn streams_end_with_the_server() {
    let mut server = Server::start(POLICY);
    let client = Client::new(server.grpc.unwrap());
    let mut quotas = Quotas::open(&client);
    quotas.report(&[("api_key", "k1")], 1);
    server.signal("-TERM");
    assert_eq!(quotas.next().unwrap_err().code(), Code::Unavailable);
    server.await_log("\"stopped\"");
    assert_eq!(server.wait().code(), Some(0));
}

/// On a shared store what one server's Envoy used is gone for another server, and lowers what that assigns.
#[test]
fn counters_in_redis_are_shared_between_servers() {
    let redis = Redis::start(&[]);
    let policy = "domain: api\nlimits: [{name: per-key, by: [api_key], rate: 100/h}]";
    let (one, other) = (on(&redis.url(), policy), on(&redis.url(), policy));
    let (first, second) = (Client::new(one.grpc.unwrap()), Client::new(other.grpc.unwrap()));
    quick(|key| {
        let mut quotas = Quotas::open(&first);
        quotas.report(&[("api_key", key)], 1);
        quotas.report(&[("api_key", key)], 59);
        let told = Quotas::open(&second).report(&[("api_key", key)], 0);
        (other.left(key) == 40 && told.starts_with("36 and ")).then_some(())
    });
}
