//! The common part of the comparisons of the shared store.

pub mod server;
pub mod zipf;

/// An error, as the user reads it.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
