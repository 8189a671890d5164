//! The store on real servers: Redis and Valkey, alone, in a cluster, behind Sentinel and inside TLS; in good and in bad times.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets the unexpected fails, and says where"
)]

mod bystander;
mod checker;
mod cluster;
mod conformance;
mod examples;
mod faults;
mod fleet;
mod kept;
mod leases;
mod live;
mod processes;
mod proxy;
mod record;
mod scratch;
mod sentinel;
mod server;
mod slots;
mod starters;
mod store;
mod ways;
