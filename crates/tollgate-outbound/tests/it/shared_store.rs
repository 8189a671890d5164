//! A store that must be awaited, as one that processes share: what a call has reserved there cannot be given back at
//! will.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tollgate::store::{Answers, Charge, Hold, Store, StoreFailure};
use tollgate::{Clock, Engine, ManualClock, MemoryStore, Secret, Ticks, Timestamp};
use tollgate_outbound::{Call, Guard, Outbound, Refusal};

use crate::fixture::{call, run_tasks, settings};

const SLOW: &str = "limits: [{name: shape, by: [host], algorithm: leaky-bucket, rate: 1/s, queue: 10}]";
const TEN_A_SECOND: &str =
    "limits: [{name: shape, by: [host], algorithm: leaky-bucket, rate: 10/s, queue: 100}]";
/// The interval between two slots of it.
const PACE: Duration = Duration::from_millis(100);
/// How far the clock of a test moves at a time.
const STEP: Duration = Duration::from_millis(10);

/// A store whose futures yield before they act, or take a while.
#[derive(Clone)]
struct Distant {
    memory: Arc<MemoryStore>,
    clock: Clock,
    latency: Ticks,
}

impl Distant {
    fn new(time: &ManualClock) -> Self {
        let memory = Arc::new(MemoryStore::new(1 << 20, time.now()));
        Self { memory, clock: time.clock(), latency: Ticks::ZERO }
    }

    async fn pass(&self) -> Timestamp {
        tokio::task::yield_now().await;
        self.clock.sleep_until(self.clock.now() + self.latency).await;
        self.clock.now()
    }

    /// A process on this store.
    fn process(&self, policy: &str) -> Outbound<Distant> {
        let engine = Engine::builder().policy(policy.parse().unwrap()).store(self.clone());
        let engine = engine.clock(self.clock.clone()).secret(Secret::repeatable(1)).build();
        Outbound::new(engine, settings())
    }
}

