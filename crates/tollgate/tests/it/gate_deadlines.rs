//! Deadlines of waits at a gate, for all algorithms: refused immediately when the waiters ahead leave no
//! time, and never when they leave enough.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::algorithm::fixed_window::Align;
use tollgate::algorithm::sliding_window::Estimate;
use tollgate::{Gate, ManualClock, NotReady, Outcome, Quota, Rate, Secret, Ticks, Timestamp, Verdict};

use crate::executor::{Task, block_on, settle};
use crate::fixture::{ALGORITHMS, HOUR, MakeQuota};

const SECOND: Duration = Duration::from_secs(1);

/// Windows and logs with this many units an hour.
const WINDOWS: [(&str, MakeQuota); 5] = [
    ("fixed-window", |n| Quota::fixed_window(Rate::per_hour(n), Align::Epoch).expect("valid")),
    ("fixed-window, first hit", |n| Quota::fixed_window(Rate::per_hour(n), Align::FirstHit).expect("valid")),
    ("sliding-window, strict", |n| {
        Quota::sliding_window(Rate::per_hour(n), 6, Estimate::Strict).expect("valid")
    }),
    ("sliding-window, interpolated", |n| {
        Quota::sliding_window(Rate::per_hour(n), 3, Estimate::Interpolate).expect("valid")
    }),
    ("sliding-log", |n| Quota::sliding_log(Rate::per_hour(n)).expect("valid")),
];

/// The history of a gate, and its waiters.
#[derive(Clone, Debug)]
struct Story {
    limit: u64,
    /// Costs charged, each after this many microseconds.
    history: Vec<(u64, u64)>,
    waiters: Vec<u64>,
    cost: u64,
}

fn stories() -> impl Strategy<Value = Story> {
    (1..8u64).prop_flat_map(|limit| {
        let history = prop::collection::vec((0..2 * HOUR.as_micros() / limit, 1..=limit), 0..12);
        let waiters = prop::collection::vec(0..=limit, 0..12);
        (history, waiters, 0..=limit).prop_map(move |(history, waiters, cost)| Story {
            limit,
            history,
            waiters,
            cost,
        })
    })
}

impl Story {
    /// A gate with this history.
    fn gate(&self, quota: MakeQuota) -> (Gate, ManualClock) {
        let time = ManualClock::new();
        let gate = Gate::builder(quota(self.limit)).clock(time.clock()).secret(Secret::repeatable(7)).build();
        for &(pause, cost) in &self.history {
            time.advance(Duration::from_micros(pause));
            gate.check_n(cost);
        }
        (gate, time)
    }

    /// Serves the waiters one by one, each as early as the gate admits it. Returns when a waiter behind them
    /// passes, and all instants at which a request was admitted.
    fn served(&self, quota: MakeQuota) -> (Timestamp, BTreeSet<Timestamp>) {
        let (gate, time) = self.gate(quota);
        let (mut pass, mut instants) = (time.now(), BTreeSet::new());
        for &cost in self.waiters.iter().chain([&self.cost]) {
            pass = loop {
                match gate.check_n(cost) {
                    Verdict::Allow => break time.now(),
                    Verdict::Wait(wait) => break time.now() + wait,
                    Verdict::Deny { retry_after } => time.advance(retry_after.into()),
                    Verdict::Never | Verdict::Forbidden => panic!("no cost exceeds the limit"),
                }
            };
            instants.extend([time.now(), pass]);
        }
        (pass, instants)
    }

    /// The waiters, and behind them one with a deadline.
    fn wait(&self, gate: &Gate, within: Ticks) -> Vec<Task<Result<Outcome, NotReady>>> {
        let mut waits: Vec<_> =
            self.waiters.iter().map(|&cost| Task::start(gate.until_ready().cost(cost))).collect();
        waits.push(Task::start(gate.until_ready().cost(self.cost).within(within.into())));
        waits
    }
}

fn last<T>(waits: &[Task<T>]) -> Option<&T> {
    waits.last().and_then(Task::answer)
}

