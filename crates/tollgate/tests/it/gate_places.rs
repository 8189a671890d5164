//! Waits for a place in flight: woken by whoever gives one back, in the order in which they came, and without a leak.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use tollgate::{Gate, InFlight, KeyedGate, ManualClock, NotReady, Quota, Rate, Ticks, Verdict};

use crate::executor::{Task, block_on, settle};

type Place = Result<InFlight, NotReady>;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// So many in flight, each for at most a minute.
fn gate(places: u64) -> (Gate, ManualClock) {
    let time = ManualClock::new();
    let quota = Quota::concurrency(places, MINUTE).expect("valid");
    (Gate::builder(quota).clock(time.clock()).build(), time)
}

fn start(gate: &Gate, count: usize) -> Vec<Task<Place>> {
    (0..count).map(|_| Task::start(gate.until_acquired())).collect()
}

fn held(waits: &[Task<Place>]) -> Vec<bool> {
    waits.iter().map(|wait| matches!(wait.answer(), Some(Ok(_)))).collect()
}

fn free(gate: &Gate) -> u64 {
    gate.charge(0).remaining
}

/// Whoever comes while a place is free has it at once; it comes back when it is dropped.
#[test]
fn a_free_place_is_taken_at_once() {
    let (gate, _) = gate(2);
    let waits = start(&gate, 2);
    assert_eq!((held(&waits), free(&gate)), (vec![true; 2], 0));
    drop(waits);
    assert_eq!(free(&gate), 2);
}

/// Each place given back goes to the first in line, however the others are polled, and no clock has to move for it.
#[test]
fn a_place_given_back_goes_to_the_first_in_line() {
    let (gate, _) = gate(1);
    let mut place = gate.acquire().ok();
    let mut waits = start(&gate, 4);
    for served in 0..4 {
        assert_eq!(held(&waits), [false; 4][served..], "{served} were served");
        drop(place.take());
        assert!(waits[0].is_woken(), "the first is woken");
        assert!(waits[1..].iter().all(|wait| !wait.is_woken()), "and nobody else");
        waits.iter_mut().rev().for_each(|wait| {
            wait.run();
        });
        settle(&mut waits);
        assert_eq!(free(&gate), 0);
        let first = waits.remove(0);
        assert!(matches!(first.answer(), Some(Ok(_))));
        place = first.into_answer().and_then(Result::ok);
    }
    drop(place);
    assert_eq!(free(&gate), 1);
}

/// A place that nobody gives back is waited for until it expires.
#[test]
fn a_place_that_expires_is_waited_for() {
    let (gate, time) = gate(1);
    let forgotten = gate.acquire();
    let mut waits = start(&gate, 1);
    time.advance(MINUTE - Duration::from_micros(1));
    settle(&mut waits);
    assert_eq!(held(&waits), [false]);
    time.advance(Duration::from_micros(1));
    settle(&mut waits);
    assert_eq!(held(&waits), [true]);
    drop(forgotten);
    assert_eq!(free(&gate), 0, "a place that has expired is nobody's to give back");
}

/// `until_ready` is woken by a place given back too. The place that it gets returns by expiry.
#[test]
fn until_ready_is_woken_by_a_release() {
    let (gate, time) = gate(1);
    let place = gate.acquire();
    let mut wait = Task::start(gate.until_ready());
    assert!(!wait.run());
    drop(place);
    assert!(wait.run());
    drop(wait);
    assert_eq!(free(&gate), 0);
    time.advance(MINUTE);
    assert_eq!(free(&gate), 1);
}

/// Both kinds of wait stand in one line, and a large one at its head is not overtaken.
#[test]
fn both_waits_stand_in_one_line() {
    let (gate, time) = gate(2);
    let (one, other) = (gate.acquire(), gate.acquire());
    let mut large = Task::start(gate.until_ready().cost(2));
    let mut small = start(&gate, 1);
    drop(one);
    settle(&mut small);
    assert!(!large.run() && held(&small) == [false], "one place is not enough for the first");
    drop(other);
    assert!(large.run());
    settle(&mut small);
    assert_eq!(held(&small), [false]);
    time.advance(MINUTE);
    settle(&mut small);
    assert_eq!(held(&small), [true]);
}

