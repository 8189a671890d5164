//! Whether an upstream should get requests, from its checks and from the results of the last requests. Every ejection ends
//! by itself: an ejected upstream is tried again after a while.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use tollgate::{Ticks, Timestamp};

/// Failures in a row after which an upstream is ejected: it gets no requests for a while.
const FAILURES_MAX: u32 = 5;
/// The first ejection, and the longest. Each ejection in a row doubles it.
const EJECTION: Ticks = Ticks::from_millis(2_000);
const EJECTION_MAX: Ticks = Ticks::from_millis(60_000);

/// The state of an upstream. Relaxed everywhere: the numbers choose among upstreams and guard nothing.
#[derive(Debug)]
pub(crate) struct Health {
    /// The result of the health checks.
    is_up: AtomicBool,
    /// Checks in a row that contradict it.
    disagreeing_checks: AtomicU32,
    failures: AtomicU32,
    /// How many times in a row it was ejected.
    ejections: AtomicU32,
    /// The end of the ejection, in microseconds since 1970.
    ejected_until: AtomicU64,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            is_up: AtomicBool::new(true),
            disagreeing_checks: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            ejections: AtomicU32::new(0),
            ejected_until: AtomicU64::new(0),
        }
    }
}

impl Health {
    /// Whether the health checks find it healthy.
    pub(crate) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// Whether it is ejected now.
    pub(crate) fn is_ejected(&self, now: Timestamp) -> bool {
        now.unix_micros() < self.ejected_until.load(Ordering::Relaxed)
    }

    /// The upstream answered, with any status.
    pub(crate) fn answered(&self) {
        // Read first: all requests pass here, and nearly none has to write.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        if self.ejections.load(Ordering::Relaxed) != 0 {
            self.ejections.store(0, Ordering::Relaxed);
        }
    }

    /// The upstream could not be reached, or hung up without an answer. Returns for how long it is ejected, if it is.
    pub(crate) fn failed(&self, now: Timestamp) -> Option<Ticks> {
        if self.is_ejected(now) {
            return None; // Requests that were under way say nothing new.
        }
        let was_ejected = self.ejections.load(Ordering::Relaxed) > 0;
        // After an ejection one failure is enough.
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 < FAILURES_MAX && !was_ejected {
            return None;
        }
        self.failures.store(0, Ordering::Relaxed);
        let ejections = self.ejections.fetch_add(1, Ordering::Relaxed);
        let ejection = EJECTION
            .as_micros()
            .checked_shl(ejections.min(16))
            .unwrap_or(u64::MAX)
            .min(EJECTION_MAX.as_micros());
        self.ejected_until.store(now.unix_micros().saturating_add(ejection), Ordering::Relaxed);
        Some(Ticks::from_micros(ejection))
    }

    /// Records a health check. Returns the new state, if it changed.
    pub(crate) fn checked(&self, result: CheckResult, (healthy, unhealthy): (u32, u32)) -> Option<bool> {
        let (is_up, is_well) = (self.is_up(), result == CheckResult::Healthy);
        if is_well == is_up {
            self.disagreeing_checks.store(0, Ordering::Relaxed);
            return None;
        }
        let wanted = if is_well { healthy } else { unhealthy };
        if self.disagreeing_checks.fetch_add(1, Ordering::Relaxed) + 1 < wanted {
            return None;
        }
        self.disagreeing_checks.store(0, Ordering::Relaxed);
        self.is_up.store(is_well, Ordering::Relaxed);
        if is_well {
            self.ejected_until.store(0, Ordering::Relaxed);
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
pub(crate) struct RetryBudget(AtomicU64);

/// The cost of a retry, the gain of a request, and the maximum reserve.
const RETRY_COST: u64 = 5;
const REQUEST_GAIN: u64 = 1;
const SAVED_MAX: u64 = 100;

impl Default for RetryBudget {
    fn default() -> Self {
        Self(AtomicU64::new(SAVED_MAX))
    }
}

impl RetryBudget {
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

    /// Five failures in a row eject it for a while. The next failure ejects it for longer, and an answer ends the
    /// series.
    #[test]
    fn ejections_grow_and_end() {
        let health = Health::default();
        assert!((0..4).all(|_| health.failed(at(0)).is_none()));
        health.answered();
        assert!((0..4).all(|_| health.failed(at(0)).is_none()));
        assert!(
            health.failed(at(0)).is_some() && health.is_ejected(at(1_999)) && !health.is_ejected(at(2_000))
        );
        assert!(health.failed(at(2_000)).is_some(), "one try after an ejection");
        assert!(health.is_ejected(at(5_999)) && !health.is_ejected(at(6_000)));
        health.answered();
        assert!((0..4).all(|_| health.failed(at(6_000)).is_none()));
        let longest = (0..40).fold(at(10_000), |now, _| {
            assert_eq!((0..5).filter(|_| health.failed(now).is_some()).count(), 1);
            let ejection = (0..)
                .map(|seconds| now + Ticks::from_millis(seconds * 1_000))
                .find(|now| !health.is_ejected(*now));
            ejection.unwrap()
        });
        assert!(health.failed(longest).is_some() && !health.is_ejected(longest + EJECTION_MAX));
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
        let budget = RetryBudget::default();
        let sent_again = (0..1_000).filter(|_| {
            budget.earn();
            budget.spend()
        });
        assert!((200..=240).contains(&sent_again.count()));
    }
}
