//! `until_ready`: first in, first out, cancel-safe, with exact deadlines. On a manual clock.

use std::time::Duration;

use tollgate::algorithm::leaky_bucket::LeakyBucket;
use tollgate::gate::Ready;
use tollgate::{Clock, Gate, KeyedGate, ManualClock, NotReady, Outcome, Quota, Rate, Ticks, Verdict};

use crate::executor::{Task, block_on, settle};
use crate::fixture::{ALGORITHMS, HOUR};

type Waits = Vec<Task<Result<Outcome, NotReady>>>;

const SECOND: Duration = Duration::from_secs(1);

/// One unit per second, with this burst.
fn gate(burst: u64) -> (Gate, ManualClock) {
    let time = ManualClock::new();
    let quota = Quota::token_bucket(Rate::per_second(1).burst(burst)).expect("valid");
    (Gate::builder(quota).clock(time.clock()).build(), time)
}

/// One departure per second, with this queue.
fn shaped(queue: u64) -> (Gate, ManualClock) {
    let time = ManualClock::new();
    let quota = Quota::LeakyBucket(LeakyBucket::new(Rate::per_second(1), queue).expect("valid"));
    (Gate::builder(quota).clock(time.clock()).build(), time)
}

fn start(waits: impl IntoIterator<Item = Ready>) -> Waits {
    waits.into_iter().map(Task::start).collect()
}

/// Polls the woken waiters, last first.
fn run_backwards(waits: &mut Waits) {
    for wait in waits.iter_mut().rev() {
        wait.run();
    }
}

fn done(waits: &Waits) -> Vec<bool> {
    waits.iter().map(|wait| wait.answer().is_some_and(Result::is_ok)).collect()
}

/// A request does not wait while units are available.
#[test]
fn a_free_gate_admits_immediately() {
    let (gate, _) = gate(3);
    let waits = start((0..3).map(|_| gate.until_ready()));
    assert_eq!(done(&waits), [true; 3]);
    assert_eq!(gate.check(), Verdict::Deny { retry_after: Ticks::from_secs(1) });
}

/// Of five waiters each second admits exactly the next, in order of arrival, however they are polled.
#[test]
fn waiters_are_served_in_order_of_arrival() {
    let (gate, time) = gate(1);
    assert!(gate.check().is_allowed());
    let mut waits = start((0..5).map(|_| gate.until_ready()));
    for served in 0..5 {
        assert_eq!(done(&waits).iter().filter(|&&done| done).count(), served);
        time.advance(SECOND - Duration::from_micros(1));
        run_backwards(&mut waits);
        settle(&mut waits);
        assert_eq!(done(&waits).iter().filter(|&&done| done).count(), served, "one tick early");
        time.advance(Duration::from_micros(1));
        run_backwards(&mut waits);
        settle(&mut waits);
        let expected: Vec<bool> = (0..5).map(|index| index <= served).collect();
        assert_eq!(done(&waits), expected);
    }
}

/// A large cost at the head is not overtaken by small ones that would fit.
#[test]
fn a_large_wait_is_not_starved_by_small_ones() {
    let (gate, time) = gate(5);
    assert!(gate.check_n(5).is_allowed());
    let mut waits = start([gate.until_ready().cost(4), gate.until_ready()]);
    time.advance(3 * SECOND);
    settle(&mut waits);
    assert_eq!(done(&waits), [false, false]);
    time.advance(SECOND);
    settle(&mut waits);
    assert_eq!(done(&waits), [true, false]);
    time.advance(SECOND);
    settle(&mut waits);
    assert_eq!(done(&waits), [true, true]);
}

/// Keys have separate queues.
#[test]
fn keys_wait_apart() {
    let time = ManualClock::new();
    let quota = Quota::gcra(Rate::per_second(1).burst(1)).expect("valid");
    let gate: KeyedGate = Gate::builder(quota).clock(time.clock()).keyed();
    assert!(gate.check("busy").is_allowed());
    let mut waits = start([gate.until_ready("busy"), gate.until_ready("busy"), gate.until_ready("free")]);
    assert_eq!(done(&waits), [false, false, true]);
    time.advance(SECOND);
    settle(&mut waits);
    assert_eq!(done(&waits), [true, false, true]);
}

/// Dropping a wait anywhere in the queue, polled or not, neither takes a unit nor delays others.
#[test]
fn a_dropped_wait_costs_nothing_and_blocks_no_waiter() {
    for dropped in 0..4 {
        let (gate, time) = gate(1);
        assert!(gate.check().is_allowed());
        let mut waits = start((0..4).map(|_| gate.until_ready()));
        drop(waits.remove(dropped));
        settle(&mut waits);
        for served in 1..=3 {
            time.advance(SECOND);
            settle(&mut waits);
            assert_eq!(done(&waits).iter().filter(|&&done| done).count(), served, "{dropped} was dropped");
        }
        assert!(!gate.check().is_allowed(), "three units came and three were taken");
        time.advance(SECOND);
        assert!(gate.check().is_allowed(), "and the next unit is free");
    }
}

