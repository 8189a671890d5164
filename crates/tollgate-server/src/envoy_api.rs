//! The messages of Envoy's rate-limit service (RLS) and rate-limit quota service (RLQS) that Tollgate reads and writes,
//! with the field numbers of Envoy's API. Fields that Tollgate neither reads nor sets are left out: protobuf skips
//! unknown fields.
//!
//! The crate `envoy-types` has all of Envoy's API, 88,000 lines, and took a tenth of the release build. The tests
//! compare these messages with it, byte for byte.

use prost::{Enumeration, Message, Oneof};
use prost_types::{Duration, Struct};

/// Name of the gRPC service that answers rate-limit requests.
pub(crate) const RATE_LIMIT_SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// Name of the gRPC service that assigns quotas.
pub(crate) const QUOTA_SERVICE: &str = "envoy.service.rate_limit_quota.v3.RateLimitQuotaService";

/// `envoy.service.ratelimit.v3.RateLimitRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint32, tag = "3")]
    pub(crate) hits_addend: u32,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<DescriptorEntry>,
    #[prost(message, optional, tag = "2")]
    pub(crate) limit: Option<RateLimitOverride>,
    /// `google.protobuf.UInt64Value`, which prost reads as a plain number.
    #[prost(message, optional, tag = "3")]
    pub(crate) hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    pub(crate) is_negative_hits: bool,
}

/// `RateLimitDescriptor.Entry`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct DescriptorEntry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

/// `RateLimitDescriptor.RateLimitOverride`. Its unit is an `envoy.type.v3.RateLimitUnit`, whose numbers
/// [`RateLimitUnit`] shares.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct RateLimitOverride {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(enumeration = "RateLimitUnit", tag = "2")]
    pub(crate) unit: i32,
}

/// `RateLimitResponse.RateLimit.Unit`. An override has no week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(crate) enum RateLimitUnit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitResponse {
    #[prost(enumeration = "ResponseCode", tag = "1")]
    pub(crate) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) response_headers_to_add: Vec<HeaderValue>,
    #[prost(message, optional, tag = "6")]
    pub(crate) dynamic_metadata: Option<Struct>,
}

/// `RateLimitResponse.Code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(crate) enum ResponseCode {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

/// `RateLimitResponse.DescriptorStatus`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DescriptorStatus {
    #[prost(enumeration = "ResponseCode", tag = "1")]
    pub(crate) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) current_limit: Option<RateLimit>,
    #[prost(uint32, tag = "3")]
    pub(crate) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) duration_until_reset: Option<Duration>,
}

/// `RateLimitResponse.RateLimit`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct RateLimit {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(enumeration = "RateLimitUnit", tag = "2")]
    pub(crate) unit: i32,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

/// `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

/// `RateLimitQuotaResponse.BucketAction.bucket_action`.
#[derive(Clone, Copy, PartialEq, Eq, Oneof)]
pub(crate) enum BucketActionKind {
    #[prost(message, tag = "2")]
    Assign(QuotaAssignmentAction),
    #[prost(message, tag = "3")]
    Abandon(AbandonAction),
}

/// `RateLimitQuotaResponse.BucketAction.QuotaAssignmentAction`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct QuotaAssignmentAction {
    #[prost(message, optional, tag = "2")]
    pub(crate) assignment_time_to_live: Option<Duration>,
    #[prost(message, optional, tag = "3")]
    pub(crate) rate_limit_strategy: Option<RateLimitStrategy>,
}

/// `RateLimitQuotaResponse.BucketAction.AbandonAction`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct AbandonAction {}

/// `envoy.type.v3.RateLimitStrategy`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct RateLimitStrategy {
    #[prost(oneof = "StrategyKind", tags = "1, 3")]
    pub(crate) strategy: Option<StrategyKind>,
}

/// `RateLimitStrategy.strategy`. Tollgate never assigns `requests_per_time_unit`.
#[derive(Clone, Copy, PartialEq, Eq, Oneof)]
pub(crate) enum StrategyKind {
    #[prost(enumeration = "BlanketRule", tag = "1")]
    BlanketRule(i32),
    #[prost(message, tag = "3")]
    TokenBucket(TokenBucket),
}

/// `RateLimitStrategy.BlanketRule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(crate) enum BlanketRule {
    AllowAll = 0,
    DenyAll = 1,
}

/// `envoy.type.v3.TokenBucket`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct TokenBucket {
    #[prost(uint32, tag = "1")]
    pub(crate) max_tokens: u32,
    /// `google.protobuf.UInt32Value`, which prost reads as a plain number.
    #[prost(message, optional, tag = "2")]
    pub(crate) tokens_per_fill: Option<u32>,
    #[prost(message, optional, tag = "3")]
    pub(crate) fill_interval: Option<Duration>,
}

#[cfg(test)]
mod tests;
