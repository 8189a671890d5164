//! The line in which requests wait for a place: bounded, and never long. It has a row for each priority, and whoever matters most is served
//! next; a line that is full puts out the least for one who matters more. While a row gets short now and then, the first come in it is the
//! first served, and may wait for an interval. When the first in it has waited longer than the target during a whole interval, the row
//! stands: then its newest is served first, and whoever waited twice the target is put out. That is CoDel, and adaptive LIFO, for each
//! priority by itself: that there is no end of test traffic must not put out what is critical. Nobody waits for longer than an interval, so
//! whom the others leave no place hears so soon.
//!
//! It holds what its owner puts in (a waker, a sender) and has no clock and no lock: the owner calls [`Line::next`] when a place is free
//! and does what it says, one request at a time, so a free place wakes one and no crowd. Every operation takes constant time, but for
//! [`Line::next`], which puts out as many as are too old, each once.

mod rows;

use crate::policy::Mode;
use crate::time::{Ticks, Timestamp};

use super::document::{LineSettings, QUEUE_MAX};
use super::priority::Priority;
use super::refusal::{Cause, Controller};
use super::report::{Reason, Report};
use super::switch::Switch;
pub use rows::Place;
use rows::{End, Rows, Stay};

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// It is its turn, after so long.
    Serve(T, Ticks),
    /// It must not wait any longer; there may be another one to serve.
    Refuse(T, Cause),
}

/// What is known of one in line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stays<T> {
    /// It may wait, and is to be looked at again then.
    Until(Timestamp),
    /// It must not wait any longer, and is out.
    Out(T, Cause),
}

/// What became of one who came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pushed<T> {
    /// It waits.
    Waits(Place),
    /// It waits, and another one is put out instead of it: one who matters less, or of its own row the one who waited longest.
    Instead(Place, T),
    /// There is no room.
    Full(T),
}

/// What is known of a row.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Until when this interval lasts, and whether the first in the row had waited for less than the target at any time in it.
    interval_ends: Timestamp,
    was_short: bool,
    is_standing: bool,
}

/// A line.
#[derive(Debug)]
pub struct Line<T> {
    settings: LineSettings,
    switch: Switch,
    rows: Rows<T>,
    paces: [Pace; Priority::ALL.len()],
    size: usize,
    target: Ticks,
    refused: u64,
    would_refuse: u64,
    reason: Reason,
    changed_at: Option<Timestamp>,
}

impl<T> Line<T> {
    /// An empty line with room for so many, or as many as the settings say.
    #[must_use]
    pub fn new(settings: LineSettings, size: usize) -> Self {
        let pace = Pace { interval_ends: Timestamp::default(), was_short: true, is_standing: false };
        Self {
            switch: Switch::new(settings.mode),
            rows: Rows::new(),
            paces: [pace; Priority::ALL.len()],
            size: settings.size.unwrap_or(size).min(QUEUE_MAX),
            target: settings.target,
            refused: 0,
            would_refuse: 0,
            reason: Reason::Initial,
            changed_at: None,
            settings,
        }
    }

    /// Its mode and its kill switch. A line that is off, or in shadow, is a plain queue: first come, first served, whatever matters, and
    /// nobody is put out but for a deadline or want of room.
    #[must_use]
    pub const fn switch(&self) -> &Switch {
        &self.switch
    }

    /// Follows a limit: twice its places may wait, and the target is a tenth of what half of the requests take, at least what the settings
    /// say.
    pub fn follow(&mut self, limit: u32, half: Ticks) {
        if self.settings.size.is_none() {
            self.size = usize::try_from(limit).unwrap_or(QUEUE_MAX).saturating_mul(2).min(QUEUE_MAX);
        }
        self.target = Ticks::from_micros(half.as_micros() / 10).max(self.settings.target);
    }

    /// Puts a request in line. It is of no use after its deadline.
    pub fn push(&mut self, item: T, priority: Priority, deadline: Timestamp, now: Timestamp) -> Pushed<T> {
        self.look(now);
        let mut out = None;
        if self.rows.len() >= self.size {
            self.refused += 1;
            out = self.make_room(priority, now);
            if out.is_none() {
                return Pushed::Full(item);
            }
        }
        let place = self.rows.push(item, priority, now, deadline);
        match out {
            Some(out) => Pushed::Instead(place, out),
            None => Pushed::Waits(place),
        }
    }

    /// Who is to be served now that a place is free, or is to be put out; `None` when nobody waits. Ask until it says one or the other.
    pub fn next(&mut self, now: Timestamp) -> Option<Next<T>> {
        self.look(now);
        if let Some(refused) = self.too_old(now) {
            return Some(refused);
        }
        let (row, end) = if self.decides(now) {
            let row = self.rows.most()?;
            (row, if self.is_standing(row) { End::Newest } else { End::Oldest })
        } else {
            (self.rows.first()?, End::Oldest)
        };
        let stay = self.rows.stay(row, end)?;
        let patience = self.patience(row);
        let item = self.rows.take(row, end)?;
        if now >= stay.deadline {
            self.refused += 1;
            return Some(Next::Refuse(item, Cause::Deadline));
        }
        let waited = now.since(stay.came);
        if waited >= patience && self.switch.mode(now) == Mode::Shadow {
            self.would_refuse += 1;
        }
        self.look(now);
        Some(Next::Serve(item, waited))
    }

    /// Puts out one who waited for too long, those who matter least first. Ask until nobody is left, also when no place gets free: at
    /// [`Line::next_expiry`].
    pub fn expire(&mut self, now: Timestamp) -> Option<Next<T>> {
        self.look(now);
        self.too_old(now)
    }

