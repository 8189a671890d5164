//! Tollgate's counters in Redis or Valkey: the same decisions as memory, one round trip each, shared by a fleet.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tollgate::{CheckRequest, Engine};
//! use tollgate_redis::RedisStore;
//!
//! let store = RedisStore::connect("redis://127.0.0.1:6379").await?;
//! let engine = Engine::builder().open("policy.yaml")?.store(store).build();
//! let request = CheckRequest::new().with("api_key", "k-42")?;
//! println!("{}", engine.check(&request, engine.now()).await.is_allowed());
//! # Ok(())
//! # }
//! ```
//!
//! | to | see |
//! |---|---|
//! | connect by a URL | [`RedisStore::connect`] |
//! | choose the topology, TLS, credentials, deadlines | [`Settings`] |
//! | see whether it serves, and how fast | [`Report`] |
//! | share operator state between the nodes of a fleet | [`FleetExchange`] |
//!
//! The modules in the order of a decision: `settings` locates the store. `store` takes charges, `key` names their
//! counters, and `script` decides inside Redis. `client` submits requests, `batch` sends them, and `reply` says which
//! of them may be resent. Each shard has a `connection` and a `breaker`. `registry` agrees on quota tags across the
//! fleet, `fleet` counts the nodes and shares the secret, and `shared_state` has what nodes share about themselves.

mod settings;

mod key;
mod random;
mod task;

mod script;

mod breaker;
mod reply;

mod metrics;

mod connection;
mod shard;
mod slots;

mod routing;

mod batch;
mod client;

mod fleet;
mod shared_state;
mod registry;

mod store;

pub use breaker::BreakerState;
pub use metrics::{LATENCY_BOUNDS, Report, ShardReport, UnservedSlot};
pub use reply::ReplyClass;
pub use settings::{ConnectError, Host, Nodes, Settings, SettingsError, TlsFiles, Topology};
pub use shared_state::{FleetExchange, FleetNews, FleetNode, SharedItem, SharedTopic, Written};
pub use store::RedisStore;

/// The front page of the package, so that `cargo test` compiles its example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Package;
