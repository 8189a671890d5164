//! The ideal queue: a server that works at a constant rate on the first waiter only. It saves up the burst
//! while idle. A waiter that leaves was never there, except for the work already done. A list with exact
//! numbers: a unit is a million, and a microsecond brings as many as the rate has units per second.

use std::collections::VecDeque;

const UNIT: u128 = 1_000_000;

pub(crate) struct IdealQueue {
    rate: u128,
    burst: u128,
    capacity: u128,
    /// When the work on the first waiter began, or that on the last ended if the queue is empty.
    started: u128,
    waiters: VecDeque<(usize, u128)>,
    /// The last instant processed.
    last_instant: u64,
    /// The departures.
    pub(crate) departures: Vec<(usize, u64)>,
}

impl IdealQueue {
    pub(crate) fn new(rate: u64, burst: u64, queue: u64) -> Self {
        let [rate, burst, queue] = [rate, burst, queue].map(u128::from);
        let (burst, capacity) = (burst * UNIT, (burst + queue) * UNIT);
        Self {
            rate,
            burst,
            capacity,
            started: 0,
            waiters: VecDeque::new(),
            last_instant: 0,
            departures: Vec::new(),
        }
    }

    /// A request arrives with a maximum wait. It queues, departs immediately, or is refused.
    pub(crate) fn arrive(&mut self, id: usize, cost: u64, wait_max: Option<u64>, now: u64) {
        self.depart_due(now);
        let (at, cost) = (u128::from(now) * self.rate, u128::from(cost) * UNIT);
        if self.waiters.is_empty() {
            self.started = self.started.max(at);
        }
        let end = self.started + self.waiters.iter().map(|(_, cost)| cost).sum::<u128>() + cost;
        let wait = self.instant(end).saturating_sub(now);
        if end - at <= self.capacity && wait_max.is_none_or(|wait_max| wait <= wait_max) {
            self.waiters.push_back((id, cost));
            self.depart_due(now);
        }
    }

    /// A waiter leaves, if it is still queued.
    pub(crate) fn leave(&mut self, id: usize, now: u64) {
        self.depart_due(now);
        if self.waiters.front().is_some_and(|(first, _)| *first == id) {
            self.started = self.started.max(u128::from(now) * self.rate);
        }
        self.waiters.retain(|(other, _)| *other != id);
        self.depart_due(now);
    }

    /// All waiters that are due depart.
    pub(crate) fn depart_due(&mut self, now: u64) {
        while let Some(at) = self.next_at().filter(|at| *at <= now) {
            let Some((id, cost)) = self.waiters.pop_front() else { return };
            self.started += cost;
            // A waiter that moved up departs when it did, and not before.
            self.departures.push((id, at.max(self.last_instant)));
        }
        self.last_instant = now;
    }

    /// When the next waiter departs.
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.waiters.front().map(|(_, cost)| self.instant(self.started + cost))
    }

    fn instant(&self, end: u128) -> u64 {
        u64::try_from(end.saturating_sub(self.burst).div_ceil(self.rate)).expect("in range")
    }
}
