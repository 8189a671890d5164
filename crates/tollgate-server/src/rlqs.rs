//! Envoy's rate-limit quota service: Envoys report what they let pass, and are assigned token buckets to go on with. The way of a
//! report: `grpc/quota_stream` (one Envoy) → `message` (bytes) → `bucket` (which attributes) → `desk` (the engine's counters) → `shares` (who may
//! have how much, of which `counter`, `level` and `grant` are parts) → back to the streams that are told something.

mod bucket;
mod counter;
mod desk;
mod grant;
mod level;
mod message;
mod shares;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;

pub(crate) use bucket::{Bucket, Unusable};
pub(crate) use desk::Desk;
pub(crate) use message::{Reports, Response, Wire};
pub(crate) use shares::Usage;
