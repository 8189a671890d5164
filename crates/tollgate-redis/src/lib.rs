//! Tollgate's counters in Redis or Valkey: the same decisions as memory, one round trip each, for a whole fleet.
//!
//! In the order of a decision: [`Settings`] say where the store is; [`RedisStore`] takes the charges; `key` names their counters,
//! `script` is what decides about them, inside of Redis, and `registry` the fleet's agreement on what stands in them; `link` carries
//! calls there and back in time, with a `breaker` for each shard. `health` tells the nodes of a fleet of each other.

mod breaker;
mod health;
mod key;
mod link;
mod registry;
mod script;
mod settings;
mod store;

pub use breaker::BreakerState;
pub use link::{Class, LATENCY_BOUNDS, Report, ShardReport, UnservedSlot};
pub use settings::{Host, Nodes, Place, Settings, SettingsError, TlsFiles};
pub use store::RedisStore;
