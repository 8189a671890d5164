//! The departure queue of a shaping gate moves up when a waiter leaves, and equals the ideal queue to the
//! tick.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use std::{future::Future, pin::Pin};

use proptest::prelude::*;
use tollgate::algorithm::leaky_bucket::LeakyBucket;
use tollgate::gate::Ready;
use tollgate::{Clock, Gate, ManualClock, NotReady, Outcome, Quota, Rate, Verdict};

use crate::executor::{Task, block_on, settle};
use crate::ideal::IdealQueue;

type Waiting = Vec<(usize, Task<Result<Outcome, NotReady>>)>;

#[derive(Clone, Copy, Debug)]
enum Event {
    Comes(u64),
    /// One waiter leaves.
    Leaves(usize),
    /// Every second waiter leaves.
    Halves,
    /// Time passes, in microseconds.
    Passes(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1_u64..4).prop_map(Event::Comes),
        3 => (0_usize..64).prop_map(Event::Leaves),
        1 => Just(Event::Halves),
        4 => (0_u64..2_000_000).prop_map(Event::Passes),
    ]
}

fn gate(rate: u64, burst: u64, queue: u64) -> (Gate, ManualClock) {
    let time = ManualClock::new();
    let quota = LeakyBucket::new(Rate::per_second(rate).burst(burst), queue).expect("valid");
    (Gate::builder(Quota::LeakyBucket(quota)).clock(time.clock()).build(), time)
}

/// Polls the woken waiters, and records departures.
fn note(waiting: &mut Waiting, left: &mut Vec<(usize, u64)>, now: u64) {
    // A freed slot may let the next waiter join.
    for _ in 0..2 {
        waiting.iter_mut().for_each(|(_, task)| {
            task.run();
        });
    }
    waiting.retain(|(id, task)| match task.answer() {
        None => true,
        Some(answer) => {
            assert!(answer.is_ok(), "no wait is refused");
            left.push((*id, now));
            false
        }
    });
}

/// Applies the events to a gate and to an ideal queue with the same numbers. Returns the departures of both.
fn departures(rate: u64, burst: u64, queue: u64, events: &[Event]) -> [Vec<(usize, u64)>; 2] {
    let (gate, time) = gate(rate, burst, queue);
    // A waiter at a full queue waits for space, as if the queue were unbounded.
    let mut ideal = IdealQueue::new(rate, burst, 1_000_000);
    let (mut waiting, mut left) = (Waiting::new(), Vec::new());
    let now = || time.now().unix_micros();
    let pass = |ideal: &mut IdealQueue, waiting: &mut Waiting, left: &mut Vec<(usize, u64)>, until: u64| {
        // From instant to instant, so that each departs at its own.
        while now() < until {
            let next = ideal.next_at().filter(|at| *at < until).unwrap_or(until).max(now() + 1);
            time.advance(Duration::from_micros(next - now()));
            ideal.depart_due(next);
            note(waiting, left, next);
        }
    };
    for (id, &event) in events.iter().enumerate() {
        match event {
            Event::Comes(cost) => {
                ideal.arrive(id, cost, None, now());
                waiting.push((id, Task::start(gate.until_ready().cost(cost))));
            }
            Event::Leaves(index) if !waiting.is_empty() => {
                let (id, task) = waiting.remove(index % waiting.len());
                drop(task);
                ideal.leave(id, now());
            }
            Event::Leaves(_) => {}
            Event::Halves => {
                let mut stays = false;
                waiting.retain(|(id, _)| {
                    stays = !stays;
                    if !stays {
                        ideal.leave(*id, now());
                    }
                    stays
                });
            }
            Event::Passes(micros) => {
                let until = now() + micros;
                pass(&mut ideal, &mut waiting, &mut left, until);
            }
        }
        note(&mut waiting, &mut left, now());
    }
    let end = now() + 300_000_000;
    pass(&mut ideal, &mut waiting, &mut left, end);
    assert!(waiting.is_empty(), "all waiters departed");
    [left, ideal.departures]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// For any rate, burst, costs, arrivals and leaves, each waiter departs at the instant of the ideal
    /// queue.
    #[test]
    fn departures_equal_the_ideal_queue(
        rate in 1_u64..12,
        burst in 1_u64..4,
        events in prop::collection::vec(event(), 1..80),
    ) {
        let [left, ideal] = departures(rate, burst, 1_000, &events);
        prop_assert_eq!(left, ideal);
    }

    /// The same holds for a full queue, whose other waiters wait for space. The rates have intervals of whole
    /// ticks; at others a waiter finds space up to a tick late.
    #[test]
    fn departures_of_a_full_queue_equal_the_ideal_queue(
        rate in prop::sample::select(vec![1_u64, 2, 4, 5, 8, 10]),
        queue in 3_u64..6,
        events in prop::collection::vec(event(), 1..80),
    ) {
        let [left, ideal] = departures(rate, 1, queue, &events);
        prop_assert_eq!(left, ideal);
    }
}

