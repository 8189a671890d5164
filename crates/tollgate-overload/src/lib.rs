//! Overload protection: refuses requests when the service itself is short of capacity, whatever the caller's quota is.
//! The answer is a 503, never a 429. Rates and concurrency of single callers are ordinary limits of a policy; these
//! controllers protect the service.
//!
//! In the order in which a request meets them:
//!
//! | type | what it does |
//! |---|---|
//! | [`Plan`], [`Controllers`] | are the compiled configuration, and the controllers that are built from it |
//! | [`Rules`] | assign the priority |
//! | [`FleetShedder`] | checks the fleet's capacity |
//! | [`WorkerShedder`] | checks the load of this worker |
//! | [`AdaptiveRate`], [`AdaptiveLimit`] | check whether the upstream keeps up |
//! | [`WaitQueue`] | is where a request without a permit waits |
//! | [`Refusal`] | names its cause, and becomes an answer |
//!
//! Nothing here reads a clock or waits: `now` is an argument, and waiting is left to the owner. An example:
//!
//! ```
//! use tollgate_overload::{AdaptiveLimit, Ending, LimitSettings};
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
mod refusal;
mod report;
mod document;
mod fleet;
mod worker;
mod estimate;
mod limit;
mod rate;
mod queue;
mod compile;
mod controllers;
#[cfg(test)]
mod tests;

pub use compile::{PRIORITY_RULES_MAX, Plan};
pub use controllers::{Controllers, EntryDecision, Pass};
pub use document::{FleetScope, FleetSettings, LIMIT_MAX, LimitSettings, QUEUE_MAX, QueueSettings};
pub use fleet::FleetShedder;
pub use limit::{AdaptiveLimit, Ending, Ticket};
pub use priority::{Priority, Rule, Rules};
pub use queue::{PushOutcome, QueueAction, WaitQueue, WaitStatus, WaiterId};
pub use rate::{AdaptiveRate, RateSettings};
pub use refusal::{Cause, Controller, Refusal};
pub use report::{ChangeReason, ControllerReport};
pub use switch::Switch;
pub use worker::{Load, WorkerSettings, WorkerShedder};
