//! gRPC: the status, `google.rpc.RetryInfo` and `google.rpc.QuotaFailure` in `grpc-status-details-bin`, and
//! `grpc-retry-pushback-ms`.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::general_purpose::GeneralPurpose;
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};
use prost::Message;
use tollgate::Ticks;

use super::fields::Fields;
use super::{WAIT_MAX, value};
use crate::signal::{Throttle, ThrottleKind, ThrottleScope};

/// With or without padding: both are in use.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

const RESOURCE_EXHAUSTED: &str = "8";
const UNAVAILABLE: &str = "14";

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<AnyDetail>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct AnyDetail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryDetail {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// `google.rpc.QuotaFailure`.
#[derive(Clone, PartialEq, Message)]
struct QuotaFailure {
    #[prost(message, repeated, tag = "1")]
    violations: Vec<QuotaViolation>,
}

/// `google.rpc.QuotaFailure.Violation`.
#[derive(Clone, PartialEq, Message)]
struct QuotaViolation {
    #[prost(string, tag = "5")]
    quota_id: String,
}

/// The refusal of a gRPC call, if it is one.
pub(super) fn throttle(fields: &Fields<'_>) -> Option<Throttle> {
    let details = details(fields);
    let wait = pushback(fields).flatten().or_else(|| retry_delay(&details));
    match fields.text("grpc-status")? {
        // A message beyond the size that the server reads has the same status.
        RESOURCE_EXHAUSTED if is_too_large(fields) => None,
        RESOURCE_EXHAUSTED => {
            let kind = if is_of_day(&details) { ThrottleKind::Day } else { ThrottleKind::Rate };
            Some(Throttle { retry_after: wait, scope: ThrottleScope::Bucket, kind })
        }
        UNAVAILABLE if wait.is_some() => Some(Throttle {
            retry_after: wait,
            scope: ThrottleScope::Everything,
            kind: ThrottleKind::Overload,
        }),
        _ => None,
    }
}

/// Whether the server did not execute the call, or not to its end, because it fails.
pub(super) fn is_unavailable(fields: &Fields<'_>) -> bool {
    fields.text("grpc-status") == Some(UNAVAILABLE)
}

/// Whether the server forbids another attempt, or asks for one.
pub(super) fn should_retry(fields: &Fields<'_>) -> Option<bool> {
    pushback(fields).map(|wait| wait.is_some())
}

/// `grpc-retry-pushback-ms`: a wait, or `None` for a negative or unreadable number, which forbids another attempt.
fn pushback(fields: &Fields<'_>) -> Option<Option<Ticks>> {
    let text = fields.text("grpc-retry-pushback-ms")?;
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    Some(if is_number { value::millis(text) } else { None })
}

fn is_too_large(fields: &Fields<'_>) -> bool {
    fields.text("grpc-message").is_some_and(|text| text.contains("larger than max"))
}

fn details(fields: &Fields<'_>) -> Vec<AnyDetail> {
    let bytes = fields.text("grpc-status-details-bin").and_then(|text| BASE64.decode(text).ok());
    bytes.and_then(|bytes| RpcStatus::decode(bytes.as_slice()).ok()).unwrap_or_default().details
}

fn detail<M: Message + Default>(details: &[AnyDetail], name: &str) -> Option<M> {
    let is_it = |detail: &&AnyDetail| detail.type_url.rsplit('/').next() == Some(name);
    details.iter().filter(is_it).find_map(|detail| M::decode(detail.value.as_slice()).ok())
}

fn retry_delay(details: &[AnyDetail]) -> Option<Ticks> {
    let delay = detail::<RetryDetail>(details, "google.rpc.RetryInfo")?.retry_delay?;
    let (seconds, nanos) = (u64::try_from(delay.seconds).ok()?, u64::try_from(delay.nanos).ok()?);
    let micros = seconds.checked_mul(1_000_000).and_then(|micros| micros.checked_add(nanos.div_ceil(1_000)));
    Some(micros.map_or(WAIT_MAX, Ticks::from_micros).min(WAIT_MAX))
}

fn is_of_day(details: &[AnyDetail]) -> bool {
    let failure = detail::<QuotaFailure>(details, "google.rpc.QuotaFailure").unwrap_or_default();
    failure.violations.iter().any(|violation| violation.quota_id.contains("PerDay"))
}
