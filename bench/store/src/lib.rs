//! What the comparisons of the shared store have in common.

pub mod server;
pub mod zipf;

/// What can go wrong, told to whoever started it.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
