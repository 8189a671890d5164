//! What a reader found: units that went where they were not taken, stayed beyond a bound, or were nobody's. Each is the story of a fault.

use std::future::Future;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use pollster::block_on;

use super::{START, per_second};
use crate::charge::{Answers, Charge};
use crate::engine::Engine;
use crate::key::Secret;
use crate::lease::{Leased, Lender, Lending, Loan, Loans, Want};
use crate::memory::MemoryStore;
use crate::policy::{Consistency, Cost, Limit, Policy};
use crate::quota::{Quota, Rate};
use crate::request::CheckRequest;
use crate::store::{Hold, Store, StoreFailure};
use crate::time::{Ticks, Timestamp};

type R = <Lending as Lender>::Receipt;

/// A store that is some ms away, and that gives a receipt with a denial as Redis does.
struct Far {
    lending: Lending,
    way: std::sync::atomic::AtomicU64,
    last: Mutex<Option<R>>,
    hang: AtomicBool,
}
impl Far {
    fn way(&self) -> Ticks {
        Ticks::from_micros(self.way.load(Ordering::Relaxed))
    }
}
impl Store for Far {
    async fn charge(&self, c: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        self.lending.charge(c, now + self.way()).await
    }
    async fn refund(&self, c: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.lending.refund(c, now + self.way()).await
    }
    async fn reset(&self, c: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.lending.reset(c, now + self.way()).await
    }
    fn hold(&self, hold: &Hold) {
        self.lending.hold(hold);
    }
    fn nodes(&self) -> u32 {
        self.lending.nodes()
    }
}
impl Lender for Far {
    type Receipt = R;
    async fn lend(&self, c: &[Charge<'_>], w: &[Want], now: Timestamp) -> Result<Loans<R>, StoreFailure> {
        let now = now + self.way();
        let mut loans = self.lending.lend(c, w, now).await?;
        if let Some(receipt) = &loans[0].receipt {
            *self.last.lock().unwrap() = Some(receipt.clone());
        } else if !w[0].is_none() {
            let last = self.last.lock().unwrap().clone();
            if let Some(last) = last {
                let more = self.lending.lend_more(&last, Want::default(), now).await?;
                loans[0].receipt = more.receipt;
            }
        }
        if self.hang.load(Ordering::Relaxed) {
            // The answer is on its way until somebody polls again.
            let mut first = true;
            std::future::poll_fn(|_| {
                if std::mem::take(&mut first) { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
            })
            .await;
        }
        Ok(loans)
    }
    fn quota_of<'r>(&self, r: &'r R) -> &'r Quota {
        self.lending.quota_of(r)
    }
    async fn lend_more(&self, r: &R, w: Want, now: Timestamp) -> Result<Loan<R>, StoreFailure> {
        self.lending.lend_more(r, w, now + self.way()).await
    }
    async fn take_back(&self, r: &R, u: u64, at: Timestamp, now: Timestamp) -> Result<(), StoreFailure> {
        self.lending.take_back(r, u, at, now + self.way()).await
    }
}
fn far(lending: Lending, way: Ticks) -> Far {
    Far {
        lending,
        way: std::sync::atomic::AtomicU64::new(way.as_micros()),
        last: Mutex::new(None),
        hang: AtomicBool::new(false),
    }
}

