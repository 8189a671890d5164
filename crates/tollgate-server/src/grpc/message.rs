//! Envoy's messages and ours. Total in both directions: what Envoy may say has a meaning here, and what we answer can be said.

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit as WireUnit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code as WireCode, DescriptorStatus, RateLimit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Duration, Struct, Value};

use crate::rls::{Answer, Code, CurrentLimit, Descriptor, Override, Question, Refusal, Status, Unit};

impl From<RateLimitRequest> for Question {
    fn from(request: RateLimitRequest) -> Self {
        Self {
            domain: request.domain,
            descriptors: request.descriptors.into_iter().map(Descriptor::from).collect(),
            hits_addend: request.hits_addend,
        }
    }
}

impl From<RateLimitDescriptor> for Descriptor {
    fn from(descriptor: RateLimitDescriptor) -> Self {
        Self {
            entries: descriptor.entries.into_iter().map(|entry| (entry.key, entry.value)).collect(),
            limit: descriptor.limit.and_then(over),
            hits_addend: descriptor.hits_addend.map(|hits| hits.value),
            is_negative_hits: descriptor.is_negative_hits,
        }
    }
}

/// The limit that a descriptor brings along. One without a unit is none.
fn over(limit: RateLimitOverride) -> Option<Override> {
    let unit = match RateLimitUnit::try_from(limit.unit).ok()? {
        RateLimitUnit::Unknown => return None,
        RateLimitUnit::Second => Unit::Second,
        RateLimitUnit::Minute => Unit::Minute,
        RateLimitUnit::Hour => Unit::Hour,
        RateLimitUnit::Day => Unit::Day,
        RateLimitUnit::Month => Unit::Month,
        RateLimitUnit::Year => Unit::Year,
    };
    Some(Override { requests_per_unit: limit.requests_per_unit, unit })
}

impl From<Answer> for RateLimitResponse {
    fn from(answer: Answer) -> Self {
        let header = |(key, value)| HeaderValue { key, value, raw_value: Vec::new() };
        Self {
            overall_code: code(answer.overall),
            statuses: answer.statuses.into_iter().map(DescriptorStatus::from).collect(),
            response_headers_to_add: answer.headers.into_iter().map(header).collect(),
            dynamic_metadata: answer.refusal.map(metadata),
            ..Self::default()
        }
    }
}

/// Why a request is refused, for Envoy's access log: `%DYNAMIC_METADATA(envoy.filters.http.ratelimit:cause)%`.
fn metadata(refusal: Refusal) -> Struct {
    let field = |name: &str, text: String| (name.to_owned(), Value { kind: Some(Kind::StringValue(text)) });
    Struct { fields: [field("cause", refusal.cause), field("reason", refusal.reason)].into() }
}

impl From<Status> for DescriptorStatus {
    fn from(status: Status) -> Self {
        // Whole seconds, rounded up: Envoy reads no fractions, and a caller that comes back then is not too early.
        let seconds = |reset: tollgate::Ticks| i64::try_from(reset.ceil_seconds()).unwrap_or(i64::MAX);
        Self {
            code: code(status.code),
            current_limit: status.current_limit.map(RateLimit::from),
            limit_remaining: status.limit_remaining,
            duration_until_reset: status
                .until_reset
                .map(|reset| Duration { seconds: seconds(reset), nanos: 0 }),
            ..Self::default()
        }
    }
}

impl From<CurrentLimit> for RateLimit {
    fn from(limit: CurrentLimit) -> Self {
        let unit = match limit.unit {
            None => WireUnit::Unknown,
            Some(Unit::Second) => WireUnit::Second,
            Some(Unit::Minute) => WireUnit::Minute,
            Some(Unit::Hour) => WireUnit::Hour,
            Some(Unit::Day) => WireUnit::Day,
            Some(Unit::Week) => WireUnit::Week,
            Some(Unit::Month) => WireUnit::Month,
            Some(Unit::Year) => WireUnit::Year,
        };
        Self { name: limit.name, requests_per_unit: limit.requests_per_unit, unit: i32::from(unit) }
    }
}

fn code(code: Code) -> i32 {
    i32::from(match code {
        Code::Ok => WireCode::Ok,
        Code::OverLimit => WireCode::OverLimit,
    })
}
