//! The messages of the protocol, byte for byte those of Envoy. Names and values are bytes here: Envoy builds them from
//! what its clients send, which need not be UTF-8. One such bucket must not make a whole report unreadable.

use prost::Message;
use prost_types::Duration;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::grant::{Assignment, Strategy};
use super::shares::Instruction;
use crate::envoy_api::{
    AbandonAction, BlanketRule, BucketActionKind, QuotaAssignmentAction, RateLimitStrategy, StrategyKind,
    TokenBucket,
};

/// `RateLimitQuotaUsageReports`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Reports {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) domain: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) usages: Vec<BucketUsage>,
}

/// `BucketQuotaUsage`. The elapsed time is not read: Envoy sends whole seconds, rounded down.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct BucketUsage {
    #[prost(message, optional, tag = "1")]
    pub(crate) bucket_id: Option<BucketId>,
    #[prost(uint64, tag = "3")]
    pub(crate) allowed: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) denied: u64,
}

/// `BucketId`: a map, encoded as a list of entries in any order.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct BucketId {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<BucketEntry>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct BucketEntry {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
}

/// `RateLimitQuotaResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Response {
    #[prost(message, repeated, tag = "1")]
    pub(crate) actions: Vec<BucketAction>,
}

/// `BucketAction`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct BucketAction {
    #[prost(message, optional, tag = "1")]
    pub(crate) bucket_id: Option<BucketId>,
    #[prost(oneof = "BucketActionKind", tags = "2, 3")]
    pub(crate) action: Option<BucketActionKind>,
}

impl BucketAction {
    pub(crate) fn new(bucket_id: BucketId, instruction: Instruction) -> Self {
        let action = match instruction {
            Instruction::Abandon => BucketActionKind::Abandon(AbandonAction {}),
            Instruction::Assign(assignment) => BucketActionKind::Assign(assigned(assignment)),
        };
        Self { bucket_id: Some(bucket_id), action: Some(action) }
    }
}

fn assigned(Assignment { strategy, ttl_seconds }: Assignment) -> QuotaAssignmentAction {
    let seconds = |seconds: u32| Duration { seconds: i64::from(seconds), nanos: 0 };
    let strategy = match strategy {
        Strategy::AllowAll => StrategyKind::BlanketRule(i32::from(BlanketRule::AllowAll)),
        Strategy::DenyAll => StrategyKind::BlanketRule(i32::from(BlanketRule::DenyAll)),
        Strategy::TokenBucket { max_tokens, tokens_per_fill, fill_seconds } => {
            StrategyKind::TokenBucket(TokenBucket {
                max_tokens,
                tokens_per_fill: Some(tokens_per_fill),
                fill_interval: Some(seconds(fill_seconds)),
            })
        }
    };
    QuotaAssignmentAction {
        assignment_time_to_live: Some(seconds(ttl_seconds)),
        rate_limit_strategy: Some(RateLimitStrategy { strategy: Some(strategy) }),
    }
}

/// Decodes reports and encodes responses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QuotaCodec;

impl Codec for QuotaCodec {
    type Encode = Response;
    type Decode = Reports;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for QuotaCodec {
    type Item = Response;
    type Error = Status;

    fn encode(&mut self, item: Response, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for QuotaCodec {
    type Item = Reports;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Reports>, Status> {
        let refused = |error| {
            Status::invalid_argument(format!("no RateLimitQuotaUsageReports of the protocol: {error}"))
        };
        Reports::decode(buffer).map(Some).map_err(refused)
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::rate_limit_quota::v3 as envoy;

    use super::*;

    /// This module reads what Envoy's own types write, and vice versa.
    #[test]
    fn the_bytes_are_envoys() {
        let bucket = [("b".to_owned(), "2".to_owned())].into();
        let usage = envoy::rate_limit_quota_usage_reports::BucketQuotaUsage {
            bucket_id: Some(envoy::BucketId { bucket }),
            time_elapsed: Some(envoy_types::pb::google::protobuf::Duration { seconds: 5, nanos: 0 }),
            num_requests_allowed: 7,
            num_requests_denied: 3,
        };
        let sent =
            envoy::RateLimitQuotaUsageReports { domain: "api".to_owned(), bucket_quota_usages: vec![usage] };
        let read = Reports::decode(sent.encode_to_vec().as_slice()).unwrap();
        let id = BucketId { entries: vec![BucketEntry { key: b"b".to_vec(), value: b"2".to_vec() }] };
        let usage = BucketUsage { bucket_id: Some(id.clone()), allowed: 7, denied: 3 };
        assert_eq!(read, Reports { domain: b"api".to_vec(), usages: vec![usage] });

        let strategy = Strategy::TokenBucket { max_tokens: 9, tokens_per_fill: 25, fill_seconds: 10 };
        for instruction in
            [Instruction::Assign(Assignment { strategy, ttl_seconds: 15 }), Instruction::Abandon]
        {
            let ours = Response { actions: vec![BucketAction::new(id.clone(), instruction)] };
            let theirs = envoy::RateLimitQuotaResponse::decode(ours.encode_to_vec().as_slice()).unwrap();
            assert_eq!(theirs.bucket_action[0].bucket_id.as_ref().unwrap().bucket["b"], "2");
            assert_eq!(theirs.encode_to_vec(), ours.encode_to_vec());
        }
    }
}
