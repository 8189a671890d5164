//! Tollgate's core: every rate-limiting algorithm, the memory store, the policy file, and decisions about requests.
//! It knows neither sockets nor an async runtime.
//!
//! The modules stand in the order in which they build on each other: a module uses those above it, never below. First
//! what one limit needs (time, rates, algorithms, keys, stores), up to [`Gate`]. Then, with the feature `policy`, what a
//! policy needs: the request, the limits that match it, the decision, its headers, leases, and the `Engine`.
//!
//! | feature | adds |
//! |---|---|
//! | `policy` (default) | policy files with CEL, the `Engine`, decisions, headers, leases, overload protection; `calendar` with it |
//! | `calendar` | fixed windows that follow the calendar of a time zone, with the database of time zones |
//! | `conformance` | the suite that every store must pass; needs `policy` |
//!
//! With `default-features = false` the crate is [`Gate`], [`KeyedGate`], [`MemoryStore`] and the algorithms, on 15 crates
//! in all:
//!
//! ```
//! use tollgate::{Gate, Quota, Rate};
//! let gate = Gate::new(Quota::token_bucket(Rate::per_second(10).burst(20))?);
//! assert!(gate.check().is_allowed());
//! # Ok::<(), tollgate::QuotaError>(())
//! ```

// The build with `policy` finds dead code. Without it, what the memory store does for an engine is unused.
#![cfg_attr(not(feature = "policy"), allow(dead_code, unused_imports, reason = "only the engine uses it"))]

pub mod time;
mod clock;
pub mod rate;
mod outcome;
pub mod algorithm;
pub mod quota;
mod key;
pub mod departure;
pub mod store;
mod sync;
pub mod memory;
mod gate;

#[cfg(feature = "policy")]
mod credential;
#[cfg(feature = "policy")]
pub mod host;
#[cfg(feature = "policy")]
pub mod path;
#[cfg(feature = "policy")]
mod request;
#[cfg(feature = "policy")]
pub mod address;
#[cfg(feature = "policy")]
pub mod policy;
#[cfg(feature = "policy")]
mod decision;
#[cfg(feature = "policy")]
pub mod overload;
#[cfg(feature = "policy")]
pub mod headers;
#[cfg(feature = "policy")]
pub mod lease;
#[cfg(feature = "policy")]
mod engine;
#[cfg(feature = "policy")]
#[doc(hidden)]
pub mod together;
#[cfg(all(feature = "policy", feature = "conformance"))]
pub mod conformance;
#[cfg(all(feature = "policy", feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(all(doctest, feature = "policy"))]
mod documents;

pub use algorithm::Charged;
pub use clock::{Clock, ManualClock, Sleep};
pub use gate::{Acquiring, Gate, GateBuilder, GateKey, InFlight, KeyHasher, KeyedGate, NotReady, Ready};
pub use key::{KeyFamily, Secret};
pub use memory::MemoryStore;
pub use outcome::{Outcome, Source, Verdict};
pub use quota::Quota;
pub use rate::{QuotaError, Rate};
pub use store::Stance;
pub use time::{Ticks, Timestamp, WallOffset};

#[cfg(feature = "policy")]
pub use {
    credential::{CREDENTIAL, CredentialAttributes, CredentialDigest},
    decision::{Block, Decision, LimitStatus, Permit, Reason},
    engine::{
        BLOCK_ATTRIBUTES_MAX, BLOCKS_MAX, BlockError, CommitError, Counted, DEBTS_MAX, Engine, Explained,
        Explanation, Forgotten, LIMITS_EXPLAINED_MAX, RULINGS_MAX, Replayed, Reservation, RestoreError,
        RestoreReport, Ruled, Ruling, RulingError, SNAPSHOT_PART_BYTES_MAX, SNAPSHOT_VERSION, Scope, Settled,
        Snapshot, SnapshotError, SnapshotReport, StandIn, State, SwapError, SwapReport, Tally, Turn,
    },
    headers::{Answer, Audience, HeaderPolicy},
    path::loose_path,
    policy::{Fault, Policy},
    request::{
        ATTRIBUTES_MAX, Attribute, COST_MAX, CheckRequest, NAME_BYTES_MAX, RequestError, SPELLINGS_MAX,
        Spelling, VALUE_BYTES_MAX, VIEWS_MAX, Value,
    },
};
