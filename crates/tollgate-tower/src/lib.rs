//! Tollgate in the request path of a Rust service: a tower layer for axum, hyper and tonic.
//!
//! The modules follow the path of a request: what servers read differently (`spelling`), who sent the request and what it
//! asks for (`attributes`, `peer`), the decision (`decide`), the layer and its service, overload (`shed`), the response to
//! a refused caller (`refusal`, `grpc`), and the end of the response (`settle`, `hold`, `permits`, `body`). The crate uses
//! `http` types and tower's traits, and neither Redis nor the program `tollgate`.
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
mod layer;
mod service;
mod future;
mod refusal;
mod grpc;
mod settle;
mod hold;
mod permits;
mod body;
pub mod shed;
#[cfg(feature = "graphql")]
pub mod graphql;

/// The guide, so that `cargo test` compiles and runs every example in it.
#[cfg(all(doctest, feature = "axum", feature = "graphql"))]
#[doc = include_str!("../../../docs/middleware.md")]
struct Guide;

pub use body::Body;
pub use decide::{Decide, EngineDecider};
pub use future::ResponseFuture;
pub use hold::{HeldPermits, InFlight};
pub use layer::{RateLimitLayer, Refused};
pub use service::{RateLimit, Waited};
pub use settle::{Settle, Unanswered, Unserved};
