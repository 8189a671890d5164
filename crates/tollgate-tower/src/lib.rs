//! Tollgate in the request path of a Rust service: a tower layer for axum, hyper and tonic.
//!
//! The modules stand in the order of a request: what servers read differently (`spelling`), who sent it and what it asks for (`attributes`, `peer`), who decides (`decide`), what a refused
//! caller is sent (`refusal`, `grpc`), what is done when the response is over (`settle`, `hold`, `body`, `admitted`), the service and its layer,
//! and overload (`shed`). It knows `http` types and tower's traits, and neither Redis nor the program `tollgate`.
//!
//! ```
//! use tollgate::{Clock, Engine, Policy};
//! use tollgate_tower::RateLimitLayer;
//! let (policy, _) = Policy::compile("policy.yaml", b"limits: [{name: per-ip, by: [ip], rate: 100/s}]")?;
//! let engine = Engine::new(policy, Clock::precise().now());
//! let layer = RateLimitLayer::new(engine);
//! # let _ = layer;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod spelling;
pub mod attributes;
pub mod peer;
mod decide;
mod grpc;
mod refusal;
mod settle;
mod background;
mod keep;
mod hold;
mod body;
mod shared;
mod admitted;
mod future;
mod service;
mod layer;
pub mod shed;
#[cfg(feature = "graphql")]
pub mod graphql;

/// The guide, so that `cargo test` compiles and runs every example in it.
#[cfg(all(doctest, feature = "axum", feature = "graphql"))]
#[doc = include_str!("../../../docs/middleware.md")]
struct Guide;

pub use body::Body;
pub use decide::{Decide, Own};
pub use future::ResponseFuture;
pub use hold::{HeldPermits, InFlight};
pub use layer::RateLimitLayer;
pub use service::{RateLimit, Waited};
pub use settle::{Settle, Unanswered, Unserved};
pub use shared::Refused;
