//! How long the store has been away, and how much longer limits may be open: what turns a limit's stages into what it does now.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::policy::{OPEN_BUDGET, OPEN_WINDOW, Stages};
use crate::time::{Ticks, Timestamp};

/// A store that has not failed for so long is well again; one that fails earlier has been away all the time.
pub(super) const HEALTH: Ticks = Ticks::from_secs(30);
/// What a stretch of open time counts at least, so that there are not many short ones.
const STRETCH_MIN: Ticks = Ticks::from_millis(10);
/// Most stretches of open time that are remembered; while there are so many no limit is opened.
const STRETCHES_MAX: usize = 64;

/// What a limit does without its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Open,
    Local,
    Closed,
}

/// What is known of the store's absences.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Whether the store has answered since the process started. Until then no limit is open: a restart is no way around one.
    has_answered: AtomicBool,
    /// Whether the last that was heard of the store is an answer.
    is_up: AtomicBool,
    /// Since when, in microseconds.
    up_since: AtomicU64,
    absence: Mutex<Absence>,
    open: Mutex<Vec<Stretch>>,
    open_micros: AtomicU64,
}

/// The absence that is, or was last.
#[derive(Clone, Copy, Debug, Default)]
struct Absence {
    began: Option<Timestamp>,
    /// How long it was at most. A clock that steps back does not make it shorter.
    lasted: Ticks,
}

/// A time in which limits were open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    from: Timestamp,
    to: Timestamp,
}

/// Nothing is left half done under these locks, so what a panicking thread held is still good.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// The store has answered.
    #[inline]
    pub(super) fn answered(&self, now: Timestamp) {
        // Relaxed: one decision more or less may go by what was before. Written only when it changes, so that all may read it.
        if !self.is_up.load(Ordering::Relaxed) {
            self.up_since.store(now.unix_micros(), Ordering::Relaxed);
            self.is_up.store(true, Ordering::Relaxed);
            self.has_answered.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the last that was heard of the store is an answer.
    pub(super) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// Whether it has answered for so long that the last absence is over.
    fn is_well(&self, now: Timestamp) -> bool {
        let up_since = Timestamp::from_unix_micros(self.up_since.load(Ordering::Relaxed));
        self.is_up() && now.since(up_since) >= HEALTH
    }

    /// The store has failed.
    pub(super) fn failed(&self, now: Timestamp) {
        let is_new = self.is_well(now);
        self.is_up.store(false, Ordering::Relaxed);
        let mut absence = locked(&self.absence);
        let began = absence.began.filter(|_| !is_new).unwrap_or(now);
        let lasted = if absence.began == Some(began) { absence.lasted } else { Ticks::ZERO };
        *absence = Absence { began: Some(began), lasted: lasted.max(now.since(began)) };
    }

    /// How long the store has been away, as far as was seen here.
    pub(super) fn away_for(&self, now: Timestamp) -> Ticks {
        let absence = locked(&self.absence);
        absence.began.map_or(Ticks::ZERO, |began| absence.lasted.max(now.since(began)))
    }

    /// Whether the store has failed lately.
    pub(super) fn is_shaken(&self, now: Timestamp) -> bool {
        locked(&self.absence).began.is_some() && !self.is_well(now)
    }

    /// What a limit does whose counter has been away for so long.
    pub(super) fn stage(&self, stages: Stages, away: Ticks, now: Timestamp) -> Stage {
        if stages.deny_after.is_some_and(|after| away >= after) {
            return Stage::Closed;
        }
        if away < stages.open_for && self.may_open(away, now) { Stage::Open } else { Stage::Local }
    }

    /// Takes the time since the beginning of an absence out of the budget of open time; not where it was counted already, as for another
    /// limit or another part of the store.
    fn may_open(&self, away: Ticks, now: Timestamp) -> bool {
        if !self.has_answered.load(Ordering::Relaxed) {
            return false;
        }
        let wanted = Stretch { from: now - away, to: now };
        let mut open = locked(&self.open);
        // What lies ahead, because the clock stepped back, counts as if it were now.
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
        // Relaxed: a number for people.
        self.open_micros.fetch_add(more.as_micros(), Ordering::Relaxed);
        true
    }

    /// How long limits were open in all.
    pub(super) fn open_for(&self) -> Ticks {
        Ticks::from_micros(self.open_micros.load(Ordering::Relaxed))
    }
}

/// How long stretches are together, if each counts for at least so long.
fn total(stretches: &[Stretch], least: Ticks) -> Ticks {
    let lengths = stretches.iter().map(|stretch| stretch.to.since(stretch.from).max(least));
    lengths.fold(Ticks::ZERO, |sum, length| sum + length)
}
