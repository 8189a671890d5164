//! Fixtures for the tests of several crates. Only tests depend on it. Like them it panics when something fails.
//!
//! Always there: temporary directories, free ports, waiting for other processes, certificates, a provider of an API
//! that counts, and a real Redis.
//! With the feature `server` also the program `tollgate` as a child process, clients of its protocols, and the programs
//! around it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "it is part of tests, which fail by panicking"
)]
#![allow(missing_docs, reason = "tests show what its names are for")]

pub mod pki;
mod scratch;
mod wait;
pub mod redis;
pub mod provider;

#[cfg(feature = "server")]
pub mod program;
#[cfg(feature = "server")]
pub mod http;
#[cfg(feature = "server")]
pub mod ask;
#[cfg(feature = "server")]
pub mod tls;
#[cfg(feature = "server")]
pub mod rls;
#[cfg(feature = "server")]
pub mod rlqs;
#[cfg(feature = "server")]
pub mod admin;
#[cfg(feature = "server")]
pub mod guide;
#[cfg(feature = "server")]
pub mod example;
#[cfg(feature = "server")]
pub mod proxy;
#[cfg(feature = "server")]
pub mod api_server;
#[cfg(feature = "server")]
pub mod gateway_upstream;
#[cfg(feature = "server")]
pub mod identity;

pub use scratch::{Scratch, folder};
pub use wait::{free_port, rest, until};
