//! A rate that follows latency. Once per window it falls by a tenth if latency exceeds its target or requests
//! are lost, and rises by a fixed step if latency is below the target and the rate is used.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use tollgate::policy::Mode;
use tollgate::time::{TICKS_PER_SECOND, Ticks, Timestamp};

use crate::limit::Ending;
use crate::priority::Priority;
use crate::refusal::{Cause, Controller, Refusal};
use crate::report::{ChangeReason, ControllerReport};
use crate::statistics::{scaled, share};
use crate::switch::Switch;
use crate::window::Window;

/// Parts of a tick in which instants are kept, so that rates up to a billion per second are exact enough.
const SUBTICKS: u64 = 1_024;

/// How a rate adapts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateSettings {
    /// The target of the 90th percentile of latency.
    pub target: Ticks,
    /// The lowest rate, in requests per second.
    pub min: u64,
    /// The rate at the start.
    pub initial: u64,
    /// The highest rate.
    pub max: u64,
    /// How much the rate rises per window, in requests per second.
    pub step: u64,
    /// The factor by which the rate falls, in thousandths.
    pub backoff: u64,
    /// How often it may change.
    pub window: Ticks,
    /// The time whose requests may come in one burst.
    pub burst: Ticks,
    /// Whether it refuses requests.
    pub mode: Mode,
}

impl Default for RateSettings {
    fn default() -> Self {
        Self {
            target: Ticks::from_millis(100),
            min: 1,
            initial: 100,
            max: 1_000_000,
            step: 10,
            backoff: 900,
            window: Ticks::from_secs(1),
            burst: Ticks::from_millis(100),
            mode: Mode::Enforce,
        }
    }
}

/// A rate that follows latency.
#[derive(Debug)]
pub struct AdaptiveRate {
    settings: RateSettings,
    switch: Switch,
    /// Requests per second.
    rate: AtomicU64,
    /// When the next request is due, in [`SUBTICKS`]: a GCRA in one word.
    next: AtomicU64,
    due: AtomicU64,
    window: Window,
    admitted: AtomicU64,
    refused: AtomicU64,
    would_refuse: AtomicU64,
    /// Locked only to close a window.
    state: Mutex<RateState>,
}

#[derive(Debug, Default)]
struct RateState {
    opened: Option<Timestamp>,
    reason: ChangeReason,
    changed_at: Option<Timestamp>,
    recent: Ticks,
    pressure: u64,
}

impl AdaptiveRate {
    /// An unused rate.
    #[must_use]
    pub fn new(settings: RateSettings) -> Self {
        Self {
            switch: Switch::new(settings.mode),
            rate: AtomicU64::new(settings.initial.max(settings.min).min(settings.max).max(1)),
            next: AtomicU64::new(0),
            due: AtomicU64::new(0),
            window: Window::default(),
            admitted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            would_refuse: AtomicU64::new(0),
            state: Mutex::default(),
            settings,
        }
    }

    /// The mode and the kill switch.
    #[must_use]
    pub const fn switch(&self) -> &Switch {
        &self.switch
    }

    /// The current rate, in requests per second.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.rate.load(Relaxed)
    }

    /// Whether a request may begin. Report its end with [`AdaptiveRate::end`].
    pub fn begin(&self, now: Timestamp) -> bool {
        self.close_when_due(now);
        let mode = self.switch.mode(now);
        if mode == Mode::Off {
            return true;
        }
        let now_subticks = now.unix_micros() * SUBTICKS;
        let gap = (TICKS_PER_SECOND * SUBTICKS / self.rate().max(1)).max(1);
        // At least one request may come at a time, however low the rate.
        let ahead = (self.settings.burst.as_micros() * SUBTICKS).saturating_sub(gap);
        let fits = |next: u64| {
            let next = next.max(now_subticks);
            (next <= now_subticks + ahead).then_some(next + gap)
        };
        // Relaxed: a single word holds all state, so no other memory has to be ordered with it.
        if self.next.fetch_update(Relaxed, Relaxed, fits).is_ok() {
            self.admitted.fetch_add(1, Relaxed);
            return true;
        }
        self.window.refused();
        if mode == Mode::Shadow {
            self.would_refuse.fetch_add(1, Relaxed);
            return true;
        }
        self.refused.fetch_add(1, Relaxed);
        false
    }

    /// Records how a request that began at `started` ended.
    pub fn end(&self, started: Timestamp, now: Timestamp, ending: Ending) {
        match ending {
            Ending::Success => self.window.succeeded(now.since(started), 0),
            Ending::Dropped => self.window.dropped(),
            Ending::Ignored => {}
        }
        self.close_when_due(now);
    }

    /// A refusal of this rate.
    #[must_use]
    pub fn refusal(&self, priority: Priority) -> Refusal {
        let pressure = self.state.try_lock().map_or(0, |state| state.pressure);
        Cause::Rate.refusal(priority).with_pressure(pressure)
    }

    /// The state of the rate.
    #[must_use]
    pub fn report(&self, now: Timestamp) -> ControllerReport {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        ControllerReport {
            killed_until: self.switch.killed_until(now),
            limit: Some(self.rate()),
            baseline: Some(self.settings.target),
            recent: Some(state.recent).filter(|recent| !recent.is_zero()),
            refused: self.refused.load(Relaxed),
            would_refuse: self.would_refuse.load(Relaxed),
            reason: state.reason,
            changed_at: state.changed_at,
            ..ControllerReport::new(Controller::Rate, self.switch.mode(now))
        }
    }

    fn close_when_due(&self, now: Timestamp) {
        let due = self.due.load(Relaxed);
        if now.unix_micros() < due {
            return;
        }
        // If it is locked, another request is closing the window.
        let Ok(mut state) = self.state.try_lock() else { return };
        if self.due.load(Relaxed) != due {
            return;
        }
        self.due.store((now + self.settings.window).unix_micros(), Relaxed);
        let Some(opened) = state.opened.replace(now) else { return };
        let seen = self.window.close(0);
        let admitted = self.admitted.swap(0, Relaxed);
        state.pressure = share(seen.refused, seen.refused + admitted, 1_000);
        let ended = seen.samples + seen.dropped;
        if ended == 0 || self.switch.mode(now) == Mode::Off {
            return;
        }
        if seen.samples > 0 {
            state.recent = seen.p90;
        }
        let rate = self.rate();
        let too_slow = seen.p90 > self.settings.target || seen.dropped * 10 >= ended;
        let possible = scaled(rate, now.since(opened).as_micros(), TICKS_PER_SECOND);
        // An unused rate says nothing about a higher one.
        let is_used = seen.refused > 0 || admitted * 2 >= possible;
        let (next, reason) = if too_slow {
            (
                scaled(rate, self.settings.backoff, 1_000),
                if seen.dropped * 10 >= ended { ChangeReason::Dropped } else { ChangeReason::AboveTarget },
            )
        } else if is_used {
            (rate.saturating_add(self.settings.step), ChangeReason::BelowTarget)
        } else {
            (rate, state.reason)
        };
        let next = next.max(self.settings.min).min(self.settings.max).max(1);
        if next != rate {
            self.rate.store(next, Relaxed);
            (state.reason, state.changed_at) = (reason, Some(now));
        }
    }
}
