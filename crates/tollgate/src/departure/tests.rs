//! A schedule beside charges outside of the queue: requests that wait elsewhere, and requests that join late,
//! in any order. Departures keep the order of the charges, no slot is used twice, and no freed credits are
//! lost unless a charge is in between.

use proptest::prelude::*;

use super::schedule::{BucketPace, Schedule};
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::rate::Rate;
use crate::time::Timestamp;

const START: u64 = 1_700_000_000_000_000;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A request is charged.
    Charged(u64),
    /// A charged request joins the queue.
    Joins(usize),
    /// A charged request waits elsewhere, until its departure time.
    WaitsElsewhere(usize),
    /// A waiter leaves the queue, or leaves it and keeps its slot.
    Leaves(usize),
    Quits(usize),
    Passes(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1_u64..4).prop_map(Event::Charged),
        6 => (0_usize..8).prop_map(Event::Joins),
        1 => (0_usize..8).prop_map(Event::WaitsElsewhere),
        3 => (0_usize..32).prop_map(Event::Leaves),
        1 => (0_usize..32).prop_map(Event::Quits),
        3 => (0_u64..2_500_000).prop_map(Event::Passes),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Departure {
    /// Charged, with the end of its slot.
    Pending(u128),
    /// In a slot of the schedule.
    Scheduled(u32),
    /// Its slot has a fixed end.
    Fixed(u128),
    Left,
}

struct World {
    pace: BucketPace,
    schedule: Schedule,
    top: u128,
    now: Timestamp,
    /// Whether a waiter left while a charged request had not joined: freed credits may then pass unused.
    is_crossed: bool,
    /// In the order of the charges.
    charged: Vec<(u128, Departure)>,
}

impl World {
    fn new(rate: u64, burst: u64) -> Self {
        let quota = LeakyBucket::new(Rate::per_second(rate).burst(burst), 1_000).expect("valid");
        let pace = BucketPace::of(&quota).expect("slots are long");
        let now = Timestamp::from_unix_micros(START);
        Self { pace, schedule: Schedule::new(pace), top: 0, now, is_crossed: false, charged: Vec::new() }
    }

    fn nth(&self, nth: usize, is: impl Fn(&Departure) -> bool) -> Option<usize> {
        let such: Vec<usize> = (0..self.charged.len()).filter(|at| is(&self.charged[*at].1)).collect();
        such.get(nth % such.len().max(1)).copied()
    }

    fn give_back(&mut self, free: super::schedule::FreedCredits) {
        if free.by > 0 && self.pace.is_same(self.top, free.top) {
            self.top -= free.by;
        } else {
            self.schedule.keep_freed(free);
        }
    }

    fn happens(&mut self, event: Event) {
        let now = self.pace.credits(self.now);
        match event {
            Event::Charged(units) => {
                let cost = self.pace.cost(units);
                self.top = self.top.max(now) + cost;
                let turn = self.pace.due_at(self.top);
                let departure =
                    if turn <= self.now { Departure::Fixed(self.top) } else { Departure::Pending(self.top) };
                self.charged.push((cost, departure));
            }
            Event::Joins(nth) => {
                let Some(at) = self.nth(nth, |departure| matches!(departure, Departure::Pending(_))) else {
                    return;
                };
                let (cost, Departure::Pending(end)) = self.charged[at] else { return };
                let expected = self.pace.tick(end);
                if self.pace.due_at(end) <= self.now {
                    self.charged[at].1 = Departure::Fixed(end);
                    return;
                }
                let end =
                    if self.pace.tick(self.top) == expected { self.top } else { self.pace.credits(expected) };
                let (id, free) = self.schedule.join(end, cost, self.top, now).expect("the slot is free");
                self.charged[at].1 = Departure::Scheduled(id);
                self.give_back(free);
            }
            Event::WaitsElsewhere(nth) => {
                let Some(at) = self.nth(nth, |departure| matches!(departure, Departure::Pending(_))) else {
                    return;
                };
                let (_, Departure::Pending(end)) = self.charged[at] else { return };
                self.charged[at].1 = Departure::Fixed(end);
            }
            Event::Leaves(nth) => {
                let Some(at) = self.nth(nth, |departure| matches!(departure, Departure::Scheduled(_))) else {
                    return;
                };
                let (_, Departure::Scheduled(id)) = self.charged[at] else { return };
                self.is_crossed |=
                    self.nth(0, |departure| matches!(departure, Departure::Pending(_))).is_some();
                let free = self.schedule.leave(id, now);
                self.schedule.release(id);
                self.charged[at].1 = Departure::Left;
                self.give_back(free);
            }
            Event::Quits(nth) => {
                let Some(at) = self.nth(nth, |departure| matches!(departure, Departure::Scheduled(_))) else {
                    return;
                };
                let (_, Departure::Scheduled(id)) = self.charged[at] else { return };
                self.charged[at].1 = Departure::Fixed(self.schedule.end_of(id));
                self.schedule.quit(id);
                self.schedule.release(id);
            }
            Event::Passes(micros) => self.now = Timestamp::from_unix_micros(self.now.unix_micros() + micros),
        }
        let mut called = Vec::new();
        self.schedule.call_due(self.now, |id, end| called.push((id, end)));
        for (id, end) in called {
            self.schedule.release(id);
            let at = self
                .charged
                .iter()
                .position(|(_, departure)| *departure == Departure::Scheduled(id))
                .expect("it was scheduled");
            self.charged[at].1 = Departure::Fixed(end);
        }
    }

