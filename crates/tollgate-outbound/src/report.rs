//! The view of an operator: totals, buckets, and forecasts.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Outcome, Quota, Ticks, Timestamp};

use crate::queues::BucketReport;
use crate::refusal::Basis;

/// Totals since the start, and the calls that wait now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Counts since the start.
    pub totals: Totals,
    /// The buckets, by name.
    pub buckets: Vec<BucketReport>,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Calls that left.
    pub calls: u64,
    /// Calls among them that had to wait: each is a refusal that the server did not have to send.
    pub waited: u64,
    /// How long they waited together.
    pub waited_for: Ticks,
    /// Calls that were refused here and never left.
    pub refused: u64,
    /// Calls that the server refused.
    pub throttled: u64,
    /// Calls that failed otherwise.
    pub failed: u64,
    /// Attempts after the first.
    pub retries: u64,
    /// Copies that were sent beside an attempt that had no response yet.
    pub hedges: u64,
}

impl Totals {
    pub(crate) fn of(totals: &AtomicTotals) -> Self {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Self {
            calls: read(&totals.calls),
            waited: read(&totals.waited),
            waited_for: Ticks::from_micros(read(&totals.waited_micros)),
            refused: read(&totals.refused),
            throttled: read(&totals.throttled),
            failed: read(&totals.failed),
            retries: read(&totals.retries),
            hedges: read(&totals.hedges),
        }
    }
}

/// Relaxed throughout: the numbers are independent, and only reports read them.
#[derive(Debug, Default)]
pub(crate) struct AtomicTotals {
    pub(crate) calls: AtomicU64,
    pub(crate) waited: AtomicU64,
    pub(crate) waited_micros: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) throttled: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) hedges: AtomicU64,
}

/// When the last of several calls could leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// How long from now, at least.
    pub wait: Ticks,
    /// When.
    pub at: Timestamp,
    /// The bucket that decides it and whose numbers it follows; `None` if all may leave now.
    pub bucket: Option<(String, Basis)>,
}

/// The units that a counter admits without a wait.
pub(crate) fn admits_now(quota: Option<&Quota>, outcome: &Outcome) -> u64 {
    outcome.remaining.saturating_sub(quota.map_or(0, queue_of))
}

/// The units that a leaky bucket admits to its queue.
const fn queue_of(quota: &Quota) -> u64 {
    match quota {
        Quota::LeakyBucket(bucket) => bucket.queue(),
        _ => 0,
    }
}

/// How long it takes at least until a counter has admitted this many units, one by one from now on.
pub(crate) fn wait_for(quota: &Quota, outcome: &Outcome, units: u64) -> Ticks {
    let Some(rate) = quota.rate() else { return Ticks::ZERO };
    let missing = units.saturating_add(queue_of(quota)).checked_sub(outcome.remaining);
    let Some(missing) = missing.filter(|missing| *missing > 0) else { return Ticks::ZERO };
    let (period, per_period) = (u128::from(rate.period().as_micros()), u128::from(rate.units().max(1)));
    let later = u128::from(missing - 1);
    // A counter that is full gains nothing until a unit is spent.
    let full = |wait: Ticks, micros: u128| if wait > Ticks::ZERO { wait } else { ticks(micros) };
    let (first, rest) = if quota.is_reservoir() {
        let first = full(outcome.next_unit_after, period.div_ceil(per_period));
        (first, (later * period).div_ceil(per_period))
    } else {
        (full(outcome.reset_after, period), later / per_period * period)
    };
    first + ticks(rest)
}

fn ticks(micros: u128) -> Ticks {
    Ticks::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}
