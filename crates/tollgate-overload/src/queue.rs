//! The bounded queue in which requests wait for a permit. It has one class per priority and serves the
//! highest class first. A full queue evicts a waiter of the lowest class for a request of a higher one.
//!
//! A class is first in, first out, and its waiters wait at most one interval. A class whose oldest waiter
//! exceeded the target throughout an interval is a standing queue: it serves the newest waiter first, and
//! expires waiters after twice the target. That is CoDel with adaptive LIFO, for each priority by itself, so
//! that a flood of test traffic cannot push out critical requests.
//!
//! The queue stores what its owner puts in (a waker, a sender) and has neither clock nor lock. The owner
//! calls [`WaitQueue::next`] when a permit is free and handles one waiter at a time, so one free permit wakes
//! one waiter. Every operation takes constant time, except that [`WaitQueue::next`] expires old waiters, each
//! of them once.

mod classes;

use tollgate::policy::Mode;
use tollgate::time::{Ticks, Timestamp};

use crate::document::{QUEUE_MAX, QueueSettings};
use crate::priority::Priority;
use crate::refusal::{Cause, Controller};
use crate::report::{ChangeReason, ControllerReport};
use crate::switch::Switch;
pub use classes::WaiterId;
use classes::{ClassQueues, QueueEnd, WaitTimes};

/// The verdict on a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueAction<T> {
    /// Serve it. It waited this long.
    Serve(T, Ticks),
    /// Refuse it. There may be another waiter to serve.
    Refuse(T, Cause),
}

/// The state of a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitStatus<T> {
    /// It may wait. Check it again at this instant.
    Until(Timestamp),
    /// It has waited too long and was removed.
    Expired(T, Cause),
}

/// The result of [`WaitQueue::push`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushOutcome<T> {
    /// The request waits.
    Queued(WaiterId),
    /// The request waits, and another waiter was evicted: one of a lower class, or the oldest of its own
    /// class.
    Replaced(WaiterId, T),
    /// The queue is full.
    Full(T),
}

/// The CoDel state of one class.
#[derive(Clone, Copy, Debug)]
struct ClassState {
    /// The end of this interval, and whether the oldest waiter was below the target at any time in it.
    interval_ends: Timestamp,
    was_short: bool,
    is_standing: bool,
}

/// A queue of requests that wait for a permit.
#[derive(Debug)]
pub struct WaitQueue<T> {
    settings: QueueSettings,
    switch: Switch,
    classes: ClassQueues<T>,
    states: [ClassState; Priority::ALL.len()],
    size: usize,
    target: Ticks,
    refused: u64,
    would_refuse: u64,
    reason: ChangeReason,
    changed_at: Option<Timestamp>,
}

impl<T> WaitQueue<T> {
    /// An empty queue for `size` waiters, unless the settings fix the size.
    #[must_use]
    pub fn new(settings: QueueSettings, size: usize) -> Self {
        let state = ClassState { interval_ends: Timestamp::default(), was_short: true, is_standing: false };
        Self {
            switch: Switch::new(settings.mode),
            classes: ClassQueues::new(),
            states: [state; Priority::ALL.len()],
            size: settings.size.unwrap_or(size).min(QUEUE_MAX),
            target: settings.target,
            refused: 0,
            would_refuse: 0,
            reason: ChangeReason::Initial,
            changed_at: None,
            settings,
        }
    }

    /// The mode and the kill switch. A queue that is off or in shadow is first in, first out, ignores
    /// priorities, and refuses only for a missed deadline or lack of space.
    #[must_use]
    pub const fn switch(&self) -> &Switch {
        &self.switch
    }

    /// Adapts to a concurrency limit: the queue holds twice as many waiters, and the target is a tenth of the
    /// median latency, at least that of the settings.
    pub fn adapt(&mut self, limit: u32, median_latency: Ticks) {
        if self.settings.size.is_none() {
            self.size = usize::try_from(limit).unwrap_or(QUEUE_MAX).saturating_mul(2).min(QUEUE_MAX);
        }
        self.target = Ticks::from_micros(median_latency.as_micros() / 10).max(self.settings.target);
    }

