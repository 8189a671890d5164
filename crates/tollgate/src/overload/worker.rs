//! The worker shedder: as this worker gets busy it sheds test traffic, then reads, then writes, then critical requests, a little more each
//! moment, and takes them back more slowly still, the slower the nearer it is to the mark above which it sheds: there it settles. Where
//! utilisation stays clearly low the overload is over, and it takes them back as quickly as it shed them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::headers::jitter::mix;
use crate::policy::Mode;
use crate::time::{TICKS_PER_SECOND, Ticks, Timestamp};

use super::priority::Priority;
use super::refusal::{Cause, Controller, Refusal};
use super::report::{Reason, Report};
use super::statistics::{ONE, scaled, share};
use super::switch::Switch;

/// All of one class, in the level's own unit: millionths.
const CLASS: u64 = 1_000_000;
/// Every class but a tenth of the critical one: if nothing passed, nobody would see that the worker is well again.
const LEVEL_MAX: u64 = 4 * CLASS - CLASS / 10;
/// How often the level moves.
const BEAT: Ticks = Ticks::from_millis(10);
/// Over which time utilisation is smoothed, and the longest time for which one look at it may raise the level.
const SMOOTH: Ticks = Ticks::from_secs(1);
/// Over which time the limit of places is smoothed.
const USUAL: Ticks = Ticks::from_secs(8);
/// How long utilisation must stay clearly low before all comes back quickly: a dip in the midst of an overload is shorter.
const CALM: Ticks = Ticks::from_secs(1);
/// How long the same callers are those that are shed.
const TURN: u64 = 3_600 * TICKS_PER_SECOND;
/// Utilisation above this is as bad as this.
const UTILISATION_MAX: u64 = 4 * ONE;

/// When a worker sheds, and how quickly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Utilisation above which more is shed, in thousandths.
    pub shed_above: u64,
    /// Utilisation at which half of the pace back is reached, in thousandths; up to the other mark it gets slower.
    pub restore_below: u64,
    /// A delay in the queue that means full utilisation.
    pub queue_delay: Ticks,
    /// The least time from shedding nothing to shedding all.
    pub shed_over: Ticks,
    /// The least time back; that from nothing to all, if it is less, while utilisation is clearly low.
    pub restore_over: Ticks,
    /// Whether it decides.
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
    /// Utilisation that is clearly low, in thousandths: three quarters of the lower mark. All that is shed at the level of an overload
    /// would come back with room to spare.
    const fn clearly_low(&self) -> u64 {
        self.restore_below / 4 * 3
    }

    /// At which share of the pace less is shed, in thousandths, at a utilisation that is not above the upper mark: nothing there, half at the
    /// lower mark, all of it at half of that. If it rested between the marks, whatever was shed too much in a bad moment would stay so.
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
    /// Requests that it works on.
    pub in_flight: u32,
    /// How many it can work on.
    pub limit: u32,
    /// How long the last one waited for its place.
    pub queue_delay: Ticks,
}

/// Sheds by priority.
#[derive(Debug)]
pub struct WorkerShedder {
    settings: WorkerSettings,
    switch: Switch,
    /// The level, in millionths of a class. A copy of what is under the lock, which decisions read without it.
    level: AtomicU64,
    /// From when on the level may move again, so that most observers need no lock.
    due: AtomicU64,
    /// The longest wait in the queue since the last look, in ticks.
    delay: AtomicU64,
    refused: AtomicU64,
    would_refuse: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    level: u64,
    /// Utilisation, smoothed, in millionths: in thousandths what a look adds would be rounded away.
    smooth: u64,
    /// The limit of places, smoothed, in millionths.
    places: u64,
    seen_at: Option<Timestamp>,
    /// Since when utilisation is clearly low, if it is.
    calm_since: Option<Timestamp>,
    reason: Reason,
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

    /// Its mode and its kill switch.
    #[must_use]
    pub const fn switch(&self) -> &Switch {
        &self.switch
    }