    /// Puts out the one in this place if it must not wait any longer, whoever stands before it; `None` when it is not there any more. Whoever
    /// has a timer for each who waits asks so, first when it has come and then whenever it is told, and needs no [`Line::expire`].
    pub fn stays(&mut self, place: Place, now: Timestamp) -> Option<Stays<T>> {
        self.look(now);
        let (row, stay) = self.rows.stay_at(place)?;
        match self.verdict(row, &stay, now) {
            Some(cause) => {
                self.refused += 1;
                self.rows.remove(place).map(|item| Stays::Out(item, cause))
            }
            None => Some(Stays::Until(self.asks_at(row, &stay, now))),
        }
    }

    /// When the oldest of a row is to be put out, the next of them. One behind it may have an earlier deadline, which [`Line::stays`] knows.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Timestamp> {
        let of_row = |row: Priority| {
            let stay = self.rows.stay(row, End::Oldest)?;
            Some((stay.came + self.patience(row)).min(stay.deadline))
        };
        Priority::ALL.into_iter().filter_map(of_row).min()
    }

    /// Takes one out who does not want to wait any longer; `None` when it is not there any more.
    pub fn cancel(&mut self, place: Place, now: Timestamp) -> Option<T> {
        let item = self.rows.remove(place)?;
        self.look(now);
        Some(item)
    }

    /// How many wait.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows.len() == 0
    }

    /// Whether the row of a priority stands: its newest are served first.
    #[must_use]
    pub const fn is_standing(&self, priority: Priority) -> bool {
        self.paces[priority as usize].is_standing
    }

    /// The state of it. Its baseline is the target, what is recent the longest that anybody in it has waited, and its reason that of the
    /// row that last changed.
    #[must_use]
    pub fn report(&self, now: Timestamp) -> Report {
        let first = self.rows.first().and_then(|row| self.rows.stay(row, End::Oldest));
        let waiting = self.rows.len();
        Report {
            killed_until: self.switch.killed_until(now),
            limit: Some(self.size as u64),
            in_flight: Some(u32::try_from(waiting).unwrap_or(u32::MAX)),
            baseline: Some(self.target),
            recent: Some(first.map_or(Ticks::ZERO, |stay| now.since(stay.came))),
            queue: Some(waiting as u64),
            refused: self.refused,
            would_refuse: self.would_refuse,
            reason: self.reason,
            changed_at: self.changed_at,
            ..Report::new(Controller::Queue, self.switch.mode(now))
        }
    }

    /// Room for one of this priority, by putting another one out, if there is one who must go instead.
    fn make_room(&mut self, priority: Priority, now: Timestamp) -> Option<T> {
        if !self.decides(now) {
            return None;
        }
        let least = self.rows.least().filter(|&least| least <= priority)?;
        let end = match self.is_standing(least) {
            // In a row that stands the oldest would be put out soon in any case, and the newest is the first to be served.
            true => End::Oldest,
            // The last to be served; one of the same priority who comes later would be later still.
            false if least < priority => End::Newest,
            false => return None,
        };
        self.rows.take(least, end)
    }

    /// Takes out the oldest of a row, if it waited for too long.
    fn too_old(&mut self, now: Timestamp) -> Option<Next<T>> {
        for row in Priority::ALL {
            let Some(stay) = self.rows.stay(row, End::Oldest) else { continue };
            if let Some(cause) = self.verdict(row, &stay, now) {
                self.refused += 1;
                return self.rows.take(row, End::Oldest).map(|item| Next::Refuse(item, cause));
            }
        }
        None
    }

    /// Why one in a row must not wait any longer; `None` if it may.
    fn verdict(&self, row: Priority, stay: &Stay, now: Timestamp) -> Option<Cause> {
        if now >= stay.deadline {
            return Some(Cause::Deadline);
        }
        let is_old = now.since(stay.came) >= self.patience(row);
        (is_old && self.decides(now)).then_some(Cause::QueueDelay)
    }

    /// When one who may wait now is to be looked at again: at the first instant at which it may have to go, also if the row comes to stand by
    /// then, which is at the end of an interval in which it never was short.
    fn asks_at(&self, row: Priority, stay: &Stay, now: Timestamp) -> Timestamp {
        let pace = &self.paces[row as usize];
        let mut at = stay.came + self.patience(row);
        if !pace.is_standing && !pace.was_short {
            at = at.min(pace.interval_ends.max(stay.came + self.target + self.target));
        }
        // A line that puts nobody out now may be told to.
        if at <= now {
            at = now + self.settings.interval;
        }
        at.min(stay.deadline)
    }

    /// How long anybody in a row may wait.
    fn patience(&self, row: Priority) -> Ticks {
        match self.is_standing(row) {
            true => self.target + self.target,
            false => self.settings.interval.max(self.target),
        }
    }

    fn decides(&self, now: Timestamp) -> bool {
        self.switch.mode(now) == Mode::Enforce
    }

    /// Notes how long the first in each row has waited, and at the end of an interval whether the row stands.
    fn look(&mut self, now: Timestamp) {
        for row in Priority::ALL {
            let waited =
                self.rows.stay(row, End::Oldest).map_or(Ticks::ZERO, |oldest| now.since(oldest.came));
            let pace = &mut self.paces[row as usize];
            if now >= pace.interval_ends {
                let standing = !pace.was_short && waited > self.target;
                if standing != pace.is_standing {
                    pace.is_standing = standing;
                    self.reason = if standing { Reason::Standing } else { Reason::Drained };
                    self.changed_at = Some(now);
                }
                pace.interval_ends = now + self.settings.interval;
                pace.was_short = false;
            }
            pace.was_short |= waited <= self.target;
        }
    }
}