    /// Enqueues a request, which is useless after its deadline.
    pub fn push(
        &mut self,
        item: T,
        priority: Priority,
        deadline: Timestamp,
        now: Timestamp,
    ) -> PushOutcome<T> {
        self.update(now);
        let mut out = None;
        if self.classes.len() >= self.size {
            self.refused += 1;
            out = self.evict_for(priority, now);
            if out.is_none() {
                return PushOutcome::Full(item);
            }
        }
        let id = self.classes.push(item, priority, now, deadline);
        match out {
            Some(out) => PushOutcome::Replaced(id, out),
            None => PushOutcome::Queued(id),
        }
    }

    /// The next waiter to serve or refuse when a permit is free; `None` if the queue is empty. Call it until
    /// it serves a waiter or returns `None`.
    pub fn next(&mut self, now: Timestamp) -> Option<QueueAction<T>> {
        self.update(now);
        if let Some(refused) = self.expire_oldest(now) {
            return Some(refused);
        }
        let (class, end) = if self.is_enforcing(now) {
            let class = self.classes.highest()?;
            (class, if self.is_standing(class) { QueueEnd::Newest } else { QueueEnd::Oldest })
        } else {
            (self.classes.first()?, QueueEnd::Oldest)
        };
        let times = self.classes.times(class, end)?;
        let max_wait = self.max_wait(class);
        let item = self.classes.take(class, end)?;
        if now >= times.deadline {
            self.refused += 1;
            return Some(QueueAction::Refuse(item, Cause::Deadline));
        }
        let waited = now.since(times.arrived_at);
        if waited >= max_wait && self.switch.mode(now) == Mode::Shadow {
            self.would_refuse += 1;
        }
        self.update(now);
        Some(QueueAction::Serve(item, waited))
    }

    /// Expires one waiter, lowest class first. Call it until it returns `None`, also while no permit is free:
    /// at [`WaitQueue::next_expiry`].
    pub fn expire(&mut self, now: Timestamp) -> Option<QueueAction<T>> {
        self.update(now);
        self.expire_oldest(now)
    }

    /// Expires this waiter if it has waited too long, wherever it is in the queue; `None` if it is no longer
    /// queued. An owner with a timer per waiter calls it on arrival and at each returned instant, and does
    /// not need [`WaitQueue::expire`].
    pub fn check_waiter(&mut self, id: WaiterId, now: Timestamp) -> Option<WaitStatus<T>> {
        self.update(now);
        let (class, times) = self.classes.times_of(id)?;
        match self.verdict(class, &times, now) {
            Some(cause) => {
                self.refused += 1;
                self.classes.remove(id).map(|item| WaitStatus::Expired(item, cause))
            }
            None => Some(WaitStatus::Until(self.next_check_at(class, &times, now))),
        }
    }

    /// When the next of the oldest waiters expires. A younger waiter may have an earlier deadline; see
    /// [`WaitQueue::check_waiter`].
    #[must_use]
    pub fn next_expiry(&self) -> Option<Timestamp> {
        let of_class = |class: Priority| {
            let times = self.classes.times(class, QueueEnd::Oldest)?;
            Some((times.arrived_at + self.max_wait(class)).min(times.deadline))
        };
        Priority::ALL.into_iter().filter_map(of_class).min()
    }

    /// Removes a waiter; `None` if it is no longer queued.
    pub fn cancel(&mut self, id: WaiterId, now: Timestamp) -> Option<T> {
        let item = self.classes.remove(id)?;
        self.update(now);
        Some(item)
    }