proptest! {
    /// Whatever the history and the waiters ahead, a deadline that is just enough is accepted and met.
    #[test]
    fn a_deadline_that_can_be_met_is_met(story in stories(), algorithm in 0..ALGORITHMS.len() + WINDOWS.len()) {
        let (name, quota) = *ALGORITHMS.iter().chain(&WINDOWS).nth(algorithm).expect("one of both");
        if name == "concurrency" {
            return Ok(()); // Its deadlines have tests of their own.
        }
        let (turn, instants) = story.served(quota);
        let (gate, time) = story.gate(quota);
        let mut waits = story.wait(&gate, turn.since(time.now()));
        for instant in instants {
            settle(&mut waits);
            time.advance(instant.since(time.now()).into());
        }
        settle(&mut waits);
        prop_assert!(matches!(last(&waits), Some(Ok(_))), "{}: {:?}", name, last(&waits));
    }

    /// A deadline that is one tick too short is refused immediately, for windows and logs.
    #[test]
    fn a_deadline_that_cannot_be_met_is_refused_immediately(story in stories(), algorithm in 0..WINDOWS.len()) {
        let (name, quota) = WINDOWS[algorithm];
        let (turn, instants) = story.served(quota);
        let (gate, time) = story.gate(quota);
        let turn = turn.since(time.now());
        let look = gate.charge(0);
        if turn.is_zero() {
            return Ok(());
        }
        let waits = story.wait(&gate, turn - Ticks::ONE);
        prop_assert!(matches!(last(&waits), Some(Err(NotReady::TooLate { .. }))), "{}: {:?}", name, last(&waits));
        drop(waits);
        if instants.first().is_some_and(|first| *first > time.now()) {
            prop_assert_eq!(gate.charge(0), look, "{}: nothing was taken", name);
        }
    }
}

/// Regression: for windows and logs the forecast ignored the waiters ahead. With ten ahead and two an hour,
/// half an hour looked like enough, and was refused only at the deadline.
#[test]
fn waiters_ahead_count_for_windows_and_logs() {
    for (name, quota) in WINDOWS {
        let time = ManualClock::new();
        let gate = Gate::builder(quota(2)).clock(time.clock()).build();
        let mut waits: Vec<_> = (0..12).map(|_| Task::start(gate.until_ready())).collect();
        let late = Task::start(gate.until_ready().within(4 * Duration::from(HOUR)));
        assert!(matches!(late.answer(), Some(Err(NotReady::TooLate { wait })) if *wait > HOUR), "{name}");
        let in_time = Task::start(gate.until_ready().within(12 * Duration::from(HOUR)));
        assert!(in_time.answer().is_none(), "{name}");
        waits.push(in_time);
        for _ in 0..24 {
            time.advance(Duration::from(HOUR) / 2);
            settle(&mut waits);
        }
        assert!(waits.iter().all(|wait| matches!(wait.answer(), Some(Ok(_)))), "{name}");
    }
}

/// A waiter that leaves does not count in later forecasts.
#[test]
fn waiters_that_left_do_not_count() {
    for (name, quota) in WINDOWS {
        let time = ManualClock::new();
        let gate = Gate::builder(quota(1)).clock(time.clock()).build();
        assert!(gate.check().is_allowed());
        let ahead: Vec<_> = (0..5).map(|_| Task::start(gate.until_ready())).collect();
        let within = 2 * Duration::from(HOUR);
        assert!(Task::start(gate.until_ready().within(within)).answer().is_some(), "{name}");
        drop(ahead);
        assert!(Task::start(gate.until_ready().within(within)).answer().is_none(), "{name}");
    }
}

/// A wait that is refused immediately was never queued, so it does not delay others.
#[test]
fn refused_waits_delay_no_waiter() {
    let time = ManualClock::new();
    let gate =
        Gate::builder(Quota::sliding_log(Rate::per_second(1)).expect("valid")).clock(time.clock()).build();
    assert!(gate.check().is_allowed());
    for _ in 0..10 {
        let refused = Task::start(gate.until_ready().within(SECOND / 2));
        assert_eq!(refused.answer(), Some(&Err(NotReady::TooLate { wait: Ticks::from_secs(1) })));
    }
    assert!(Task::start(gate.until_ready().within(SECOND)).answer().is_none());
}

