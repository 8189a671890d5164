//! The gRPC wire: Envoy's rate-limit service, and gRPC's own health check. The way of a call: `connection` (HTTP/2, bounded)
//! → `call` (which method; streams of quotas go to `quota_stream` and [`crate::rlqs`]) → `unary` (its one message) → `codec` (bytes, whatever they are) → `message` (Envoy's types ↔ ours) → [`crate::rls`].

mod connection;
mod call;
mod quota_stream;
mod unary;
mod codec;
mod message;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;

pub(crate) use call::Calls;
pub(crate) use connection::connection;
