//! A store that must be awaited, as one that processes share: what a call has reserved there cannot be given back at
//! will.

use std::time::Duration;

use tokio::task::JoinHandle;
use tollgate::store::{Answers, Charge, Hold, Store, StoreFailure};
use tollgate::{Engine, ManualClock, MemoryStore, Ticks, Timestamp};
use tollgate_outbound::{Call, Guard, Outbound, Refusal};

use crate::fixture::{call, run_tasks, settings};

/// A store whose futures yield before they act.
struct Distant(MemoryStore);

impl Store for Distant {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        tokio::task::yield_now().await;
        self.0.charge(charges, now).await
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        tokio::task::yield_now().await;
        self.0.refund(charges, now).await
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.0.reset(charges, now).await
    }

    fn hold(&self, hold: &Hold) {
        self.0.hold(hold);
    }
}

fn start(outbound: &Outbound<Distant>, call: Call) -> JoinHandle<Result<Guard<Distant>, Refusal>> {
    let outbound = outbound.clone();
    tokio::spawn(async move { outbound.acquire(&call).await })
}

/// Calls that wait for a leaky bucket of a shared store wait in the queue, too. Only the first has a slot: another that
/// goes away costs none, and deadlines are refused by the slots before them.
#[tokio::test]
async fn few_calls_have_slots_of_a_shared_leaky_bucket() {
    let time = ManualClock::new();
    let policy = "limits: [{name: shape, by: [host], algorithm: leaky-bucket, rate: 1/s, queue: 10}]";
    let store = Distant(MemoryStore::new(1 << 20, time.now()));
    let engine = Engine::builder().policy(policy.parse().unwrap()).store(store).clock(time.clock()).build();
    let outbound = Outbound::new(engine, settings());
    let began = time.now();
    outbound.acquire(&call()).await.unwrap().finish(None).await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(start(&outbound, call()));
        run_tasks().await;
    }
    let queue = |outbound: &Outbound<Distant>| {
        outbound
            .report()
            .buckets
            .iter()
            .filter(|bucket| bucket.name == "shape")
            .map(|bucket| bucket.waiting)
            .sum::<usize>()
    };
    assert_eq!(queue(&outbound), 3);
    let refused = outbound.acquire(&call().max_wait(Duration::from_millis(3_900))).await.err().unwrap();
    let Refusal::TooLate { bucket, wait, .. } = &refused else { panic!("{refused}") };
    assert_eq!((bucket.as_str(), *wait), ("shape", Ticks::from_secs(4)));
    waiting.remove(1).abort();
    let mut left_at = Vec::new();
    for _ in 0..25 {
        run_tasks().await;
        while waiting.first().is_some_and(JoinHandle::is_finished) {
            waiting.remove(0).await.unwrap().unwrap().finish(None).await;
            left_at.push(time.now().since(began));
        }
        time.advance(Duration::from_millis(100));
    }
    assert_eq!(left_at, [Ticks::from_secs(1), Ticks::from_secs(2)]);
    assert_eq!(queue(&outbound), 0);
}