/// Counts its wakes.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll(wait: &mut Pin<Box<Ready>>, counting: &Arc<Counting>) -> bool {
    let waker = Waker::from(Arc::clone(counting));
    matches!(wait.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(_)))
}

/// Of ten thousand waiters every second leaves, and none is woken for that. Then each is woken once, when
/// due, and all have departed in half the time. A freed slot is available to new requests.
#[test]
fn half_of_ten_thousand_leave_and_the_rest_depart_in_half_the_time() {
    const WAITERS: usize = 10_000;
    let (gate, time) = gate(1_000, 1, WAITERS as u64);
    assert_eq!(gate.check(), Verdict::Allow);
    let mut waits: Vec<_> =
        (0..WAITERS).map(|_| (Box::pin(gate.until_ready()), Arc::<Counting>::default())).collect();
    assert!(waits.iter_mut().all(|(wait, counting)| !poll(wait, counting)));
    assert!(matches!(gate.check(), Verdict::Deny { .. }), "the queue is full");
    let mut number = 0;
    waits.retain(|_| {
        number += 1;
        number % 2 == 0
    });
    assert!(waits.iter().all(|(_, counting)| counting.0.load(Ordering::Relaxed) == 0), "no waiter was woken");
    assert_eq!(gate.charge(0).remaining, 5_000, "the bucket has the units back");
    let mut through = 0;
    for millis in 1..=5_000 {
        time.advance(Duration::from_millis(1));
        let woken = |index: usize| waits[index].1.0.load(Ordering::Relaxed);
        assert_eq!(woken(through), 1, "the first is woken, once");
        assert!(waits.get(through + 1).is_none_or(|(_, counting)| counting.0.load(Ordering::Relaxed) == 0));
        let (wait, counting) = &mut waits[through];
        assert!(poll(wait, counting), "after {millis} ms");
        through += 1;
    }
    assert_eq!(through, waits.len());
}

/// A first waiter that is not polled does not delay the others.
#[test]
fn an_unpolled_first_waiter_delays_no_other() {
    let (gate, time) = gate(1, 1, 10);
    assert_eq!(gate.check(), Verdict::Allow);
    let mut waits: Vec<_> = (0..3).map(|_| Task::start(gate.until_ready())).collect();
    for behind in 1..3 {
        time.advance(Duration::from_secs(if behind == 1 { 2 } else { 1 }));
        settle(&mut waits[1..]);
        assert!(waits[behind].answer().is_some_and(Result::is_ok));
    }
    assert!(waits[0].answer().is_none() && waits[0].is_woken());
}

/// After a reset a new request passes, and the waiters depart as before, and move up.
#[test]
fn waiters_depart_after_a_reset() {
    let (gate, time) = gate(1, 1, 10);
    let mut waits: Vec<_> = (0..5).map(|_| Task::start(gate.until_ready())).collect();
    gate.reset();
    let fresh: Vec<_> = (0..2).map(|_| Task::start(gate.until_ready())).collect();
    assert!(fresh[0].answer().is_some_and(Result::is_ok));
    drop(waits.remove(2));
    waits.extend(fresh.into_iter().skip(1));
    for second in 1..=3 {
        time.advance(Duration::from_secs(1));
        settle(&mut waits);
        assert!(waits[second].answer().is_some_and(Result::is_ok), "after {second} seconds");
    }
    assert!(waits.iter().all(|wait| wait.answer().is_some_and(Result::is_ok)));
}

/// On the real clock with many threads, where waits come and go at random: no waiter is lost, and no more
/// depart than the rate allows.
#[test]
fn no_waiter_is_lost_under_concurrency() {
    const THREADS: usize = 4;
    const WAITS: usize = 400;
    let quota = LeakyBucket::new(Rate::per_second(20_000), 1_000_000).expect("valid");
    let gate = Gate::builder(Quota::LeakyBucket(quota)).clock(Clock::precise()).build();
    let clock = Clock::precise();
    let began = clock.now();
    let left: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let gate = gate.clone();
                scope.spawn(move || {
                    let mut waits: Vec<_> = (0..WAITS).map(|_| Box::pin(gate.until_ready())).collect();
                    let mut context = Context::from_waker(Waker::noop());
                    waits.retain_mut(|wait| wait.as_mut().poll(&mut context).is_pending());
                    let mut number = thread;
                    waits.retain(|_| {
                        number += 1;
                        !number.is_multiple_of(3)
                    });
                    let stayed = waits.len();
                    waits.into_iter().for_each(|wait| assert!(block_on(wait).is_ok()));
                    stayed
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    let micros = clock.now().since(began).as_micros();
    assert!(u64::try_from(left).expect("small") * 50 <= micros + 50, "{left} in {micros} µs");
}