/// A forecast simulates a bounded number of instants, so no poll takes long. Behind a longer queue a deadline
/// that is too short may be refused only when it has passed; one that is enough is never refused.
#[test]
fn a_forecast_is_bounded() {
    let time = ManualClock::new();
    let gate =
        Gate::builder(Quota::sliding_log(Rate::per_second(1)).expect("valid")).clock(time.clock()).build();
    let _ahead: Vec<_> = (0..5_000).map(|_| Task::start(gate.until_ready())).collect();
    let refused = |seconds: u32| Task::start(gate.until_ready().within(seconds * SECOND)).answer().is_some();
    assert!(refused(4_000));
    assert!(!refused(4_900));
    assert!(!refused(5_000));
}

/// A waiter that is served during a forecast is never counted twice, in the queue and in the counter. Each
/// key has exactly the units that all threads want, so no wait may be too late.
#[test]
fn no_waiter_is_counted_both_as_queued_and_served() {
    const THREADS: u64 = 3;
    const KEYS: u64 = 4_000;
    for (name, quota) in WINDOWS {
        let time = ManualClock::new();
        let gate = Gate::builder(quota(THREADS)).clock(time.clock()).keyed();
        let (arrived, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for key in 0..KEYS {
                        arrived.fetch_add(1, Ordering::SeqCst);
                        while arrived.load(Ordering::SeqCst) < THREADS * (key + 1) {
                            thread::yield_now();
                        }
                        let answer = block_on(gate.until_ready(&key).within(Duration::ZERO));
                        refused.fetch_add(u64::from(answer.is_err()), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(refused.into_inner(), 0, "{name}");
        assert!((0..KEYS).all(|key| gate.charge(&key, 0).remaining == 0), "{name}");
    }
}

/// A refund or a reset wakes the first waiter, whose timer may have become too long.
#[test]
fn refunds_and_resets_wake_the_first_waiter() {
    let is_given_back = |name: &str| name != "concurrency" && name != "leaky-bucket";
    for (name, quota) in ALGORITHMS.into_iter().filter(|(name, _)| is_given_back(name)) {
        let time = ManualClock::new();
        let gate = Gate::builder(quota(3)).clock(time.clock()).build();
        assert!(gate.check_n(3).is_allowed(), "{name}");
        let mut waits: Vec<_> = (0..3).map(|_| Task::start(gate.until_ready())).collect();
        let admitted = |gate: &Gate| 3 - gate.charge(0).remaining;
        gate.refund(1, Ticks::ZERO);
        assert!(waits[0].is_woken() && !waits[1].is_woken(), "{name}");
        settle(&mut waits);
        assert_eq!(admitted(&gate), 3, "{name}: the unit went to the first");
        gate.reset();
        settle(&mut waits);
        assert_eq!(admitted(&gate), 2, "{name}: and all had room then");
    }
}

/// A departure that is given up moves up the waiters of a full shaping gate.
#[test]
fn a_departure_given_up_wakes_the_first_waiter() {
    let time = ManualClock::new();
    let gate = Gate::builder(Quota::leaky_bucket(Rate::per_second(1), 1).expect("valid"))
        .clock(time.clock())
        .build();
    let mut waits: Vec<_> = (0..3).map(|_| Task::start(gate.until_ready())).collect();
    assert!(waits[0].answer().is_some() && waits[1].answer().is_none());
    drop(waits.remove(1));
    settle(&mut waits);
    time.advance(SECOND);
    settle(&mut waits);
    assert!(waits[1].answer().is_some(), "it has the departure after one second");
}

/// A query costs nothing, so at a shaping gate it has no departure to wait for.
#[test]
fn a_query_is_never_too_late() {
    let time = ManualClock::new();
    let gate = Gate::builder(Quota::leaky_bucket(Rate::per_second(1), 9).expect("valid"))
        .clock(time.clock())
        .build();
    assert!(gate.check_n(5).is_allowed());
    let look = Task::start(gate.until_ready().cost(0).within(Duration::ZERO));
    assert!(matches!(look.answer(), Some(Ok(_))));
}
