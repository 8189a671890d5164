//! Puts requests into the order of their arrival. Servers write a line when the answer ends, so a slow request comes
//! after quick ones that arrived later.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use tollgate::{Ticks, Timestamp};

/// The window that serves requests of up to a minute.
pub const SORT_WINDOW: Ticks = Ticks::from_secs(60);

/// Holds items until none that arrived before them can come, by the promise that no line is later than a window.
///
/// An item that breaks the promise is counted, and is given out at once: none is dropped.
#[derive(Debug)]
pub struct Sorter<T> {
    window: Ticks,
    held: BinaryHeap<Held<T>>,
    newest: Timestamp,
    /// The latest arrival that was given out.
    given: Timestamp,
    sequence: u64,
    late: u64,
    latest_by: Ticks,
}

#[derive(Debug)]
struct Held<T> {
    arrival: Timestamp,
    sequence: u64,
    item: T,
}

impl<T> PartialEq for Held<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Held<T> {}

impl<T> PartialOrd for Held<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Held<T> {
    /// The heap gives its greatest: the earliest arrival, and of equals the one that came first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.arrival, other.sequence).cmp(&(self.arrival, self.sequence))
    }
}

impl<T> Sorter<T> {
    /// A sorter that holds items for `window` of the log's time.
    #[must_use]
    pub fn new(window: Ticks) -> Self {
        Self {
            window,
            held: BinaryHeap::new(),
            newest: Timestamp::default(),
            given: Timestamp::default(),
            sequence: 0,
            late: 0,
            latest_by: Ticks::ZERO,
        }
    }

    /// Takes an item. Call [`Sorter::pop`] until it gives nothing after each one.
    pub fn push(&mut self, arrival: Timestamp, item: T) {
        if arrival < self.given {
            self.late += 1;
            self.latest_by = self.latest_by.max(self.given.since(arrival));
        }
        self.newest = self.newest.max(arrival);
        self.held.push(Held { arrival, sequence: self.sequence, item });
        self.sequence += 1;
    }

    /// The next item whose turn is certain.
    pub fn pop(&mut self) -> Option<(Timestamp, T)> {
        let due = self.held.peek()?.arrival + self.window <= self.newest;
        if due { self.give() } else { None }
    }

    /// The next item after the last line: items come out until none is left.
    pub fn drain(&mut self) -> Option<(Timestamp, T)> {
        self.give()
    }

    fn give(&mut self) -> Option<(Timestamp, T)> {
        let Held { arrival, item, .. } = self.held.pop()?;
        self.given = self.given.max(arrival);
        Some((arrival, item))
    }

    /// Items that came after a later arrival was given out, because they were later than the window.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late
    }

    /// By how much the latest of them was out of order.
    #[must_use]
    pub fn latest_by(&self) -> Ticks {
        self.latest_by
    }

    /// Items that wait for their turn.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether no item waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sorted(window: u64, arrivals: &[u64]) -> (Vec<(u64, usize)>, u64) {
        let mut sorter = Sorter::new(Ticks::from_micros(window));
        let mut out = Vec::new();
        for (item, arrival) in arrivals.iter().enumerate() {
            sorter.push(Timestamp::from_unix_micros(*arrival), item);
            while let Some((arrival, item)) = sorter.pop() {
                out.push((arrival.unix_micros(), item));
            }
        }
        while let Some((arrival, item)) = sorter.drain() {
            out.push((arrival.unix_micros(), item));
        }
        assert!(sorter.is_empty());
        (out, sorter.late())
    }

    #[test]
    fn late_items_are_counted_and_given_out() {
        let (out, late) = sorted(10, &[100, 95, 120, 101, 90, 130]);
        assert_eq!(out, [(95, 1), (100, 0), (101, 3), (90, 4), (120, 2), (130, 5)]);
        assert_eq!(late, 1);
    }

    proptest! {
        /// Every item comes out once. Items within the window of the newest come out sorted, and equals as they came.
        #[test]
        fn nothing_is_lost(arrivals in proptest::collection::vec(0_u64..1_000, 0..200), window in 0_u64..1_100) {
            let (out, late) = sorted(window, &arrivals);
            let mut items: Vec<usize> = out.iter().map(|(_, item)| *item).collect();
            items.sort_unstable();
            prop_assert_eq!(items, (0..arrivals.len()).collect::<Vec<_>>());
            let mut newest = 0;
            let fits = arrivals.iter().all(|arrival| {
                newest = newest.max(*arrival);
                arrival + window >= newest
            });
            if fits {
                prop_assert_eq!(late, 0);
                prop_assert!(out.is_sorted(), "{:?}", out);
            }
            let disorder = out.windows(2).filter(|pair| pair[1].0 < pair[0].0).count();
            prop_assert!(u64::try_from(disorder).unwrap() <= late);
        }
    }
}
