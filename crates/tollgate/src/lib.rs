//! Tollgate's core: every rate-limiting algorithm, the policy file, the memory store, and decisions about requests.
//! The modules stand in the order of a decision: time and the question, the policy that matches it, the keys it counts by,
//! the charges to a store, and the answer with its headers. It knows neither sockets nor an async runtime.

pub mod algorithm;
mod decision;
pub mod headers;
mod outcome;
pub mod policy;
pub mod quota;
mod request;
pub mod time;

pub use decision::{Decision, Fault, LimitStatus, Source, Stance};
pub use headers::{Answer, Audience, HeaderPolicy};
pub use outcome::{Outcome, Verdict};
pub use quota::{Quota, QuotaError, Rate};
pub use request::{
    ATTRIBUTES_MAX, Attribute, COST_MAX, CheckRequest, NAME_BYTES_MAX, RequestError, VALUE_BYTES_MAX, Value,
};
pub use time::{Ticks, Timestamp};
