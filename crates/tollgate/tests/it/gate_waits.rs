//! `until_ready`: first come, first served, cancel-safe, and honest about deadlines. Time is a manual clock's.

use std::time::Duration;

use tollgate::algorithm::leaky_bucket::LeakyBucket;
use tollgate::{Clock, Gate, KeyedGate, ManualClock, NotReady, Outcome, Quota, Rate, Ready, Ticks, Verdict};

use crate::executor::{Task, block_on, settle};
use crate::fixture::{ALGORITHMS, HOUR};

type Waits = Vec<Task<Result<Outcome, NotReady>>>;

const SECOND: Duration = Duration::from_secs(1);

/// One a second, so many at once.
fn gate(burst: u64) -> (Gate, ManualClock) {
    let time = ManualClock::new();
    let quota = Quota::token_bucket(Rate::per_second(1).burst(burst)).expect("valid");
    (Gate::builder(quota).clock(time.clock()).build(), time)
}

/// One a second leaves, so many may wait.
fn shaped(queue: u64) -> (Gate, ManualClock) {
    let time = ManualClock::new();
    let quota = Quota::LeakyBucket(LeakyBucket::new(Rate::per_second(1), queue).expect("valid"));
    (Gate::builder(quota).clock(time.clock()).build(), time)
}

fn start(waits: impl IntoIterator<Item = Ready>) -> Waits {
    waits.into_iter().map(Task::start).collect()
}

/// Polls those who were woken, the last in line first.
fn run_backwards(waits: &mut Waits) {
    for wait in waits.iter_mut().rev() {
        wait.run();
    }
}

fn done(waits: &Waits) -> Vec<bool> {
    waits.iter().map(|wait| wait.answer().is_some_and(Result::is_ok)).collect()
}

/// Whoever comes while there is room does not wait.
#[test]
fn a_free_gate_admits_at_once() {
    let (gate, _) = gate(3);
    let waits = start((0..3).map(|_| gate.until_ready()));
    assert_eq!(done(&waits), [true; 3]);
    assert_eq!(gate.check(), Verdict::Deny { retry_after: Ticks::from_secs(1) });
}

/// Five wait; each second admits exactly the next in line, in the order in which they came, however they are polled.
#[test]
fn those_who_wait_are_served_in_the_order_they_came() {
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
        let expected: Vec<bool> = (0..5).map(|place| place <= served).collect();
        assert_eq!(done(&waits), expected);
    }
}

/// A large wait at the head is not overtaken by small ones behind it, although they would fit.
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

/// Keys wait apart: one key's line holds up nobody else's.
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

/// Dropping a wait anywhere in line, polled or not, neither takes a unit nor holds up those behind it.
#[test]
fn a_dropped_wait_costs_nothing_and_blocks_nobody() {
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
        assert!(gate.check().is_allowed(), "and the next is nobody's");
    }
}

