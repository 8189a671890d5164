//! Tollgate's core: every rate-limiting algorithm, the memory store, the policy file, and decisions about requests.
//! It knows neither sockets nor an async runtime.
//!
//! ```
//! # #[cfg(feature = "policy")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tollgate::{CheckRequest, Engine, Gate};
//!
//! // One limit.
//! let gate = Gate::keyed("5/min")?;
//! assert!(gate.check("user-42").is_allowed());
//!
//! // A policy; or of a file: Engine::open("policy.yaml")?
//! let policy = "limits: [{name: per-key, by: [api_key], rate: 100/s, burst: 200}]".parse()?;
//! let engine = Engine::builder().policy(policy).build();
//! let request = CheckRequest::new().with("api_key", "k-42")?;
//! assert!(engine.try_check(&request, engine.now())?.is_allowed());
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "policy"))]
//! # fn main() {}
//! ```
//!
//! | to | see |
//! |---|---|
//! | limit one thing in a program, or wait for it | [`Gate`], [`KeyedGate`] |
//! | decide by a file of limits | `Engine`, `Policy`, `CheckRequest`, `Decision` |
//! | answer over HTTP | `Answer`, `HeaderPolicy`; the crate `tollgate-tower` for tower services |
//! | count for a fleet | `EngineBuilder::store` with `RedisStore` of the crate `tollgate-redis` |
//! | control time in a test | [`ManualClock`] |
//! | copy a solution | the module `cookbook` |
//!
//! The modules are in the order in which they build on each other: a module uses those above it, never below. First
//! what one limit needs (time, rates, algorithms, keys, stores), up to [`Gate`]. Then, with the feature `policy`, what
//! a policy needs: the request, the limits that match it, the decision, its headers, leases, and the `Engine`.
//!
//! | feature | adds |
//! |---|---|
//! | `policy` (default) | policy files with CEL, the `Engine`, decisions, headers, leases; `calendar` with it |
//! | `calendar` | fixed windows that follow the calendar of a time zone, with the database of time zones |
//! | `reload` | `Engine::open` follows its policy file; needs `policy` |
//! | `conformance` | the suite that every store must pass; needs `policy` |
//!
//! With `default-features = false` the crate is [`Gate`], [`KeyedGate`], [`MemoryStore`] and the algorithms, on at most
//! 15 crates in all; with `policy` it needs about 70 crates.

// The build with `policy` finds dead code. Without it, the parts of the memory store that serve an engine are unused.
#![cfg_attr(not(feature = "policy"), allow(dead_code, unused_imports, reason = "only the engine uses it"))]

pub mod time;
#[cfg(test)]
mod counted;
pub mod clock;
mod problem;
pub mod rate;
pub mod outcome;
pub mod algorithm;
mod rate_text;
pub mod quota;
pub mod key;
pub mod departure;
#[doc(hidden)]
pub mod together;
pub mod store;
mod sync;
pub mod memory;
pub mod gate;

#[cfg(feature = "policy")]
pub mod credential;
#[cfg(feature = "policy")]
pub mod host;
#[cfg(feature = "policy")]
pub mod path;
#[cfg(feature = "policy")]
pub mod request;
#[cfg(feature = "policy")]
pub mod address;
#[cfg(feature = "policy")]
pub mod policy;
#[cfg(feature = "policy")]
pub mod decision;
#[cfg(feature = "policy")]
pub mod headers;
#[cfg(feature = "policy")]
pub mod lease;
#[cfg(feature = "policy")]
mod overrides;
#[cfg(feature = "policy")]
mod active;
#[cfg(feature = "policy")]
mod fallback;
#[cfg(feature = "policy")]
pub mod engine;
#[cfg(all(feature = "policy", feature = "conformance"))]
pub mod conformance;
#[cfg(all(feature = "policy", feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(all(doctest, feature = "policy"))]
mod documents;
#[cfg(all(any(doc, doctest), feature = "policy"))]
pub mod cookbook;

pub use clock::{Clock, ManualClock};
pub use gate::{Gate, KeyedGate, NotReady};
pub use key::Secret;
pub use memory::MemoryStore;
pub use outcome::{Outcome, Source, Verdict};
pub use quota::Quota;
pub use rate::{QuotaError, Rate};
pub use store::Enforcement;
pub use time::{Ticks, Timestamp};

#[cfg(feature = "policy")]
pub use {
    credential::CredentialDigest,
    decision::{Block, Decision, LimitStatus, Permit, Reason},
    engine::{
        Engine, EngineBuilder, ExpiringOverride, LimitOverride, Reservation, Scope, Snapshot, SwapReport,
    },
    headers::{Answer, Audience, HeaderPolicy},
    policy::{Policy, PolicyError},
    request::{CheckRequest, RequestError, Value},
};
