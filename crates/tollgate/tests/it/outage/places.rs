//! Places in flight that were given without the store: the store learns of them before it gives another, and one that it gave at the
//! same time is not used, so that together they are never too many.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use tollgate::charge::{Answers, Charge};
use tollgate::store::{Hold, Store, StoreFailure};
use tollgate::{Engine, MemoryStore, Secret, Timestamp};

use super::{Fleet, source};
use crate::fixture::{NOW, asking, now_or_never, permits, policy};

/// The story: a crowd met a new cluster at once. Ten places were given without the store, whose connections were not made yet, and ten
/// more by it, since it was told of the first ten only a second later, and then took no note of them.
#[test]
fn the_store_learns_of_places_before_it_gives_another() {
    for lost in [false, true] {
        let fleet = Fleet::of(1, || permits("in-flight", 10));
        fleet.see(NOW);
        let engine = &fleet.engines[0];
        let mut held = Vec::new();
        for _ in 0..10 {
            // Either the store is away, or it gives the place and its answer is lost.
            fleet.shared.set(!lost);
            fleet.shared.unanswered.store(usize::from(lost), Ordering::SeqCst);
            let mut decision = fleet.check(0, "k", 1, NOW);
            assert!(decision.is_allowed(), "{} of 10", held.len());
            held.push(decision.take_permit().unwrap());
        }
        fleet.shared.set(false);
        fleet.shared.unanswered.store(0, Ordering::SeqCst);
        for _ in 0..10 {
            assert!(!fleet.check(0, "k", 1, NOW).is_allowed(), "ten are in flight");
        }
        // What comes back is free again, once.
        now_or_never(engine.release(&held.pop().unwrap(), NOW)).unwrap();
        let passed = (0..10).filter(|_| fleet.check(0, "k", 1, NOW).is_allowed()).count();
        assert_eq!(passed, 1, "lost: {lost}");
    }
}

/// Telling the store of a place twice counts it once.
#[test]
fn a_place_is_counted_once_however_often_it_is_told() {
    let fleet = Fleet::of(1, || permits("in-flight", 3));
    fleet.see(NOW);
    fleet.shared.unanswered.store(1, Ordering::SeqCst);
    let mut decision = fleet.check(0, "k", 1, NOW);
    assert_eq!((decision.is_allowed(), source(&decision)), (true, "local"));
    fleet.settle(NOW);
    let left = now_or_never(fleet.engines[0].peek(&asking("k", 1), NOW));
    assert_eq!(left.limits().next().unwrap().outcome.remaining, 2);
    now_or_never(fleet.engines[0].release(&decision.take_permit().unwrap(), NOW)).unwrap();
    let left = now_or_never(fleet.engines[0].peek(&asking("k", 1), NOW));
    assert_eq!(left.limits().next().unwrap().outcome.remaining, 3);
}

/// A store whose answers are held up after what they are about was done.
struct Held {
    memory: MemoryStore,
    is_held: Arc<AtomicBool>,
    is_down: Arc<AtomicBool>,
}

impl Store for Held {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        if self.is_down.load(Ordering::SeqCst) {
            return Err(StoreFailure::Unreachable);
        }
        let answers = self.memory.charge(charges, now).await?;
        poll_fn(|_| if self.is_held.load(Ordering::SeqCst) { Poll::Pending } else { Poll::Ready(()) }).await;
        Ok(answers)
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.memory.refund(charges, now).await
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.memory.reset(charges, now).await
    }

    async fn debit(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.memory.debit(charges, now).await
    }

    fn hold(&self, hold: &Hold) {
        self.memory.hold(hold);
    }
}

/// The store gives a place, and before its answer is here this node gives all of them without it: the first is given back, and refused.
#[test]
fn answers_that_cross_do_not_add_up() {
    let (is_held, is_down) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let memory = MemoryStore::new(1 << 20, NOW);
    let store = Held { memory, is_held: Arc::clone(&is_held), is_down: Arc::clone(&is_down) };
    let engine = Engine::with_store(policy(vec![permits("in-flight", 4)]), store, Secret::repeatable(7));
    let (request, mut context) = (asking("k", 1), Context::from_waker(Waker::noop()));
    assert!(now_or_never(engine.peek(&request, NOW)).is_allowed());
    is_held.store(true, Ordering::SeqCst);
    let mut crossing = pin!(engine.check(&request, NOW));
    assert!(crossing.as_mut().poll(&mut context).is_pending());
    is_down.store(true, Ordering::SeqCst);
    let given: Vec<_> = (0..6).map(|_| now_or_never(engine.check(&request, NOW))).collect();
    assert_eq!(given.iter().filter(|decision| decision.is_allowed()).count(), 4, "all that this node has");
    is_down.store(false, Ordering::SeqCst);
    is_held.store(false, Ordering::SeqCst);
    let Poll::Ready(crossed) = crossing.as_mut().poll(&mut context) else { panic!("it was answered") };
    assert!(!crossed.is_allowed(), "four are in flight");
    assert!(!now_or_never(engine.check(&request, NOW)).is_allowed(), "and stay so");
}
