//! Tollgate's counters in Redis or Valkey: the same decisions as memory, one round trip each, for a whole fleet.
#![allow(dead_code, reason = "under construction")]
mod breaker;
mod key;
mod link;
mod script;
mod settings;

pub use settings::{Host, Nodes, Place, Settings, SettingsError, TlsFiles};
