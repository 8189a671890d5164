use std::fmt::Debug;

use envoy_types::pb::envoy::config::core::v3 as envoy_core;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as envoy_common;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_service_server;
use envoy_types::pb::envoy::service::ratelimit::v3 as envoy;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response as envoy_response;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server;
use envoy_types::pb::google::protobuf;
use prost_types::Value;
use prost_types::value::Kind;

use super::*;

/// Reads what the other type writes, and writes the same bytes again.
fn read_back<Ours: Message + Default + PartialEq + Debug>(theirs: &impl Message) -> Ours {
    let bytes = theirs.encode_to_vec();
    let ours = Ours::decode(bytes.as_slice()).unwrap();
    assert_eq!(ours.encode_to_vec(), bytes);
    ours
}

/// A request with every field set, as Envoy's own types write it, is read field by field.
#[test]
fn requests_are_envoys() {
    let entry = envoy_common::rate_limit_descriptor::Entry { key: "k".to_owned(), value: "v".to_owned() };
    let limit = envoy_common::rate_limit_descriptor::RateLimitOverride { requests_per_unit: 7, unit: 5 };
    let descriptor = envoy_common::RateLimitDescriptor {
        entries: vec![entry],
        limit: Some(limit),
        hits_addend: Some(protobuf::UInt64Value { value: 1 << 40 }),
        is_negative_hits: true,
    };
    let theirs =
        envoy::RateLimitRequest { domain: "api".to_owned(), descriptors: vec![descriptor], hits_addend: 3 };
    let ours: RateLimitRequest = read_back(&theirs);
    let descriptor = RateLimitDescriptor {
        entries: vec![DescriptorEntry { key: "k".to_owned(), value: "v".to_owned() }],
        limit: Some(RateLimitOverride { requests_per_unit: 7, unit: i32::from(RateLimitUnit::Month) }),
        hits_addend: Some(1 << 40),
        is_negative_hits: true,
    };
    let expected =
        RateLimitRequest { domain: "api".to_owned(), descriptors: vec![descriptor], hits_addend: 3 };
    assert_eq!(ours, expected);
}

/// A response with every field that Tollgate sets is read by Envoy's own types as it was meant.
#[test]
fn responses_are_envoys() {
    let reason = Value { kind: Some(Kind::StringValue("limit".to_owned())) };
    let status = DescriptorStatus {
        code: i32::from(ResponseCode::OverLimit),
        current_limit: Some(RateLimit {
            requests_per_unit: 9,
            unit: i32::from(RateLimitUnit::Week),
            name: "n".to_owned(),
        }),
        limit_remaining: 4,
        duration_until_reset: Some(Duration { seconds: 60, nanos: 0 }),
    };
    let ours = RateLimitResponse {
        overall_code: i32::from(ResponseCode::OverLimit),
        statuses: vec![status],
        response_headers_to_add: vec![HeaderValue { key: "x-a".to_owned(), value: "1".to_owned() }],
        dynamic_metadata: Some(Struct { fields: [("cause".to_owned(), reason)].into() }),
    };
    let theirs: envoy::RateLimitResponse = read_back(&ours);
    assert_eq!(theirs.overall_code(), envoy_response::Code::OverLimit);
    let status = &theirs.statuses[0];
    assert_eq!(status.code(), envoy_response::Code::OverLimit);
    assert_eq!(status.limit_remaining, 4);
    assert_eq!(status.duration_until_reset, Some(protobuf::Duration { seconds: 60, nanos: 0 }));
    let limit = status.current_limit.as_ref().unwrap();
    assert_eq!((limit.name.as_str(), limit.requests_per_unit), ("n", 9));
    assert_eq!(limit.unit(), envoy_response::rate_limit::Unit::Week);
    let header =
        envoy_core::HeaderValue { key: "x-a".to_owned(), value: "1".to_owned(), raw_value: Vec::new() };
    assert_eq!(theirs.response_headers_to_add, vec![header]);
    let fields = theirs.dynamic_metadata.unwrap().fields;
    assert_eq!(fields["cause"].kind, Some(protobuf::value::Kind::StringValue("limit".to_owned())));
}

/// Every unit has Envoy's number.
#[test]
fn units_are_envoys() {
    for number in 0..=8 {
        let ours = RateLimitUnit::try_from(number).map(|unit| format!("{unit:?}")).ok();
        let theirs = envoy_response::rate_limit::Unit::try_from(number).map(|unit| format!("{unit:?}")).ok();
        assert_eq!(ours, theirs);
    }
}

#[test]
fn service_names_are_envoys() {
    assert_eq!(RATE_LIMIT_SERVICE, rate_limit_service_server::SERVICE_NAME);
    assert_eq!(QUOTA_SERVICE, rate_limit_quota_service_server::SERVICE_NAME);
}
