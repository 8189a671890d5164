//! Tollgate's counters in Redis or Valkey: the same decisions as memory, one round trip each, shared by a fleet.
//!
//! The modules in the order of a decision: [`Settings`] locate the store. `store` takes charges, `key` names their
//! counters, and `script` decides inside Redis. `client` submits requests, `batch` sends them, and `reply` says which
//! of them may be resent. Each shard has a `connection` and a `breaker`. `registry` agrees on quota tags across the
//! fleet, and `fleet` counts the nodes and shares the secret.

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
mod registry;

mod store;

pub use breaker::BreakerState;
pub use metrics::{LATENCY_BOUNDS, Report, ShardReport, UnservedSlot};
pub use reply::ReplyClass;
pub use settings::{ConnectError, Host, Nodes, Settings, SettingsError, TlsFiles, Topology};
pub use store::RedisStore;
