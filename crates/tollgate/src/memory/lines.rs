//! Lines before leaky buckets of this process's memory, for requests that wait here: when somebody leaves, those behind move up, and the bucket
//! has its units back.
//!
//! A request is charged first, as every request is, and lines up only if it has to wait: whoever passes never meets a line. Between the two
//! others may be charged, line up and leave. That is safe, since a charge that stands in no line is a gap that nobody moves past; see `row`.
//!
//! One timer of a line waits for its first. It rings on the clock's own thread, calls everybody whose turn has come, and wakes each of them once:
//! nobody's turn depends on another task's being polled.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use smallvec::SmallVec;

use super::MemoryStore;
use super::table::Entry;
use crate::algorithm::gcra;
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::clock::{Clock, Sleep};
use crate::key::Fingerprint;
use crate::time::Timestamp;

mod row;
#[cfg(test)]
mod tests;

use row::{Pitch, Return, Row};

/// In so many parts are the lines of a store, each with a lock.
const PARTS: usize = 16;

/// The lines of a store, by counter and by the number of the quota that it is counted under.
pub(super) struct Lines([Arc<Part>; PARTS]);

/// Locked before the lines in it, and while somebody lines up, so that no line is forgotten meanwhile.
#[derive(Default)]
struct Part(Mutex<HashMap<(Fingerprint, u32), Arc<Line>>>);

struct Line {
    at: (Fingerprint, u32),
    clock: Clock,
    /// Wakes this line, and does not keep it.
    alarm: Waker,
    /// Guards who stands there. Nobody is woken while it is locked: whom that runs may want it, too.
    inner: Mutex<Inner>,
}

struct Inner {
    row: Row,
    /// What each place of the row has come to.
    stages: Vec<Stage>,
    /// Until when the timer runs, if it does.
    timer: Option<(Timestamp, Sleep)>,
    /// How often a timer has rung.
    rings: u64,
}

enum Stage {
    Standing(Option<Waker>),
    /// Its turn has come; its slot ends there.
    Called(u128),
    /// It went before its turn came.
    Gone,
}

struct Alarm(Weak<Line>);

type Woken = SmallVec<[Waker; 4]>;

/// A charge that has to wait.
pub(crate) struct LineUp<'q> {
    pub(crate) key: Fingerprint,
    pub(crate) number: u32,
    pub(crate) quota: &'q LeakyBucket,
    pub(crate) cost: u64,
    /// When the bucket is empty if nobody comes after it.
    pub(crate) empty_at: Timestamp,
}

/// A place in a line. Whoever drops it, and has not left, keeps its slot.
pub(crate) struct Spot {
    part: Arc<Part>,
    line: Arc<Line>,
    id: u32,
}

/// What came of leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Somebody else has its slot, or the bucket.
    Free,
    /// Its turn had come, or it had left before: the slot that ends there is used.
    Used(Timestamp),
}

impl Default for Lines {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Arc::default()))
    }
}

