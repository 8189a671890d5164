//! The services that the gateway needs of the program around it, apart from decisions.

use tollgate::Timestamp;

/// The program around the gateway: it counts what the gateway does.
pub trait Program: Send + Sync + 'static {
    /// A client has connected. Its connection is open until the returned value is dropped.
    fn opened(&self) -> Box<dyn Send>;

    /// The wall clock's time now.
    fn wall_now(&self) -> Timestamp;

    /// Why no request can be decided now, if so.
    fn refuses(&self) -> Option<String>;

    /// Whether there was capacity for a request that the limits admitted.
    fn record_capacity(&self, capacity: Capacity);
}

/// The result of the capacity check for a request that limits admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// There was capacity.
    Passed,
    /// There was capacity, after a wait in the queue of a limit.
    PassedLate,
    /// There was no capacity.
    Shed,
}
