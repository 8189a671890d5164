//! The fewest and the most denials of a window that a log with stamps of whole seconds leaves open, at every size. A request
//! came in one of the seconds of its width, and so in one of a few slots: windows, sub-windows or instants. In the order
//! of the log neither the first nor the last slot of a request goes back.
//!
//! To admit each request that fits admits as many as possible, so it is enough to compare which sets of requests fit.
//! Sliding windows. The fewest: two requests share a window only if they do wherever they came. The most: they share it
//! if they can. Windows with a grid. The fewest: a request takes the earliest window that has room, which finds room for
//! as many as possible. The most: it takes room in each window in which it may have come.
//!
//! All are sound for requests of one unit and one limit.

use std::collections::VecDeque;

use tollgate::algorithm::fixed_window::FixedWindow;
use tollgate::{Ticks, Timestamp};

use super::bounds::{Extremes, SIZES_AND_OWN, Within};

/// A sliding window: a request shares it with those of its own slot, and of so many slots before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotWindow {
    /// The length of a slot.
    pub(super) slot: Ticks,
    /// The slots before its own.
    pub(super) span: u64,
}

/// The units that one key was admitted to sliding windows at both extremes, at every size.
#[derive(Clone, Debug, Default)]
pub(super) struct SlidingBounds {
    sizes: [[AdmittedSlots; 2]; SIZES_AND_OWN],
}

impl SlidingBounds {
    /// Bytes that it takes, with what it points to.
    pub(super) fn bytes(&self) -> usize {
        let slots: usize = self.sizes.iter().flatten().map(|admitted| admitted.slots.capacity()).sum();
        size_of::<Self>() + slots * size_of::<(u64, u64)>()
    }

    /// Charges a request to windows with these limits.
    pub(super) fn charge(
        &mut self,
        (window, limit): (SlotWindow, impl Fn(usize) -> u64),
        at: Within,
        cost: u64,
    ) -> Extremes {
        let [first, last] = at.ticks().map(|tick| tick / window.slot.as_micros().max(1));
        // The oldest slot that counts, and the slot of the request, with the fewest denials and with the most.
        let readings = [(last, first), (first, last)];
        let mut denied = Extremes::default();
        for (size, extremes) in self.sizes.iter_mut().enumerate() {
            for ((admitted, (now, slot)), denied) in extremes.iter_mut().zip(readings).zip(&mut denied) {
                let oldest = now.saturating_sub(window.span);
                if !admitted.charge(slot, (oldest, limit(size)), cost) {
                    denied.add(size);
                }
            }
        }
        denied
    }
}

/// The units admitted in each of the latest slots. There are at most as many slots as units, and as seconds of the window.
#[derive(Clone, Debug, Default)]
struct AdmittedSlots {
    slots: VecDeque<(u64, u64)>,
    units: u64,
}

impl AdmittedSlots {
    /// Charges a request if it fits beside those since the oldest slot. Returns whether it does.
    fn charge(&mut self, slot: u64, (oldest, limit): (u64, u64), cost: u64) -> bool {
        while let Some((_, units)) = self.slots.pop_front_if(|(slot, _)| *slot < oldest) {
            self.units -= units;
        }
        if self.units.saturating_add(cost) > limit {
            return false;
        }
        self.units += cost;
        match self.slots.back_mut() {
            Some((newest, units)) if *newest >= slot => *units += cost,
            _ => self.slots.push_back((slot, cost)),
        }
        true
    }
}

/// Most windows with a grid in which one request can have come.
const WINDOWS: usize = 3;
/// The shortest window that is bounded. Two seconds lie in at most [`WINDOWS`] of them.
pub(super) const SHORTEST: Ticks = Ticks::from_secs(1);

/// The units that one key was admitted to windows with a grid at both extremes, at every size.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GridBounds {
    /// The ends of the window of the latest request, and of the next ones as far as they were needed; then 0.
    ends: [u64; WINDOWS],
    sizes: [GridCounts; SIZES_AND_OWN],
}

/// The units admitted in each of these windows.
#[derive(Clone, Copy, Debug, Default)]
struct GridCounts {
    /// With the fewest denials: in the window that was chosen.
    fewest: [u64; WINDOWS],
    /// With the most: in the last window in which the request can have come.
    most: [u64; WINDOWS],
}

impl GridBounds {
    /// Charges a request to windows with these limits.
    pub(super) fn charge(
        &mut self,
        (window, limit): (&FixedWindow, impl Fn(usize) -> u64),
        at: Within,
        cost: u64,
    ) -> Extremes {
        let windows = self.windows_of(window, at);
        let mut denied = Extremes::default();
        for (size, counts) in self.sizes.iter_mut().enumerate() {
            let limit = limit(size);
            let room = counts.fewest[..windows].iter_mut().find(|used| used.saturating_add(cost) <= limit);
            match room {
                Some(used) => *used += cost,
                None => denied[0].add(size),
            }
            let used: u64 = counts.most.iter().sum();
            match counts.most[..windows].last_mut() {
                Some(last) if used.saturating_add(cost) <= limit => *last += cost,
                _ => denied[1].add(size),
            }
        }
        denied
    }

    /// Moves on to the window in which the request came at the earliest. Returns in how many it can have come.
    fn windows_of(&mut self, window: &FixedWindow, at: Within) -> usize {
        let [first, last] = at.ticks();
        let end = |of: u64| window.window_end(Timestamp::from_unix_micros(of)).unix_micros();
        while self.ends[0] != 0 && self.ends[0] <= first {
            let [_, ends @ ..] = self.ends;
            self.ends = [ends[0], ends[1], 0];
            for GridCounts { fewest, most } in &mut self.sizes {
                (*fewest, *most) = ([fewest[1], fewest[2], 0], [most[1], most[2], 0]);
            }
        }
        if self.ends[0] == 0 {
            self.ends[0] = end(first);
        }
        let mut windows = 1;
        while windows < WINDOWS && self.ends[windows - 1] <= last {
            if self.ends[windows] == 0 {
                self.ends[windows] = end(self.ends[windows - 1]);
            }
            windows += 1;
        }
        windows
    }
}
