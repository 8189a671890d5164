//! What the file says of the controllers that have no settings of their own: the fleet's capacity and the line.

use crate::policy::Mode;
use crate::quota::Rate;
use crate::time::Ticks;

/// Most places in a line.
pub const QUEUE_MAX: usize = 100_000;

/// Whose capacity it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FleetScope {
    /// Of all nodes together: counted in the shared store, by leases.
    #[default]
    Fleet,
    /// Of each node by itself: counted in memory.
    Node,
}

/// A capacity and what is kept of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetSettings {
    /// What all traffic together may use.
    pub capacity: Rate,
    /// The share of it that only critical traffic may use, in thousandths.
    pub reserve: u64,
    /// Whose capacity it is.
    pub scope: FleetScope,
    /// Whether it decides.
    pub mode: Mode,
}

/// How requests wait for a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineSettings {
    /// The most that may wait, if the number does not follow the limit of places in flight.
    pub size: Option<usize>,
    /// A wait of the first in line that is too long, if it lasts for an interval. A line whose requests take long is forgiven more: a
    /// tenth of what half of them take.
    pub target: Ticks,
    /// How long it must last, and the longest wait while it does not.
    pub interval: Ticks,
    /// Whether it decides. In shadow a line only counts whom it would have put out.
    pub mode: Mode,
}

impl Default for LineSettings {
    fn default() -> Self {
        Self {
            size: None,
            target: Ticks::from_millis(5),
            interval: Ticks::from_millis(100),
            mode: Mode::Enforce,
        }
    }
}
