//! Tollgate in the request path of a Rust service: a tower layer for axum, hyper and tonic.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tollgate_tower::RateLimitLayer;
//!
//! let app: Router = Router::new().route("/", get(async || "hello")).layer(RateLimitLayer::per_ip("100/s burst 200")?);
//! # let _ = app;
//! # Ok::<(), tollgate::PolicyError>(())
//! ```
//!
//! | to | see |
//! |---|---|
//! | limit by a policy file | [`RateLimitLayer::new`] with `Engine::open("policy.yaml")?` |
//! | trust a proxy to name the client | [`RateLimitLayer::behind`] |
//! | count by a header, a token's claim, a path template | [`RateLimitLayer::attribute`], [`attributes::source`] |
//! | charge by request or response | [`RateLimitLayer::cost`], [`RateLimitLayer::settle`], `graphql` |
//! | shed load | [`shed`] |
//!
//! Each module uses only those above it: what servers read differently (`spelling`), who sent the request and what it
//! asks for (`peer`, `attributes`), the decision (`decide`), the response to a refused caller (`grpc`, `refusal`), what
//! an admitted request holds until the end of its response (`settle`, `background`, `permits`, `hold`, `body`), what
//! services share (`state`), the path of a request (`admitted`, `future`, `service`), the `layer`, overload (`shed`),
//! and the cost of GraphQL operations (`graphql`). To follow a request, start at `service`. The crate uses `http` types
//! and tower's traits, and neither Redis nor the program `tollgate`.

pub mod spelling;
pub mod peer;
pub mod attributes;
mod decide;
mod grpc;
mod refusal;
mod settle;
mod background;
mod permits;
mod hold;
mod body;
mod state;
mod admitted;
mod future;
mod service;
mod layer;
pub mod shed;
#[cfg(feature = "graphql")]
#[doc(hidden)]
pub mod unique_json;
#[cfg(feature = "graphql")]
pub mod graphql;

/// The guide, so that `cargo test` compiles and runs every example in it.
#[cfg(all(doctest, feature = "axum", feature = "graphql"))]
#[doc = include_str!("../../../docs/middleware.md")]
struct Guide;

/// The front page of the package.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Package;

pub use body::Body;
pub use decide::{Decide, EngineDecider};
pub use future::ResponseFuture;
pub use hold::{HeldPermits, InFlight};
pub use layer::RateLimitLayer;
pub use service::{RateLimit, Waited};
pub use settle::{Settle, Unanswered, Unserved};
pub use state::Refused;
