//! How much each Envoy may admit: the buckets of Envoys at the counters that apply to them, and the assignment of each
//! bucket. Pure: the caller passes the time, and nothing is sent here.
//!
//! The grants that may still be followed add up to at most a counter's budget, with two exceptions. New buckets get a
//! first share immediately, a tenth of the limit for all of them together. A bucket that may pass requests at all gets
//! at least the smallest token bucket that Envoy accepts. An Envoy that must give up units is notified first. The
//! others get the units when it is certain that it has read the message.

use std::collections::{BTreeMap, HashMap};

use tollgate::{Ticks, Timestamp};

use super::counter::{Counter, Numbers};
use super::grant::{Assignment, NANO, Nano, Share, Strategy};
use super::level::{Level, with_head_room};

mod balance;
mod seat;
#[cfg(test)]
mod tests;

use seat::{INTERVAL_USUAL, Seat, TRANSIT, Tie};

/// Maximum number of buckets of all Envoys together. A bucket counts once for each Envoy that has it.
pub(crate) const SEATS_MAX: usize = 100_000;
/// How often unused buckets and counters are swept.
const SWEEP_EVERY: Ticks = Ticks::from_secs(2);

/// One bucket of one Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SeatId {
    pub(crate) stream: u64,
    pub(crate) bucket: u64,
}

/// A counter of the engine: a number for its limit, and one for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CounterId(pub(crate) u64, pub(crate) u64);

/// What an Envoy reports about a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
}

/// A counter that applies to a bucket. Its due units were drawn before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) counter: CounterId,
    pub(crate) numbers: Numbers,
    /// The cost of one request.
    pub(crate) cost: u64,
}

/// The policy's verdict on a bucket.
#[derive(Clone, Debug)]
pub(crate) enum Standing {
    /// No limit applies.
    Free,
    /// Every request is denied.
    Barred,
    /// These counters apply.
    Limited(Vec<Look>),
}

/// An instruction to an Envoy about a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Assign(Assignment),
    /// Forget the bucket, and stop reporting it.
    Abandon,
}

/// Metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharesSummary {
    pub(crate) buckets: usize,
    pub(crate) seats: usize,
    /// The fill rate of all token buckets together in requests per second, rounded down.
    pub(crate) assigned: u64,
    /// Units that were consumed and not yet taken from a counter.
    pub(crate) debt: u64,
}

/// All buckets and counters.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    seats: BTreeMap<SeatId, Seat>,
    counters: HashMap<CounterId, Counter>,
    swept_at: Option<Timestamp>,
}

impl Shares {
    /// Returns how many units to take from a counter of the engine that has `left` units: the due units, and `more`
    /// that are not recorded yet.
    pub(crate) fn draw(
        &mut self,
        counter: CounterId,
        numbers: Numbers,
        more: u64,
        left: u64,
        now: Timestamp,
    ) -> u64 {
        let counter = self.counters.entry(counter).or_insert_with(|| Counter::new(numbers, left, now));
        counter.numbers = numbers;
        counter.correct(i128::from(more) * i128::from(NANO), now);
        counter.draw(left, now)
    }

    /// The buckets through which to take due units: one for each counter whose draw is due.
    pub(crate) fn draws(&self, now: Timestamp) -> Vec<SeatId> {
        let due = self.counters.values().filter(|counter| counter.is_draw_due(now));
        let mut seats: Vec<SeatId> = due.filter_map(|counter| counter.seats.first().copied()).collect();
        seats.sort_unstable();
        seats.dedup();
        seats
    }

    /// Records how many requests an Envoy admitted. Call it before drawing the due units, because it corrects the
    /// estimate. Returns the bucket's counters, which now include the usage. Other counters must be charged with all of
    /// it.
    pub(crate) fn used(&mut self, id: SeatId, allowed: u64, now: Timestamp) -> Vec<CounterId> {
        let Some(seat) = self.seats.get(&id) else { return Vec::new() };
        let micros = i128::from(now.since(seat.reported_at).as_micros());
        for tie in &seat.ties {
            let used = (i128::from(allowed) * i128::from(NANO)).saturating_mul(i128::from(tie.cost));
            if let Some(counter) = self.counters.get_mut(&tie.counter) {
                let expected = i128::from(tie.pace) * micros / 1_000_000;
                counter.correct(used.saturating_sub(expected), seat.reported_at);
            }
        }
        seat.ties.iter().map(|tie| tie.counter).collect()
    }

