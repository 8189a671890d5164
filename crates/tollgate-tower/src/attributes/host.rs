//! The host that a request names. Its one spelling is the engine's own, so that policies name hosts as requests have them.

pub use tollgate::host::Host;
