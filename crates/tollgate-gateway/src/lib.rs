//! A reverse proxy that limits: HTTP/1.1 and HTTP/2 on both sides, routes, client shares, health checks, retries,
//! tunnels, and the cost of GraphQL. It limits by `tollgate-tower`'s middleware and sheds by `tollgate-overload`.
//!
//! - [`compile`] turns the routes of a config into [`RoutePlan`]s and reports every problem at once.
//! - [`Gateway::new`] builds the proxy. The program around it decides (`tollgate_tower::Decide`), and as a
//!   [`Program`] tells the time and counts.
//! - [`connection`] serves one connection of a client; accepting connections is left to the program. [`listen`] has the
//!   pieces that its listeners share with the gateway.
//! - [`Gateway::metrics`] has the numbers of upstreams and of slow clients.
//!
//! The crate knows neither policy files nor the server. The page of its module `gateway::http1` says what HTTP/1 it
//! accepts, and why that is not hyper.

// Leaves, which programs around a gateway use too.
pub mod shutdown;
pub mod log_throttle;
pub mod random;
pub mod disk;
pub mod pem;
pub mod time_text;
pub mod problem;
pub mod listen;
mod gateway;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use gateway::fuzzing;
pub use gateway::{
    CLASSES, Capacity, FAILURES, Gateway, HeaderNames, Metrics, Program, RouteDocument, RoutePlan, Settings,
    Taking, Target, UpstreamSeries, compile, connection,
};