/// Dropping a wait anywhere in line, woken or not, takes no place and holds up nobody.
#[test]
fn a_dropped_wait_leaks_nothing() {
    for dropped in 0..3 {
        for released_before in [true, false] {
            let (gate, _) = gate(1);
            let mut place = gate.acquire().ok();
            let mut waits = start(&gate, 3);
            if released_before {
                drop(place.take());
            }
            drop(waits.remove(dropped));
            drop(place.take());
            settle(&mut waits);
            assert_eq!(held(&waits), [true, false], "{dropped} was dropped");
            drop(waits.remove(0));
            settle(&mut waits);
            assert_eq!(held(&waits), [true]);
            drop(waits);
            assert_eq!(free(&gate), 1);
        }
    }
}

/// A place that was admitted and whose receiver is gone comes back: nothing lies between admission and delivery.
#[test]
fn a_place_that_nobody_receives_comes_back() {
    let (gate, _) = gate(1);
    let mut wait = Box::pin(gate.until_acquired());
    let poll = wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(poll, Poll::Ready(Ok(_))));
    assert_eq!(free(&gate), 0);
    drop(poll);
    assert_eq!(free(&gate), 1);
    drop(wait);
    assert_eq!(free(&gate), 1, "and not twice");
}

/// A deadline is not refused because places expire later than it: one may be given back in time.
#[test]
fn a_deadline_hopes_for_a_release() {
    let (gate, time) = gate(1);
    let place = gate.acquire();
    let mut waits = vec![Task::start(gate.until_acquired().within(SECOND))];
    assert_eq!(held(&waits), [false]);
    time.advance(SECOND - Duration::from_micros(1));
    settle(&mut waits);
    assert!(waits[0].answer().is_none(), "it waits until the deadline");
    drop(place);
    settle(&mut waits);
    assert_eq!(held(&waits), [true]);
}

/// At the deadline it asks for the last time, and refuses then, wherever it stands.
#[test]
fn a_deadline_that_passes_is_refused() {
    let (gate, time) = gate(1);
    let place = gate.acquire();
    let mut waits = vec![
        Task::start(gate.until_acquired().within(SECOND)),
        Task::start(gate.until_acquired().within(SECOND)),
        Task::start(gate.until_acquired()),
    ];
    time.advance(SECOND);
    settle(&mut waits);
    let left = Ticks::from_secs(59);
    assert!(matches!(waits[0].answer(), Some(Err(NotReady::TooLate { wait })) if *wait == left));
    time.advance(Duration::from_micros(1));
    settle(&mut waits);
    assert!(matches!(waits[1].answer(), Some(Err(NotReady::TooLate { .. }))));
    assert!(waits[2].answer().is_none());
    drop(place);
    settle(&mut waits);
    assert_eq!(held(&waits), [false, false, true]);
}

/// With no time at all it has what is free, and is refused at once what is not: places that those ahead will take included.
#[test]
fn a_deadline_of_zero_never_waits() {
    let (gate, _) = gate(2);
    let now = || Task::start(gate.until_acquired().within(Duration::ZERO));
    let (one, other) = (now(), now());
    assert!(matches!((one.answer(), other.answer()), (Some(Ok(_)), Some(Ok(_)))));
    let refused = now();
    assert!(
        matches!(refused.answer(), Some(Err(NotReady::TooLate { wait })) if *wait == Ticks::from_secs(60))
    );
    let mut waits = start(&gate, 1);
    drop(one);
    assert!(matches!(now().answer(), Some(Err(NotReady::TooLate { .. }))), "the free place is the first's");
    settle(&mut waits);
    assert_eq!(held(&waits), [true]);
}

/// A reset gives all places back at once: everybody in line has one then, as far as they go.
#[test]
fn a_reset_wakes_the_line() {
    let (gate, _) = gate(2);
    let _forgotten = (gate.acquire(), gate.acquire());
    let mut waits = start(&gate, 3);
    gate.reset();
    settle(&mut waits);
    assert_eq!(held(&waits), [true, true, false]);
}