    /// Processes a report. Returns the orders to send, of which at least one goes to the bucket in the report.
    pub(crate) fn report(
        &mut self,
        id: SeatId,
        usage: Usage,
        standing: &Standing,
        now: Timestamp,
    ) -> Vec<(SeatId, Order)> {
        self.sweep(now);
        if !self.seats.contains_key(&id) && self.seats.len() >= SEATS_MAX {
            // A bucket that cannot be counted is denied, because no client input may open a limit.
            let ttl_seconds = u32::try_from(INTERVAL_USUAL.ceil_seconds()).unwrap_or(1);
            return vec![(id, Order::Assign(Assignment { strategy: Strategy::DenyAll, ttl_seconds }))];
        }
        let seat = self.seats.entry(id).or_insert_with(|| Seat::new(now));
        let is_new = seat.grants.is_empty() || seat.is_gone;
        let current = seat.grants.current(now).map(|grant| grant.strategy);
        let is_pressed = usage.denied > 0 && matches!(current, Some(Strategy::TokenBucket { .. }));
        seat.hear(usage, now);
        let (horizon, is_idle) = (seat.ttl(), seat.is_idle(now));
        // Without a token bucket, a request was not denied because the token bucket was empty.
        self.sit(id, standing, is_pressed, horizon, now);
        if is_idle {
            self.leave_seat(id, now);
            return vec![(id, Order::Abandon)];
        }
        let orders = match standing {
            Standing::Free => vec![(id, self.send(id, Strategy::AllowAll, now))],
            Standing::Barred => vec![(id, self.send(id, Strategy::DenyAll, now))],
            Standing::Limited(_) => self.balance(id, is_new, now),
        };
        self.expect(id, is_pressed, now);
        orders
    }

    /// Sets the expected usage of a bucket until its next report: its last demand, or its whole share if the share was
    /// too small.
    fn expect(&mut self, id: SeatId, is_pressed: bool, now: Timestamp) {
        let Some(seat) = self.seats.get_mut(&id) else { return };
        let granted = seat.grants.in_force(now).rate;
        let expected = match seat.demand {
            None => 0,
            Some(_) if is_pressed => granted,
            Some(demand) => demand.min(granted),
        };
        for tie in &mut seat.ties {
            let Some(counter) = self.counters.get_mut(&tie.counter) else { continue };
            let pace = if counter.is_paced() { expected.saturating_mul(tie.cost) } else { 0 };
            counter.change_pace(pace, std::mem::replace(&mut tie.pace, pace), now);
        }
    }

    /// Whether the bucket is in use, so that orders can be sent to it again.
    pub(crate) fn has(&self, id: SeatId) -> bool {
        self.seats.get(&id).is_some_and(|seat| !seat.is_gone)
    }

    /// Handles the end of a stream. Its Envoy may follow its grants until they expire.
    pub(crate) fn leave(&mut self, stream: u64, now: Timestamp) {
        let (first, last) = (SeatId { stream, bucket: 0 }, SeatId { stream, bucket: u64::MAX });
        let seats: Vec<SeatId> = self.seats.range(first..=last).map(|(&id, _)| id).collect();
        seats.into_iter().for_each(|id| self.leave_seat(id, now));
    }

    pub(crate) fn summary(&self, now: Timestamp) -> SharesSummary {
        let present = || self.seats.iter().filter(|(_, seat)| !seat.is_gone);
        let mut buckets: Vec<u64> = present().map(|(id, _)| id.bucket).collect();
        buckets.sort_unstable();
        buckets.dedup();
        let assigned: u128 = present().map(|(_, seat)| u128::from(seat.grants.in_force(now).rate)).sum();
        SharesSummary {
            buckets: buckets.len(),
            seats: present().count(),
            assigned: u64::try_from(assigned / u128::from(NANO)).unwrap_or(u64::MAX),
            debt: self.counters.values().map(Counter::debt).fold(0, u64::saturating_add),
        }
    }

