//! Overload: what is refused when the service itself is short of capacity, whatever the caller's own quota says. The answer is a 503,
//! never a 429. Request rates and places in flight of single callers are ordinary limits of a policy; here are the controllers that look at
//! the service.
//!
//! The way of a request: [`Rules`] say how much it matters, [`FleetShedder`] whether the fleet has room for it, [`WorkerShedder`] whether
//! this worker has, [`AdaptiveRate`] and [`AdaptiveLimit`] whether what is behind keeps up; who finds no place waits in a [`Line`]. A
//! [`Refusal`] names its cause and becomes an answer. [`Plan`] is all of that read from a file, and [`Controllers`] what it means at work.
//!
//! Nothing here reads a clock or waits: `now` is an argument, and waiting is left to who has a runtime. A caller's way through it:
//!
//! ```
//! use tollgate::overload::{AdaptiveLimit, Ending, LimitSettings};
//! use tollgate::{Ticks, Timestamp};
//!
//! let limit = AdaptiveLimit::new(LimitSettings::default());
//! let now = Timestamp::from_unix_seconds(1_700_000_000);
//! if let Some(ticket) = limit.begin(now) {
//!     // The request is served here.
//!     limit.end(ticket, now + Ticks::from_millis(12), Ending::Success);
//! }
//! assert_eq!(limit.report(now).in_flight, Some(0));
//! ```

mod priority;
mod switch;
mod statistics;
mod window;
mod fleet;
mod worker;
mod estimate;
mod limit;
mod rate;
mod line;
mod refusal;
mod report;
mod document;
mod compile;
mod controllers;
#[cfg(test)]
mod tests;

pub use compile::{PRIORITY_RULES_MAX, Plan};
pub use controllers::{Controllers, Entry, Pass};
pub use document::{FleetScope, FleetSettings, LineSettings, QUEUE_MAX};
pub use fleet::FleetShedder;
pub use limit::{AdaptiveLimit, Ending, LIMIT_MAX, LimitSettings, Ticket};
pub use line::{Line, Next, Place, Pushed, Stays};
pub use priority::{Priority, Rule, Rules};
pub use rate::{AdaptiveRate, RateSettings};
pub use refusal::{Cause, Controller, Refusal};
pub use report::{Reason, Report};
pub use switch::Switch;
pub use worker::{Load, WorkerSettings, WorkerShedder};
