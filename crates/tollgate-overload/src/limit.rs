//! The adaptive concurrency limit. A request takes a permit and gives it back with how it ended, at the cost
//! of a few atomic operations. At most once a second, one of the requests closes the window, and
//! [`LimitEstimate`] computes the new limit.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use tollgate::policy::Mode;
use tollgate::time::{Ticks, Timestamp};

use crate::document::LimitSettings;
use crate::estimate::LimitEstimate;
use crate::priority::Priority;
use crate::refusal::{Cause, Controller, Refusal};
use crate::report::ControllerReport;
use crate::statistics::share;
use crate::switch::Switch;
use crate::window::Window;

/// A permit to be in flight. It is not returned on drop: its owner gives it back once with
/// [`AdaptiveLimit::end`], however the request ends.
#[derive(Debug)]
#[must_use = "a permit that is never given back is lost"]
pub struct Ticket {
    started: Timestamp,
    in_flight: u32,
}

impl Ticket {
    /// When the permit was taken.
    #[must_use]
    pub const fn started(&self) -> Timestamp {
        self.started
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// It was answered, and its latency counts.
    Success,
    /// It was lost to overload: the upstream refused it, or did not answer in time.
    Dropped,
    /// It does not count: the caller went away, the request was invalid, or it is a stream or a health check.
    Ignored,
}

/// A concurrency limit that follows latency.
#[derive(Debug)]
pub struct AdaptiveLimit {
    settings: LimitSettings,
    switch: Switch,
    in_flight: AtomicU32,
    /// A copy of the estimate, readable without its lock.
    limit: AtomicU32,
    /// A copy of the median latency, in ticks.
    median_latency: AtomicU64,
    /// When the window may be closed.
    due: AtomicU64,
    window: Window,
    refused: AtomicU64,
    would_refuse: AtomicU64,
    /// Locked only to close a window, by the one request that finds it unlocked.
    state: Mutex<LimitState>,
}

#[derive(Debug)]
struct LimitState {
    estimate: LimitEstimate,
    opened: Option<Timestamp>,
    changed_at: Option<Timestamp>,
    /// The share of requests refused in the last window, in thousandths.
    pressure: u64,
}

impl AdaptiveLimit {
    /// A limit with nothing in flight.
    #[must_use]
    pub fn new(settings: LimitSettings) -> Self {
        let settings = LimitSettings {
            initial: settings.initial.clamp(settings.min.max(1), settings.max.max(settings.min.max(1))),
            ..settings
        };
        Self {
            switch: Switch::new(settings.mode),
            in_flight: AtomicU32::new(0),
            limit: AtomicU32::new(settings.initial),
            median_latency: AtomicU64::new(0),
            due: AtomicU64::new(0),
            window: Window::default(),
            refused: AtomicU64::new(0),
            would_refuse: AtomicU64::new(0),
            state: Mutex::new(LimitState {
                estimate: LimitEstimate::new(settings.clone()),
                opened: None,
                changed_at: None,
                pressure: 0,
            }),
            settings,
        }
    }

    /// The mode and the kill switch.
    #[must_use]
    pub const fn switch(&self) -> &Switch {
        &self.switch
    }

    /// Takes a permit, or counts a refusal.
    pub fn begin(&self, now: Timestamp) -> Option<Ticket> {
        let ticket = self.try_begin(now);
        if ticket.is_none() {
            self.refused.fetch_add(1, Relaxed);
        }
        ticket
    }

    /// Takes a permit for a request that can wait: a failure is not counted as a refusal.
    pub fn try_begin(&self, now: Timestamp) -> Option<Ticket> {
        self.close_when_due(now);
        let limit = self.limit.load(Relaxed);
        let mode = self.switch.mode(now);
        let take = |count: u32| (count < limit || mode != Mode::Enforce).then(|| count.saturating_add(1));
        // Relaxed: a single word bounds the count, so no other memory has to be ordered with it.
        let Ok(before) = self.in_flight.fetch_update(Relaxed, Relaxed, take) else {
            self.window.refused();
            return None;
        };
        if before >= limit && mode == Mode::Shadow {
            self.window.refused();
            self.would_refuse.fetch_add(1, Relaxed);
        }
        self.window.record_in_flight(before.saturating_add(1));
        Some(Ticket { started: now, in_flight: before.saturating_add(1) })
    }

    /// Gives a permit back.
    pub fn end(&self, ticket: Ticket, now: Timestamp, ending: Ending) {
        // Tickets are given back once, so the count is above zero. A ticket of another limit must not wrap
        // it.
        let _ = self.in_flight.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
        let latency = now.since(ticket.started);
        match ending {
            Ending::Success if latency >= self.settings.timeout => self.window.dropped(),
            Ending::Success if latency < self.settings.shortest => {}
            Ending::Success => self.window.succeeded(latency, ticket.in_flight),
            Ending::Dropped => self.window.dropped(),
            Ending::Ignored => {}
        }
        self.close_when_due(now);
    }

    /// A refusal of this limit.
    #[must_use]
    pub fn refusal(&self, priority: Priority) -> Refusal {
        let pressure = self.state.try_lock().map_or(0, |state| state.pressure);
        Cause::Concurrency.refusal(priority).with_pressure(pressure)
    }

    /// The current limit.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit.load(Relaxed)
    }

    /// The number of permits in use.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// The recent median latency; zero while it is unknown. A [`WaitQueue`](super::WaitQueue) takes its
    /// target from it.
    #[must_use]
    pub fn median_latency(&self) -> Ticks {
        Ticks::from_micros(self.median_latency.load(Relaxed))
    }

    /// The state of the limit.
    #[must_use]
    pub fn report(&self, now: Timestamp) -> ControllerReport {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let latencies = state.estimate.latencies();
        ControllerReport {
            killed_until: self.switch.killed_until(now),
            limit: Some(u64::from(self.limit())),
            in_flight: Some(self.in_flight()),
            recent: latencies.map(|(recent, _)| recent),
            baseline: latencies.map(|(_, baseline)| baseline),
            queue: Some(state.estimate.queue()),
            throughput_correlation: Some(state.estimate.throughput_correlation),
            latency_correlation: Some(state.estimate.latency_correlation),
            refused: self.refused.load(Relaxed),
            would_refuse: self.would_refuse.load(Relaxed),
            reason: state.estimate.reason,
            changed_at: state.changed_at,
            ..ControllerReport::new(Controller::Concurrency, self.switch.mode(now))
        }
    }

    fn close_when_due(&self, now: Timestamp) {
        let due = Timestamp::from_unix_micros(self.due.load(Relaxed));
        if now < due {
            return;
        }
        let late = self.settings.window_max - self.settings.window;
        if self.window.ended() < self.settings.endings && now < due + late {
            return;
        }
        // If it is locked, another request is closing the window.
        let Ok(mut state) = self.state.try_lock() else { return };
        if self.due.load(Relaxed) != due.unix_micros() {
            return;
        }
        self.due.store((now + self.settings.window).unix_micros(), Relaxed);
        let Some(opened) = state.opened.replace(now) else { return };
        let seen = self.window.close(self.in_flight());
        state.pressure = share(seen.refused, seen.refused + seen.samples + seen.dropped, 1_000);
        if self.switch.mode(now) == Mode::Off {
            return;
        }
        if state.estimate.update(&seen, now.since(opened)) {
            state.changed_at = Some(now);
        }
        self.limit.store(state.estimate.limit(), Relaxed);
        self.median_latency.store(state.estimate.median_latency().as_micros(), Relaxed);
    }
}
