//! The store on real servers: Redis and Valkey, standalone, in a cluster, behind Sentinel and with TLS, with and
//! without faults.

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
mod outbound;
mod policy_change;
mod processes;
mod proxy;
mod record;
mod rig;
mod sentinel;
mod server;
mod slots;
mod store;
mod topologies;
