//! A reverse proxy that limits: HTTP/1.1 and HTTP/2 on both sides, routes, client shares, health checks, retries,
//! tunnels, and the cost of GraphQL. It limits by `tollgate-tower`'s middleware and sheds by `tollgate-overload`.
//!
//! ```
//! let routes = r#"[{"path": "/v1", "upstreams": ["http://127.0.0.1:3000"]}]"#;
//! let mut problems = Vec::new();
//! let plans = tollgate_gateway::compile(serde_json::from_str(routes)?, &["api_key", "ip"], &mut problems);
//! assert!(plans.len() == 1 && problems.is_empty(), "{problems:?}");
//!
//! // Problems say what is wrong, where, and what is accepted.
//! let routes = r#"[{"path": "/v1", "upstreams": ["127.0.0.1:3000"]}]"#;
//! tollgate_gateway::compile(serde_json::from_str(routes)?, &[], &mut problems);
//! assert!(problems[0].starts_with("routes[0].upstreams[0]"), "{problems:?}");
//! # Ok::<(), serde_json::Error>(())
//! ```
//!
//! - [`compile`] turns the routes of a config into [`RoutePlan`]s and reports every problem at once.
//! - [`Gateway::new`] builds the proxy. The program around it decides (`tollgate_tower::Decide`), and as a
//!   [`Program`] tells the time and counts.
//! - [`connection()`] serves one connection of a client; accepting connections is left to the program. [`listen`] has
//!   the pieces that its listeners share with the gateway.
//! - [`UpstreamClient`] sends requests of the program's own, on connections as the gateway makes them.
//! - [`Gateway::metrics`] has the numbers of upstreams and of slow clients.
//!
//! | module | what it has |
//! |---|---|
//! | [`listen`] | connections of clients: their number, their idle time, their pace, the budget of upstream connections |
//! | [`problem`] | answers of the gateway itself, as RFC 9457 |
//! | [`disk`], [`pem`] | files and certificates, read with bounds |
//! | [`shutdown`], [`log_throttle`], [`random`], [`time_text`] | leaves that the program around a gateway needs too |
//!
//! The crate knows neither policy files nor the server. The page of its module `http1` says what HTTP/1 it accepts, and
//! why that is not hyper. The page of `gateway` names the modules that a request passes.

// Leaves, which programs around a gateway use too.
pub mod shutdown;
pub mod log_throttle;
pub mod random;
pub mod disk;
pub mod pem;
pub mod time_text;
pub mod problem;
pub mod listen;

// The config of routes, and the program around the gateway.
mod target;
mod paths;
mod graphql;
mod plan;
mod program;

// A request as it arrives.
mod buffer_pool;
mod cause;
mod http1;
mod field_rules;
mod websocket;
mod arrival;
mod fields;
mod shares;
mod trailers;
mod body_budget;
mod request_body;
mod upload;

// An upstream, and its answer.
mod failure;
mod metrics;
mod outgoing;
mod http1_client;
mod http2_client;
mod leaving;
mod pool;
mod upstream_body;
mod body;
mod dialer;
mod rendezvous;
mod health;
mod upstream;
mod client;
mod table;
mod tunnel;

// The way of a request, from its upstream to its client.
mod own;
mod proxy;
mod checks;
mod overload;
mod limited;
mod priced;
mod gateway;
mod filtered;
mod entry;
mod frames;
mod streams;
mod http1_server;
mod connection;

/// The parts of the gateway that the fuzz targets call.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::http1::framed;
}

pub use arrival::RequestSettings;
pub use client::{ClientFailure, ClientPlan, ClientRequestBody, ClientResponseBody, UpstreamClient};
pub use connection::connection;
pub use field_rules::HeaderNames;
pub use gateway::{Gateway, Metrics, Settings, file_problems};
pub use metrics::{CLASSES, FAILURES, UpstreamSeries};
pub use plan::{RouteDocument, RoutePlan, compile};
pub use program::{Capacity, Program};
pub use target::Target;

/// The front page of the package, so that `cargo test` compiles its example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Package;
