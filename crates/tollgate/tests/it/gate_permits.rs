//! Waits for a permit: woken by a returned permit, first in, first out, without leaks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use tollgate::gate::InFlight;
use tollgate::{Gate, KeyedGate, ManualClock, NotReady, Quota, Rate, Ticks, Verdict};

use crate::executor::{Task, block_on, settle};

type PermitResult = Result<InFlight, NotReady>;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// A gate with this many permits, each valid for a minute.
fn gate(permits: u64) -> (Gate, ManualClock) {
    let time = ManualClock::new();
    let quota = Quota::concurrency(permits, MINUTE).expect("valid");
    (Gate::builder(quota).clock(time.clock()).build(), time)
}

fn start(gate: &Gate, count: usize) -> Vec<Task<PermitResult>> {
    (0..count).map(|_| Task::start(gate.until_acquired())).collect()
}

fn held(waits: &[Task<PermitResult>]) -> Vec<bool> {
    waits.iter().map(|wait| matches!(wait.answer(), Some(Ok(_)))).collect()
}

fn free(gate: &Gate) -> u64 {
    gate.charge(0).remaining
}

/// A free permit is taken immediately; it is returned when it is dropped.
#[test]
fn a_free_permit_is_taken_immediately() {
    let (gate, _) = gate(2);
    let waits = start(&gate, 2);
    assert_eq!((held(&waits), free(&gate)), (vec![true; 2], 0));
    drop(waits);
    assert_eq!(free(&gate), 2);
}

/// Each returned permit goes to the first waiter, however the others are polled, without moving the clock.
#[test]
fn a_returned_permit_goes_to_the_first_waiter() {
    let (gate, _) = gate(1);
    let mut permit = gate.acquire().ok();
    let mut waits = start(&gate, 4);
    for served in 0..4 {
        assert_eq!(held(&waits), [false; 4][served..], "{served} were served");
        drop(permit.take());
        assert!(waits[0].is_woken(), "the first is woken");
        assert!(waits[1..].iter().all(|wait| !wait.is_woken()), "and no other");
        waits.iter_mut().rev().for_each(|wait| {
            wait.run();
        });
        settle(&mut waits);
        assert_eq!(free(&gate), 0);
        let first = waits.remove(0);
        assert!(matches!(first.answer(), Some(Ok(_))));
        permit = first.into_answer().and_then(Result::ok);
    }
    drop(permit);
    assert_eq!(free(&gate), 1);
}

/// A permit that is not returned is waited for until it expires.
#[test]
fn an_expiring_permit_is_waited_for() {
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
    assert_eq!(free(&gate), 0, "an expired permit is not returned");
}

/// `until_ready` is woken by a returned permit too. Its own permit returns by expiry.
#[test]
fn until_ready_is_woken_by_a_release() {
    let (gate, time) = gate(1);
    let permit = gate.acquire();
    let mut wait = Task::start(gate.until_ready());
    assert!(!wait.run());
    drop(permit);
    assert!(wait.run());
    drop(wait);
    assert_eq!(free(&gate), 0);
    time.advance(MINUTE);
    assert_eq!(free(&gate), 1);
}

/// Both kinds of wait share one queue, and a large cost at its head is not overtaken.
#[test]
fn both_waits_share_one_queue() {
    let (gate, time) = gate(2);
    let (one, other) = (gate.acquire(), gate.acquire());
    let mut large = Task::start(gate.until_ready().cost(2));
    let mut small = start(&gate, 1);
    drop(one);
    settle(&mut small);
    assert!(!large.run() && held(&small) == [false], "one permit is not enough for the first");
    drop(other);
    assert!(large.run());
    settle(&mut small);
    assert_eq!(held(&small), [false]);
    time.advance(MINUTE);
    settle(&mut small);
    assert_eq!(held(&small), [true]);
}

