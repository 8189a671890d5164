//! The layers around services: which requests pass, how others are refused, and what happens at the end of a request.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod ends;
mod examples;
mod graphql;
mod identity;
#[path = "../../../tollgate/tests/it/ideal.rs"]
mod ideal;
mod limited;

mod passing;
mod queue_ideal;
mod queue_order;
mod shaping;
mod shed;
mod spellings;
mod unserved;
mod wall;