    /// The starts and ends of all slots.
    fn slots(&self) -> Vec<(u128, u128, Departure)> {
        let slot = |(cost, departure): &(u128, Departure)| match *departure {
            Departure::Left => None,
            Departure::Scheduled(id) => {
                Some((self.schedule.end_of(id) - cost, self.schedule.end_of(id), *departure))
            }
            Departure::Pending(end) | Departure::Fixed(end) => Some((end - cost, end, *departure)),
        };
        self.charged.iter().filter_map(slot).collect()
    }

    fn check(&self, is_exact: bool) -> Result<(), TestCaseError> {
        // A late waiter knows its slot to a tick.
        let tick = if is_exact { 0 } else { self.pace.credits(Timestamp::from_unix_micros(1)) };
        let (slots, now) = (self.slots(), self.pace.credits(self.now));
        for pair in slots.windows(2) {
            prop_assert!(pair[0].1 <= pair[1].0 + tick, "{:?} and {:?}", pair[0], pair[1]);
        }
        if let Some(last) = slots.last() {
            prop_assert!(last.1 <= self.top.max(now) + tick, "{} after {}", last.1, self.top);
        }
        // If all future departures are in the queue, their slots are adjacent, and the bucket becomes empty
        // after the last.
        let future: Vec<_> = slots.iter().filter(|slot| slot.1 > now).collect();
        if is_exact
            && !self.is_crossed
            && future
                .iter()
                .all(|(.., departure)| matches!(departure, Departure::Scheduled(_) | Departure::Fixed(_)))
            && future
                .iter()
                .skip_while(|(.., departure)| matches!(departure, Departure::Fixed(_)))
                .all(|(.., departure)| matches!(departure, Departure::Scheduled(_)))
            && let Some(first) =
                future.iter().position(|(.., departure)| matches!(departure, Departure::Scheduled(_)))
        {
            let scheduled = &future[first..];
            prop_assert!(
                scheduled.windows(2).all(|pair| pair[0].1 == pair[1].0),
                "a hole in {:?}",
                scheduled
            );
            prop_assert_eq!(scheduled.last().map(|slot| slot.1), Some(self.top));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// At rates with slots of whole ticks, and at others.
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

/// A request that was charged before others joined gets its slot before them, and moves up with them.
#[test]
fn a_late_waiter_gets_its_slot() {
    let mut world = World::new(1, 1);
    for event in [Event::Charged(1); 5] {
        world.happens(event); // The first departs immediately.
    }
    for late in [0, 2, 1, 0] {
        world.happens(Event::Joins(late));
    }
    world.happens(Event::Leaves(0));
    let second = 1_000_000;
    let ends: Vec<_> = world.slots().iter().map(|slot| (slot.1 - u128::from(START)) / second).collect();
    assert_eq!(ends, [1, 2, 3, 4]);
    assert_eq!(world.top, u128::from(START) + 4 * second);
}

/// A slot that is left while another charged request has not joined is used when that one joins.
#[test]
fn credits_freed_before_a_late_join_are_used() {
    let mut world = World::new(1, 1);
    for _ in 0..3 {
        world.happens(Event::Charged(1)); // The first departs immediately.
    }
    world.happens(Event::Joins(0));
    world.happens(Event::Joins(0));
    world.happens(Event::Charged(1));
    world.happens(Event::Charged(1));
    world.happens(Event::Joins(1));
    world.happens(Event::Leaves(1));
    assert_eq!(world.top, u128::from(START) + 5_000_000, "one is still to queue up");
    world.happens(Event::Joins(0));
    assert_eq!(world.top, u128::from(START) + 4_000_000, "all credits are used");
    world.check(true).expect("in order");
}
