//! The server's counters, by its responses. A call may leave only if the newest response leaves enough for it: its
//! `remaining`, minus every call that the server may not have counted before it sent that response.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate::{Ticks, Timestamp};

use crate::costs::{Costs, follows};
use crate::signal::{Window, WindowUnit};

/// Maximum number of windows of one bucket that are kept. A server with more is followed in these.
const WINDOWS_MAX: usize = 16;
/// A window that this many newer responses do not have is forgotten, with the calls that it may not include yet.
const ABSENCES_MAX: u32 = 1_000;
/// From this period on, the first call after a reset is sent alone: a reset that comes earlier than announced then costs
/// one refusal, not one for each waiter. In shorter windows the round trip would cost more than it saves.
const PROBED_PERIOD_MIN: Ticks = Ticks::from_secs(10);
/// Announced resets of one window differ by less: servers round them to seconds, and responses are under way.
const RESET_BLUR: Ticks = Ticks::from_millis(1_500);

/// How a server's counter fills up again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replenish {
    /// All at once, at the announced reset.
    #[default]
    AtReset,
    /// Steadily, so that it is full at the announced reset.
    Steadily,
}

/// A call that the server may not have counted yet.
#[derive(Debug)]
struct CountedCall {
    at: Timestamp,
    /// Whether its response is outstanding.
    is_open: bool,
    /// When it ended, if no response stated windows: the server may have counted it until then.
    ended_at: Option<Timestamp>,
    /// Whether its response stated windows.
    is_stated: bool,
    costs: Arc<Costs>,
}

/// One window, by the newest response.
#[derive(Debug)]
struct LearnedWindow {
    unit: WindowUnit,
    limit: Option<u64>,
    remaining: u64,
    /// The number of the call with this response.
    as_of: u64,
    /// The newest call that had left when the response arrived.
    newest: u64,
    /// When the call of the response left, and when the response arrived.
    sent_at: Timestamp,
    received_at: Timestamp,
    /// How many newer responses did not have this window.
    absences: u32,
    resets_at: Option<Timestamp>,
    period: Option<Ticks>,
}

/// When a call may leave, by the numbers of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    Now,
    /// Not before this instant.
    At(Timestamp),
    /// Not before a response arrives.
    AfterResponse,
}

impl Departure {
    /// The later of two.
    pub(crate) fn later(self, other: Departure) -> Departure {
        match (self, other) {
            (Departure::AfterResponse, _) | (_, Departure::AfterResponse) => Departure::AfterResponse,
            (Departure::Now, other) | (other, Departure::Now) => other,
            (Departure::At(one), Departure::At(other)) => Departure::At(one.max(other)),
        }
    }
}

impl LearnedWindow {
    /// Units that it has left now, if no further call is counted.
    fn level(&self, replenish: Replenish, now: Timestamp) -> u64 {
        match (replenish, self.refill()) {
            (Replenish::Steadily, Some((units, span))) => {
                let back = u128::from(units) * u128::from(now.since(self.received_at).as_micros());
                let back = u64::try_from(back / u128::from(span.as_micros())).unwrap_or(u64::MAX);
                self.remaining.saturating_add(back).min(self.limit.unwrap_or(u64::MAX))
            }
            _ => self.remaining,
        }
    }

    /// Whether a response that the server sent at about the same time takes precedence. The server may have answered
    /// two calls that were under way together in any order: the one that leaves less has counted the other.
    fn yields_to(&self, window: &Window, remaining: u64, replenish: Replenish, now: Timestamp) -> bool {
        let begins_anew = match (self.resets_at, window.resets_in) {
            (Some(known), Some(wait)) => known <= now + RESET_BLUR && now + wait > known + RESET_BLUR,
            _ => false,
        };
        // Of what refills, the level is rounded down: equal numbers are not larger.
        let is_lower = match replenish {
            Replenish::Steadily => remaining <= self.level(replenish, now),
            Replenish::AtReset => remaining < self.remaining,
        };
        is_lower || (replenish == Replenish::AtReset && begins_anew)
    }

