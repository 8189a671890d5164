//! The real program: started on a free port, asked over raw HTTP, stopped by signals, and called as a command.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets the unexpected fails, and says where"
)]

mod agreement;
mod authz;
mod auth;
mod bad_input;
mod caddy;
mod check;
mod commands;
mod deploy;
mod fuzz;
mod envoy;
mod grpc;
mod grpc_lifecycle;
mod guide;
mod haproxy;
mod holds;
mod lifecycle;
mod load;
mod logs;
mod metrics;
mod nginx;
mod openapi;
mod operate;
mod pki;
mod program;
mod proxy;
mod reload;
mod resp;
mod rls;
mod runbook;
mod scratch;
mod tls;
mod traces;
mod wire;
