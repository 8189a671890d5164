//! The real program among the real programs of others: servers of Redis, Envoy and other proxies, web frameworks,
//! clients, and what judges metrics and descriptions.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets the unexpected fails, and says where"
)]

use tollgate_testkit::{admin, gateway_upstream, guide, http as raw_http, pki, program, proxy, redis, rls};

mod browser;
mod cached;
mod caddy;
mod client_packages;
mod clients_guide;
mod compose;
mod console;
mod dashboards;
mod deploy;
mod envoy;
mod examples;
mod far_store;
mod fleet;
mod fleet_guide;
mod frameworks;
mod gateway_fleet;
mod gateway_framing;
mod gateway_upstream_connections;
mod gateway_sticky;
mod grants;
mod haproxy;
mod hot_keys;
mod identity;
mod metrics;
mod new_cluster;
mod nginx;
mod openapi;
mod operations;
mod outbound_fleet;
mod outbound_limits;
mod outbound_sdks;
mod prometheus;
mod redis_guide;
mod resp_clients;
mod resp_guide;
mod rlqs;
mod rlqs_envoy;
mod share;
mod shared;
mod shared_compat;
mod store_check;
mod tutorial;
