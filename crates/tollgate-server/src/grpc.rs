//! The gRPC protocol: Envoy's rate-limit service, and gRPC's own health check. The path of a call: `connection`
//! (HTTP/2, bounded) → `call` (the method; quota streams go to `quota_stream` and [`crate::rlqs`]) → `unary` (its one
//! message) → `codec` (decodes any bytes) → `message` (converts Envoy's types) → [`crate::rls`].

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
