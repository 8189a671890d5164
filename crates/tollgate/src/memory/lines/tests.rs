//! A row beside charges that stand in no line: those who are told to wait and do so elsewhere, and those who are charged and line up later, in
//! whatever order. Whoever is charged first leaves first, no two have the same slot, and nothing that is
//! given back is lost where nobody is in between.

use proptest::prelude::*;

use super::row::{Pitch, Row};
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::quota::Rate;
use crate::time::Timestamp;

const START: u64 = 1_700_000_000_000_000;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// Somebody is charged so many units.
    Charged(u64),
    /// One of those who were charged, and have not said how they wait, lines up.
    LinesUp(usize),
    /// Another waits elsewhere, at the instant that it was told.
    IsTold(usize),
    /// One of those who stand in line leaves it, or does so and keeps its slot.
    Leaves(usize),
    Quits(usize),
    Passes(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1_u64..4).prop_map(Event::Charged),
        6 => (0_usize..8).prop_map(Event::LinesUp),
        1 => (0_usize..8).prop_map(Event::IsTold),
        3 => (0_usize..32).prop_map(Event::Leaves),
        1 => (0_usize..32).prop_map(Event::Quits),
        3 => (0_u64..2_500_000).prop_map(Event::Passes),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// It was charged, and is told the end of its slot.
    Pending(u128),
    /// It stands at a place of the row.
    Stands(u32),
    /// Its slot ends there, for good.
    Fixed(u128),
    Left,
}

struct World {
    pitch: Pitch,
    row: Row,
    top: u128,
    now: Timestamp,
    /// Whether somebody left while another was charged and had not lined up: what is free then may pass unused.
    is_crossed: bool,
    /// In the order in which they were charged.
    charged: Vec<(u128, How)>,
}

impl World {
    fn new(rate: u64, burst: u64) -> Self {
        let quota = LeakyBucket::new(Rate::per_second(rate).burst(burst), 1_000).expect("valid");
        let pitch = Pitch::of(&quota).expect("slots are long");
        let now = Timestamp::from_unix_micros(START);
        Self { pitch, row: Row::new(pitch), top: 0, now, is_crossed: false, charged: Vec::new() }
    }

    fn nth(&self, nth: usize, is: impl Fn(&How) -> bool) -> Option<usize> {
        let such: Vec<usize> = (0..self.charged.len()).filter(|at| is(&self.charged[*at].1)).collect();
        such.get(nth % such.len().max(1)).copied()
    }

    fn give_back(&mut self, free: super::row::Return) {
        if free.by > 0 && self.pitch.is_same(self.top, free.top) {
            self.top -= free.by;
        } else {
            self.row.refused(free);
        }
    }

    fn happens(&mut self, event: Event) {
        let now = self.pitch.credits(self.now);
        match event {
            Event::Charged(units) => {
                let cost = self.pitch.cost(units);
                self.top = self.top.max(now) + cost;
                let turn = self.pitch.turn(self.top);
                let how = if turn <= self.now { How::Fixed(self.top) } else { How::Pending(self.top) };
                self.charged.push((cost, how));
            }
            Event::LinesUp(nth) => {
                let Some(at) = self.nth(nth, |how| matches!(how, How::Pending(_))) else { return };
                let (cost, How::Pending(end)) = self.charged[at] else { return };
                let told = self.pitch.tick(end);
                if self.pitch.turn(end) <= self.now {
                    self.charged[at].1 = How::Fixed(end);
                    return;
                }
                let end = if self.pitch.tick(self.top) == told { self.top } else { self.pitch.credits(told) };
                let (id, free) = self.row.join(end, cost, self.top, now).expect("its slot is its own");
                self.charged[at].1 = How::Stands(id);
                self.give_back(free);
            }
            Event::IsTold(nth) => {
                let Some(at) = self.nth(nth, |how| matches!(how, How::Pending(_))) else { return };
                let (_, How::Pending(end)) = self.charged[at] else { return };
                self.charged[at].1 = How::Fixed(end);
            }
            Event::Leaves(nth) => {
                let Some(at) = self.nth(nth, |how| matches!(how, How::Stands(_))) else { return };
                let (_, How::Stands(id)) = self.charged[at] else { return };
                self.is_crossed |= self.nth(0, |how| matches!(how, How::Pending(_))).is_some();
                let free = self.row.leave(id, now);
                self.row.vacate(id);
                self.charged[at].1 = How::Left;
                self.give_back(free);
            }
            Event::Quits(nth) => {
                let Some(at) = self.nth(nth, |how| matches!(how, How::Stands(_))) else { return };
                let (_, How::Stands(id)) = self.charged[at] else { return };
                self.charged[at].1 = How::Fixed(self.row.end_of(id));
                self.row.quit(id);
                self.row.vacate(id);
            }
            Event::Passes(micros) => self.now = Timestamp::from_unix_micros(self.now.unix_micros() + micros),
        }
        let mut called = Vec::new();
        self.row.call(self.now, |id, end| called.push((id, end)));
        for (id, end) in called {
            self.row.vacate(id);
            let at =
                self.charged.iter().position(|(_, how)| *how == How::Stands(id)).expect("it stood there");
            self.charged[at].1 = How::Fixed(end);
        }
    }

