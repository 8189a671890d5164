//! The settings of the fleet shedder and of the queue.

use crate::policy::Mode;
use crate::rate::Rate;
use crate::time::Ticks;

/// Maximum size of a queue.
pub const QUEUE_MAX: usize = 100_000;

/// The scope of a capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FleetScope {
    /// All nodes share it: counted in the shared store, by leases.
    #[default]
    Fleet,
    /// Each node has it: counted in memory.
    Node,
}

/// A capacity and its reserve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetSettings {
    /// The capacity of all traffic.
    pub capacity: Rate,
    /// The share that only critical traffic may use, in thousandths.
    pub reserve: u64,
    /// Whether the fleet shares it or each node has it.
    pub scope: FleetScope,
    /// Whether it refuses requests.
    pub mode: Mode,
}

/// How requests wait for a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// The maximum number of waiters. By default it follows the concurrency limit.
    pub size: Option<usize>,
    /// The queueing delay of the oldest waiter that is too long if it lasts for an interval. By default at
    /// least a tenth of the median latency.
    pub target: Ticks,
    /// How long the delay must last, and the longest wait until then.
    pub interval: Ticks,
    /// Whether it refuses requests. In shadow it only counts those it would refuse.
    pub mode: Mode,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            size: None,
            target: Ticks::from_millis(5),
            interval: Ticks::from_millis(100),
            mode: Mode::Enforce,
        }
    }
}
