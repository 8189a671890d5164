//! Envoy's rate-limit quota service: Envoys report the requests they admitted, and are assigned token buckets. The path
//! of a report: `grpc/quota_stream` (one Envoy) → `message` (bytes) → `bucket` (attributes) → `assigner` (the engine's
//! counters) → `shares` (the share of each Envoy, with `counter`, `level` and `grant`) → back to the streams whose
//! assignments change.

mod bucket;
mod counter;
mod assigner;
mod grant;
mod level;
mod message;
mod shares;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;

pub(crate) use assigner::QuotaAssigner;
pub(crate) use bucket::{Bucket, Unusable};
pub(crate) use message::{QuotaCodec, Reports, Response};
pub(crate) use shares::Usage;
