//! The real program: started on a free port, asked over raw HTTP, stopped by signals, and called as a command.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets the unexpected fails, and says where"
)]

use tollgate_testkit::{gateway_upstream, guide, http as raw_http, pki, program, proxy, rls};

mod admin;
mod admin_guide;
mod admin_verbs;
mod admin_views;
mod agreement;
mod authz;
mod auth;
mod bad_input;
mod busy;
mod check;
mod commands;
mod console;
mod compat;
mod first_steps;
mod config_page;
mod fuzz;
mod gateway;
mod gateway_answers;
mod gateway_connection_limits;
mod gateway_ends;
mod gateway_graphql;
mod gateway_gone;
mod gateway_guide;
mod gateway_h2;
mod gateway_limits;
mod gateway_overload;
mod gateway_routes;
mod gateway_shares;
mod gateway_slow;
mod gateway_trailers;
mod gateway_websocket;
mod gateway_http1;
mod grpc;
mod grpc_lifecycle;
mod connection_limits;
mod drain;
mod exit_statuses;
mod h2_conformance;
mod holds;
mod http_guide;
mod identity;
mod lifecycle;
mod links;
mod load;
mod logs;
mod metrics;
mod migrate;
mod operator_state;
mod outbound;
mod outbound_waves;
mod mistakes;
mod operate;
mod operate_tls;
mod pages;
mod picture;
mod paths;
mod policy_test;
mod reload;
mod replay;
mod resp;
mod rlqs;
mod runbook;
mod sites;
mod spelling;
mod suggest;
mod tls;
mod restart;
mod traces;
mod command_outcomes;
mod command_views;
mod unlimited;