impl std::fmt::Debug for Spot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spot").field("id", &self.id).finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// Takes the place in line that a charge at this instant has told of. None where it has to keep the instant that it was told.
    pub(crate) fn line_up(&self, wanted: &LineUp<'_>, now: Timestamp, clock: &Clock) -> Option<Spot> {
        let pitch = Pitch::of(wanted.quota)?;
        if pitch.turn(pitch.credits(wanted.empty_at)) <= now {
            return None; // Its turn has come meanwhile.
        }
        let at = (wanted.key, wanted.number);
        let part = &self.lines.0[usize::try_from(wanted.key.tag % PARTS as u64).unwrap_or(0)];
        let mut lines = part.lines();
        let line = match lines.entry(at) {
            Slot::Occupied(known) => known.into_mut(),
            Slot::Vacant(free) => free.insert(Line::new(at, pitch, clock)),
        };
        let id = match self.join(line, pitch, wanted, now) {
            Some(id) => id,
            // The bucket is not the one that those before line up at: they go on among themselves.
            None => {
                *line = Line::new(at, pitch, clock);
                self.join(line, pitch, wanted, now)?
            }
        };
        let line = Arc::clone(line);
        drop(lines);
        line.arm();
        Some(Spot { part: Arc::clone(part), line, id })
    }

    fn join(&self, line: &Line, pitch: Pitch, wanted: &LineUp<'_>, now: Timestamp) -> Option<u32> {
        let mut inner = line.inner();
        if *inner.row.pitch() != pitch {
            return None;
        }
        let told = pitch.credits(wanted.empty_at);
        let level = self.level(line.at, pitch, now).unwrap_or(told);
        // The last one's slot is known to the fraction of a tick.
        let end = if pitch.tick(level) == wanted.empty_at { level } else { told };
        let (id, free) = inner.row.join(end, pitch.cost(wanted.cost), level, pitch.credits(now))?;
        self.give_back(line.at, &mut inner.row, free, now);
        inner.set(id, Stage::Standing(None));
        Some(id)
    }

    /// Lets somebody leave a line of this store. Of a turn that has come nothing is given back.
    pub(crate) fn leave_line(&self, spot: &Spot, now: Timestamp) -> Left {
        let line = &spot.line;
        let mut inner = line.inner();
        let (woken, pitch) = (inner.call(now), *inner.row.pitch());
        let (left, gone) = match inner.stage(spot.id) {
            Some(Stage::Standing(_)) => {
                let free = inner.row.leave(spot.id, pitch.credits(now));
                self.give_back(line.at, &mut inner.row, free, now);
                (Left::Free, inner.set(spot.id, Stage::Gone))
            }
            Some(Stage::Called(end)) => (Left::Used(pitch.tick(*end)), None),
            Some(Stage::Gone) | None => (Left::Used(now), None),
        };
        drop(inner);
        drop(gone);
        wake_all(woken);
        line.ring(now); // Whoever moved up may have its turn by that.
        left
    }

    /// The instant at which a bucket is empty, in credits; none if it is not counted under this number any more.
    fn level(&self, (key, number): (Fingerprint, u32), pitch: Pitch, now: Timestamp) -> Option<u128> {
        let now = self.origin.clamp(now);
        let held = self.main.words.update(key, self.origin.word(now), |held| (None, held)).ok()??;
        (held.number == number).then(|| self.credits(held, pitch))
    }

    fn credits(&self, held: Entry<1>, pitch: Pitch) -> u128 {
        let (tick, fraction) = self.origin.unpack(held.state).parts();
        pitch.credits(tick) + u128::from(fraction)
    }

    /// Gives a bucket what became free in its line, if nobody is behind that.
    fn give_back(&self, (key, number): (Fingerprint, u32), row: &mut Row, free: Return, now: Timestamp) {
        if free.by == 0 {
            return;
        }
        let (pitch, now) = (*row.pitch(), self.origin.clamp(now));
        let taken = self.main.words.update(key, self.origin.word(now), |held| {
            let Some(held) = held.filter(|held| held.number == number) else { return (None, false) };
            let level = self.credits(held, pitch);
            if !pitch.is_same(level, free.top) {
                return (None, false);
            }
            let (tick, fraction) = pitch.parts(level.saturating_sub(free.by));
            let state = self.origin.pack(gcra::State::new(tick, fraction));
            (Some(Entry { state, number }), true)
        });
        if !taken.unwrap_or(false) {
            row.refused(free);
        }
    }
}