/// Keys wait apart: a place given back wakes its own key's line.
#[test]
fn a_release_wakes_its_own_key() {
    let time = ManualClock::new();
    let quota = Quota::concurrency(1, MINUTE).expect("valid");
    let gate: KeyedGate = Gate::builder(quota).clock(time.clock()).keyed();
    let (a, _b) = (gate.acquire("a"), gate.acquire("b"));
    let mut waits = vec![Task::start(gate.until_acquired("b")), Task::start(gate.until_acquired("a"))];
    drop(a);
    assert!(!waits[0].is_woken() && waits[1].is_woken());
    settle(&mut waits);
    assert_eq!(held(&waits), [false, true]);
}

/// A key that the gate has no room for shares its places with others, who wake nobody when they give theirs back. It looks
/// again each second, and no deadline is known to be too short.
#[test]
fn a_key_without_room_of_its_own_looks_again() {
    let time = ManualClock::new();
    let quota = Quota::concurrency(1, MINUTE).expect("valid");
    let gate = Gate::builder(quota).clock(time.clock()).capacity_bytes(1).keyed();
    let mut places = Vec::new();
    let crowded = (0..100_000u64).find(|key| gate.acquire(key).map(|place| places.push(place)).is_err());
    let key = crowded.expect("the memory is full in the end");
    let mut waits = vec![
        Task::start(gate.until_acquired(&key).within(SECOND / 2)),
        Task::start(gate.until_acquired(&key)),
    ];
    assert!(waits[0].answer().is_none(), "not refused at once, although places expire later");
    time.advance(SECOND / 2);
    settle(&mut waits);
    assert!(matches!(waits[0].answer(), Some(Err(NotReady::TooLate { .. }))));
    places.clear();
    settle(&mut waits);
    assert!(waits[1].answer().is_none(), "nobody has told it");
    time.advance(SECOND);
    settle(&mut waits);
    assert_eq!(held(&waits), [false, true]);
}

/// Of another quota it is a wait for a unit, which is not given back; a departure that is given up is.
#[test]
fn other_quotas_can_be_acquired_too() {
    let time = ManualClock::new();
    let bucket = Quota::token_bucket(Rate::per_second(1).burst(1)).expect("valid");
    let gate = Gate::builder(bucket).clock(time.clock()).build();
    drop(start(&gate, 1));
    assert_eq!(gate.check(), Verdict::Deny { retry_after: Ticks::from_secs(1) });
    let late = Task::start(gate.until_acquired().within(SECOND / 2));
    assert!(matches!(late.answer(), Some(Err(NotReady::TooLate { .. }))), "and this is known at once");
    let shaped = Quota::leaky_bucket(Rate::per_second(1), 1).expect("valid");
    let gate = Gate::builder(shaped).clock(time.clock()).build();
    let waits = start(&gate, 2);
    assert_eq!((held(&waits), free(&gate)), (vec![true, false], 0));
    drop(waits);
    assert_eq!(free(&gate), 1);
}

