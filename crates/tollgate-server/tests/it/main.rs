//! The real program: started on a free port, asked over raw HTTP, stopped by signals, and called as a command.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets the unexpected fails, and says where"
)]

mod authz;
mod bad_input;
mod caddy;
mod check;
mod commands;
mod deploy;
mod fuzz;
mod guide;
mod haproxy;
mod holds;
mod lifecycle;
mod load;
mod nginx;
mod openapi;
mod program;
mod proxy;
mod resp;
mod wire;
