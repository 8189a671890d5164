//! A circuit breaker for each shard: when to stop sending requests, and how to resume.
//!
//! It opens on consecutive failures, on a second in which half of the calls failed or were slow, on missed heartbeats,
//! and on one failure that only an operator can fix. It closes through probes that write, then in steps. Time is an
//! argument, so tests need no clock.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Consecutive failures that open the breaker.
const CONSECUTIVE: u32 = 5;
/// Minimum number of calls in a second before their failure ratio counts.
const RATIO_CALLS: u32 = 20;
const RATIO_PERIOD: Duration = Duration::from_secs(1);
/// How long the breaker stays open the first time. The time doubles each time, up to the maximum.
const OPEN_FIRST: Duration = Duration::from_millis(100);
/// Short, so that all requests reach a recovered store again within a second, probes and ramp included.
const OPEN_MAX: Duration = Duration::from_millis(200);
/// How long the breaker stays open when only an operator can help: one attempt every ten seconds.
const OPEN_FATAL: Duration = Duration::from_secs(10);
/// Consecutive probes that must succeed.
const PROBES: u32 = 3;
/// Percentages of requests admitted during recovery, and how long each step lasts.
const RAMP: [u32; 3] = [1, 10, 50];
const RAMP_STEP: Duration = Duration::from_millis(200);
/// How often a step is repeated because the store answers slowly. The bound lets a distant store recover too.
const RAMP_HOLDS: u32 = 2;
const WHOLE: u32 = 100;
/// Time without failures that ends an outage.
const HEALTH: Duration = Duration::from_secs(30);

/// The state of a shard's breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// All requests go to the store.
    Closed,
    /// No request goes to the store.
    Open,
    /// No request goes to the store; probes are being sent.
    Probing,
    /// A growing share of requests goes to the store.
    Ramping,
}

/// The effect of a failure on the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// Says nothing about the shard's health.
    None,
    /// Counts; enough of them open the breaker.
    Counts,
    /// Opens the breaker, because nothing can be sent.
    Trips,
    /// Opens the breaker for a long time: a wrong password, permission or certificate.
    Fatal,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Closed,
    Open { until: Instant },
    Probing { successes: u32 },
    Ramping { step: usize, since: Instant, good: u32, bad: u32, slow: u32, holds: u32 },
}

/// How a call counts towards the failure ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallResult {
    Good,
    /// It failed or was slow.
    Bad,
}

struct Inner {
    stage: Stage,
    consecutive: u32,
    /// When the first of the consecutive failures happened.
    suspected: Option<Instant>,
    period: Instant,
    calls: u32,
    failures: u32,
    /// How often the breaker opened in this outage.
    trips: u32,
    /// When the outage began, and when its last failure happened.
    spell: Option<(Instant, Instant)>,
}

pub(crate) struct Breaker {
    deadline: Duration,
    /// The percentage of requests admitted. Relaxed: one request more or less at a transition is harmless.
    share: AtomicU32,
    turn: AtomicU32,
    opened: AtomicU32,
    inner: Mutex<Inner>,
}

impl Breaker {
    pub(crate) fn new(deadline: Duration, now: Instant) -> Self {
        let inner = Inner {
            stage: Stage::Closed,
            consecutive: 0,
            suspected: None,
            period: now,
            calls: 0,
            failures: 0,
            trips: 0,
            spell: None,
        };
        let share = AtomicU32::new(WHOLE);
        let (turn, opened) = (AtomicU32::new(0), AtomicU32::new(0));
        Self { deadline, share, turn, opened, inner: Mutex::new(inner) }
    }

    /// Whether this request may go to the store.
    pub(crate) fn admits(&self) -> bool {
        match self.share.load(Ordering::Relaxed) {
            WHOLE => true,
            0 => false,
            share => {
                // 61 and 100 are coprime, so the admitted requests are spread evenly.
                let turn = self.turn.fetch_add(1, Ordering::Relaxed);
                turn.wrapping_mul(61) % WHOLE < share
            }
        }
    }

    /// Records an answered call and its latency.
    pub(crate) fn succeeded(&self, took: Duration, now: Instant, random: u64) {
        let mut inner = self.lock();
        let is_slow = took > self.deadline * 4 / 5;
        inner.consecutive = 0;
        inner.suspected = None;
        match &mut inner.stage {
            Stage::Closed => {
                inner.count(if is_slow { CallResult::Bad } else { CallResult::Good }, now);
                if inner.is_mostly_failing() {
                    self.open(&mut inner, now, random, Severity::Counts);
                }
            }
            Stage::Ramping { good, slow: slower, .. } => {
                *good += 1;
                *slower += u32::from(took > self.deadline / 2);
            }
            Stage::Open { .. } | Stage::Probing { .. } => {}
        }
    }

