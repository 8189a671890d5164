//! The real program: started on a free port, asked over raw HTTP, stopped by signals, and called as a command.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets the unexpected fails, and says where"
)]

mod admin;
mod admin_guide;
mod admin_verbs;
mod admin_views;
mod agreement;
mod authz;
mod auth;
mod bad_input;
mod busy;
mod caddy;
mod check;
mod commands;
mod dashboards;
mod deploy;
mod envoy;
mod far_store;
mod compat;
mod frameworks;
mod fuzz;
mod gateway;
mod gateway_answers;
mod gateway_connection_limits;
mod gateway_ends;
mod gateway_framing;
mod gateway_graphql;
mod gateway_gone;
mod gateway_fleet;
mod gateway_guide;
mod gateway_h2;
mod gateway_limits;
mod gateway_overload;
mod gateway_routes;
mod gateway_shares;
mod gateway_slow;
mod gateway_sticky;
mod gateway_upstream_connections;
mod gateway_trailers;
mod gateway_upstream;
mod gateway_websocket;
mod gateway_http1;
mod grants;
mod grpc;
mod grpc_lifecycle;
mod connection_limits;
mod drain;
mod guide;
mod h2_conformance;
mod haproxy;
mod holds;
mod identity;
mod hot_keys;
mod lifecycle;
mod links;
mod load;
mod logs;
mod metrics;
mod migrate;
mod new_cluster;
mod nginx;
mod openapi;
mod operator_state;
mod operate;
mod operations;
mod operate_tls;
mod pages;
mod picture;
mod pki;
mod program;
mod proxy;
mod redis;
mod redis_guide;
mod reload;
mod resp;
mod rls;
mod rlqs;
mod rlqs_envoy;
mod runbook;
mod shared;
mod shared_compat;
mod sites;
mod spelling;
mod store_check;
mod tls;
mod restart;
mod traces;
mod command_outcomes;
mod command_views;
mod unlimited;
mod raw_http;