    /// When the current window has begun, if one began at this reset.
    fn begun_at(&self, reset: Timestamp, now: Timestamp) -> Timestamp {
        self.period.filter(|period| *period > Ticks::ZERO).map_or(reset, |period| {
            let periods = now.since(reset).as_micros() / period.as_micros();
            reset + Ticks::from_micros(periods.saturating_mul(period.as_micros()))
        })
    }

    /// When the last of these units leaves, if `left` are left now.
    fn last_departure(&self, units: u64, left: u64, replenish: Replenish, now: Timestamp) -> Timestamp {
        let Some(reset) = self.resets_at.filter(|_| self.unit != WindowUnit::Concurrent) else { return now };
        let periods = |units: u64| match (self.limit, self.period) {
            (Some(limit), Some(period)) if limit > 0 => {
                Ticks::from_micros((units.saturating_sub(1) / limit).saturating_mul(period.as_micros()))
            }
            _ => Ticks::ZERO,
        };
        match (replenish, units.saturating_sub(left)) {
            (Replenish::AtReset, missing) if reset > now && missing > 0 => reset + periods(missing),
            (Replenish::AtReset, _) if reset > now => now,
            // The window has begun anew, so that the known numbers are over.
            (Replenish::AtReset, _) => self.begun_at(reset, now) + periods(units),
            (Replenish::Steadily, missing) => self.refilled_at(missing).unwrap_or(now),
        }
        .max(now)
    }

    /// When this many missing units have come back, if the counter refills steadily.
    fn refilled_at(&self, missing: u64) -> Option<Timestamp> {
        let (units, span) = self.refill()?;
        let wait = (u128::from(missing) * u128::from(span.as_micros())).div_ceil(u128::from(units));
        Some(self.received_at + Ticks::from_micros(u64::try_from(wait).unwrap_or(u64::MAX)))
    }

    /// How many units come back in which time, if the counter refills steadily.
    fn refill(&self) -> Option<(u64, Ticks)> {
        let limit = self.limit.filter(|limit| *limit > 0)?;
        let missing = limit.saturating_sub(self.remaining);
        let span = self.resets_at.map_or(Ticks::ZERO, |at| at.since(self.received_at));
        if missing > 0 && span > Ticks::ZERO {
            return Some((missing, span));
        }
        Some((limit, self.period.filter(|period| *period > Ticks::ZERO)?))
    }
}

/// The windows of one bucket, and the calls that they may not include yet.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    windows: BTreeMap<String, LearnedWindow>,
    /// By number, which is the order of sending.
    sent: BTreeMap<u64, CountedCall>,
    /// The newest call that has left.
    newest: u64,
    replenish: Replenish,
}

/// The numbers of one window, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowReport {
    /// Its name.
    pub name: String,
    /// Units that the server admits in a period, if it says so.
    pub limit: Option<u64>,
    /// Units that are left of it, less the calls under way.
    pub remaining: u64,
    /// When it is full again, if the server says so.
    pub resets_at: Option<Timestamp>,
}

impl Learned {
    pub(crate) fn new(replenish: Replenish) -> Self {
        Self { replenish, ..Self::default() }
    }

    pub(crate) fn is_empty(&self, now: Timestamp) -> bool {
        let is_over = |window: &LearnedWindow| window.resets_at.is_none_or(|at| at <= now);
        self.sent.is_empty() && self.windows.values().all(is_over)
    }

    /// When a call may leave.
    pub(crate) fn departure(&self, costs: &Costs, now: Timestamp) -> Departure {
        let each = self.windows.iter().map(|(name, window)| self.departure_in(name, window, costs, now));
        each.fold(Departure::Now, Departure::later)
    }

    fn departure_in(&self, name: &str, window: &LearnedWindow, costs: &Costs, now: Timestamp) -> Departure {
        let cost = costs.in_window(name, window.unit).min(window.limit.unwrap_or(u64::MAX));
        let Some(reset) = window.resets_at.filter(|_| window.unit != WindowUnit::Concurrent) else {
            return self.departure_without_reset(name, window, cost, now);
        };
        match self.replenish {
            Replenish::Steadily => self.departure_by_refill(name, window, cost, now),
            Replenish::AtReset if reset > now => {
                let left = window.remaining.checked_sub(self.uncounted(name, window));
                if left.is_some_and(|left| left >= cost) { Departure::Now } else { Departure::At(reset) }
            }
            Replenish::AtReset => self.departure_after_reset(name, window, cost, reset, now),
        }
    }

