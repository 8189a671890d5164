//! Configurations of envoyproxy/ratelimit and Limitador, used unchanged: which format a file has, what it means, how it
//! answers, and how it is written as a Tollgate policy. Each format decides by its own rules; its counters live in the
//! store of a [`tollgate::Engine`] with all others.
//!
//! ```
//! use tollgate_compat::{CompatConfig, Format, Source};
//!
//! let file = "domain: shop
//! descriptors:
//!   - key: user
//!     rate_limit: { unit: minute, requests_per_unit: 10 }
//! ";
//! let source = Source { name: "ratelimit.yaml".to_owned(), bytes: file.as_bytes().to_vec() };
//! let format = Format::of(&source.bytes);
//! assert_eq!(format, Format::Envoy);
//!
//! let (config, warnings) = CompatConfig::compile(format, &[source])?;
//! assert!(warnings.is_empty());
//! assert_eq!(config.sentences(), ["shop: each user: 10 requests a minute"]);
//!
//! let converted = config.converted(None)?;
//! assert!(converted.text.contains("rate: 10/min"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! 1. [`Format::of`] detects a file's format, and [`CompatConfig::compile`] reads the files of a configuration with every
//!    problem at once, in the words of the policy compiler.
//! 2. [`ActiveConfig::new`] activates it on an engine, and [`ActiveConfig::answer`] answers a question of Envoy's rate-limit
//!    service ([`rls`]).
//! 3. [`CompatConfig::converted`] writes one domain as a policy, with a comment for each rule that a policy cannot express.
//!
//! | module | what it has |
//! |---|---|
//! | [`rls`] | questions and answers of Envoy's rate-limit service |
//! | [`envoy`] | the files of envoyproxy/ratelimit, and how they answer |
//! | [`limitador`] | the files of Limitador, and how they answer |
//! | [`counters`] | the windows of both, in the store of an engine |
//! | [`text`], [`plain`] | text from outside, made safe to show |
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
pub use rule::{Answered, Numbered, Options, REQUEST_LIMIT, Rule};

/// The front page of the package, so that `cargo test` compiles its example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Package;