/// A wait that was woken and is dropped before it is polled passes its turn on.
#[test]
fn a_wait_dropped_after_it_was_woken_passes_its_turn_on() {
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

/// A wait that was never polled has no place in line.
#[test]
fn a_wait_that_was_never_polled_has_no_place() {
    let (gate, time) = gate(1);
    assert!(gate.check().is_allowed());
    let idle = gate.until_ready();
    let mut waits = start([gate.until_ready()]);
    time.advance(SECOND);
    settle(&mut waits);
    assert_eq!(done(&waits), [true]);
    drop(idle);
}

/// With a deadline that cannot be met it refuses at once, says by how much, and takes neither a unit nor a place.
#[test]
fn it_refuses_at_once_what_cannot_be_in_time() {
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

/// With a deadline that other traffic makes it miss, it gives up when that is known, and charges nothing.
#[test]
fn it_gives_up_when_others_take_its_unit() {
    let (gate, time) = gate(1);
    assert!(gate.check().is_allowed());
    let mut wait = Task::start(gate.until_ready().within(SECOND));
    time.advance(SECOND);
    assert!(gate.check().is_allowed(), "somebody who does not stand in line is faster");
    wait.run();
    assert_eq!(wait.answer(), Some(&Err(NotReady::TooLate { wait: Ticks::from_secs(1) })));
}

/// The story: only the first in line watched its deadline. One further back waited for ever behind a first that other
/// traffic held up.
#[test]
fn a_deadline_holds_further_back_in_line_too() {
    let (gate, time) = gate(1);
    assert!(gate.check().is_allowed());
    let mut waits = start([gate.until_ready(), gate.until_ready().within(3 * SECOND)]);
    for second in 1..=4 {
        time.advance(SECOND);
        assert!(gate.check().is_allowed(), "somebody who does not stand in line is faster");
        settle(&mut waits);
        assert_eq!(waits[1].answer().is_some(), second > 3, "after {second} seconds");
    }
    assert!(matches!(waits[1].answer(), Some(Err(NotReady::TooLate { .. }))));
    assert_eq!(waits[0].answer(), None, "who has no deadline still waits");
    time.advance(SECOND);
    settle(&mut waits);
    assert_eq!(done(&waits), [true, false]);
}

/// What can never pass is refused at once, and told apart from what comes too late.
#[test]
fn a_cost_above_the_capacity_never_waits() {
    let (gate, _) = gate(4);
    assert!(gate.check_n(4).is_allowed());
    let wait = Task::start(gate.until_ready().cost(5));
    assert_eq!(wait.answer(), Some(&Err(NotReady::Never { capacity: 4 })));
}

/// A shaping gate gives each its departure: one a second, and the queue's end waits for room.
#[test]
fn a_leaky_bucket_waits_for_each_departure() {
    let (gate, time) = shaped(2);
    let mut waits = start((0..5).map(|_| gate.until_ready()));
    for second in 0..5 {
        let expected: Vec<bool> = (0..5).map(|place| place <= second).collect();
        assert_eq!(done(&waits), expected, "after {second} seconds");
        time.advance(SECOND);
        settle(&mut waits);
    }
}

/// A departure that is given up goes back: the stream has no hole that nobody fills.
#[test]
fn a_departure_given_up_goes_back() {
    let (gate, time) = shaped(3);
    let mut waits = start((0..4).map(|_| gate.until_ready()));
    assert_eq!(done(&waits), [true, false, false, false]);
    assert!(!gate.check().is_allowed(), "the queue is full");
    drop(waits.pop());
    assert_eq!(gate.check(), Verdict::Wait(Ticks::from_secs(3)), "the last place is free again");
    time.advance(2 * SECOND);
    settle(&mut waits);
    assert_eq!(done(&waits), [true, true, true]);
}

/// The story: a departure that was given up went back to the end of the stream, where others had theirs. Who came next left together with
/// the last, or before it. Then one from the middle passed unused. Now those behind move up, and a refund gives nobody's departure away.
#[test]
fn a_departure_from_the_middle_is_for_those_behind() {
    let (gate, time) = shaped(6);
    let mut waits = start((0..4).map(|_| gate.until_ready()));
    drop(waits.drain(1..3));
    gate.refund(1);
    waits.extend(start((0..2).map(|_| gate.until_ready())));
    for (second, left) in [(0, 1), (1, 2), (2, 3), (3, 4)] {
        assert_eq!(done(&waits).iter().filter(|done| **done).count(), left, "after {second} seconds");
        assert!(done(&waits).is_sorted_by(|one, next| one >= next), "in order");
        time.advance(SECOND);
        settle(&mut waits);
    }
}

/// The story: a shaping gate gave a wait its departure without looking at its deadline, and let it leave long after.
#[test]
fn a_departure_after_the_deadline_is_refused_at_once() {
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

/// The same when the queue is full: the wait for room and the wait for departure are one wait.
#[test]
fn a_full_queue_counts_towards_the_deadline() {
    let (gate, time) = shaped(2);
    let mut waits = start((0..4).map(|_| gate.until_ready()));
    // Three have their departures at 0, 1 and 2 seconds; the fourth will leave after 3 and this one after 4.
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

/// Every algorithm can be waited for; whoever waits is admitted, if only when the counter starts anew.
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

/// A gate holds only so many waits; the next is refused at once, and admitted to the line when one has left it.
#[test]
fn a_crowded_gate_refuses_further_waits() {
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
    assert_eq!(done(&waits).iter().filter(|&&done| done).count(), 4_096, "the first of each line");
}

/// On the real clock it waits for real: the second unit of a gate of fifty a second comes after twenty milliseconds.
#[test]
fn the_real_clock_is_waited_for() {
    for clock in [Clock::precise(), Clock::coarse()] {
        let quota = Quota::token_bucket(Rate::per_second(50).burst(1)).expect("valid");
        let gate = Gate::builder(quota).clock(clock.clone()).build();
        let began = clock.now();
        assert!(block_on(gate.until_ready()).is_ok());
        assert!(block_on(gate.until_ready()).is_ok());
        assert!(clock.now().since(began) >= Ticks::from_millis(20));
    }
}