/// A wait that was woken and is dropped before it is polled wakes the next.
#[test]
fn a_wait_dropped_after_its_wake_wakes_the_next() {
    let (gate, time) = gate(1);
    assert!(gate.check().is_allowed());
    let mut waits = start((0..3).map(|_| gate.until_ready()));
    time.advance(SECOND);
    assert!(waits[0].is_woken());
    drop(waits.remove(0));
    settle(&mut waits);
    assert_eq!(done(&waits), [true, false], "the unit that had come goes to the next");
    time.advance(SECOND);
    settle(&mut waits);
    assert_eq!(done(&waits), [true, true]);
}

/// A wait that was never polled is not queued.
#[test]
fn a_wait_that_was_never_polled_is_not_queued() {
    let (gate, time) = gate(1);
    assert!(gate.check().is_allowed());
    let idle = gate.until_ready();
    let mut waits = start([gate.until_ready()]);
    time.advance(SECOND);
    settle(&mut waits);
    assert_eq!(done(&waits), [true]);
    drop(idle);
}

/// A deadline that cannot be met is refused immediately with the wait needed, and takes neither a unit nor a
/// position in the queue.
#[test]
fn an_unreachable_deadline_is_refused_immediately() {
    let (gate, time) = gate(1);
    assert!(gate.check().is_allowed());
    let mut waits = start([gate.until_ready(), gate.until_ready()]);
    let late = Task::start(gate.until_ready().within(Duration::from_micros(2_999_999)));
    assert_eq!(late.answer(), Some(&Err(NotReady::TooLate { wait: Ticks::from_secs(3) })));
    let mut in_time = Task::start(gate.until_ready().within(3 * SECOND));
    assert_eq!(in_time.answer(), None, "three seconds are just enough");
    for _ in 0..3 {
        time.advance(SECOND);
        settle(&mut waits);
        in_time.run();
    }
    assert!(in_time.answer().is_some_and(Result::is_ok));
}

/// A deadline that other traffic makes unreachable is refused once that is known, and charges nothing.
#[test]
fn a_deadline_missed_because_of_other_traffic_is_refused() {
    let (gate, time) = gate(1);
    assert!(gate.check().is_allowed());
    let mut wait = Task::start(gate.until_ready().within(SECOND));
    time.advance(SECOND);
    assert!(gate.check().is_allowed(), "a request that does not queue is faster");
    wait.run();
    assert_eq!(wait.answer(), Some(&Err(NotReady::TooLate { wait: Ticks::from_secs(1) })));
}

/// Regression: only the first waiter watched its deadline. One behind it waited for ever while other traffic
/// delayed the first.
#[test]
fn a_deadline_holds_behind_the_first_waiter_too() {
    let (gate, time) = gate(1);
    assert!(gate.check().is_allowed());
    let mut waits = start([gate.until_ready(), gate.until_ready().within(3 * SECOND)]);
    for second in 1..=4 {
        time.advance(SECOND);
        assert!(gate.check().is_allowed(), "a request that does not queue is faster");
        settle(&mut waits);
        assert_eq!(waits[1].answer().is_some(), second > 3, "after {second} seconds");
    }
    assert!(matches!(waits[1].answer(), Some(Err(NotReady::TooLate { .. }))));
    assert_eq!(waits[0].answer(), None, "a waiter without a deadline still waits");
    time.advance(SECOND);
    settle(&mut waits);
    assert_eq!(done(&waits), [true, false]);
}

/// A cost that can never pass is refused immediately, with its own error.
#[test]
fn a_cost_above_the_capacity_never_waits() {
    let (gate, _) = gate(4);
    assert!(gate.check_n(4).is_allowed());
    let wait = Task::start(gate.until_ready().cost(5));
    assert_eq!(wait.answer(), Some(&Err(NotReady::Never { capacity: 4 })));
}

/// A shaping gate assigns departures: one a second, and the end of the queue waits for space.
#[test]
fn a_leaky_bucket_waits_for_each_departure() {
    let (gate, time) = shaped(2);
    let mut waits = start((0..5).map(|_| gate.until_ready()));
    for second in 0..5 {
        let expected: Vec<bool> = (0..5).map(|index| index <= second).collect();
        assert_eq!(done(&waits), expected, "after {second} seconds");
        time.advance(SECOND);
        settle(&mut waits);
    }
}

/// A departure that is given up is used by another.
#[test]
fn a_departure_given_up_is_reused() {
    let (gate, time) = shaped(3);
    let mut waits = start((0..4).map(|_| gate.until_ready()));
    assert_eq!(done(&waits), [true, false, false, false]);
    assert!(!gate.check().is_allowed(), "the queue is full");
    drop(waits.pop());
    assert_eq!(gate.check(), Verdict::Wait(Ticks::from_secs(3)), "the last slot is free again");
    time.advance(2 * SECOND);
    settle(&mut waits);
    assert_eq!(done(&waits), [true, true, true]);
}

