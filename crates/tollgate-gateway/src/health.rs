//! Whether an upstream should get requests, from its checks and from the results of the last requests. Every rest ends
//! by itself: a resting upstream is tried again after a while.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use tollgate::{Ticks, Timestamp};

/// Failures in a row after which an upstream rests, that is, gets no requests.
const FAILURES_MAX: u32 = 5;
/// The first rest, and the longest. Each rest in a row doubles it.
const REST: Ticks = Ticks::from_millis(2_000);
const REST_MAX: Ticks = Ticks::from_millis(60_000);

/// The state of an upstream. Relaxed everywhere: the numbers choose among upstreams and guard nothing.
#[derive(Debug)]
pub(crate) struct Health {
    /// The result of the health checks.
    is_up: AtomicBool,
    /// Checks in a row that contradict it.
    contrary: AtomicU32,
    failures: AtomicU32,
    /// How many times in a row it rested.
    rests: AtomicU32,
    /// The end of the rest, in microseconds since 1970.
    rests_until: AtomicU64,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            is_up: AtomicBool::new(true),
            contrary: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            rests: AtomicU32::new(0),
            rests_until: AtomicU64::new(0),
        }
    }
}

impl Health {
    /// Whether the health checks find it healthy.
    pub(crate) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// Whether it rests now.
    pub(crate) fn rests(&self, now: Timestamp) -> bool {
        now.unix_micros() < self.rests_until.load(Ordering::Relaxed)
    }

    /// The upstream answered, with any status.
    pub(crate) fn answered(&self) {
        // Read first: all requests pass here, and nearly none has to write.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        if self.rests.load(Ordering::Relaxed) != 0 {
            self.rests.store(0, Ordering::Relaxed);
        }
    }

    /// The upstream could not be reached, or hung up without an answer. Returns whether it rests from now on.
    pub(crate) fn failed(&self, now: Timestamp) -> bool {
        if self.rests(now) {
            return false; // Requests that were under way say nothing new.
        }
        let is_resting = self.rests.load(Ordering::Relaxed) > 0;
        // After a rest one failure is enough.
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 < FAILURES_MAX && !is_resting {
            return false;
        }
        self.failures.store(0, Ordering::Relaxed);
        let rests = self.rests.fetch_add(1, Ordering::Relaxed);
        let rest = REST.as_micros().checked_shl(rests.min(16)).unwrap_or(u64::MAX).min(REST_MAX.as_micros());
        self.rests_until.store(now.unix_micros().saturating_add(rest), Ordering::Relaxed);
        true
    }

    /// Records a health check. Returns the new state, if it changed.
    pub(crate) fn checked(&self, result: CheckResult, (healthy, unhealthy): (u32, u32)) -> Option<bool> {
        let (is_up, is_well) = (self.is_up(), result == CheckResult::Healthy);
        if is_well == is_up {
            self.contrary.store(0, Ordering::Relaxed);
            return None;
        }
        let wanted = if is_well { healthy } else { unhealthy };
        if self.contrary.fetch_add(1, Ordering::Relaxed) + 1 < wanted {
            return None;
        }
        self.contrary.store(0, Ordering::Relaxed);
        self.is_up.store(is_well, Ordering::Relaxed);
        if is_well {
            self.rests_until.store(0, Ordering::Relaxed);
            self.answered();
        }
        Some(is_well)
    }
}

/// The result of one health check.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckResult {
    Healthy,
    Unhealthy,
}

/// The retry budget: one retry for every five requests, plus a small reserve, so that retries do not multiply the load
/// during an outage.
#[derive(Debug)]
pub(crate) struct Budget(AtomicU64);

/// What a retry costs, what a request earns, and the maximum reserve.
const RETRY_COST: u64 = 5;
const REQUEST_GAIN: u64 = 1;
const SAVED_MAX: u64 = 100;

impl Default for Budget {
    fn default() -> Self {
        Self(AtomicU64::new(SAVED_MAX))
    }
}

impl Budget {
    /// Adds to the budget for a request.
    pub(crate) fn earn(&self) {
        // In quiet times the budget is full, and is only read.
        if self.0.load(Ordering::Relaxed) < SAVED_MAX {
            let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |saved| {
                Some((saved + REQUEST_GAIN).min(SAVED_MAX))
            });
        }
    }

    /// Takes a retry from the budget. Returns whether it is allowed.
    pub(crate) fn spend(&self) -> bool {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |saved| saved.checked_sub(RETRY_COST))
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_unix_seconds(1_000_000) + Ticks::from_millis(millis)
    }

    /// Five failures in a row start a rest, which ends. The next failure starts a longer one, and an answer ends the
    /// series.
    #[test]
    fn rests() {
        let health = Health::default();
        assert!((0..4).all(|_| !health.failed(at(0))));
        health.answered();
        assert!((0..4).all(|_| !health.failed(at(0))));
        assert!(health.failed(at(0)) && health.rests(at(1_999)) && !health.rests(at(2_000)));
        assert!(health.failed(at(2_000)), "one try after a rest");
        assert!(health.rests(at(5_999)) && !health.rests(at(6_000)));
        health.answered();
        assert!((0..4).all(|_| !health.failed(at(6_000))));
        let longest = (0..40).fold(at(10_000), |now, _| {
            assert_eq!((0..5).filter(|_| health.failed(now)).count(), 1);
            let rest = (0..)
                .map(|seconds| now + Ticks::from_millis(seconds * 1_000))
                .find(|now| !health.rests(*now));
            rest.unwrap()
        });
        assert!(health.failed(longest) && !health.rests(longest + REST_MAX));
    }

    /// The required number of checks in a row changes the state, and a check that contradicts them starts the count
    /// anew.
    #[test]
    fn checks() {
        let health = Health::default();
        let check = |is_well| {
            let result = if is_well { CheckResult::Healthy } else { CheckResult::Unhealthy };
            health.checked(result, (2, 3))
        };
        let seen: Vec<_> =
            [false, false, true, false, false, false, true, false, true, true].map(check).into();
        assert_eq!(seen, [None, None, None, None, None, Some(false), None, None, None, Some(true)]);
    }

    /// Of any number of failing requests, about one in five is retried.
    #[test]
    fn retries_have_a_budget() {
        let budget = Budget::default();
        let sent_again = (0..1_000).filter(|_| {
            budget.earn();
            budget.spend()
        });
        assert!((200..=240).contains(&sent_again.count()));
    }
}