impl Part {
    fn lines(&self) -> MutexGuard<'_, HashMap<(Fingerprint, u32), Arc<Line>>> {
        // Nothing between lock and unlock leaves it inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    fn new(at: (Fingerprint, u32), pitch: Pitch, clock: &Clock) -> Arc<Self> {
        let inner = Inner { row: Row::new(pitch), stages: Vec::new(), timer: None, rings: 0 };
        Arc::new_cyclic(|line| Self {
            at,
            clock: clock.clone(),
            alarm: Waker::from(Arc::new(Alarm(Weak::clone(line)))),
            inner: Mutex::new(inner),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // As above.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls whose turn has come, and lets the timer run for the next.
    fn ring(&self, now: Timestamp) {
        let woken = self.inner().call(now);
        wake_all(woken);
        self.arm();
    }

    /// Lets the timer run until the first one's turn. One that runs until earlier rings for nothing, and is then set anew.
    fn arm(&self) {
        loop {
            let (at, rings) = {
                let inner = self.inner();
                let Some(at) = inner.row.next_at() else { return };
                if inner.runs_until(at) {
                    return;
                }
                (at, inner.rings)
            };
            // Without the lock, since what is polled may ring at once, on this thread or on another.
            let mut sleep = self.clock.sleep_until(at);
            if Pin::new(&mut sleep).poll(&mut Context::from_waker(&self.alarm)).is_ready() {
                let woken = self.inner().call(at);
                wake_all(woken);
                continue;
            }
            let mut inner = self.inner();
            // If one has rung since, that may have been this one, which will not do so again.
            if inner.rings != rings {
                continue;
            }
            let before =
                if inner.runs_until(at) { Some((at, sleep)) } else { inner.timer.replace((at, sleep)) };
            let is_late = inner.row.next_at().is_some_and(|first| !inner.runs_until(first));
            drop(inner);
            drop(before);
            if !is_late {
                return;
            }
        }
    }
}

/// Without any lock.
fn wake_all(woken: Woken) {
    woken.into_iter().for_each(Waker::wake);
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        if let Some(line) = self.0.upgrade() {
            let rung = {
                let mut inner = line.inner();
                inner.rings += 1;
                inner.timer.take()
            };
            drop(rung);
            line.ring(line.clock.now());
        }
    }
}

impl Inner {
    fn runs_until(&self, at: Timestamp) -> bool {
        self.timer.as_ref().is_some_and(|(until, _)| *until <= at)
    }

    fn stage(&self, id: u32) -> Option<&Stage> {
        self.stages.get(id as usize)
    }

    /// What was there before is the caller's to drop, without the lock.
    fn set(&mut self, id: u32, stage: Stage) -> Option<Stage> {
        match self.stages.get_mut(id as usize) {
            Some(place) => Some(std::mem::replace(place, stage)),
            None => {
                self.stages.push(stage); // Places are numbered from zero on, so it is the next.
                None
            }
        }
    }

    fn call(&mut self, now: Timestamp) -> Woken {
        let (mut woken, stages) = (Woken::new(), &mut self.stages);
        self.row.call(now, |id, end| {
            if let Some(stage) = stages.get_mut(id as usize)
                && let Stage::Standing(Some(waker)) = std::mem::replace(stage, Stage::Called(end))
            {
                woken.push(waker);
            }
        });
        woken
    }
}

impl Spot {
    /// Ready when its turn has come, or it has left.
    pub(crate) fn poll_turn(&self, context: &Context<'_>) -> Poll<()> {
        let mut waker = Some(context.waker().clone());
        let mut inner = self.line.inner();
        match inner.stages.get_mut(self.id as usize) {
            Some(Stage::Standing(known)) => std::mem::swap(known, &mut waker),
            _ => return Poll::Ready(()),
        }
        drop(inner);
        drop(waker); // The one before, without the lock.
        Poll::Pending
    }

    /// When the bucket is empty if nobody comes after it, as far as that has moved. It stays so from now on.
    pub(crate) fn stay(&self) -> Option<Timestamp> {
        let mut inner = self.line.inner();
        let end = match inner.stage(self.id)? {
            Stage::Called(end) => *end,
            Stage::Gone => return None,
            Stage::Standing(_) => {
                let end = inner.row.end_of(self.id);
                inner.row.quit(self.id);
                end
            }
        };
        let before = inner.set(self.id, Stage::Called(end));
        let empty_at = inner.row.pitch().tick(end);
        drop(inner);
        if let Some(Stage::Standing(Some(waker))) = before {
            waker.wake();
        }
        Some(empty_at)
    }
}

impl Drop for Spot {
    fn drop(&mut self) {
        let mut lines = self.part.lines();
        let mut inner = self.line.inner();
        let before = inner.set(self.id, Stage::Gone);
        if matches!(before, Some(Stage::Standing(_))) {
            inner.row.quit(self.id);
        }
        inner.row.vacate(self.id);
        let is_over = inner.row.is_vacant();
        drop(inner);
        // Under the lock of the part nobody has lined up since.
        let is_known = lines.get(&self.line.at).is_some_and(|line| Arc::ptr_eq(line, &self.line));
        let over = if is_over && is_known { lines.remove(&self.line.at) } else { None };
        drop(lines);
        drop((before, over));
    }
}