    /// Tells how busy the worker is. Call it with every request that begins or ends, and now and then while there is none.
    pub fn observe(&self, load: Load, now: Timestamp) {
        // The longest wait counts, whoever tells it: most tell none.
        if !load.queue_delay.is_zero() {
            self.delay.fetch_max(load.queue_delay.as_micros(), Relaxed);
        }
        if now.unix_micros() < self.due.load(Relaxed) {
            return;
        }
        // Whoever finds it locked leaves: another one is telling it.
        let Ok(mut state) = self.state.try_lock() else { return };
        self.due.store((now + BEAT).unix_micros(), Relaxed);
        let places = state.places(load.limit, now);
        let by_places = share(u64::from(load.in_flight) * ONE, places, UTILISATION_MAX);
        let by_delay =
            share(self.delay.swap(0, Relaxed), self.settings.queue_delay.as_micros(), UTILISATION_MAX);
        let is_full = load.in_flight >= load.limit;
        state.look(by_places.max(by_delay), is_full, now, &self.settings);
        self.level.store(state.level, Relaxed);
    }

    /// Whether a request is shed now. `identity` is a hash of who sends it or of the request itself: the same one is treated alike for an
    /// hour, and others are next.
    ///
    /// # Errors
    /// The request is to be refused.
    pub fn decide(&self, priority: Priority, identity: u64, now: Timestamp) -> Result<(), Refusal> {
        let shed = self.level.load(Relaxed).saturating_sub(priority.rank() * CLASS).min(CLASS);
        if shed == 0 {
            return Ok(());
        }
        let roll = scaled(mix(identity ^ mix(now.unix_micros() / TURN)) >> 1, CLASS, 1 << 63);
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

    /// The state of it.
    #[must_use]
    pub fn report(&self, now: Timestamp) -> Report {
        let state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Report {
            killed_until: self.switch.killed_until(now),
            utilisation: Some(state.smooth / 1_000),
            level: Some(state.level / 1_000),
            refused: self.refused.load(Relaxed),
            would_refuse: self.would_refuse.load(Relaxed),
            reason: state.reason,
            changed_at: state.changed_at,
            ..Report::new(Controller::Worker, self.switch.mode(now))
        }
    }
}

impl State {
    /// How many places there usually are, or now if that is more, in thousandths. A limit that adapts tries how few would do, now and then,
    /// and that is no reason to shed: who waits for it gets its place in a moment.
    fn places(&mut self, limit: u32, now: Timestamp) -> u64 {
        let limit = u64::from(limit) * 1_000_000;
        let passed = self.seen_at.map_or(USUAL, |seen_at| now.since(seen_at).min(USUAL)).as_micros();
        let rest = USUAL.as_micros() - passed;
        let sum = u128::from(self.places) * u128::from(rest) + u128::from(limit) * u128::from(passed);
        self.places = u64::try_from(sum / u128::from(USUAL.as_micros())).unwrap_or(limit);
        self.places.max(limit) / 1_000
    }

    fn look(&mut self, utilisation: u64, is_full: bool, now: Timestamp, settings: &WorkerSettings) {
        let utilisation = utilisation * 1_000;
        let Some(seen_at) = self.seen_at.replace(now) else {
            self.smooth = utilisation;
            return;
        };
        let passed = now.since(seen_at);
        let weight = passed.min(SMOOTH).as_micros();
        let rest = SMOOTH.as_micros() - weight;
        self.smooth = (self.smooth * rest + utilisation * weight) / SMOOTH.as_micros();
        let utilisation = self.smooth / 1_000;
        let before = self.level;
        let is_low = utilisation <= settings.clearly_low();
        self.calm_since = if is_low { self.calm_since.or(Some(now)) } else { None };
        if utilisation > settings.shed_above {
            // The nearer to the mark the slower, so that it comes to rest there.
            let excess =
                share(utilisation - settings.shed_above, ONE.saturating_sub(settings.shed_above), ONE);
            let step = step(passed.min(SMOOTH), settings.shed_over, excess);
            self.level = (self.level + step).min(LEVEL_MAX);
        } else if !is_full {
            // While there is no place for anybody it is no time for more, however many there usually are.
            let (over, pace) = match self.calm_since {
                Some(since) if now.since(since) >= CALM => {
                    (settings.restore_over.min(settings.shed_over), ONE)
                }
                _ => (settings.restore_over, settings.restore_pace(utilisation)),
            };
            self.level = self.level.saturating_sub(step(passed, over, pace));
        }
        if self.level != before {
            self.reason = if self.level > before { Reason::Busy } else { Reason::Calm };
            self.changed_at = Some(now);
        }
    }
}

/// How far the level moves in this time, if all of it takes `over`, at a share of that pace in thousandths.
fn step(passed: Ticks, over: Ticks, pace: u64) -> u64 {
    scaled(4 * CLASS, scaled(passed.as_micros(), pace, ONE), over.as_micros())
}
