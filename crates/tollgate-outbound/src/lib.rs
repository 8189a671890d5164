//! The other side of a rate limit: calls to other people's APIs leave within their limits, and behave when they are
//! refused.
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use bytes::Bytes;
//! use http::Request;
//! use http_body_util::Full;
//! use tollgate_outbound::{Outbound, OutboundLayer};
//! use tower::{Layer, ServiceExt};
//! # let client = tower::service_fn(|_: Request<Full<Bytes>>| async {
//! #     Ok::<_, std::io::Error>(http::Response::new(Full::<Bytes>::default()))
//! # });
//!
//! let policy = "limits: [{name: payments, by: [host, api_key], algorithm: leaky-bucket, rate: 25/s, queue: 1000}]";
//! let outbound = Outbound::of_policy(policy.parse()?);
//! // Any client of `http` requests: hyper-util's, reqwest's, a channel of tonic.
//! let client = OutboundLayer::new(outbound.clone()).layer(client);
//! let request = Request::get("https://api.example.com/v1/charges").body(Full::default())?;
//! let response = client.oneshot(request).await?;
//! # Ok(())
//! # }
//! ```
//!
//! | to | see |
//! |---|---|
//! | put a client of hyper, reqwest or tonic within limits | [`OutboundLayer`]; `HttpClient` and `OutboundMiddleware` with the feature `reqwest` |
//! | use a client that is none of these | [`Outbound::acquire`], then [`Guard::settle`] |
//! | begin with a well-known provider | [`Preset`] |
//! | say how urgent a call is, and how long it may wait | [`Call`] |
//! | learn why a call did not leave, and until when | [`Refusal`], [`CallError`] |
//! | plan a batch | [`Outbound::forecast`] |
//! | share limits in a fleet | `Outbound::connect` with the feature `redis` |
//! | see what waits | [`Outbound::report`], [`metrics`] |
//! | see which buckets are frozen, and lift a freeze | [`Outbound::freezes`], [`Outbound::thaw`] |
//!
//! Each module uses only those above it: what a response says (`signal`, `dialect`), how long it
//! forbids calls (`freeze`), what a call asks for (`call`,
//! `refusal`, `retry`, `settings`), one bucket of a server (`costs`, `learned`, `pace`, `bucket`), the queues before all
//! buckets (`keys`, `queue`, `queues`, `slots`), what is shared and reported (`shared_freezes`, `report`, `metrics`,
//! `state`), the path of a call (`renewal`, `guard`, `reserved`, `waiting`, `outbound`), and the ways in (`preset`, `layer`,
//! `fleet`). To follow a call, start at `waiting`.
//!
//! | feature | adds |
//! |---|---|
//! | `reqwest` | reqwest as such a client, and middleware for reqwest-middleware |
//! | `redis` | limits and freezes of a fleet in Redis or Valkey |

pub mod signal;
pub mod dialect;
mod freeze;
mod call;
mod refusal;
mod random;
mod race;
mod retry;
mod settings;
mod background;
mod costs;
mod learned;
mod pace;
mod bucket;
mod keys;
mod queue;
mod queues;
mod slots;
mod shared_freezes;
mod report;
pub mod metrics;
mod state;
mod renewal;
mod guard;
mod reserved;
mod waiting;
mod outbound;
mod preset;
mod layer;
#[cfg(feature = "redis")]
mod fleet;

/// The guide, so that `cargo test` compiles and runs every example in it.
#[cfg(all(doctest, feature = "reqwest", feature = "redis"))]
#[doc = include_str!("../../../docs/outbound.md")]
struct Guide;

/// The front page of the package.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Package;

pub use call::{Call, Priority, Usage};
pub use dialect::ResponseView;
#[cfg(feature = "redis")]
pub use fleet::FleetStore;
pub use freeze::{Freeze, FreezeCause, Statement};
pub use guard::{Failure, Guard};
pub use layer::{
    BoxError, CallError, CloneBody, CopyBody, OutboundBody, OutboundLayer, OutboundLayerBuilder,
    OutboundService, RefusedBody, SendOnce, UsageReader,
};
#[cfg(feature = "reqwest")]
pub use layer::{HttpClient, OutboundMiddleware, copy_reqwest_body};
pub use learned::{Replenish, WindowReport};
pub use outbound::Outbound;
pub use preset::Preset;
pub use queues::BucketReport;
pub use refusal::{Basis, Refusal};
pub use report::{Forecast, Report, Totals};
pub use retry::RetrySettings;
pub use settings::{Learning, Settings};
pub use signal::{Signals, Throttle, ThrottleKind, ThrottleScope, Window, WindowUnit};