    /// A window without the time of its reset: calls leave while it has units. Then one at a time finds out, but not
    /// before a period after the numbers, if the server says how long it is: they are over by then.
    fn departure_without_reset(
        &self,
        name: &str,
        window: &LearnedWindow,
        cost: u64,
        now: Timestamp,
    ) -> Departure {
        if window.remaining.saturating_sub(self.uncounted(name, window)) >= cost {
            return Departure::Now;
        }
        if !self.is_nothing_open() {
            return Departure::AfterResponse;
        }
        let period = window.period.filter(|_| window.unit != WindowUnit::Concurrent);
        match period.map(|period| window.received_at + period) {
            Some(end) if end > now => Departure::At(end),
            _ => Departure::Now,
        }
    }

    fn departure_after_reset(
        &self,
        name: &str,
        window: &LearnedWindow,
        cost: u64,
        reset: Timestamp,
        now: Timestamp,
    ) -> Departure {
        let period = window.period.filter(|period| *period > Ticks::ZERO);
        let start = window.begun_at(reset, now);
        let is_probe_out = self.sent.values().any(|call| call.is_open && call.at >= start);
        let is_probed = window.limit.is_none() || period.is_none_or(|period| period >= PROBED_PERIOD_MIN);
        if is_probe_out && is_probed {
            return Departure::AfterResponse;
        }
        // Without a limit the probe finds out.
        let Some(limit) = window.limit else { return Departure::Now };
        // Without numbers of its own, a call that left before the reset may have been counted after it.
        let counts = |call: &&CountedCall| call.is_open || call.ended_at.is_some_and(|at| at >= start);
        let costs = self.sent.values().filter(counts).map(|call| call.costs.in_window(name, window.unit));
        let spent = costs.fold(0, u64::saturating_add);
        if spent == 0 || limit.saturating_sub(spent) >= cost {
            return Departure::Now;
        }
        match period {
            Some(period) => Departure::At(start + period),
            // Without a period, one more call finds out.
            None if self.is_nothing_open() => Departure::Now,
            None => Departure::AfterResponse,
        }
    }

    fn departure_by_refill(
        &self,
        name: &str,
        window: &LearnedWindow,
        cost: u64,
        now: Timestamp,
    ) -> Departure {
        let needed = cost.saturating_add(self.uncounted(name, window));
        let Some(missing) = needed.checked_sub(window.remaining).filter(|missing| *missing > 0) else {
            return Departure::Now;
        };
        match window.refilled_at(missing) {
            Some(at) if at <= now => Departure::Now,
            Some(at) => Departure::At(at),
            None if self.is_nothing_open() => Departure::Now,
            None => Departure::AfterResponse,
        }
    }

    fn is_nothing_open(&self) -> bool {
        self.sent.values().all(|call| !call.is_open)
    }

    /// The units of calls that the newest response may not include: those under way, and those that ended without
    /// numbers after the call of that response had left.
    fn uncounted(&self, name: &str, window: &LearnedWindow) -> u64 {
        let counts =
            |call: &&CountedCall| call.is_open || call.ended_at.is_some_and(|at| at >= window.sent_at);
        let units = self.sent.values().filter(counts).map(|call| call.costs.in_window(name, window.unit));
        units.fold(0, u64::saturating_add)
    }

    /// A call leaves.
    pub(crate) fn send(&mut self, number: u64, costs: Arc<Costs>, now: Timestamp) {
        self.newest = self.newest.max(number);
        let call = CountedCall { at: now, is_open: true, ended_at: None, is_stated: false, costs };
        self.sent.insert(number, call);
    }

    /// Every call up to this number has left, in whatever bucket it was counted: the server may count it here, too.
    pub(crate) fn note_newest(&mut self, newest: u64) {
        self.newest = self.newest.max(newest);
    }

    /// A call that did not leave after all.
    pub(crate) fn unsend(&mut self, number: u64) {
        self.sent.remove(&number);
    }

