//! Leaky bucket: a queue that drains steadily. Requests leave one emission interval apart. A request that comes early
//! gets a wait, while at most `queue` units wait; beyond that it is denied. `queue: 0` is strict spacing.
//!
//! NGINX: `burst=N` is `queue: N`; `burst=N nodelay` is `algorithm: gcra` with `burst: N + 1`; `burst=N delay=M` is
//! `queue: N - M` with `burst: M + 1`.

use crate::algorithm::gcra::{self, Gcra};
use crate::algorithm::reservoir::{CapacityBound, GAIN_MAX};
use crate::outcome::{Outcome, Verdict};
use crate::rate::{QuotaError, Rate};
use crate::time::{Ticks, Timestamp};

pub use crate::algorithm::gcra::State;

/// The numbers of a leaky bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakyBucket {
    shape: Gcra,
    queue: u64,
    immediate: u64,
}

impl LeakyBucket {
    /// A queue for `queue` waiting units that drains at `rate`. The rate's burst units leave without waiting; the
    /// default is one.
    ///
    /// # Errors
    /// When the numbers are out of range, or the state would not fit one word exactly.
    pub fn new(rate: Rate, queue: u64) -> Result<Self, QuotaError> {
        let burst = rate.burst_units().unwrap_or(1);
        let units = burst.saturating_add(queue);
        let shape =
            Gcra::with_capacity(rate, units).or_else(|_| Err(refused(rate.checked()?, burst, queue)))?;
        Ok(Self { shape, queue, immediate: burst * shape.reservoir().pace().unit_credits().get() })
    }

    /// The rate as the user wrote it.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.shape.rate()
    }

    /// Units that may wait.
    #[must_use]
    pub const fn queue(&self) -> u64 {
        self.queue
    }

    /// Units that may wait, plus the burst that need not.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.shape.burst()
    }

    /// Credits that may leave without waiting.
    #[must_use]
    pub(crate) const fn immediate(&self) -> u64 {
        self.immediate
    }

    /// The underlying GCRA.
    #[must_use]
    pub const fn shape(&self) -> &Gcra {
        &self.shape
    }
}

/// The error that names which of the two numbers is too large, or that the rate cannot be counted exactly.
fn refused(rate: Rate, burst: u64, queue: u64) -> QuotaError {
    let room = CapacityBound::of(rate, GAIN_MAX);
    match room.units.checked_sub(burst) {
        None => room.refuse(rate, burst),
        Some(left) => QuotaError::Range {
            field: "queue",
            value: queue,
            accepted: format!("0 to {left} beside a burst of {burst}: {}", room.because),
        },
    }
}

/// Charges `cost` units: allowed, allowed after a wait, or denied when the queue is full.
#[must_use]
#[inline]
pub fn charge(quota: &LeakyBucket, state: State, now: Timestamp, cost: u64) -> (State, Outcome) {
    let reservoir = quota.shape.reservoir();
    let (next, left, verdict) = gcra::advance(reservoir, state, now, cost);
    let verdict = match verdict {
        Verdict::Allow if cost > 0 && left > quota.immediate => {
            Verdict::Wait(Ticks::from_micros(reservoir.pace().gain().div_ceil(left - quota.immediate)))
        }
        other => other,
    };
    (next, reservoir.outcome(left, verdict))
}

/// How long a charge of `cost` units waits in a bucket that is empty in `empty_after`, or up to a tick longer; also
/// where the queue has no room for it.
#[must_use]
pub(crate) fn wait_behind(quota: &LeakyBucket, empty_after: Ticks, cost: u64) -> Ticks {
    let reservoir = quota.shape.reservoir();
    let (gain, unit_credits) = (reservoir.pace().gain(), reservoir.pace().unit_credits());
    let missing =
        reservoir.gained(empty_after.as_micros()) + cost.min(reservoir.units()) * unit_credits.get();
    match missing.checked_sub(quota.immediate) {
        Some(queued) if cost > 0 => Ticks::from_micros(gain.div_ceil(queued)),
        _ => Ticks::ZERO,
    }
}
