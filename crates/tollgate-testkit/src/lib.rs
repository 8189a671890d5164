//! What the tests of several crates share: temporary directories, free ports, waiting for other processes, and
//! certificates. Only tests depend on it. Like them it panics when something fails.

#![allow(clippy::unwrap_used, clippy::panic, reason = "it is part of tests, which fail by panicking")]

pub mod pki;
mod scratch;
mod wait;

pub use scratch::{Scratch, folder};
pub use wait::{free_port, rest, until};