/// Regression: a departure that was given up was returned to the end of the stream, where others had theirs.
/// The next request departed together with the last, or before it, and one from the middle passed unused. Now
/// later waiters move up, and a refund gives no departure away.
#[test]
fn waiters_move_up_when_a_departure_is_given_up() {
    let (gate, time) = shaped(6);
    let mut waits = start((0..4).map(|_| gate.until_ready()));
    drop(waits.drain(1..3));
    gate.refund(1, Ticks::ZERO);
    waits.extend(start((0..2).map(|_| gate.until_ready())));
    for (second, left) in [(0, 1), (1, 2), (2, 3), (3, 4)] {
        assert_eq!(done(&waits).iter().filter(|done| **done).count(), left, "after {second} seconds");
        assert!(done(&waits).is_sorted_by(|one, next| one >= next), "in order");
        time.advance(SECOND);
        settle(&mut waits);
    }
}

/// Regression: a shaping gate assigned a departure after the deadline.
#[test]
fn a_departure_after_the_deadline_is_refused_immediately() {
    let (gate, time) = shaped(10);
    let mut waits = start((0..4).map(|_| gate.until_ready()));
    let late = Task::start(gate.until_ready().within(Duration::from_millis(3_999)));
    assert_eq!(late.answer(), Some(&Err(NotReady::TooLate { wait: Ticks::from_secs(4) })));
    assert_eq!(gate.charge(0).remaining, 7, "nothing was taken");
    let mut in_time = Task::start(gate.until_ready().within(4 * SECOND));
    assert_eq!(in_time.answer(), None);
    time.advance(4 * SECOND);
    settle(&mut waits);
    assert!(in_time.run());
    assert!(in_time.answer().is_some_and(Result::is_ok));
}

/// With a full queue, waiting for space and for the departure count together.
#[test]
fn a_full_queue_counts_towards_the_deadline() {
    let (gate, time) = shaped(2);
    let mut waits = start((0..4).map(|_| gate.until_ready()));
    // Three depart at 0, 1 and 2 seconds; the fourth after 3 and this one after 4.
    let late = Task::start(gate.until_ready().within(Duration::from_millis(3_999)));
    assert_eq!(late.answer(), Some(&Err(NotReady::TooLate { wait: Ticks::from_secs(4) })));
    let mut in_time = Task::start(gate.until_ready().within(4 * SECOND));
    for second in 1..=4 {
        time.advance(SECOND);
        settle(&mut waits);
        assert_eq!(in_time.run(), second == 4, "after {second} seconds");
    }
    assert!(in_time.answer().is_some_and(Result::is_ok));
}

/// Waits work with every algorithm; each waiter is admitted eventually.
#[test]
fn every_algorithm_can_be_waited_for() {
    for (name, quota) in ALGORITHMS {
        let time = ManualClock::new();
        let gate = Gate::builder(quota(2)).clock(time.clock()).build();
        let mut waits = start((0..3).map(|_| gate.until_ready()));
        for _ in 0..4 {
            time.advance(HOUR.into());
            settle(&mut waits);
        }
        assert_eq!(done(&waits), [true; 3], "{name}");
    }
}

/// The number of waiters is bounded; the next is refused immediately, and accepted when one has left.
#[test]
fn a_full_gate_refuses_further_waits() {
    let time = ManualClock::new();
    let quota = Quota::gcra(Rate::per_second(1).burst(1)).expect("valid");
    let gate: KeyedGate = Gate::builder(quota).clock(time.clock()).keyed();
    let key = |number: u64| number % 4_096; // Short lines, so that the test is short too.
    assert!((0..4_096).all(|number| gate.check(&number).is_allowed()));
    let mut waits = start((0..65_536).map(|number| gate.until_ready(&key(number))));
    assert!(waits.iter().all(|wait| wait.answer().is_none()));
    let refused = Task::start(gate.until_ready(&0u64));
    assert_eq!(refused.answer(), Some(&Err(NotReady::QueueFull)));
    drop(waits.pop());
    let waiting = Task::start(gate.until_ready(&0u64));
    assert_eq!(waiting.answer(), None);
    drop(waiting);
    time.advance(SECOND);
    settle(&mut waits);
    assert_eq!(done(&waits).iter().filter(|&&done| done).count(), 4_096, "the first of each queue");
}

/// On the real clock the second unit of a gate of fifty a second comes after twenty milliseconds.
#[test]
fn waits_work_on_the_real_clock() {
    for clock in [Clock::precise(), Clock::coarse()] {
        let quota = Quota::token_bucket(Rate::per_second(50).burst(1)).expect("valid");
        let gate = Gate::builder(quota).clock(clock.clone()).build();
        let began = clock.now();
        assert!(block_on(gate.until_ready()).is_ok());
        assert!(block_on(gate.until_ready()).is_ok());
        assert!(clock.now().since(began) >= Ticks::from_millis(20));
    }
}