    /// The number of waiters.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.classes.len()
    }

    /// Whether the queue is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.classes.len() == 0
    }

    /// Whether the class of this priority is a standing queue, which serves its newest waiter first.
    #[must_use]
    pub const fn is_standing(&self, priority: Priority) -> bool {
        self.states[priority as usize].is_standing
    }

    /// The state of the queue. `baseline` is the target, `recent` the longest current wait, and `reason` that
    /// of the class which changed last.
    #[must_use]
    pub fn report(&self, now: Timestamp) -> ControllerReport {
        let first = self.classes.first().and_then(|class| self.classes.times(class, QueueEnd::Oldest));
        let waiting = self.classes.len();
        ControllerReport {
            killed_until: self.switch.killed_until(now),
            limit: Some(self.size as u64),
            in_flight: Some(u32::try_from(waiting).unwrap_or(u32::MAX)),
            baseline: Some(self.target),
            recent: Some(first.map_or(Ticks::ZERO, |times| now.since(times.arrived_at))),
            queue: Some(waiting as u64),
            refused: self.refused,
            would_refuse: self.would_refuse,
            reason: self.reason,
            changed_at: self.changed_at,
            ..ControllerReport::new(Controller::Queue, self.switch.mode(now))
        }
    }

    /// Evicts a waiter to make space for a request of this priority, if there is one to evict.
    fn evict_for(&mut self, priority: Priority, now: Timestamp) -> Option<T> {
        if !self.is_enforcing(now) {
            return None;
        }
        let lowest = self.classes.lowest().filter(|&lowest| lowest <= priority)?;
        let end = match self.is_standing(lowest) {
            // The oldest of a standing class would expire soon anyway, and its newest is served first.
            true => QueueEnd::Oldest,
            // The newest is served last. A new request of the same class would be served later still.
            false if lowest < priority => QueueEnd::Newest,
            false => return None,
        };
        self.classes.take(lowest, end)
    }

    /// Removes the oldest waiter of a class, if it has waited too long.
    fn expire_oldest(&mut self, now: Timestamp) -> Option<QueueAction<T>> {
        for class in Priority::ALL {
            let Some(times) = self.classes.times(class, QueueEnd::Oldest) else { continue };
            if let Some(cause) = self.verdict(class, &times, now) {
                self.refused += 1;
                return self
                    .classes
                    .take(class, QueueEnd::Oldest)
                    .map(|item| QueueAction::Refuse(item, cause));
            }
        }
        None
    }

    /// Why a waiter must not wait any longer; `None` if it may.
    fn verdict(&self, class: Priority, times: &WaitTimes, now: Timestamp) -> Option<Cause> {
        if now >= times.deadline {
            return Some(Cause::Deadline);
        }
        let is_old = now.since(times.arrived_at) >= self.max_wait(class);
        (is_old && self.is_enforcing(now)).then_some(Cause::QueueDelay)
    }

    /// When to check a waiter again: the first instant at which it may expire. Considers that its class may
    /// become a standing queue at the end of the interval, if it was never short in it.
    fn next_check_at(&self, class: Priority, times: &WaitTimes, now: Timestamp) -> Timestamp {
        let state = &self.states[class as usize];
        let mut at = times.arrived_at + self.max_wait(class);
        if !state.is_standing && !state.was_short {
            at = at.min(state.interval_ends.max(times.arrived_at + self.target + self.target));
        }
        // A queue in shadow may be set to enforce.
        if at <= now {
            at = now + self.settings.interval;
        }
        at.min(times.deadline)
    }

    /// The maximum wait in a class.
    fn max_wait(&self, class: Priority) -> Ticks {
        match self.is_standing(class) {
            true => self.target + self.target,
            false => self.settings.interval.max(self.target),
        }
    }

    fn is_enforcing(&self, now: Timestamp) -> bool {
        self.switch.mode(now) == Mode::Enforce
    }

    /// Updates the CoDel state of all classes from their oldest waiters.
    fn update(&mut self, now: Timestamp) {
        for class in Priority::ALL {
            let waited = self
                .classes
                .times(class, QueueEnd::Oldest)
                .map_or(Ticks::ZERO, |oldest| now.since(oldest.arrived_at));
            let state = &mut self.states[class as usize];
            if now >= state.interval_ends {
                let standing = !state.was_short && waited > self.target;
                if standing != state.is_standing {
                    state.is_standing = standing;
                    self.reason = if standing { ChangeReason::Standing } else { ChangeReason::Drained };
                    self.changed_at = Some(now);
                }
                state.interval_ends = now + self.settings.interval;
                state.was_short = false;
            }
            state.was_short |= waited <= self.target;
        }
    }
}