/// Dropping a wait anywhere in the queue, woken or not, takes no permit and delays no other.
#[test]
fn a_dropped_wait_leaks_nothing() {
    for dropped in 0..3 {
        for released_before in [true, false] {
            let (gate, _) = gate(1);
            let mut permit = gate.acquire().ok();
            let mut waits = start(&gate, 3);
            if released_before {
                drop(permit.take());
            }
            drop(waits.remove(dropped));
            drop(permit.take());
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

/// A permit whose receiver is gone is returned: nothing happens between admission and delivery.
#[test]
fn an_undelivered_permit_is_returned() {
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

/// A deadline before the next expiry is not refused: a permit may be returned in time.
#[test]
fn a_deadline_waits_for_a_release() {
    let (gate, time) = gate(1);
    let permit = gate.acquire();
    let mut waits = vec![Task::start(gate.until_acquired().within(SECOND))];
    assert_eq!(held(&waits), [false]);
    time.advance(SECOND - Duration::from_micros(1));
    settle(&mut waits);
    assert!(waits[0].answer().is_none(), "it waits until the deadline");
    drop(permit);
    settle(&mut waits);
    assert_eq!(held(&waits), [true]);
}

/// At the deadline a waiter makes its last attempt, and is then refused, wherever it is in the queue.
#[test]
fn a_deadline_that_passes_is_refused() {
    let (gate, time) = gate(1);
    let permit = gate.acquire();
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
    drop(permit);
    settle(&mut waits);
    assert_eq!(held(&waits), [false, false, true]);
}

/// A deadline of zero takes a free permit, and is refused immediately otherwise, also if the waiters ahead
/// will take the free ones.
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
    assert!(
        matches!(now().answer(), Some(Err(NotReady::TooLate { .. }))),
        "the free permit is the first waiter's"
    );
    settle(&mut waits);
    assert_eq!(held(&waits), [true]);
}

/// A reset returns all permits: all waiters are served, as far as the permits go.
#[test]
fn a_reset_wakes_the_waiters() {
    let (gate, _) = gate(2);
    let _forgotten = (gate.acquire(), gate.acquire());
    let mut waits = start(&gate, 3);
    gate.reset();
    settle(&mut waits);
    assert_eq!(held(&waits), [true, true, false]);
}

/// Keys have separate queues: a returned permit wakes a waiter of its own key.
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

/// A key without space in the gate shares a counter, and permits of other keys wake no waiter. It retries
/// every second, and no deadline is known to be too short.
#[test]
fn a_key_on_a_shared_counter_retries() {
    let time = ManualClock::new();
    let quota = Quota::concurrency(1, MINUTE).expect("valid");
    let gate = Gate::builder(quota).clock(time.clock()).capacity_bytes(1).keyed();
    let mut permits = Vec::new();
    let overflowing =
        (0..100_000u64).find(|key| gate.acquire(key).map(|permit| permits.push(permit)).is_err());
    let key = overflowing.expect("the memory is full in the end");
    let mut waits = vec![
        Task::start(gate.until_acquired(&key).within(SECOND / 2)),
        Task::start(gate.until_acquired(&key)),
    ];
    assert!(waits[0].answer().is_none(), "not refused immediately, although permits expire later");
    time.advance(SECOND / 2);
    settle(&mut waits);
    assert!(matches!(waits[0].answer(), Some(Err(NotReady::TooLate { .. }))));
    permits.clear();
    settle(&mut waits);
    assert!(waits[1].answer().is_none(), "nothing woke it");
    time.advance(SECOND);
    settle(&mut waits);
    assert_eq!(held(&waits), [false, true]);
}

/// With another quota it waits for a unit, which is not returned; a departure that is given up is.
#[test]
fn other_quotas_can_be_acquired_too() {
    let time = ManualClock::new();
    let bucket = Quota::token_bucket(Rate::per_second(1).burst(1)).expect("valid");
    let gate = Gate::builder(bucket).clock(time.clock()).build();
    drop(start(&gate, 1));
    assert_eq!(gate.check(), Verdict::Deny { retry_after: Ticks::from_secs(1) });
    let late = Task::start(gate.until_acquired().within(SECOND / 2));
    assert!(matches!(late.answer(), Some(Err(NotReady::TooLate { .. }))), "and this is known immediately");
    let shaped = Quota::leaky_bucket(Rate::per_second(1), 1).expect("valid");
    let gate = Gate::builder(shaped).clock(time.clock()).build();
    let waits = start(&gate, 2);
    assert_eq!((held(&waits), free(&gate)), (vec![true, false], 0));
    drop(waits);
    assert_eq!(free(&gate), 1);
}

/// A waker whose last copy holds a permit of the same gate: dropping it returns the permit, so it must not
/// happen while the queues are locked.
#[test]
fn a_waker_may_hold_a_permit() {
    struct Holder(#[allow(dead_code, reason = "it is only dropped")] Option<InFlight>);
    impl std::task::Wake for Holder {
        fn wake(self: Arc<Self>) {}
    }
    let (gate, _) = gate(3);
    let holder = || Waker::from(Arc::new(Holder(gate.acquire().ok())));
    // The first waiter also stores its waker in the clock, so this test uses the second.
    let permit = gate.acquire();
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
    drop(permit);
    assert!(ahead.run());
}

/// The work of one stress thread: waits, some of them dropped after a poll or two, some with a deadline.
fn work(gate: &KeyedGate, number: u64, turns: u64, limit: u64, in_flight: &[AtomicU64; 2]) {
    for turn in 0..turns {
        let key = (number + turn) % 2;
        let kind = number.wrapping_mul(31).wrapping_add(turn.wrapping_mul(7)) % 5;
        let permit = match kind {
            0 => {
                // Polled once, perhaps woken, perhaps admitted, and dropped.
                let mut wait = Box::pin(gate.until_acquired(&key));
                let _ = wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                continue;
            }
            1 => block_on(gate.until_acquired(&key).within(Duration::from_micros(50))),
            _ => block_on(gate.until_acquired(&key)),
        };
        if let Ok(permit) = permit {
            let counter = &in_flight[usize::try_from(key).expect("0 or 1")];
            let others = counter.fetch_add(1, Ordering::SeqCst);
            assert!(others < limit, "{others} others are in flight");
            if turn % 3 == 0 {
                thread::yield_now();
            }
            counter.fetch_sub(1, Ordering::SeqCst);
            drop(permit);
        } else {
            assert_eq!(kind, 1, "only a deadline refuses");
        }
    }
}

/// Many threads, few permits, the real clock, and permits that expire after an hour: a lost wake would block
/// its thread for ever. The limit is never exceeded, and in the end every permit is free.
#[test]
fn no_wake_is_lost_and_no_permit_is_granted_twice() {
    const THREADS: u64 = 6;
    const TURNS: u64 = 1_500;
    for limit in [1, 3] {
        let hour = Duration::from_secs(3_600);
        let gate: KeyedGate = Gate::builder(Quota::concurrency(limit, hour).expect("valid")).keyed();
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
            assert_eq!(gate.charge(&key, 0).remaining, limit, "every permit is back");
        }
    }
}

/// A permit is returned while another thread attempts to take it, a little earlier or later each time.
/// Whether before the attempt, between the attempt and storing the waker, or after, the other thread gets it.
#[test]
fn a_release_during_an_attempt_is_not_lost() {
    const ROUNDS: u64 = 20_000;
    let hour = Duration::from_secs(3_600);
    let gate = Gate::builder(Quota::concurrency(1, hour).expect("valid")).build();
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
                let permit = block_on(gate.until_acquired());
                assert!(permit.is_ok());
                drop(permit);
                let _ = done.send(());
            }
        }
    });
    for number in 1..=ROUNDS {
        let permit = gate.acquire();
        assert!(permit.is_ok(), "the other thread has returned it");
        round.store(number, Ordering::SeqCst);
        while asked.load(Ordering::SeqCst) < number {
            thread::yield_now();
        }
        (0..number % 300).for_each(|_| std::hint::spin_loop());
        drop(permit);
        let answered = finished.recv_timeout(Duration::from_secs(60));
        assert!(answered.is_ok(), "round {number}: it waits for ever, or has failed");
    }
}
