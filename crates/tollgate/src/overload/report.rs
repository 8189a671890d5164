//! What a controller tells about itself, for metrics and for people.

use std::fmt;

use crate::policy::Mode;
use crate::time::{Ticks, Timestamp};

use super::refusal::Controller;

/// Why a controller last changed what it admits. A closed list, so that it may label a metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It did not yet: this is what it began with.
    #[default]
    Initial,
    /// Fewer: the estimated queue is longer than it may be.
    QueueLong,
    /// More: the estimated queue is shorter than it may be, and the limit was made use of.
    QueueShort,
    /// Fewer: more in flight meant less done.
    ThroughputFell,
    /// Fewer: more in flight meant slower, and hardly more done.
    LatencyRose,
    /// A few more for a few windows, or these again fewer: to see what they mean.
    Probe,
    /// Fewer: requests were lost.
    Dropped,
    /// Fewer: the limit was far above what anybody used.
    Headroom,
    /// Slower: latency was above its target.
    AboveTarget,
    /// Faster: latency was below its target, and the rate was made use of.
    BelowTarget,
    /// More is shed: the worker is too busy.
    Busy,
    /// Less is shed: the worker has time.
    Calm,
    /// Waiting requests are put out sooner, and the newest are served first: the line did not get short for a whole interval.
    Standing,
    /// The line got short again.
    Drained,
}

impl Reason {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::Initial => "initial",
            Reason::QueueLong => "queue-long",
            Reason::QueueShort => "queue-short",
            Reason::ThroughputFell => "throughput-fell",
            Reason::LatencyRose => "latency-rose",
            Reason::Probe => "probe",
            Reason::Dropped => "dropped",
            Reason::Headroom => "headroom",
            Reason::AboveTarget => "above-target",
            Reason::BelowTarget => "below-target",
            Reason::Busy => "busy",
            Reason::Calm => "calm",
            Reason::Standing => "standing",
            Reason::Drained => "drained",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The state of a controller. What one does not have is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Which one it is.
    pub controller: Controller,
    /// Whether it decides now; off while it is killed.
    pub mode: Mode,
    /// Until when the kill switch holds.
    pub killed_until: Option<Timestamp>,
    /// What it admits: places in flight, requests a second, places in the line.
    pub limit: Option<u64>,
    /// How many are in flight, or in the line.
    pub in_flight: Option<u32>,
    /// The latency without a queue, as far as was seen.
    pub baseline: Option<Ticks>,
    /// The latency of late.
    pub recent: Option<Ticks>,
    /// How many of those in flight are estimated to wait.
    pub queue: Option<u64>,
    /// How what is done moves with what is in flight, from −1000 to 1000.
    pub throughput_correlation: Option<i64>,
    /// How latency moves with what is in flight, from −1000 to 1000.
    pub latency_correlation: Option<i64>,
    /// How busy the worker is, in thousandths.
    pub utilisation: Option<u64>,
    /// How much is shed, in thousandths of a class: 1500 is all test traffic and half of the reads.
    pub level: Option<u64>,
    /// Requests that it refused.
    pub refused: u64,
    /// Requests that it would have refused, had it not been in shadow.
    pub would_refuse: u64,
    /// Why it last changed what it admits.
    pub reason: Reason,
    /// When that was.
    pub changed_at: Option<Timestamp>,
}

impl Report {
    /// A report that says nothing but whose it is.
    pub(super) const fn new(controller: Controller, mode: Mode) -> Self {
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
            reason: Reason::Initial,
            changed_at: None,
        }
    }
}
