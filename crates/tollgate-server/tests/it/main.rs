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
mod bad_input;
mod check;
mod commands;
mod guide;
mod holds;
mod lifecycle;
mod program;
mod wire;
