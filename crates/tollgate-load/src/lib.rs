//! A load generator for rate-limit services: it sends one request over and over, on many connections, and reports
//! how fast and how correctly it was answered. `tollgate bench` is its command line; [`run`] is all of it as a function.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use tollgate_load::{LoadRequest, Pace, Plan};
//!
//! # async fn measure() -> Result<(), Box<dyn std::error::Error>> {
//! let plan = Plan {
//!     target: "127.0.0.1:8080".parse()?,
//!     question: LoadRequest::Http {
//!         path: "/v1/check".to_owned(),
//!         body: r#"{"attributes": {"api_key": "{key}"}}"#.to_owned(),
//!         decisions: 1,
//!     },
//!     connections: 8,
//!     pipeline: 1,
//!     keys: 1_000,
//!     pace: Pace::Open { per_second: 5_000 },
//!     warmup: Duration::from_secs(1),
//!     duration: Duration::from_secs(10),
//! };
//! let summary = tollgate_load::run(&plan, |percent| eprintln!("{percent} %")).await?;
//! println!("{} decisions a second, p99 {:?}", summary.per_second(), summary.latency_of(99_000));
//! # Ok(())
//! # }
//! ```
//!
//! - *Closed loop* ([`Pace::Closed`]): each connection sends as fast as it is answered. The result is the throughput.
//! - *Open loop* ([`Pace::Open`]): requests are due at fixed instants, and latency counts from when a request was *due*.
//!   A server that stalls is not excused because the generator waited with it.
//!
//! | item | what it is |
//! |---|---|
//! | [`Plan`] | the server, the [`LoadRequest`], and the [`Pace`] |
//! | [`run`] | runs a plan |
//! | [`Summary`] | the decisions, the latencies and, as far as the answers show it, why requests were denied ([`Details`]) |
//! | [`plot`] | draws latency against load as text |
//!
//! The crate reads of each protocol only what it needs to find the end of an answer and its verdict, because a general
//! client costs more than the server it measures. It knows nothing of Tollgate's server: any service that speaks
//! HTTP/1.1 with JSON, RESP or gRPC can be measured. It does not speak TLS.

mod error;
mod details;
mod request;
mod plan;
mod summary;
mod reply;
mod connect;
mod grpc;
mod connection;
mod run;
pub mod plot;

pub use details::Details;
pub use error::LoadError;
pub use plan::{Pace, Plan};
pub use request::{LoadRequest, Protocol, key_placeholder};
pub use run::run;
pub use summary::Summary;

/// The front page of the package, so that `cargo test` compiles its example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Package;
