//! The ideal line: a server that works at one pace for the first in line, and for nobody else. It keeps the bucket's burst in store while nobody
//! comes. Whoever leaves was never there, but for the work that was done for it. A list, and exact numbers: a unit is a million, and a
//! microsecond brings as many as the rate has units a second.

use std::collections::VecDeque;

const UNIT: u128 = 1_000_000;

pub(crate) struct Ideal {
    rate: u128,
    burst: u128,
    capacity: u128,
    /// When the work for the first began, or that for the last was done if nobody stands there.
    begun: u128,
    standing: VecDeque<(usize, u128)>,
    /// Until when it is known.
    seen: u64,
    /// Who left when.
    pub(crate) left: Vec<(usize, u64)>,
}

impl Ideal {
    pub(crate) fn new(rate: u64, burst: u64, queue: u64) -> Self {
        let [rate, burst, queue] = [rate, burst, queue].map(u128::from);
        let (burst, capacity) = (burst * UNIT, (burst + queue) * UNIT);
        Self { rate, burst, capacity, begun: 0, standing: VecDeque::new(), seen: 0, left: Vec::new() }
    }

    /// Somebody comes, and can wait for so long; it stands in line then, or has left at once, or is sent away.
    pub(crate) fn comes(&mut self, who: usize, cost: u64, patience: Option<u64>, now: u64) {
        self.passes(now);
        let (at, cost) = (u128::from(now) * self.rate, u128::from(cost) * UNIT);
        if self.standing.is_empty() {
            self.begun = self.begun.max(at);
        }
        let end = self.begun + self.standing.iter().map(|(_, cost)| cost).sum::<u128>() + cost;
        let wait = self.instant(end).saturating_sub(now);
        if end - at <= self.capacity && patience.is_none_or(|patience| wait <= patience) {
            self.standing.push_back((who, cost));
            self.passes(now);
        }
    }

    /// Somebody leaves, if it still stands there.
    pub(crate) fn goes(&mut self, who: usize, now: u64) {
        self.passes(now);
        if self.standing.front().is_some_and(|(first, _)| *first == who) {
            self.begun = self.begun.max(u128::from(now) * self.rate);
        }
        self.standing.retain(|(other, _)| *other != who);
        self.passes(now);
    }

    /// Everybody leaves whose turn has come.
    pub(crate) fn passes(&mut self, now: u64) {
        while let Some(at) = self.next_at().filter(|at| *at <= now) {
            let Some((who, cost)) = self.standing.pop_front() else { return };
            self.begun += cost;
            // Whoever moved up far enough leaves when it did, and not before.
            self.left.push((who, at.max(self.seen)));
        }
        self.seen = now;
    }

    /// When the next one's turn comes.
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.standing.front().map(|(_, cost)| self.instant(self.begun + cost))
    }

    fn instant(&self, end: u128) -> u64 {
        u64::try_from(end.saturating_sub(self.burst).div_ceil(self.rate)).expect("in range")
    }
}
