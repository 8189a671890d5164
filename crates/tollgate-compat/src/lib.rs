//! Configurations of envoyproxy/ratelimit and Limitador, used unchanged: which format a file has, what it means, how it
//! answers, and how it is written as a Tollgate policy. Each format decides by its own rules; its counters live in the
//! store of a [`tollgate::Engine`] with all others.
//!
//! 1. [`Format::of`] detects a file's format, and [`CompatConfig::compile`] reads the files of a configuration with every
//!    problem at once, in the words of the policy compiler.
//! 2. [`ActiveConfig::new`] activates it on an engine, and [`ActiveConfig::answer`] answers a question of Envoy's rate-limit
//!    service ([`rls`]).
//! 3. [`CompatConfig::converted`] writes one domain as a policy, with a comment for each rule that a policy cannot express.
//!
//! The crate knows neither sockets nor protocols: the caller decodes questions and encodes answers. Faults of the
//! originals that could panic, mix up keys or admit too much are not repeated; [`envoy`] and [`limitador`] name them.

pub mod text;
pub mod rls;
mod format;
mod rule;
pub mod counters;
mod convert;
pub mod envoy;
pub mod limitador;
mod config;
mod active;
pub mod plain;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod golden;

pub use active::ActiveConfig;
pub use config::{CompatConfig, guard, is_guard};
pub use convert::Conversion;
pub use format::{Format, Source};
pub use rule::{Answered, BROUGHT, Numbered, Options, Rule};
