//! The adaptive limit of places in flight. A request takes a place and gives it back with how it ended; what that takes is a few atomic
//! operations. Once in a while, at most once a second, whoever comes by closes the window, and [`Estimate`] says how many places there are.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::policy::Mode;
use crate::time::{Ticks, Timestamp};

use super::estimate::Estimate;
use super::priority::Priority;
use super::refusal::{Cause, Controller, Refusal};
use super::report::Report;
use super::statistics::share;
use super::switch::Switch;
use super::window::Window;

/// Most places of any limit.
pub const LIMIT_MAX: u32 = 1_000_000;

/// How a limit adapts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSettings {
    /// Fewest places.
    pub min: u32,
    /// Places at the start, and as many as stay while little is asked.
    pub initial: u32,
    /// Most places.
    pub max: u32,
    /// The shortest window, which is also how often the limit may change.
    pub window: Ticks,
    /// The longest window, if there are fewer endings than it takes.
    pub window_max: Ticks,
    /// The endings that a window waits for.
    pub endings: u64,
    /// Latencies below this are not told: they are answers that nothing was done for.
    pub shortest: Ticks,
    /// A success that took this long is a loss: the caller had given up, or was about to.
    pub timeout: Ticks,
    /// Whether it decides.
    pub mode: Mode,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            min: 1,
            initial: 20,
            max: 1_000,
            window: Ticks::from_secs(1),
            window_max: Ticks::from_secs(30),
            endings: 50,
            shortest: Ticks::from_micros(100),
            timeout: Ticks::from_secs(30),
            mode: Mode::Enforce,
        }
    }
}

/// A place in flight. It does not come back by itself: whoever holds it gives it back with [`AdaptiveLimit::end`], once, whatever happens.
#[derive(Debug)]
#[must_use = "a place that is never given back is lost"]
pub struct Ticket {
    started: Timestamp,
    in_flight: u32,
}

impl Ticket {
    /// When the place was taken.
    #[must_use]
    pub const fn started(&self) -> Timestamp {
        self.started
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// It was answered, and its latency tells something.
    Success,
    /// It was lost to overload: what is behind refused it, or did not answer in time.
    Dropped,
    /// It tells nothing: the caller went away, it was refused for its own sake, it is a stream or a health check.
    Ignored,
}

/// A limit of places in flight that follows latency.
#[derive(Debug)]
pub struct AdaptiveLimit {
    settings: LimitSettings,
    switch: Switch,
    in_flight: AtomicU32,
    /// A copy of the estimate's, which is read without its lock.
    limit: AtomicU32,
    /// What half of the requests take of late, in ticks: a copy, too.
    half: AtomicU64,
    /// From when on the window may be closed.
    due: AtomicU64,
    window: Window,
    refused: AtomicU64,
    would_refuse: AtomicU64,
    /// Held for a window's closing only, by one that found it free.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    estimate: Estimate,
    opened: Option<Timestamp>,
    changed_at: Option<Timestamp>,
    /// The share that was refused in the last window, in thousandths.
    pressure: u64,
}

impl AdaptiveLimit {
    /// A limit with all places free.
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
            half: AtomicU64::new(0),
            due: AtomicU64::new(0),
            window: Window::default(),
            refused: AtomicU64::new(0),
            would_refuse: AtomicU64::new(0),
            state: Mutex::new(State {
                estimate: Estimate::new(settings.clone()),
                opened: None,
                changed_at: None,
                pressure: 0,
            }),
            settings,
        }
    }

    /// Its mode and its kill switch.
    #[must_use]
    pub const fn switch(&self) -> &Switch {
        &self.switch
    }

    /// Takes a place, if there is one.
    pub fn begin(&self, now: Timestamp) -> Option<Ticket> {
        let ticket = self.try_begin(now);
        if ticket.is_none() {
            self.refused.fetch_add(1, Relaxed);
        }
        ticket
    }

    /// The same for one who will wait for a place: that there is none is not yet a refusal.
    pub fn try_begin(&self, now: Timestamp) -> Option<Ticket> {
        self.close_when_due(now);
        let limit = self.limit.load(Relaxed);
        let mode = self.switch.mode(now);
        let room = |count: u32| (count < limit || mode != Mode::Enforce).then(|| count.saturating_add(1));
        // One word, so no other order of operations has to be kept: at most `limit` can be counted in it.
        let Ok(before) = self.in_flight.fetch_update(Relaxed, Relaxed, room) else {
            self.window.refused();
            return None;
        };
        if before >= limit && mode == Mode::Shadow {
            self.window.refused();
            self.would_refuse.fetch_add(1, Relaxed);
        }
        self.window.saw(before.saturating_add(1));
        Some(Ticket { started: now, in_flight: before.saturating_add(1) })
    }

    /// Gives a place back.
    pub fn end(&self, ticket: Ticket, now: Timestamp, ending: Ending) {
        // A ticket is given back once, so this is above zero; one of another limit must not wrap it.
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

    /// Places in all.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit.load(Relaxed)
    }

    /// Places that are taken.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// What half of the requests take of late; zero while nobody knows. A [`Line`](super::Line) takes its target from it.
    #[must_use]
    pub fn half(&self) -> Ticks {
        Ticks::from_micros(self.half.load(Relaxed))
    }

    /// The state of it.
    #[must_use]
    pub fn report(&self, now: Timestamp) -> Report {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let latencies = state.estimate.latencies();
        Report {
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
            ..Report::new(Controller::Concurrency, self.switch.mode(now))
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
        // Whoever finds it locked leaves: another one is closing the window.
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
        self.half.store(state.estimate.half().as_micros(), Relaxed);
    }
}
