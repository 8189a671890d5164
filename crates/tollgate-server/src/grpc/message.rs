//! Conversions between Envoy's messages and Tollgate's types. Both directions are total: every message of Envoy has a
//! meaning here, and every answer can be encoded.

use prost_types::value::Kind;
use prost_types::{Duration, Struct, Value};

use crate::envoy_api::{
    DescriptorStatus, HeaderValue, RateLimit, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
    RateLimitResponse, RateLimitUnit, ResponseCode,
};
use crate::rls::{self, Answer, Code, CurrentLimit, Descriptor, Override, Refusal, RlsRequest, Status, Unit};
use crate::telemetry::is_crowded;

impl From<RateLimitRequest> for RlsRequest {
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
            hits_addend: descriptor.hits_addend,
            is_negative_hits: descriptor.is_negative_hits,
        }
    }
}

/// The limit that a descriptor carries. A limit without a unit counts as none, and Envoy's overrides have no week.
fn over(limit: RateLimitOverride) -> Option<Override> {
    let unit = match RateLimitUnit::try_from(limit.unit).ok()? {
        RateLimitUnit::Unknown | RateLimitUnit::Week => return None,
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
        let header = |(key, value)| HeaderValue { key, value };
        let unlimited = answer.meets_no_limit.then(unlimited);
        let mut metadata = answer.refusal.map(refused).or(unlimited);
        let crowded = answer.statuses.iter().map(|status| status.source).find(|source| is_crowded(*source));
        if let Some(source) = crowded {
            metadata.get_or_insert_default().fields.extend([field("source", source.name().to_owned())]);
        }
        Self {
            overall_code: code(answer.overall),
            statuses: answer.statuses.into_iter().map(DescriptorStatus::from).collect(),
            response_headers_to_add: answer.headers.into_iter().map(header).collect(),
            dynamic_metadata: metadata,
        }
    }
}

/// Why a request is refused, for Envoy's access log: `%DYNAMIC_METADATA(envoy.filters.http.ratelimit:cause)%`.
fn refused(refusal: Refusal) -> Struct {
    Struct { fields: [field("cause", refusal.cause), field("reason", refusal.reason)].into() }
}

/// One entry of the metadata.
fn field(name: &str, text: String) -> (String, Value) {
    (name.to_owned(), Value { kind: Some(Kind::StringValue(text)) })
}

/// The metadata of a request that no limit applies to.
fn unlimited() -> Struct {
    let applies_not = Value { kind: Some(Kind::BoolValue(true)) };
    Struct { fields: [(rls::NO_LIMIT_APPLIES.to_owned(), applies_not)].into() }
}

impl From<Status> for DescriptorStatus {
    fn from(status: Status) -> Self {
        // Whole seconds, rounded up: Envoy reads no fractions, and a caller that retries then is not too early.
        let seconds = |reset: tollgate::Ticks| i64::try_from(reset.ceil_seconds()).unwrap_or(i64::MAX);
        Self {
            code: code(status.code),
            current_limit: status.current_limit.map(RateLimit::from),
            limit_remaining: status.limit_remaining,
            duration_until_reset: status
                .until_reset
                .map(|reset| Duration { seconds: seconds(reset), nanos: 0 }),
        }
    }
}

impl From<CurrentLimit> for RateLimit {
    fn from(limit: CurrentLimit) -> Self {
        let unit = match limit.unit {
            None => RateLimitUnit::Unknown,
            Some(Unit::Second) => RateLimitUnit::Second,
            Some(Unit::Minute) => RateLimitUnit::Minute,
            Some(Unit::Hour) => RateLimitUnit::Hour,
            Some(Unit::Day) => RateLimitUnit::Day,
            Some(Unit::Week) => RateLimitUnit::Week,
            Some(Unit::Month) => RateLimitUnit::Month,
            Some(Unit::Year) => RateLimitUnit::Year,
        };
        Self { name: limit.name, requests_per_unit: limit.requests_per_unit, unit: i32::from(unit) }
    }
}

fn code(code: Code) -> i32 {
    i32::from(match code {
        Code::Ok => ResponseCode::Ok,
        Code::OverLimit => ResponseCode::OverLimit,
    })
}
