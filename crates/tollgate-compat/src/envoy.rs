//! envoyproxy/ratelimit's configuration: `file` reads it, `tree` finds the rule of a descriptor, `decide` decides by
//! the original's rules, `sentence` explains, `convert` writes a policy. Faults of the original are not repeated: parts
//! of keys never run together, counters of different units are different counters, and no request can make it panic.

pub(super) mod decide;
mod convert;
mod file;
mod sentence;
mod tree;

#[cfg(test)]
mod tests;

pub(super) use file::{compile, integer};
pub use tree::EnvoyConfig;
