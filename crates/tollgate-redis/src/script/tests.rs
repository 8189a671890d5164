//! The script on a real Redis, beside the Rust functions that it is the twin of.

mod conformance;
mod differential;
mod server;
mod twin;
