//! What the tests of several crates need: directories that go with their owner, free ports, patience, and certificates. Only tests
//! depend on it, and like them it panics where something is not as it should be.

#![allow(clippy::unwrap_used, clippy::panic, reason = "it is part of tests, which end by a panic")]

pub mod pki;
mod scratch;
mod wait;

pub use scratch::{Scratch, folder};
pub use wait::{free_port, rest, until};
