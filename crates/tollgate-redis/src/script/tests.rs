//! The script on a real Redis, beside the Rust functions that it is the twin of.

mod batches;
mod bytes;
mod conformance;
mod differential;
mod direct;
mod hostile;
mod lives;
mod loans;
mod properties;
mod server;
mod twin;