    /// A response arrived, or none will.
    pub(crate) fn close(&mut self, number: u64, now: Timestamp) {
        let Some(call) = self.sent.get_mut(&number) else { return };
        call.is_open = false;
        call.ended_at = Some(now);
        // The numbers of its own response, or smaller ones, include it.
        if self.windows.is_empty() || call.is_stated {
            self.sent.remove(&number);
        }
        // All windows have numbers of calls that left after these had ended.
        let oldest = self.windows.values().map(|window| window.sent_at).min();
        self.sent.retain(|_, call| {
            call.is_open || call.ended_at.zip(oldest).is_some_and(|(end, sent)| end >= sent)
        });
    }

    /// Takes the numbers of a response. Those of a call that left after the known numbers had arrived are newer. Two
    /// calls that were under way together may have been answered in any order: then the smaller number counts, so that a
    /// late response never undoes a newer one.
    pub(crate) fn accept(&mut self, number: u64, windows: &[Window], now: Timestamp) {
        self.newest = self.newest.max(number);
        let sent_at = self.sent.get_mut(&number).map_or(now, |call| {
            call.is_stated = windows.iter().any(|window| window.remaining.is_some());
            call.at
        });
        self.windows.retain(|name, known| {
            let is_absent = known.as_of < number && windows.iter().all(|window| window.name != *name);
            known.absences += u32::from(is_absent);
            // Of a window without a limit nothing is known after its reset.
            let is_over = known.limit.is_none() && known.resets_at.is_some_and(|at| at <= sent_at);
            known.absences < ABSENCES_MAX && !(is_absent && is_over)
        });
        for window in windows {
            let Some(remaining) = window.remaining else { continue };
            let resets_at = window.resets_in.map(|wait| now + wait);
            let known = self.windows.get(&window.name);
            let is_older = known.is_some_and(|known| {
                number <= known.newest && !known.yields_to(window, remaining, self.replenish, now)
            });
            if is_older || (known.is_none() && self.windows.len() >= WINDOWS_MAX) {
                continue;
            }
            let learned = LearnedWindow {
                unit: window.unit,
                limit: window.limit.or_else(|| known.and_then(|known| known.limit)),
                remaining,
                as_of: number,
                newest: self.newest,
                sent_at,
                received_at: now,
                absences: 0,
                resets_at,
                period: window.period.or_else(|| known.and_then(|known| known.period)),
            };
            self.windows.insert(window.name.clone(), learned);
        }
    }

    /// Forgets the numbers of the server.
    pub(crate) fn forget(&mut self) {
        self.windows.clear();
    }

    /// Units that the server leaves for calls not yet sent, in a window that a limit follows.
    pub(crate) fn left_for(&self, limit: &str) -> Option<u64> {
        let (name, window) = self.windows.iter().find(|(name, _)| follows(limit, name))?;
        Some(window.remaining.saturating_sub(self.uncounted(name, window)))
    }

    /// The numbers, for reports.
    pub(crate) fn report(&self) -> Vec<WindowReport> {
        let each = self.windows.iter().map(|(name, window)| WindowReport {
            name: name.clone(),
            limit: window.limit,
            remaining: window.remaining.saturating_sub(self.uncounted(name, window)),
            resets_at: window.resets_at,
        });
        each.collect()
    }

    /// When the last of the calls that cost this together could leave, if all calls under way count.
    pub(crate) fn forecast(&self, costs: &Costs, now: Timestamp) -> Timestamp {
        let each = self.windows.iter().map(|(name, window)| {
            let left = window.remaining.saturating_sub(self.uncounted(name, window));
            window.last_departure(costs.in_window(name, window.unit), left, self.replenish, now)
        });
        each.fold(now, Timestamp::max)
    }

    /// No earlier than this do calls of these costs together leave, whatever becomes of the calls under way: the newest
    /// response may include them.
    pub(crate) fn earliest(&self, costs: &Costs, now: Timestamp) -> Timestamp {
        let each = self.windows.iter().map(|(name, window)| {
            let units = costs.in_window(name, window.unit);
            window.last_departure(units, window.remaining, self.replenish, now)
        });
        each.fold(now, Timestamp::max)
    }
}
