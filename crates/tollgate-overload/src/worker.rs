//! The worker shedder. As the worker gets busy, it sheds test traffic, then reads, then writes, then critical
//! requests, gradually. It restores them more slowly the closer utilisation is to the shedding threshold, so
//! the level settles there. After an overload, when utilisation stays clearly low, it restores as quickly as
//! it shed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tollgate::key::mix;
use tollgate::policy::Mode;
use tollgate::time::{TICKS_PER_SECOND, Ticks, Timestamp};

use crate::priority::Priority;
use crate::refusal::{Cause, Controller, Refusal};
use crate::report::{ChangeReason, ControllerReport};
use crate::statistics::{ONE, scaled, share};
use crate::switch::Switch;
use crate::window::Occupancy;

/// One whole class, in the unit of the level: millionths.
const CLASS: u64 = 1_000_000;
/// Every class except a tenth of the critical one. If nothing passed, the recovery of the worker would not be
/// seen.
const LEVEL_MAX: u64 = 4 * CLASS - CLASS / 10;
/// The time between two changes of the level.
const UPDATE_PERIOD: Ticks = Ticks::from_millis(10);
/// The smoothing time of utilisation, and the longest time for which one observation may raise the level.
const UTILISATION_SMOOTHING: Ticks = Ticks::from_secs(1);
/// The smoothing time of the concurrency limit.
const LIMIT_SMOOTHING: Ticks = Ticks::from_secs(8);
/// How long utilisation must stay clearly low before a fast restore. A dip during an overload is shorter.
const CALM_MIN: Ticks = Ticks::from_secs(1);
/// How long the same callers are shed before others are.
const COHORT_PERIOD: u64 = 3_600 * TICKS_PER_SECOND;
/// Higher utilisation counts as this.
const UTILISATION_MAX: u64 = 4 * ONE;

/// When a worker sheds, and how fast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Utilisation above which the worker sheds more, in thousandths.
    pub shed_above: u64,
    /// Utilisation at which it restores at half the pace, in thousandths. Between the two thresholds it
    /// restores more slowly.
    pub restore_below: u64,
    /// The queueing delay that counts as full utilisation.
    pub queue_delay: Ticks,
    /// The minimum time from shedding nothing to shedding everything.
    pub shed_over: Ticks,
    /// The minimum time back. While utilisation is clearly low, `shed_over` applies if it is shorter.
    pub restore_over: Ticks,
    /// Whether it refuses requests.
    pub mode: Mode,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self {
            shed_above: 950,
            restore_below: 800,
            queue_delay: Ticks::from_millis(50),
            shed_over: Ticks::from_secs(20),
            restore_over: Ticks::from_secs(80),
            mode: Mode::Enforce,
        }
    }
}

impl WorkerSettings {
    /// Clearly low utilisation, in thousandths: three quarters of `restore_below`. Then everything shed can
    /// return with capacity to spare.
    const fn clearly_low(&self) -> u64 {
        self.restore_below / 4 * 3
    }

    /// The pace of the restore in thousandths, for a utilisation up to `shed_above`: none there, half at
    /// `restore_below`, all of it at half of that. A pause between the thresholds would keep whatever was
    /// shed in excess.
    fn restore_pace(&self, utilisation: u64) -> u64 {
        if utilisation >= self.restore_below {
            let between = self.shed_above.saturating_sub(self.restore_below);
            return share(self.shed_above.saturating_sub(utilisation), between, ONE) / 2;
        }
        ONE / 2 + share(self.restore_below - utilisation, self.restore_below / 2, ONE) / 2
    }
}

/// How busy a worker is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests in flight.
    pub in_flight: u32,
    /// The concurrency limit.
    pub limit: u32,
    /// How long the last request waited for its permit.
    pub queue_delay: Ticks,
}

/// Sheds by priority.
#[derive(Debug)]
pub struct WorkerShedder {
    settings: WorkerSettings,
    switch: Switch,
    /// The level, in millionths of a class. A copy of the locked value, for decisions without the lock.
    level: AtomicU64,
    /// When the level may change again, so that most observations need no lock.
    due: AtomicU64,
    /// The longest queueing delay since the last update, in ticks.
    delay: AtomicU64,
    refused: AtomicU64,
    would_refuse: AtomicU64,
    state: Mutex<WorkerState>,
}

#[derive(Debug, Default)]
struct WorkerState {
    level: u64,
    /// Smoothed utilisation in millionths, since small steps would be lost in thousandths.
    utilisation: u64,
    /// The smoothed concurrency limit, in millionths.
    limit: u64,
    updated_at: Option<Timestamp>,
    /// Since when utilisation is clearly low.
    calm_since: Option<Timestamp>,
    reason: ChangeReason,
    changed_at: Option<Timestamp>,
}

