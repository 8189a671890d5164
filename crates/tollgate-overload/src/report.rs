//! The state of a controller, for metrics and operators.

use std::fmt;

use tollgate::policy::Mode;
use tollgate::time::{Ticks, Timestamp};

use crate::refusal::Controller;

/// Why a controller last changed what it admits. A closed list, so that it may label a metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChangeReason {
    /// No change yet.
    #[default]
    Initial,
    /// Lowered: the estimated queue is too long.
    QueueLong,
    /// Raised: the estimated queue is short, and the limit is used.
    QueueShort,
    /// Lowered: more requests in flight meant less throughput.
    ThroughputFell,
    /// Lowered: more requests in flight meant more latency and hardly more throughput.
    LatencyRose,
    /// Raised for a few windows to probe, or lowered again after that.
    Probe,
    /// Lowered: requests were lost.
    Dropped,
    /// Lowered: the limit was far above its use.
    Headroom,
    /// Lowered: latency was above its target.
    AboveTarget,
    /// Raised: latency was below its target, and the rate is used.
    BelowTarget,
    /// Sheds more: the worker is too busy.
    Busy,
    /// Sheds less: the worker has capacity.
    Calm,
    /// A standing queue: the oldest waiter exceeded the target for a whole interval.
    Standing,
    /// The queue became short again.
    Drained,
}

impl ChangeReason {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            ChangeReason::Initial => "initial",
            ChangeReason::QueueLong => "queue-long",
            ChangeReason::QueueShort => "queue-short",
            ChangeReason::ThroughputFell => "throughput-fell",
            ChangeReason::LatencyRose => "latency-rose",
            ChangeReason::Probe => "probe",
            ChangeReason::Dropped => "dropped",
            ChangeReason::Headroom => "headroom",
            ChangeReason::AboveTarget => "above-target",
            ChangeReason::BelowTarget => "below-target",
            ChangeReason::Busy => "busy",
            ChangeReason::Calm => "calm",
            ChangeReason::Standing => "standing",
            ChangeReason::Drained => "drained",
        }
    }
}

impl fmt::Display for ChangeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The state of a controller. Values that it does not have are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerReport {
    /// The controller.
    pub controller: Controller,
    /// The current mode; off while killed.
    pub mode: Mode,
    /// When the kill switch ends.
    pub killed_until: Option<Timestamp>,
    /// The limit: permits, requests per second, or waiters.
    pub limit: Option<u64>,
    /// Requests in flight, or waiters.
    pub in_flight: Option<u32>,
    /// The latency without a queue, as far as it is known.
    pub baseline: Option<Ticks>,
    /// The recent latency.
    pub recent: Option<Ticks>,
    /// The estimated number of requests in flight that wait.
    pub queue: Option<u64>,
    /// The correlation of throughput with requests in flight, from −1000 to 1000.
    pub throughput_correlation: Option<i64>,
    /// The correlation of latency with requests in flight, from −1000 to 1000.
    pub latency_correlation: Option<i64>,
    /// The utilisation of the worker, in thousandths.
    pub utilisation: Option<u64>,
    /// How much is shed, in thousandths of a class: 1500 is all test traffic and half of the reads.
    pub level: Option<u64>,
    /// Requests that it refused.
    pub refused: u64,
    /// Requests that it would have refused outside of shadow mode.
    pub would_refuse: u64,
    /// Why it last changed what it admits.
    pub reason: ChangeReason,
    /// When it last changed.
    pub changed_at: Option<Timestamp>,
}

impl ControllerReport {
    /// A report without values.
    pub(crate) const fn new(controller: Controller, mode: Mode) -> Self {
        Self {
            controller,
            mode,
            killed_until: None,
            limit: None,
            in_flight: None,
            baseline: None,
            recent: None,
            queue: None,
            throughput_correlation: None,
            latency_correlation: None,
            utilisation: None,
            level: None,
            refused: 0,
            would_refuse: 0,
            reason: ChangeReason::Initial,
            changed_at: None,
        }
    }
}
