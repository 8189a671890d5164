//! The line before a shaping gate moves up when somebody leaves it, and is then the ideal line, to the tick.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use std::{future::Future, pin::Pin};

use proptest::prelude::*;
use tollgate::algorithm::leaky_bucket::LeakyBucket;
use tollgate::{Clock, Gate, ManualClock, NotReady, Outcome, Quota, Rate, Ready, Verdict};

use crate::executor::{Task, block_on, settle};
use crate::ideal::Ideal;

type Waiting = Vec<(usize, Task<Result<Outcome, NotReady>>)>;

#[derive(Clone, Copy, Debug)]
enum Event {
    Comes(u64),
    /// One of those who wait goes away.
    Goes(usize),
    /// Every second of them does.
    Halves,
    /// Time passes, in microseconds.
    Passes(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1_u64..4).prop_map(Event::Comes),
        3 => (0_usize..64).prop_map(Event::Goes),
        1 => Just(Event::Halves),
        4 => (0_u64..2_000_000).prop_map(Event::Passes),
    ]
}

fn gate(rate: u64, burst: u64, queue: u64) -> (Gate, ManualClock) {
    let time = ManualClock::new();
    let quota = LeakyBucket::new(Rate::per_second(rate).burst(burst), queue).expect("valid");
    (Gate::builder(Quota::LeakyBucket(quota)).clock(time.clock()).build(), time)
}

/// Polls whoever was woken, and notes who has left.
fn note(waiting: &mut Waiting, left: &mut Vec<(usize, u64)>, now: u64) {
    // Room that one has made may let the next line up.
    for _ in 0..2 {
        waiting.iter_mut().for_each(|(_, task)| {
            task.run();
        });
    }
    waiting.retain(|(who, task)| match task.answer() {
        None => true,
        Some(answer) => {
            assert!(answer.is_ok(), "nobody is refused");
            left.push((*who, now));
            false
        }
    });
}

/// Lets the events happen, at a gate and in an ideal line of the same numbers: who left when.
fn departures(rate: u64, burst: u64, queue: u64, events: &[Event]) -> [Vec<(usize, u64)>; 2] {
    let (gate, time) = gate(rate, burst, queue);
    // Whoever finds no room waits for that, so it is as if the line had no end.
    let mut ideal = Ideal::new(rate, burst, 1_000_000);
    let (mut waiting, mut left) = (Waiting::new(), Vec::new());
    let now = || time.now().unix_micros();
    let pass = |ideal: &mut Ideal, waiting: &mut Waiting, left: &mut Vec<(usize, u64)>, until: u64| {
        // From instant to instant, so that each leaves at its own.
        while now() < until {
            let next = ideal.next_at().filter(|at| *at < until).unwrap_or(until).max(now() + 1);
            time.advance(Duration::from_micros(next - now()));
            ideal.passes(next);
            note(waiting, left, next);
        }
    };
    for (who, &event) in events.iter().enumerate() {
        match event {
            Event::Comes(cost) => {
                ideal.comes(who, cost, None, now());
                waiting.push((who, Task::start(gate.until_ready().cost(cost))));
            }
            Event::Goes(place) if !waiting.is_empty() => {
                let (who, task) = waiting.remove(place % waiting.len());
                drop(task);
                ideal.goes(who, now());
            }
            Event::Goes(_) => {}
            Event::Halves => {
                let mut stays = false;
                waiting.retain(|(who, _)| {
                    stays = !stays;
                    if !stays {
                        ideal.goes(*who, now());
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
    assert!(waiting.is_empty(), "nobody is left behind");
    [left, ideal.left]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever rate and burst, whoever comes, leaves or costs more: each leaves at the very instant of the ideal line.
    #[test]
    fn a_line_is_the_ideal_line(
        rate in 1_u64..12,
        burst in 1_u64..4,
        events in prop::collection::vec(event(), 1..80),
    ) {
        let [left, ideal] = departures(rate, burst, 1_000, &events);
        prop_assert_eq!(left, ideal);
    }

    /// So it is where the line has no room for all, and the others wait for that. The rates are those whose intervals are whole ticks: at others
    /// who waits for room finds it up to a tick late.
    #[test]
    fn a_line_with_little_room_is_the_ideal_line(
        rate in prop::sample::select(vec![1_u64, 2, 4, 5, 8, 10]),
        queue in 3_u64..6,
        events in prop::collection::vec(event(), 1..80),
    ) {
        let [left, ideal] = departures(rate, 1, queue, &events);
        prop_assert_eq!(left, ideal);
    }
}

/// Counts how often it was woken.
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

/// Ten thousand wait, every second leaves, and nobody is woken for that. Then each is woken once, for its turn, and all are through in half of the
/// time. A place that was left is there for whoever comes.
#[test]
fn half_of_ten_thousand_leave_and_the_rest_are_through_in_half_of_the_time() {
    const WAITERS: usize = 10_000;
    let (gate, time) = gate(1_000, 1, WAITERS as u64);
    assert_eq!(gate.check(), Verdict::Allow);
    let mut waits: Vec<_> =
        (0..WAITERS).map(|_| (Box::pin(gate.until_ready()), Arc::<Counting>::default())).collect();
    assert!(waits.iter_mut().all(|(wait, counting)| !poll(wait, counting)));
    assert!(matches!(gate.check(), Verdict::Deny { .. }), "the line is full");
    let mut number = 0;
    waits.retain(|_| {
        number += 1;
        number % 2 == 0
    });
    assert!(waits.iter().all(|(_, counting)| counting.0.load(Ordering::Relaxed) == 0), "nobody was woken");
    assert_eq!(gate.charge(0).remaining, 5_000, "the bucket has the units back");
    let mut through = 0;
    for millis in 1..=5_000 {
        time.advance(Duration::from_millis(1));
        let woken = |place: usize| waits[place].1.0.load(Ordering::Relaxed);
        assert_eq!(woken(through), 1, "the first is woken, once");
        assert!(waits.get(through + 1).is_none_or(|(_, counting)| counting.0.load(Ordering::Relaxed) == 0));
        let (wait, counting) = &mut waits[through];
        assert!(poll(wait, counting), "after {millis} ms");
        through += 1;
    }
    assert_eq!(through, waits.len());
}

/// A first in line that nobody polls holds up nobody: those behind it have their turns.
#[test]
fn a_first_that_is_not_polled_holds_up_nobody() {
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

/// A reset is an operator's will: whoever comes then passes, and those who wait have their turns as before, and move up.
#[test]
fn a_reset_strands_nobody() {
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

/// On the real clock and many threads, where waits come and go at random: nobody is lost, and no more leave than the rate gives.
#[test]
fn threads_that_come_and_go_lose_nobody() {
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
