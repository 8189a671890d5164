//! Refusals for lack of capacity, and their answers. The status and the texts are in [`tollgate::headers`].

use std::fmt;

use tollgate::headers::{Answer, Audience, HeaderPolicy, Overload};
use tollgate::time::Timestamp;

use crate::priority::Priority;
use crate::statistics::ONE;

/// A controller of overload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Controller {
    /// Keeps a share of the fleet's capacity for critical traffic.
    Fleet,
    /// Sheds by priority as this worker gets busy.
    Worker,
    /// The concurrency limit that follows latency.
    Concurrency,
    /// The rate that follows latency.
    Rate,
    /// The queue in which requests wait for a permit.
    Queue,
}

impl Controller {
    /// All controllers.
    pub const ALL: [Controller; 5] =
        [Controller::Fleet, Controller::Worker, Controller::Concurrency, Controller::Rate, Controller::Queue];

    /// The name in metrics and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Controller::Fleet => "fleet-shedder",
            Controller::Worker => "worker-shedder",
            Controller::Concurrency => "adaptive-concurrency",
            Controller::Rate => "adaptive-rate",
            Controller::Queue => "queue",
        }
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why there was no capacity for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The fleet's capacity is used up, except for the reserve of critical traffic.
    Capacity,
    /// The worker is busy and sheds this priority.
    Shed,
    /// The concurrency limit is reached.
    Concurrency,
    /// The adaptive rate is reached.
    Rate,
    /// No permit was free, and the queue is full.
    QueueFull,
    /// It waited too long for a permit.
    QueueDelay,
    /// It would have been answered too late.
    Deadline,
}

impl Cause {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Cause::Capacity => "capacity-reserved",
            Cause::Shed => "shed",
            Cause::Concurrency => "concurrency-limit",
            Cause::Rate => "rate-limit",
            Cause::QueueFull => "queue-full",
            Cause::QueueDelay => "queue-delay",
            Cause::Deadline => "deadline",
        }
    }

    /// The controller that refuses for this cause.
    #[must_use]
    pub const fn controller(self) -> Controller {
        match self {
            Cause::Capacity => Controller::Fleet,
            Cause::Shed => Controller::Worker,
            Cause::Concurrency => Controller::Concurrency,
            Cause::Rate => Controller::Rate,
            Cause::QueueFull | Cause::QueueDelay | Cause::Deadline => Controller::Queue,
        }
    }

    /// A refusal for this cause, without a known pressure.
    #[must_use]
    pub const fn refusal(self, priority: Priority) -> Refusal {
        Refusal { cause: self, priority, pressure: 0 }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A refusal for lack of capacity. [`Refusal::answer`] turns it into a 503.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The cause.
    pub cause: Cause,
    /// The priority of the request.
    pub priority: Priority,
    /// The share of such requests that are refused now, in thousandths, if it is known. The higher it is, the
    /// longer is the `Retry-After`.
    pub pressure: u64,
}

impl Refusal {
    /// The controller that refused.
    #[must_use]
    pub const fn controller(&self) -> Controller {
        self.cause.controller()
    }

    /// The answer to the caller, at a wall time: a 503, never a 429. `identity` is a hash of the caller: the same caller
    /// gets the same `Retry-After` for a while, and other callers get others.
    #[must_use]
    pub fn answer(&self, policy: &HeaderPolicy, audience: Audience, identity: u64, now: Timestamp) -> Answer {
        let Self { cause, priority, pressure } = *self;
        let overload = Overload {
            controller: self.controller().as_str(),
            priority: priority.as_str(),
            cause: cause.as_str(),
            pressure,
        };
        Answer::of_overload(&overload, policy, audience, identity, now)
    }

    /// Sets the share of such requests that are refused, in thousandths.
    #[must_use]
    pub fn with_pressure(self, pressure: u64) -> Self {
        Self { pressure: pressure.min(ONE), ..self }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.controller(), self.cause, self.priority)
    }
}
