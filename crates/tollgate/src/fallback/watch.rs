//! Tracks how long the store has been unreachable and how much longer limits may be open. From this follows the stage
//! that each limit is in.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::policy::{OPEN_BUDGET, OPEN_WINDOW, Stages};
use crate::time::{Ticks, Timestamp};

/// A store that has not failed for this long has recovered; a failure before that continues the same outage.
pub(super) const HEALTH: Ticks = Ticks::from_secs(30);
/// Minimum length that a stretch of open time counts for, so that there are not many short ones.
const STRETCH_MIN: Ticks = Ticks::from_millis(10);
/// Maximum number of stretches of open time that are remembered. At this number no limit is opened.
const STRETCHES_MAX: usize = 64;

/// How a limit decides without its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Open,
    Local,
    Closed,
}

/// The outages of the store.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Whether the store has answered since the process started. Until then no limit is open, so a restart does not
    /// bypass a limit.
    has_answered: AtomicBool,
    /// Whether the most recent result from the store is an answer.
    is_up: AtomicBool,
    /// Since when the store has answered, in microseconds.
    up_since: AtomicU64,
    absence: Mutex<Absence>,
    open: Mutex<Vec<Stretch>>,
    open_micros: AtomicU64,
}

/// The current outage, or the last one.
#[derive(Clone, Copy, Debug, Default)]
struct Absence {
    began: Option<Timestamp>,
    /// The longest duration measured so far. A clock that steps back does not shorten it.
    lasted: Ticks,
}

/// A period in which limits were open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    from: Timestamp,
    to: Timestamp,
}

/// No update under these locks can be left half done, so the state of a panicking thread is still valid.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// Records that the store has answered.
    #[inline]
    pub(super) fn answered(&self, now: Timestamp) {
        // Relaxed: a concurrent decision may use the previous state. Written only on a change, so that the cache line
        // stays shared.
        if !self.is_up.load(Ordering::Relaxed) {
            self.up_since.store(now.unix_micros(), Ordering::Relaxed);
            self.is_up.store(true, Ordering::Relaxed);
            self.has_answered.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the most recent result from the store is an answer.
    pub(super) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// Whether the store has answered for long enough that the last outage is over.
    fn is_well(&self, now: Timestamp) -> bool {
        let up_since = Timestamp::from_unix_micros(self.up_since.load(Ordering::Relaxed));
        self.is_up() && now.since(up_since) >= HEALTH
    }

    /// Records that the store has failed.
    pub(super) fn failed(&self, now: Timestamp) {
        let is_new = self.is_well(now);
        self.is_up.store(false, Ordering::Relaxed);
        let mut absence = locked(&self.absence);
        let began = absence.began.filter(|_| !is_new).unwrap_or(now);
        let lasted = if absence.began == Some(began) { absence.lasted } else { Ticks::ZERO };
        *absence = Absence { began: Some(began), lasted: lasted.max(now.since(began)) };
    }

    /// How long the store has been unreachable, as observed by this process.
    pub(super) fn away_for(&self, now: Timestamp) -> Ticks {
        let absence = locked(&self.absence);
        absence.began.map_or(Ticks::ZERO, |began| absence.lasted.max(now.since(began)))
    }

    /// Whether the store has failed recently.
    pub(super) fn was_away_lately(&self, now: Timestamp) -> bool {
        locked(&self.absence).began.is_some() && !self.is_well(now)
    }

    /// The stage of a limit whose counter has been unreachable for `away`.
    pub(super) fn stage(&self, stages: Stages, away: Ticks, now: Timestamp) -> Stage {
        if stages.deny_after.is_some_and(|after| away >= after) {
            return Stage::Closed;
        }
        if away < stages.open_for && self.may_open(away, now) { Stage::Open } else { Stage::Local }
    }

    /// Charges the time since the start of an outage to the budget of open time. Time that was charged before, for
    /// another limit or another part of the store, is not charged again.
    fn may_open(&self, away: Ticks, now: Timestamp) -> bool {
        if !self.has_answered.load(Ordering::Relaxed) {
            return false;
        }
        let wanted = Stretch { from: now - away, to: now };
        let mut open = locked(&self.open);
        // A stretch in the future, because the clock stepped back, counts as if it ended now.
        open.retain(|stretch| now.since(stretch.to) < OPEN_WINDOW);
        let mut merged = wanted;
        let mut others = Vec::with_capacity(open.len() + 1);
        for stretch in open.iter() {
            if stretch.from <= merged.to && merged.from <= stretch.to {
                merged = Stretch { from: merged.from.min(stretch.from), to: merged.to.max(stretch.to) };
            } else {
                others.push(*stretch);
            }
        }
        others.push(merged);
        let spent = total(&others, STRETCH_MIN);
        if spent > OPEN_BUDGET || others.len() > STRETCHES_MAX {
            return false;
        }
        let more = total(&others, Ticks::ZERO) - total(&open, Ticks::ZERO);
        *open = others;
        // Relaxed: a statistic only.
        self.open_micros.fetch_add(more.as_micros(), Ordering::Relaxed);
        true
    }

    /// The total time that limits were open.
    pub(super) fn open_for(&self) -> Ticks {
        Ticks::from_micros(self.open_micros.load(Ordering::Relaxed))
    }
}

/// The total length of the stretches, each counted with at least the length `least`.
fn total(stretches: &[Stretch], least: Ticks) -> Ticks {
    let lengths = stretches.iter().map(|stretch| stretch.to.since(stretch.from).max(least));
    lengths.fold(Ticks::ZERO, |sum, length| sum + length)
}
