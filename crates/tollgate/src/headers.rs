//! The answer to a caller: status, headers and body, as pure functions of a decision. The wall time is an argument, and
//! the output is text, so that any HTTP stack may send it. Reading requests and writing responses is left to the
//! protocols.
//!
//! The path of an answer: decision → `reading` (the numbers of each enforced limit) → `sheet` (which of them are shown)
//! → the dialects that the operator chose → [`HeaderList`], and for a refusal a [`Body`].
//!
//! Left to the protocols: no quota header belongs on a 3xx or 304, an answer from a cache, a CORS preflight or a health
//! check, and the epoch seconds of `x-ratelimit` need a `Date` beside them.

mod answer;
mod body;
mod dialect;
mod ietf;
pub(crate) mod jitter;
mod list;
mod policy;
mod reading;
mod sheet;
mod structured;
mod vendor;

pub use answer::Answer;
pub use body::{Body, Overload};
pub use dialect::{Dialect, DialectConflict, Dialects, access_control_expose_headers};
pub use list::{FIELD_BYTES_MAX, HEADERS_MAX, HeaderList};
pub use policy::{
    Accepts, Audience, Caller, DenialStatus, Disclosure, Exposure, HeaderPolicy, Pacing, Unit, UnknownName,
};

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::fixture;
