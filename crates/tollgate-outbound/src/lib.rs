//! Calls to other people's APIs within their limits: shape, learn from headers, freeze, retry.

pub mod signal;
mod call;
mod refusal;

pub use call::{Call, Priority};
pub use refusal::{Numbers, Refusal};
pub use signal::{Signals, Throttle, ThrottleKind, ThrottleScope, Window, WindowUnit};
