//! A rate that follows latency: once a window it falls by a tenth when latency is above its target or requests are lost, and rises by a
//! fixed step when latency is below and the rate was made use of.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::policy::Mode;
use crate::time::{TICKS_PER_SECOND, Ticks, Timestamp};

use super::limit::Ending;
use super::priority::Priority;
use super::refusal::{Cause, Controller, Refusal};
use super::report::{Reason, Report};
use super::statistics::{scaled, share};
use super::switch::Switch;
use super::window::Window;

/// Instants are kept in this many parts of a tick, so that rates up to a thousand million a second are exact enough.
const PARTS: u64 = 1_024;

/// How a rate adapts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateSettings {
    /// The latency that nine of ten requests should stay below.
    pub target: Ticks,
    /// The slowest rate, in requests a second.
    pub min: u64,
    /// The rate at the start.
    pub initial: u64,
    /// The fastest rate.
    pub max: u64,
    /// How much faster it becomes at once, in requests a second.
    pub step: u64,
    /// How many thousandths of it are left when it becomes slower.
    pub backoff: u64,
    /// How often it may change.
    pub window: Ticks,
    /// The time whose requests may come at once.
    pub burst: Ticks,
    /// Whether it decides.
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
    /// Requests a second.
    rate: AtomicU64,
    /// When the next request is due, in parts of a tick: a GCRA of one word.
    next: AtomicU64,
    due: AtomicU64,
    window: Window,
    admitted: AtomicU64,
    refused: AtomicU64,
    would_refuse: AtomicU64,
    /// Held for a window's closing only.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    opened: Option<Timestamp>,
    reason: Reason,
    changed_at: Option<Timestamp>,
    recent: Ticks,
    pressure: u64,
}

impl AdaptiveRate {
    /// A rate that nobody used yet.
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

    /// Its mode and its kill switch.
    #[must_use]
    pub const fn switch(&self) -> &Switch {
        &self.switch
    }

    /// Requests a second, now.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.rate.load(Relaxed)
    }

    /// Whether a request may begin. What it took is told with [`AdaptiveRate::end`].
    pub fn begin(&self, now: Timestamp) -> bool {
        self.close_when_due(now);
        let mode = self.switch.mode(now);
        if mode == Mode::Off {
            return true;
        }
        let now_parts = now.unix_micros() * PARTS;
        let gap = (TICKS_PER_SECOND * PARTS / self.rate().max(1)).max(1);
        // At least one request may come at once, however slow the rate.
        let ahead = (self.settings.burst.as_micros() * PARTS).saturating_sub(gap);
        let fits = |next: u64| {
            let next = next.max(now_parts);
            (next <= now_parts + ahead).then_some(next + gap)
        };
        // One word, so no other order of operations has to be kept.
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

    /// Tells how a request that began at `started` ended.
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

    /// The state of it.
    #[must_use]
    pub fn report(&self, now: Timestamp) -> Report {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Report {
            killed_until: self.switch.killed_until(now),
            limit: Some(self.rate()),
            baseline: Some(self.settings.target),
            recent: Some(state.recent).filter(|recent| !recent.is_zero()),
            refused: self.refused.load(Relaxed),
            would_refuse: self.would_refuse.load(Relaxed),
            reason: state.reason,
            changed_at: state.changed_at,
            ..Report::new(Controller::Rate, self.switch.mode(now))
        }
    }

    fn close_when_due(&self, now: Timestamp) {
        let due = self.due.load(Relaxed);
        if now.unix_micros() < due {
            return;
        }
        // Whoever finds it locked leaves: another one is closing the window.
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
        // A rate that nobody makes use of says nothing about a faster one.
        let is_used = seen.refused > 0 || admitted * 2 >= possible;
        let (next, reason) = if too_slow {
            (
                scaled(rate, self.settings.backoff, 1_000),
                if seen.dropped * 10 >= ended { Reason::Dropped } else { Reason::AboveTarget },
            )
        } else if is_used {
            (rate.saturating_add(self.settings.step), Reason::BelowTarget)
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