    /// Attaches a bucket to the counters that apply to it, and records their remaining units.
    fn sit(&mut self, id: SeatId, standing: &Standing, is_pressed: bool, horizon: Ticks, now: Timestamp) {
        let looks: &[Look] = match standing {
            Standing::Limited(looks) => looks,
            Standing::Free | Standing::Barred => &[],
        };
        for look in looks {
            let counter =
                self.counters.entry(look.counter).or_insert_with(|| Counter::new(look.numbers, 0, now));
            counter.observe(is_pressed, horizon, now);
        }
        let is_same = |seat: &Seat| {
            let ties = seat.ties.iter().map(|tie| (tie.counter, tie.cost));
            ties.eq(looks.iter().map(|look| (look.counter, look.cost.max(1))))
        };
        if !self.seats.get(&id).is_some_and(is_same) {
            self.stand_up(id, now);
            if let Some(seat) = self.seats.get_mut(&id) {
                let tie = |look: &Look| Tie { counter: look.counter, cost: look.cost.max(1), pace: 0 };
                seat.ties = looks.iter().map(tie).collect();
            }
        }
        for look in looks {
            if let Some(counter) = self.counters.get_mut(&look.counter)
                && counter.seats.insert(id)
            {
                counter.level = None;
            }
        }
        let nominal = looks.iter().map(|look| look.numbers.rate / look.cost.max(1)).min().unwrap_or(0);
        let most = |look: &Look| {
            let budget = self.counters.get(&look.counter).map_or(0, |counter| counter.budget(now).rate);
            budget.max(look.numbers.rate) / look.cost.max(1)
        };
        let ceiling = looks.iter().map(most).min().unwrap_or(0);
        if let Some(seat) = self.seats.get_mut(&id) {
            (seat.nominal, seat.ceiling) = (nominal, ceiling);
        }
        self.recount(id, now);
    }

    /// Detaches a bucket from its counters, and removes what it had there.
    fn stand_up(&mut self, id: SeatId, now: Timestamp) {
        let Some(seat) = self.seats.get_mut(&id) else { return };
        let (ties, counted) = (std::mem::take(&mut seat.ties), std::mem::take(&mut seat.counted));
        for tie in ties {
            let Some(counter) = self.counters.get_mut(&tie.counter) else { continue };
            counter.change_pace(0, tie.pace, now);
            counter.out = less(counter.out, counted.times(tie.cost));
            counter.seats.remove(&id);
            counter.level = None;
        }
    }

    /// Marks a bucket as departed. Its grants count until they expire.
    fn leave_seat(&mut self, id: SeatId, now: Timestamp) {
        let Some(seat) = self.seats.get_mut(&id) else { return };
        seat.is_gone = true;
        // The Envoy may continue until its grants expire without reporting. That much is owed, and nothing after it.
        let rest = seat.grants.last_end().since(now);
        for tie in &mut seat.ties {
            if let Some(counter) = self.counters.get_mut(&tie.counter) {
                counter.expect_rest(tie.pace, rest, now);
                tie.pace = 0;
                counter.seats.remove(&id);
                counter.level = None;
            }
        }
        self.recount(id, now);
    }

    /// Updates the counters to what the bucket may follow now.
    fn recount(&mut self, id: SeatId, now: Timestamp) {
        let Some(seat) = self.seats.get_mut(&id) else { return };
        let (before, after) = (seat.counted, seat.grants.in_force(now));
        seat.counted = after;
        for tie in &seat.ties {
            let Some(counter) = self.counters.get_mut(&tie.counter) else { continue };
            let rest = less(counter.out, before.times(tie.cost));
            let more = after.times(tie.cost);
            counter.out = Share {
                rate: rest.rate.saturating_add(more.rate),
                tokens: rest.tokens.saturating_add(more.tokens),
            };
        }
    }

    /// Sends a strategy to a bucket.
    fn send(&mut self, id: SeatId, strategy: Strategy, now: Timestamp) -> Order {
        let Some(seat) = self.seats.get_mut(&id) else { return Order::Abandon };
        let ttl = seat.ttl();
        seat.grants.send(strategy, now, now + ttl + TRANSIT);
        self.recount(id, now);
        let ttl_seconds = u32::try_from(ttl.ceil_seconds()).unwrap_or(u32::MAX);
        Order::Assign(Assignment { strategy, ttl_seconds })
    }

    /// Removes buckets whose grants have expired, and counters without buckets.
    fn sweep(&mut self, now: Timestamp) {
        if self.swept_at.is_some_and(|at| now.since(at) < SWEEP_EVERY) {
            return;
        }
        self.swept_at = Some(now);
        let all: Vec<SeatId> = self.seats.keys().copied().collect();
        for id in all {
            self.recount(id, now);
            let is_over = |seat: &Seat| seat.is_gone && seat.counted == Share::default();
            if self.seats.get(&id).is_some_and(is_over) {
                self.stand_up(id, now);
                self.seats.remove(&id);
            }
        }
        let is_needed = |counter: &Counter| {
            !counter.seats.is_empty()
                || counter.out != Share::default()
                || counter.was_drawn_since(now, SWEEP_EVERY)
        };
        self.counters.retain(|_, counter| is_needed(counter));
    }
}

fn less(from: Share, share: Share) -> Share {
    Share { rate: from.rate.saturating_sub(share.rate), tokens: from.tokens.saturating_sub(share.tokens) }
}
