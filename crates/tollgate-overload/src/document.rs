//! The settings of the fleet shedder, of the concurrency limit and of the queue.

use tollgate::policy::Mode;
use tollgate::rate::Rate;
use tollgate::time::Ticks;

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

/// The largest concurrency limit.
pub const LIMIT_MAX: u32 = 1_000_000;

/// How a concurrency limit adapts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSettings {
    /// The lowest limit.
    pub min: u32,
    /// The limit at the start, which also stays while there is little traffic.
    pub initial: u32,
    /// The highest limit.
    pub max: u32,
    /// The shortest window, which is also the shortest time between two changes of the limit.
    pub window: Ticks,
    /// The longest window, used while few requests end.
    pub window_max: Ticks,
    /// The number of ended requests that completes a window.
    pub endings: u64,
    /// Shorter latencies are ignored: they belong to answers without work.
    pub shortest: Ticks,
    /// A success that took this long counts as dropped, since the caller has probably given up.
    pub timeout: Ticks,
    /// Whether it refuses requests.
    pub mode: Mode,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            min: 1,
            initial: 20,
            max: 1_000,
            window: Ticks::from_secs(1),
            window_max: Ticks::from_secs(30),
            endings: 50,
            shortest: Ticks::from_micros(100),
            timeout: Ticks::from_secs(30),
            mode: Mode::Enforce,
        }
    }
}