impl WorkerShedder {
    /// A shedder that sheds nothing yet.
    #[must_use]
    pub fn new(settings: WorkerSettings) -> Self {
        Self {
            switch: Switch::new(settings.mode),
            settings,
            level: AtomicU64::new(0),
            due: AtomicU64::new(0),
            delay: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            would_refuse: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    /// The mode and the kill switch.
    #[must_use]
    pub const fn switch(&self) -> &Switch {
        &self.switch
    }

    /// Records the load of the worker. Call it when a request begins or ends, and now and then while idle.
    pub fn observe(&self, load: Load, now: Timestamp) {
        // The longest delay counts, since most observations have none.
        if !load.queue_delay.is_zero() {
            self.delay.fetch_max(load.queue_delay.as_micros(), Relaxed);
        }
        if now.unix_micros() < self.due.load(Relaxed) {
            return;
        }
        // If it is locked, another thread is updating the level.
        let Ok(mut state) = self.state.try_lock() else { return };
        self.due.store((now + UPDATE_PERIOD).unix_micros(), Relaxed);
        let limit = state.usual_limit(load.limit, now);
        let by_limit = share(u64::from(load.in_flight) * ONE, limit, UTILISATION_MAX);
        let by_delay =
            share(self.delay.swap(0, Relaxed), self.settings.queue_delay.as_micros(), UTILISATION_MAX);
        let occupancy = if load.in_flight >= load.limit { Occupancy::Full } else { Occupancy::Free };
        state.update(by_limit.max(by_delay), occupancy, now, &self.settings);
        self.level.store(state.level, Relaxed);
    }

    /// Whether a request is shed now. `identity` is a hash of the caller or of the request. The same identity
    /// is treated alike for an hour, then others are shed.
    pub fn decide(&self, priority: Priority, identity: u64, now: Timestamp) -> Result<(), Refusal> {
        let shed = self.level.load(Relaxed).saturating_sub(priority.rank() * CLASS).min(CLASS);
        if shed == 0 {
            return Ok(());
        }
        let roll = scaled(mix(identity ^ mix(now.unix_micros() / COHORT_PERIOD)) >> 1, CLASS, 1 << 63);
        if roll >= shed {
            return Ok(());
        }
        match self.switch.mode(now) {
            Mode::Enforce => {
                self.refused.fetch_add(1, Relaxed);
                Err(Cause::Shed.refusal(priority).with_pressure(shed / 1_000))
            }
            Mode::Shadow => {
                self.would_refuse.fetch_add(1, Relaxed);
                Ok(())
            }
            Mode::Off => Ok(()),
        }
    }

    /// How much is shed, in thousandths of a class: 1500 is all test traffic and half of the reads.
    #[must_use]
    pub fn level(&self) -> u64 {
        self.level.load(Relaxed) / 1_000
    }

    /// The state of the shedder.
    #[must_use]
    pub fn report(&self, now: Timestamp) -> ControllerReport {
        let state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        ControllerReport {
            killed_until: self.switch.killed_until(now),
            utilisation: Some(state.utilisation / 1_000),
            level: Some(state.level / 1_000),
            refused: self.refused.load(Relaxed),
            would_refuse: self.would_refuse.load(Relaxed),
            reason: state.reason,
            changed_at: state.changed_at,
            ..ControllerReport::new(Controller::Worker, self.switch.mode(now))
        }
    }
}

impl WorkerState {
    /// The usual concurrency limit, or the current one if it is higher, in thousandths. An adaptive limit
    /// probes lower values for a moment, which is no reason to shed.
    fn usual_limit(&mut self, limit: u32, now: Timestamp) -> u64 {
        let limit = u64::from(limit) * 1_000_000;
        let passed = self
            .updated_at
            .map_or(LIMIT_SMOOTHING, |updated_at| now.since(updated_at).min(LIMIT_SMOOTHING))
            .as_micros();
        let rest = LIMIT_SMOOTHING.as_micros() - passed;
        let sum = u128::from(self.limit) * u128::from(rest) + u128::from(limit) * u128::from(passed);
        self.limit = u64::try_from(sum / u128::from(LIMIT_SMOOTHING.as_micros())).unwrap_or(limit);
        self.limit.max(limit) / 1_000
    }

    fn update(&mut self, utilisation: u64, occupancy: Occupancy, now: Timestamp, settings: &WorkerSettings) {
        let utilisation = utilisation * 1_000;
        let Some(updated_at) = self.updated_at.replace(now) else {
            self.utilisation = utilisation;
            return;
        };
        let passed = now.since(updated_at);
        let weight = passed.min(UTILISATION_SMOOTHING).as_micros();
        let rest = UTILISATION_SMOOTHING.as_micros() - weight;
        self.utilisation =
            (self.utilisation * rest + utilisation * weight) / UTILISATION_SMOOTHING.as_micros();
        let utilisation = self.utilisation / 1_000;
        let before = self.level;
        let is_low = utilisation <= settings.clearly_low();
        self.calm_since = if is_low { self.calm_since.or(Some(now)) } else { None };
        if utilisation > settings.shed_above {
            // The closer to the threshold, the slower, so that the level settles there.
            let excess =
                share(utilisation - settings.shed_above, ONE.saturating_sub(settings.shed_above), ONE);
            let step = step(passed.min(UTILISATION_SMOOTHING), settings.shed_over, excess);
            self.level = (self.level + step).min(LEVEL_MAX);
        } else if occupancy == Occupancy::Free {
            // Restores nothing while all permits are in use, even if the limit is usually higher.
            let (over, pace) = match self.calm_since {
                Some(since) if now.since(since) >= CALM_MIN => {
                    (settings.restore_over.min(settings.shed_over), ONE)
                }
                _ => (settings.restore_over, settings.restore_pace(utilisation)),
            };
            self.level = self.level.saturating_sub(step(passed, over, pace));
        }
        if self.level != before {
            self.reason = if self.level > before { ChangeReason::Busy } else { ChangeReason::Calm };
            self.changed_at = Some(now);
        }
    }
}

/// The change of the level in this time, if the full range takes `over`, at a fraction of that pace in
/// thousandths.
fn step(passed: Ticks, over: Ticks, pace: u64) -> u64 {
    scaled(4 * CLASS, scaled(passed.as_micros(), pace, ONE), over.as_micros())
}