    /// Records a failed call.
    pub(crate) fn failed(&self, severity: Severity, now: Instant, random: u64) {
        if severity == Severity::None {
            return;
        }
        let mut inner = self.lock();
        if let Some((_, last)) = &mut inner.spell {
            *last = now;
        }
        let trips_now = matches!(severity, Severity::Trips | Severity::Fatal);
        match &mut inner.stage {
            Stage::Open { until } => {
                if severity == Severity::Fatal {
                    *until = (*until).max(now + OPEN_FATAL);
                }
            }
            Stage::Probing { .. } => self.open(&mut inner, now, random, severity),
            Stage::Ramping { bad, good, .. } => {
                *bad += 1;
                // More than one percent, and at least two.
                if trips_now || (*bad * WHOLE > *good + *bad && *bad >= 2) {
                    self.open(&mut inner, now, random, severity);
                }
            }
            Stage::Closed => {
                inner.consecutive += 1;
                inner.suspected.get_or_insert(now);
                inner.count(CallResult::Bad, now);
                if trips_now || inner.consecutive >= CONSECUTIVE || inner.is_mostly_failing() {
                    self.open(&mut inner, now, random, severity);
                }
            }
        }
    }

    /// Whether a probe should be sent now.
    pub(crate) fn wants_probe(&self, now: Instant) -> bool {
        let mut inner = self.lock();
        match inner.stage {
            Stage::Open { until } if until <= now => {
                inner.stage = Stage::Probing { successes: 0 };
                true
            }
            Stage::Probing { .. } => true,
            Stage::Open { .. } | Stage::Closed | Stage::Ramping { .. } => false,
        }
    }

    /// Probes now if the breaker is open: a new connection was made. Does not shorten the wait for an operator.
    pub(crate) fn connected(&self, now: Instant) {
        let mut inner = self.lock();
        if let Stage::Open { until } = &mut inner.stage
            && until.saturating_duration_since(now) <= OPEN_MAX
        {
            *until = now;
        }
    }

    /// Records a successful probe.
    pub(crate) fn probed(&self, now: Instant) {
        let mut inner = self.lock();
        if let Stage::Probing { successes } = &mut inner.stage {
            *successes += 1;
            if *successes >= PROBES {
                self.ramp(&mut inner, 0, now, 0);
            }
        }
    }

    /// Advances the recovery; call it periodically.
    pub(crate) fn tick(&self, now: Instant) {
        let mut inner = self.lock();
        match inner.stage {
            Stage::Ramping { step, since, good, slow, holds, .. } if now >= since + RAMP_STEP => {
                let is_slow = slow * WHOLE > good.max(1);
                if is_slow && holds < RAMP_HOLDS {
                    self.ramp(&mut inner, step, now, holds + 1);
                } else if step + 1 < RAMP.len() {
                    self.ramp(&mut inner, step + 1, now, 0);
                } else {
                    inner.stage = Stage::Closed;
                    (inner.period, inner.calls, inner.failures) = (now, 0, 0);
                    (inner.consecutive, inner.suspected) = (0, None);
                    self.share.store(WHOLE, Ordering::Relaxed);
                }
            }
            Stage::Closed => {
                if inner.spell.is_some_and(|(_, last)| now >= last + HEALTH) {
                    inner.spell = None;
                    inner.trips = 0;
                }
            }
            Stage::Open { .. } | Stage::Probing { .. } | Stage::Ramping { .. } => {}
        }
    }

    /// How long the shard has been failing; none while it is healthy. An outage ends after 30 seconds without failures.
    pub(crate) fn away_for(&self, now: Instant) -> Option<Duration> {
        let spell = self.lock().spell;
        spell.filter(|(_, last)| now < *last + HEALTH).map(|(since, _)| now.saturating_duration_since(since))
    }

    pub(crate) fn state(&self) -> BreakerState {
        match self.lock().stage {
            Stage::Closed => BreakerState::Closed,
            Stage::Open { .. } => BreakerState::Open,
            Stage::Probing { .. } => BreakerState::Probing,
            Stage::Ramping { .. } => BreakerState::Ramping,
        }
    }

    /// How often the breaker opened since the start.
    pub(crate) fn opened(&self) -> u32 {
        self.opened.load(Ordering::Relaxed)
    }

    fn open(&self, inner: &mut Inner, now: Instant, random: u64, severity: Severity) {
        let longest = OPEN_FIRST.saturating_mul(1 << inner.trips.min(8)).min(OPEN_MAX);
        let wait = if severity == Severity::Fatal { OPEN_FATAL } else { fraction(longest, random) };
        inner.stage = Stage::Open { until: now + wait };
        inner.trips += 1;
        let began = inner.suspected.unwrap_or(now);
        inner.spell = Some((inner.spell.map_or(began, |(since, _)| since), now));
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.share.store(0, Ordering::Relaxed);
    }

    fn ramp(&self, inner: &mut Inner, step: usize, now: Instant, holds: u32) {
        inner.stage = Stage::Ramping { step, since: now, good: 0, bad: 0, slow: 0, holds };
        if let Some((_, last)) = &mut inner.spell {
            *last = now;
        }
        self.share.store(RAMP[step], Ordering::Relaxed);
    }

    /// A poisoned lock is usable: nothing panics between two writes to the state.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn count(&mut self, result: CallResult, now: Instant) {
        if now >= self.period + RATIO_PERIOD {
            (self.period, self.calls, self.failures) = (now, 0, 0);
        }
        self.calls += 1;
        self.failures += u32::from(result == CallResult::Bad);
    }

    const fn is_mostly_failing(&self) -> bool {
        self.calls >= RATIO_CALLS && self.failures * 2 >= self.calls
    }
}

/// A uniformly distributed part of a duration, from zero to the whole, chosen by a random number.
pub(crate) fn fraction(whole: Duration, random: u64) -> Duration {
    let micros = u64::try_from(whole.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(random % micros.saturating_add(1))
}