    /// Where the slots begin and end, and whose stands in no line.
    fn slots(&self) -> Vec<(u128, u128, How)> {
        let slot = |(cost, how): &(u128, How)| match *how {
            How::Left => None,
            How::Stands(id) => Some((self.row.end_of(id) - cost, self.row.end_of(id), *how)),
            How::Pending(end) | How::Fixed(end) => Some((end - cost, end, *how)),
        };
        self.charged.iter().filter_map(slot).collect()
    }

    fn check(&self, is_exact: bool) -> Result<(), TestCaseError> {
        // Who lines up late knows its slot to a tick.
        let tick = if is_exact { 0 } else { self.pitch.credits(Timestamp::from_unix_micros(1)) };
        let (slots, now) = (self.slots(), self.pitch.credits(self.now));
        for pair in slots.windows(2) {
            prop_assert!(pair[0].1 <= pair[1].0 + tick, "{:?} and {:?}", pair[0], pair[1]);
        }
        if let Some(last) = slots.last() {
            prop_assert!(last.1 <= self.top.max(now) + tick, "{} after {}", last.1, self.top);
        }
        // Where everybody who is still to go stands in line, one begins where the other ends, and the bucket is empty after the last.
        let future: Vec<_> = slots.iter().filter(|slot| slot.1 > now).collect();
        if is_exact
            && !self.is_crossed
            && future.iter().all(|(.., how)| matches!(how, How::Stands(_) | How::Fixed(_)))
            && future
                .iter()
                .skip_while(|(.., how)| matches!(how, How::Fixed(_)))
                .all(|(.., how)| matches!(how, How::Stands(_)))
            && let Some(first) = future.iter().position(|(.., how)| matches!(how, How::Stands(_)))
        {
            let standing = &future[first..];
            prop_assert!(standing.windows(2).all(|pair| pair[0].1 == pair[1].0), "a hole in {:?}", standing);
            prop_assert_eq!(standing.last().map(|slot| slot.1), Some(self.top));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// At rates whose slots are whole ticks, and at others.
    #[test]
    fn slots_are_in_order_and_apart(
        rate in prop::sample::select(vec![1_u64, 2, 5, 3, 7]),
        burst in 1_u64..4,
        events in prop::collection::vec(event(), 1..100),
    ) {
        let mut world = World::new(rate, burst);
        for event in events {
            world.happens(event);
            world.check(1_000_000 % rate == 0)?;
        }
    }
}

/// Whoever was charged before others lined up is found its own place before them, and then moves up with them.
#[test]
fn who_lines_up_late_has_its_place() {
    let mut world = World::new(1, 1);
    for event in [Event::Charged(1); 5] {
        world.happens(event); // The first passes at once.
    }
    for late in [0, 2, 1, 0] {
        world.happens(Event::LinesUp(late));
    }
    world.happens(Event::Leaves(0));
    let second = 1_000_000;
    let ends: Vec<_> = world.slots().iter().map(|slot| (slot.1 - u128::from(START)) / second).collect();
    assert_eq!(ends, [1, 2, 3, 4]);
    assert_eq!(world.top, u128::from(START) + 4 * second);
}

/// A place that is left while another was charged, and has not yet lined up, is that one's when it does.
#[test]
fn what_is_left_meanwhile_is_not_lost() {
    let mut world = World::new(1, 1);
    for _ in 0..3 {
        world.happens(Event::Charged(1)); // The first passes at once.
    }
    world.happens(Event::LinesUp(0));
    world.happens(Event::LinesUp(0));
    world.happens(Event::Charged(1));
    world.happens(Event::Charged(1));
    world.happens(Event::LinesUp(1));
    world.happens(Event::Leaves(1));
    assert_eq!(world.top, u128::from(START) + 5_000_000, "one is still to line up");
    world.happens(Event::LinesUp(0));
    assert_eq!(world.top, u128::from(START) + 4_000_000, "all of it is used");
    world.check(true).expect("in order");
}
