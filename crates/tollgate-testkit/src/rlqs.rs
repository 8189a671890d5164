//! A client of the quota service of Envoy.

use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::bucket_action::BucketAction;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_service_client::RateLimitQuotaServiceClient;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::{
    BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
};
use envoy_types::pb::envoy::r#type::v3::rate_limit_strategy::{BlanketRule, Strategy};
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::rls::Client;

/// A stream to the server, as an Envoy has one.
pub struct Quotas<'c> {
    client: &'c Client,
    reports: mpsc::Sender<RateLimitQuotaUsageReports>,
    answers: Streaming<RateLimitQuotaResponse>,
}

impl<'c> Quotas<'c> {
    pub fn open(client: &'c Client) -> Self {
        let (reports, sent) = mpsc::channel(8);
        let call = async {
            let mut quotas = RateLimitQuotaServiceClient::new(client.channel.clone());
            quotas.stream_rate_limit_quotas(ReceiverStream::new(sent)).await
        };
        let answers = client.wait(call).unwrap().into_inner();
        Self { client, reports, answers }
    }

    pub fn send(&self, domain: &str, usages: Vec<BucketQuotaUsage>) {
        let reports = RateLimitQuotaUsageReports { domain: domain.to_owned(), bucket_quota_usages: usages };
        self.client.wait(self.reports.send(reports)).unwrap();
    }

    pub fn answer(&mut self) -> Result<RateLimitQuotaResponse, Status> {
        self.client.wait(self.answers.message()).map(|answer| answer.expect("the stream goes on"))
    }

    /// Reports about one bucket, and what is answered about it, as text.
    pub fn report(&mut self, bucket: &[(&str, &str)], allowed: u64) -> String {
        self.report_in("api", bucket, allowed)
    }

    pub fn report_in(&mut self, domain: &str, bucket: &[(&str, &str)], allowed: u64) -> String {
        self.send(domain, vec![usage(bucket, allowed)]);
        let answer = self.answer().unwrap();
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

pub fn usage(bucket: &[(&str, &str)], allowed: u64) -> BucketQuotaUsage {
    let bucket = bucket.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    BucketQuotaUsage {
        bucket_id: Some(BucketId { bucket }),
        time_elapsed: None,
        num_requests_allowed: allowed,
        num_requests_denied: 0,
    }
}
