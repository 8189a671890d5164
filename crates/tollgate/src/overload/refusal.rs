//! What is told to whom there is no capacity for. The status and the words are left to [`crate::headers`].

use std::fmt;

use super::priority::Priority;
use super::statistics::ONE;

/// The controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Controller {
    /// Keeps a share of the fleet's capacity for critical traffic.
    Fleet,
    /// Sheds by priority as this worker gets busy.
    Worker,
    /// The limit of places in flight that follows latency.
    Concurrency,
    /// The rate that follows latency.
    Rate,
    /// The line in which requests wait for a place.
    Queue,
}

impl Controller {
    /// All of them.
    pub const ALL: [Controller; 5] =
        [Controller::Fleet, Controller::Worker, Controller::Concurrency, Controller::Rate, Controller::Queue];

    /// Its name, in metrics and in answers.
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
    /// The fleet's capacity for what is not critical is used up, or all of it.
    Capacity,
    /// This worker is busy, and the request matters less than others.
    Shed,
    /// As many are in flight as what is behind can serve.
    Concurrency,
    /// As many came as what is behind can serve in time.
    Rate,
    /// No place was free, and as many wait already as may.
    QueueFull,
    /// It waited for a place for too long.
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

    /// The controller that refuses for it.
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

    /// What it refuses with, no more being known than that it does.
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

/// A request for which there was no capacity. [`Answer::of_refusal`](crate::Answer::of_refusal) makes a 503 of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub cause: Cause,
    /// How much the request matters.
    pub priority: Priority,
    /// The share of such requests that are refused now, in thousandths, as far as it is known: the higher, the later they are asked to
    /// come back.
    pub pressure: u64,
}

impl Refusal {
    /// The controller that refused.
    #[must_use]
    pub const fn controller(&self) -> Controller {
        self.cause.controller()
    }

    /// The same, where so many thousandths of such requests are refused.
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