/// A request that took nothing was told of the next window, and the units of the one that had ended were given back to that.
#[test]
fn units_of_a_window_end_with_it() {
    let a =
        Quota::fixed_window(Rate::per_second(1_000), crate::algorithm::fixed_window::Align::Epoch).unwrap();
    let b = Quota::token_bucket(Rate::per_day(1).burst(100)).unwrap();
    let lending = Lending::new(MemoryStore::new(1 << 20, START), 2);
    let policy = || {
        let a = Limit::new("a", a.clone())
            .consistency(Consistency::Leased)
            .cost(Cost::Asked)
            .lease(50_000, Ticks::from_millis(250));
        let b = Limit::new("b", b.clone()).when_one_of("kind", ["both"]).cost(Cost::Asked);
        Policy::new(vec![a, b]).unwrap()
    };
    let node = Engine::with_store(
        policy(),
        Leased::new(far(lending.clone(), Ticks::from_micros(200)), 10),
        Secret::repeatable(7),
    );
    let other =
        Engine::with_store(policy(), Leased::new(far(lending, Ticks::ZERO), 10), Secret::repeatable(7));
    let ask = |n: &Engine<Leased<Far>>, kind: &str, cost: u64, at: Timestamp| {
        let r = CheckRequest::new().with("kind", kind).unwrap().cost(cost).unwrap();
        block_on(n.check(&r, at)).is_allowed()
    };
    assert!(ask(&other, "both", 100, START)); // B is used up.
    let mut now = START + Ticks::from_millis(700);
    let end = START + Ticks::from_millis(997);
    while now < end {
        ask(&node, "a", 1, now);
        block_on(node.store().tend(now));
        now = now + Ticks::from_millis(1);
    }
    assert!(node.store().report().held > 0, "something is held");
    let boundary = START + Ticks::from_secs(1);
    assert!(ask(&other, "a", 1, boundary + Ticks::from_micros(500))); // somebody is counted in window 2
    // one ms before the window ends a request that costs more than is held is asked about; the store is asked one ms after.
    node.store().store().way.store(2_000, Ordering::Relaxed);
    assert!(!ask(&node, "both", 60, boundary - Ticks::from_millis(1)));
    for ms in 1..40 {
        block_on(node.store().tend(boundary + Ticks::from_millis(ms)));
    }
    // Window 2: how much is admitted?
    let mut admitted = 1;
    for step in 0..3_000u64 {
        admitted += u64::from(ask(&other, "a", 1, boundary + Ticks::from_micros(50_000 + step * 300)));
    }
    assert!(admitted <= 1_000, "{admitted}");
}

/// A draw that was under way while its counter was reset brought units of a counter that was forgotten, and gave them back to the new one.
#[test]
fn draws_under_way_at_a_reset_go_nowhere() {
    let quota = Quota::token_bucket(Rate::per_day(50).burst(1_000)).unwrap();
    let lending = Lending::new(MemoryStore::new(1 << 20, START), 1);
    let limit =
        Limit::new("a", quota).consistency(Consistency::Leased).lease(50_000, Ticks::from_millis(250));
    let policy = Policy::new(vec![limit]).unwrap();
    let node = Engine::with_store(policy, Leased::new(far(lending, Ticks::ZERO), 10), Secret::repeatable(7));
    let r = CheckRequest::new();
    let mut now = START;
    for _ in 0..300 {
        now = now + Ticks::from_millis(1);
        block_on(node.check(&r, now));
    }
    // Ask until a draw is under way.
    node.store().store().hang.store(true, Ordering::Relaxed);
    loop {
        now = now + Ticks::from_millis(1);
        let mut check = pin!(node.check(&r, now));
        let mut cx = Context::from_waker(Waker::noop());
        if check.as_mut().poll(&mut cx).is_pending() {
            node.store().store().hang.store(false, Ordering::Relaxed);
            block_on(node.reset(&r, &[], now)).unwrap();
            let _ = check.as_mut().poll(&mut cx);
            break;
        }
    }
    let mut passed = 0;
    for i in 0..3000u64 {
        now = now + Ticks::from_micros(100);
        passed += u64::from(block_on(node.check(&r, now)).is_allowed());
        if i >= 200 && i % 10 == 0 {
            block_on(node.store().tend(now));
        }
    }
    for _ in 0..20 {
        now = now + Ticks::from_millis(20);
        block_on(node.store().tend(now));
        passed += u64::from(block_on(node.check(&r, now)).is_allowed());
    }
    assert!(passed <= 1_000, "{passed}");
}

