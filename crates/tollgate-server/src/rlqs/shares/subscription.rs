//! One bucket of one Envoy: its demand, its grants, and its report interval.

use tollgate::{Ticks, Timestamp};

use super::{CounterId, Usage};
use crate::rlqs::grant::{Grants, NANO, Nano, Share};

/// The assumed report interval of Envoy until it is measured.
pub(super) const INTERVAL_USUAL: Ticks = Ticks::from_secs(5);
const INTERVAL_MIN: Ticks = Ticks::from_millis(100);
const INTERVAL_MAX: Ticks = Ticks::from_secs(60);
/// For how many report intervals an assignment holds.
const TTL_REPORTS: u64 = 3;
/// The maximum transit time of an assignment. Envoy's copy expires this much later than the server's.
pub(super) const TRANSIT: Ticks = Ticks::from_secs(1);
/// A bucket that is unused for this long is abandoned.
const IDLE_AFTER: Ticks = Ticks::from_secs(60);

/// The link between a bucket and a counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct CounterSubscription {
    pub(super) counter: CounterId,
    pub(super) cost: u64,
    /// The usage that is expected there, in units per second.
    pub(super) pace: Nano,
}

#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) counters: Vec<CounterSubscription>,
    pub(super) grants: Grants,
    /// The share that the counters currently record for this bucket.
    pub(super) counted: Share,
    /// The last measured demand in requests per second. Unknown before the second report.
    pub(super) demand: Option<Nano>,
    /// The most that its counters could ever give it.
    pub(super) ceiling: Nano,
    pub(super) nominal: Nano,
    pub(super) interval: Ticks,
    pub(super) reported_at: Timestamp,
    pub(super) idle_since: Option<Timestamp>,
    /// The Envoy no longer reports. Its grants expire on their own.
    pub(super) is_gone: bool,
}

impl Subscription {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            counters: Vec::new(),
            grants: Grants::default(),
            counted: Share::default(),
            demand: None,
            ceiling: 0,
            nominal: 0,
            interval: INTERVAL_USUAL,
            reported_at: now,
            idle_since: None,
            is_gone: false,
        }
    }

    pub(super) fn ttl(&self) -> Ticks {
        Ticks::from_secs(
            Ticks::from_micros(self.interval.as_micros().saturating_mul(TTL_REPORTS)).ceil_seconds(),
        )
    }

    /// The minimum age of an instruction that an Envoy reporting now has certainly read.
    pub(super) fn guard(&self) -> Ticks {
        Ticks::from_micros(self.interval.as_micros() / 2).min(TRANSIT)
    }

    /// Processes a report. The time since the last one is measured here: Envoy sends whole seconds, rounded down.
    pub(super) fn record_report(&mut self, usage: Usage, now: Timestamp) {
        let requests = usage.allowed.saturating_add(usage.denied);
        let elapsed = now.since(self.reported_at);
        self.grants.confirm(self.guard(), now);
        if self.is_gone {
            (self.is_gone, self.demand) = (false, None);
        } else if !elapsed.is_zero() {
            let micros = u128::from(elapsed.max(INTERVAL_MIN).as_micros());
            let demand = u128::from(requests) * u128::from(NANO) * 1_000_000 / micros;
            let is_second = self.demand.replace(u64::try_from(demand).unwrap_or(u64::MAX)).is_none();
            // The first report may come at any time before the second, so it does not define the interval.
            let shorter = Ticks::from_micros(self.interval.as_micros() / 4 * 3);
            let least = if is_second { self.interval } else { shorter };
            self.interval = elapsed.max(least).max(INTERVAL_MIN).min(INTERVAL_MAX);
        }
        self.reported_at = now;
        if requests > 0 {
            self.idle_since = None;
        } else {
            self.idle_since.get_or_insert(now);
        }
    }

    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.idle_since.is_some_and(|since| now.since(since) >= IDLE_AFTER)
    }
}
