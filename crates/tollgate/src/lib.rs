//! Tollgate's core: every rate-limiting algorithm, the policy file, the memory store, and decisions about requests.
//! The modules stand in the order of a decision: time and the question, the policy that matches it, the keys it counts by,
//! the charges to a store, and the answer with its headers. It knows neither sockets nor an async runtime.

pub mod time;
mod clock;
pub mod rate;
mod credential;
pub mod host;
pub mod path;
mod request;
pub mod address;
pub mod policy;
mod outcome;
pub mod algorithm;
pub mod quota;
mod key;
pub mod departure;
pub mod store;
pub mod memory;
mod sync;
mod decision;
pub mod headers;
pub mod lease;
mod engine;
pub mod overload;
mod gate;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(doctest)]
mod documents;
#[doc(hidden)]
pub mod together;

pub use algorithm::Charged;
pub use clock::{Clock, ManualClock, Sleep};
pub use credential::{CREDENTIAL, CredentialAttributes, CredentialDigest};
pub use decision::{Block, Decision, LimitStatus, Permit, Reason};
pub use engine::{
    BLOCK_ATTRIBUTES_MAX, BLOCKS_MAX, BlockError, CommitError, Counted, DEBTS_MAX, Engine, Explained,
    Explanation, Forgotten, LIMITS_EXPLAINED_MAX, RULINGS_MAX, Replayed, Reservation, RestoreError,
    RestoreReport, Ruled, Ruling, RulingError, SNAPSHOT_PART_BYTES_MAX, SNAPSHOT_VERSION, Scope, Settled,
    Snapshot, SnapshotError, SnapshotReport, StandIn, State, SwapError, SwapReport, Tally, Turn,
};
pub use gate::{Acquiring, Gate, GateBuilder, GateKey, InFlight, KeyHasher, KeyedGate, NotReady, Ready};
pub use headers::{Answer, Audience, HeaderPolicy};
pub use key::{KeyFamily, Secret};
pub use memory::MemoryStore;
pub use outcome::{Outcome, Source, Verdict};
pub use path::loose_path;
pub use policy::{Fault, Policy};
pub use quota::Quota;
pub use rate::{QuotaError, Rate};
pub use request::{
    ATTRIBUTES_MAX, Attribute, COST_MAX, CheckRequest, NAME_BYTES_MAX, RequestError, SPELLINGS_MAX, Spelling,
    VALUE_BYTES_MAX, VIEWS_MAX, Value,
};
pub use store::Stance;
pub use time::{Ticks, Timestamp, WallOffset};