/// A hot key held as much as it might when it was first met, whatever a new policy said.
#[test]
fn a_lowered_share_acts_on_hot_keys() {
    let quota = per_second(1_000, 1_000);
    let lending = Lending::new(MemoryStore::new(1 << 20, START), 1);
    let policy = |share: u32| {
        Policy::new(vec![
            Limit::new("a", quota.clone())
                .consistency(Consistency::Leased)
                .lease(share, Ticks::from_millis(250)),
        ])
        .unwrap()
    };
    let node = Engine::with_store(policy(200_000), Leased::new(lending, 10), Secret::repeatable(7));
    let r = CheckRequest::new();
    let mut now = START;
    let mut run = |node: &Engine<Leased<Lending>>| {
        let mut most = 0;
        for _ in 0..4_000 {
            now = now + Ticks::from_micros(1_250);
            block_on(node.check(&r, now));
            block_on(node.store().tend(now));
            most = most.max(node.store().report().held);
        }
        most
    };
    let before = run(&node);
    node.swap(policy(10_000), START).unwrap();
    run(&node);
    let after = run(&node);
    assert!(after <= 10, "{before} {after}");
}

/// Two costs in turn made each other's denials forgotten, and every request asked the store.
#[test]
fn mixed_costs_of_a_runaway_key() {
    let lending = Lending::new(MemoryStore::new(1 << 20, START), 1);
    let a = Limit::new("a", per_second(10, 10))
        .consistency(Consistency::Leased)
        .cost(Cost::Asked)
        .lease(50_000, Ticks::from_millis(250));
    let node =
        Engine::with_store(Policy::new(vec![a]).unwrap(), Leased::new(lending, 10), Secret::repeatable(7));
    let mut now = START;
    for i in 0..10_000u64 {
        now = now + Ticks::from_micros(100);
        let r = CheckRequest::new().cost(1 + i % 2).unwrap();
        block_on(node.check(&r, now));
        if i % 50 == 0 {
            block_on(node.store().tend(now));
        }
    }
    assert!(node.store().report().asked < 1_000);
}

fn two(far: Far) -> Engine<Leased<Far>> {
    let a = Limit::new("a", Quota::token_bucket(Rate::per_day(50).burst(10_000)).unwrap())
        .consistency(Consistency::Leased)
        .lease(50_000, Ticks::from_millis(250));
    let b = Limit::new("b", Quota::token_bucket(Rate::per_day(1).burst(1)).unwrap())
        .when_one_of("kind", ["both"]);
    Engine::with_store(Policy::new(vec![a, b]).unwrap(), Leased::new(far, 10), Secret::repeatable(7))
}

fn astray(cancel: bool) -> i64 {
    let node = two(far(Lending::new(MemoryStore::new(1 << 20, START), 1), Ticks::ZERO));
    let (one, both) =
        (CheckRequest::new().with("kind", "a").unwrap(), CheckRequest::new().with("kind", "both").unwrap());
    let mut now = START;
    assert!(block_on(node.check(&both, now)).is_allowed());
    let mut missing = 0;
    for _ in 0..50 {
        for _ in 0..40 {
            now = now + Ticks::from_millis(1);
            block_on(node.check(&one, now));
            block_on(node.store().tend(now));
        }
        let hang = &node.store().store().hang;
        hang.store(true, Ordering::Relaxed);
        let before = node.store().report();
        let mut check = Box::pin(node.check(&both, now));
        let mut cx = Context::from_waker(Waker::noop());
        if check.as_mut().poll(&mut cx).is_ready() {
            hang.store(false, Ordering::Relaxed);
            continue;
        }
        hang.store(false, Ordering::Relaxed);
        if cancel {
            drop(check);
        } else {
            // Meanwhile the first limit is used and renewed.
            for _ in 0..100 {
                now = now + Ticks::from_micros(100);
                block_on(node.check(&one, now));

                block_on(node.store().tend(now));
            }
            assert!(matches!(check.as_mut().poll(&mut cx), std::task::Poll::Ready(d) if !d.is_allowed()));
        }
        let after = node.store().report();
        let spent = (after.paid - before.paid) as i64;
        missing += (after.drawn - before.drawn) as i64
            - spent
            - (after.held as i64 - before.held as i64)
            - (after.returned - before.returned) as i64
            - (after.stranded - before.stranded) as i64;
    }
    missing
}

/// A request that paid one limit of a lease and was cut off, or denied by another after the lease was renewed, lost its unit.
#[test]
fn units_paid_in_vain_are_accounted_for() {
    let cancelled = astray(true);
    let renewed = astray(false);
    assert_eq!((cancelled, renewed), (0, 0));
}