impl Store for Distant {
    async fn charge(&self, charges: &[Charge<'_>], _: Timestamp) -> Result<Answers, StoreFailure> {
        let now = self.pass().await;
        self.memory.charge(charges, now).await
    }

    async fn refund(&self, charges: &[Charge<'_>], _: Timestamp) -> Result<(), StoreFailure> {
        let now = self.pass().await;
        self.memory.refund(charges, now).await
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.memory.reset(charges, now).await
    }

    fn hold(&self, hold: &Hold) {
        self.memory.hold(hold);
    }
}

fn start(outbound: &Outbound<Distant>, call: Call) -> JoinHandle<Result<Guard<Distant>, Refusal>> {
    let outbound = outbound.clone();
    tokio::spawn(async move { outbound.acquire(&call).await })
}

/// Lets time pass in small steps.
async fn pass(time: &ManualClock, wait: Duration) {
    let end = time.now() + Ticks::ceil_from(wait);
    run_tasks().await;
    while time.now() < end {
        time.advance(STEP);
        run_tasks().await;
    }
}

fn waiting(outbound: &Outbound<Distant>) -> usize {
    let report = outbound.report();
    report.buckets.iter().filter(|bucket| bucket.name == "shape").map(|bucket| bucket.waiting).sum()
}

/// A client that calls again and again, and each time waits only so long.
#[derive(Clone)]
struct Impatient {
    call: Call,
    gives_up_after: Duration,
    /// How long it waits after a refusal.
    pause: Duration,
    left: Arc<AtomicUsize>,
}

impl Impatient {
    fn new(call: Call, gives_up_after: Duration) -> Self {
        Self { call, gives_up_after, pause: Duration::from_millis(50), left: Arc::default() }
    }

    async fn run(self, outbound: Outbound<Distant>) {
        let clock = outbound.clock().clone();
        let after = |wait| clock.sleep_until(clock.now() + Ticks::ceil_from(wait));
        loop {
            let gives_up = after(self.gives_up_after);
            tokio::select! {
                biased;
                result = outbound.acquire(&self.call) => match result {
                    Ok(guard) => {
                        self.left.fetch_add(1, Ordering::Relaxed);
                        guard.finish(None).await;
                    }
                    Err(_) => after(self.pause).await,
                },
                () = gives_up => {}
            }
        }
    }

    /// The calls of so many of them at each process that leave in ten seconds.
    async fn count(self, processes: &[Outbound<Distant>], clients: usize, time: &ManualClock) -> usize {
        for process in processes {
            for _ in 0..clients {
                tokio::spawn(self.clone().run(process.clone()));
            }
        }
        pass(time, Duration::from_secs(10)).await;
        self.left.load(Ordering::Relaxed)
    }
}

/// Clients that give up and call again get every slot, however many they are and however they learn that it is too long:
/// a slot that one of them leaves is taken by another. Once such clients used 6 slots of 100.
#[tokio::test]
async fn clients_that_give_up_waste_no_slot() {
    let (half, long) = (Duration::from_millis(500), Duration::from_secs(60));
    for (clients, call, gives_up_after) in [
        (40, call(), half),
        (40, call(), Duration::from_millis(450)),
        (10, call(), half),
        (15, call(), Duration::from_secs(1)),
        (40, call().max_wait(half), long),
        (60, call().max_wait(Duration::from_secs(1)), long),
    ] {
        let time = ManualClock::new();
        let process = Distant::new(&time).process(TEN_A_SECOND);
        let left = Impatient::new(call, gives_up_after).count(&[process], clients, &time).await;
        assert!((98..=101).contains(&left), "{left} with {clients} clients");
    }
}

/// The same at two processes of one store. A process keeps the slots that it has reserved, so few are lost where the other
/// has reserved behind them.
#[tokio::test]
async fn clients_of_two_processes_waste_few_slots() {
    for (clients, gives_up_after) in [(20, 500), (20, 450), (5, 500), (8, 1_000), (2, 130)] {
        let time = ManualClock::new();
        let store = Distant::new(&time);
        let processes = [(); 2].map(|()| store.process(TEN_A_SECOND));
        let clients_of_each = Impatient::new(call(), Duration::from_millis(gives_up_after));
        let left = clients_of_each.count(&processes, clients, &time).await;
        assert!((90..=101).contains(&left), "{left} with {clients} clients that wait {gives_up_after} ms");
    }
}

/// Many calls go away. The next waits for one slot and no longer, whether they came together or one by one.
#[tokio::test]
async fn a_call_after_many_that_went_away_waits_for_one_slot() {
    for gap in [Duration::ZERO, 2 * STEP, PACE] {
        let time = ManualClock::new();
        let process = Distant::new(&time).process(TEN_A_SECOND);
        let mut clients = Vec::new();
        for _ in 0..40 {
            clients.push(start(&process, call()));
            pass(&time, gap).await;
        }
        pass(&time, 3 * PACE).await;
        clients.iter().for_each(JoinHandle::abort);
        run_tasks().await;
        let next = start(&process, call());
        pass(&time, PACE).await;
        left_now(next).await.finish(None).await;
    }
}

/// The guard of a call that has left.
async fn left_now(call: JoinHandle<Result<Guard<Distant>, Refusal>>) -> Guard<Distant> {
    assert!(call.is_finished(), "the call still waits");
    call.await.unwrap().unwrap()
}

/// A call that goes away while the store decides about it costs nothing but a slot that came at once.
#[tokio::test]
async fn a_call_that_goes_away_while_it_asks_is_refunded() {
    let hourly = "limits: [{name: tokens, by: [host], rate: 1/h, burst: 1}]";
    for (policy, steps, wait) in [(hourly, 0..2, PACE), (SLOW, 0..4, Duration::from_millis(1_100))] {
        let time = ManualClock::new();
        let process = Distant { latency: Ticks::from_millis(20), ..Distant::new(&time) }.process(policy);
        for steps in steps {
            let gone = start(&process, call());
            pass(&time, steps * STEP).await;
            gone.abort();
            pass(&time, PACE).await;
        }
        let next = start(&process, call());
        pass(&time, wait).await;
        left_now(next).await.finish(None).await;
    }
}

/// The slots of one process count for the deadlines of another, which reserves nothing to find out.
#[tokio::test]
async fn a_deadline_behind_another_process_is_refused_without_a_charge() {
    let time = ManualClock::new();
    let store = Distant::new(&time);
    let (one, other) = (store.process(SLOW), store.process(SLOW));
    one.acquire(&call()).await.unwrap().finish(None).await;
    for _ in 0..5 {
        let short = call().max_wait(Duration::from_millis(900));
        let refused = other.acquire(&short).await.err().unwrap();
        let Refusal::TooLate { bucket, wait, .. } = &refused else { panic!("{refused}") };
        assert_eq!((bucket.as_str(), *wait), ("shape", Ticks::from_secs(1)));
    }
    let next = start(&other, call().max_wait(Duration::from_secs(1)));
    pass(&time, Duration::from_secs(1)).await;
    left_now(next).await.finish(None).await;
}

/// A fast bucket in a store that takes long lets as many calls leave as it admits: several ask at a time.
#[tokio::test]
async fn a_far_store_slows_no_bucket() {
    let policy = "limits: [{name: shape, by: [host], algorithm: leaky-bucket, rate: 1000/s, queue: 5000}]";
    let time = ManualClock::new();
    let process = Distant { latency: Ticks::from_millis(10), ..Distant::new(&time) }.process(policy);
    let clients = Impatient::new(call(), Duration::from_secs(60));
    for _ in 0..200 {
        tokio::spawn(clients.clone().run(process.clone()));
    }
    pass(&time, Duration::from_secs(1)).await;
    let before = clients.left.load(Ordering::Relaxed);
    pass(&time, Duration::from_secs(1)).await;
    let left = clients.left.load(Ordering::Relaxed) - before;
    assert!((950..=1_010).contains(&left), "{left}");
}

/// Calls that wait for a leaky bucket of a shared store wait in the queue, too. Only the first reserves: another that
/// goes away costs no slot, and deadlines are refused by the calls before them.
#[tokio::test]
async fn few_calls_have_slots_of_a_shared_leaky_bucket() {
    let time = ManualClock::new();
    let outbound = Distant::new(&time).process(SLOW);
    let began = time.now();
    outbound.acquire(&call()).await.unwrap().finish(None).await;
    let mut calls = Vec::new();
    for _ in 0..3 {
        calls.push(start(&outbound, call()));
        run_tasks().await;
    }
    assert_eq!(waiting(&outbound), 3);
    let refused = outbound.acquire(&call().max_wait(Duration::from_millis(3_900))).await.err().unwrap();
    let Refusal::TooLate { bucket, wait, .. } = &refused else { panic!("{refused}") };
    assert_eq!((bucket.as_str(), *wait), ("shape", Ticks::from_secs(4)));
    calls.remove(1).abort();
    let mut left_at = Vec::new();
    for _ in 0..25 {
        run_tasks().await;
        while calls.first().is_some_and(JoinHandle::is_finished) {
            calls.remove(0).await.unwrap().unwrap().finish(None).await;
            left_at.push(time.now().since(began));
        }
        time.advance(Duration::from_millis(100));
    }
    assert_eq!(left_at, [Ticks::from_secs(1), Ticks::from_secs(2)]);
    assert_eq!(waiting(&outbound), 0);
}