/// A waker whose last copy holds a place of the same gate: dropping it gives the place back, so it must not happen while the
/// line is locked.
#[test]
fn a_waker_may_hold_a_place_itself() {
    struct Holder(#[allow(dead_code, reason = "it is only dropped")] Option<InFlight>);
    impl std::task::Wake for Holder {
        fn wake(self: Arc<Self>) {}
    }
    let (gate, _) = gate(3);
    let holder = || Waker::from(Arc::new(Holder(gate.acquire().ok())));
    // The first in line also leaves its waker with the clock, so this is about the second.
    let place = gate.acquire();
    let mut ahead = Task::start(gate.until_ready().cost(3));
    let mut wait = Box::pin(gate.until_acquired());
    let first = holder();
    assert!(wait.as_mut().poll(&mut Context::from_waker(&first)).is_pending());
    let second = holder();
    drop(first);
    assert!(wait.as_mut().poll(&mut Context::from_waker(&second)).is_pending());
    assert_eq!(free(&gate), 1, "the first waker went when the second came");
    drop(second);
    drop(wait);
    assert_eq!(free(&gate), 2, "and the second when the wait did");
    drop(place);
    assert!(ahead.run());
}

/// What one thread of the stress does: waits, some of them given up after a poll or two, some with a deadline.
fn work(gate: &KeyedGate, number: u64, turns: u64, limit: u64, in_flight: &[AtomicU64; 2]) {
    for turn in 0..turns {
        let key = (number + turn) % 2;
        let kind = number.wrapping_mul(31).wrapping_add(turn.wrapping_mul(7)) % 5;
        let place = match kind {
            0 => {
                // Polled once, perhaps woken, perhaps admitted, and dropped.
                let mut wait = Box::pin(gate.until_acquired(&key));
                let _ = wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                continue;
            }
            1 => block_on(gate.until_acquired(&key).within(Duration::from_micros(50))),
            _ => block_on(gate.until_acquired(&key)),
        };
        if let Ok(place) = place {
            let counter = &in_flight[usize::try_from(key).expect("0 or 1")];
            let others = counter.fetch_add(1, Ordering::SeqCst);
            assert!(others < limit, "{others} others are in flight");
            if turn % 3 == 0 {
                thread::yield_now();
            }
            counter.fetch_sub(1, Ordering::SeqCst);
            drop(place);
        } else {
            assert_eq!(kind, 1, "only a deadline refuses");
        }
    }
}

/// Many threads, few places, the real clock, and places that expire only after an hour: a wake that is lost would leave its
/// thread waiting for ever. Never are more in flight than may be, and in the end every place is free.
#[test]
fn no_wake_is_lost_and_no_place_is_given_twice() {
    const THREADS: u64 = 6;
    const TURNS: u64 = 1_500;
    for limit in [1, 3] {
        let hour = Duration::from_secs(3_600);
        let gate: KeyedGate = Gate::keyed(Quota::concurrency(limit, hour).expect("valid"));
        let in_flight = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let (done, finished) = mpsc::channel();
        for number in 0..THREADS {
            let (gate, in_flight, done) = (gate.clone(), Arc::clone(&in_flight), done.clone());
            thread::spawn(move || {
                work(&gate, number, TURNS, limit, &in_flight);
                let _ = done.send(number);
            });
        }
        drop(done);
        for _ in 0..THREADS {
            let finished = finished.recv_timeout(Duration::from_secs(120));
            assert!(finished.is_ok(), "a thread waits for ever, or has failed: {finished:?}");
        }
        for key in 0..2u64 {
            assert_eq!(gate.charge(&key, 0).remaining, limit, "every place has come back");
        }
    }
}

/// A place is given back just while another asks for it, a little earlier or later each time: whether it is before the
/// question, between the question and the leaving of the waker, or after, the other has it.
#[test]
fn a_release_meets_a_question() {
    const ROUNDS: u64 = 20_000;
    let hour = Duration::from_secs(3_600);
    let gate = Gate::new(Quota::concurrency(1, hour).expect("valid"));
    let (round, asked) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (done, finished) = mpsc::channel();
    thread::spawn({
        let (gate, round, asked) = (gate.clone(), Arc::clone(&round), Arc::clone(&asked));
        move || {
            for number in 1..=ROUNDS {
                while round.load(Ordering::SeqCst) < number {
                    thread::yield_now();
                }
                asked.store(number, Ordering::SeqCst);
                let place = block_on(gate.until_acquired());
                assert!(place.is_ok());
                drop(place);
                let _ = done.send(());
            }
        }
    });
    for number in 1..=ROUNDS {
        let place = gate.acquire();
        assert!(place.is_ok(), "the other has given it back");
        round.store(number, Ordering::SeqCst);
        while asked.load(Ordering::SeqCst) < number {
            thread::yield_now();
        }
        (0..number % 300).for_each(|_| std::hint::spin_loop());
        drop(place);
        let answered = finished.recv_timeout(Duration::from_secs(60));
        assert!(answered.is_ok(), "round {number}: it waits for ever, or has failed");
    }
}
