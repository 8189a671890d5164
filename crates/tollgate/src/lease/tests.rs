//! Leases over a store in memory that several nodes share.

mod accounting;
mod refunds;
mod fast_path;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};

use pollster::block_on;

use super::{LeaseRequest, LeasedStore, Lender, Loan, Loans, MemoryLender};
use crate::engine::Engine;
use crate::key::Secret;
use crate::memory::MemoryStore;
use crate::outcome::Source;
use crate::policy::{Consistency, Limit, Policy};
use crate::quota::Quota;
use crate::rate::Rate;
use crate::request::CheckRequest;
use crate::store::{Answers, Charge, Hold, Store, StoreFailure};
use crate::time::{Ticks, Timestamp};

const START: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

/// Nodes that share the counters of all keys.
struct Fleet {
    nodes: Vec<Engine<LeasedStore<MemoryLender>>>,
    now: Timestamp,
}

impl Fleet {
    fn new(count: u32, quota: &Quota, consistency: Consistency) -> Self {
        let lending = MemoryLender::new(MemoryStore::new(16 << 20, START), count);
        let node = |_| {
            let limit = Limit::new("limit", quota.clone()).by(["key"]).consistency(consistency);
            let policy = Policy::new(vec![limit.lease(50_000, Ticks::from_millis(250))]).unwrap();
            Engine::builder()
                .policy(policy)
                .store(LeasedStore::new(lending.clone(), 1_000))
                .secret(Secret::repeatable(7))
                .build()
        };
        Self { nodes: (0..count).map(node).collect(), now: START }
    }

    /// Checks a request at a node. Returns whether it was admitted, and the source of the decision.
    fn ask(&self, node: usize, key: &str) -> (bool, Source) {
        let request = CheckRequest::new().with("key", key).unwrap();
        let decision = block_on(self.nodes[node].check(&request, self.now));
        let status = decision.limits().next().unwrap();
        (decision.is_allowed(), status.source)
    }

    fn pass(&mut self, time: Ticks) {
        self.now = self.now + time;
        self.nodes.iter().for_each(|node| block_on(node.store().maintain(self.now)));
    }
}

fn per_second(rate: u64, burst: u64) -> Quota {
    Quota::token_bucket(Rate::per_second(rate).burst(burst)).unwrap()
}

/// However requests are spread over nodes, a fleet admits at most what one counter would, nearly all of it,
/// and seldom asks the store.
#[test]
fn a_fleet_admits_what_the_limit_allows() {
    let mut fleet = Fleet::new(4, &per_second(1_000, 1_000), Consistency::Leased);
    let (mut admitted, mut exact, mut requests, mut lately) = (0, 0, 0, 0);
    let seconds = 4;
    for step in 0..seconds * 10_000 {
        // Four times the limit, most of it at one node.
        let node = [0, 0, 0, 1, 0, 2, 0, 3][step % 8];
        for _ in 0..(if step % 10 == 0 { 4 } else { 0 }) {
            let (is_allowed, source) = fleet.ask(node, "k");
            admitted += u64::from(is_allowed);
            lately += u64::from(is_allowed && step >= 20_000);
            exact += u64::from(source == Source::Exact);
            requests += 1;
        }
        fleet.pass(Ticks::from_micros(100));
    }
    let bound = 1_000 + 1_000 * seconds as u64;
    assert!(admitted <= bound, "{admitted} of {bound}");
    assert!(lately * 100 >= 2_000 * 98, "{lately} of 2,000");
    assert!(exact * 4 < requests, "{exact} of {requests} asked the store");
}

/// Quiet keys are decided by the store, and no units of them are held.
#[test]
fn quiet_keys_are_exact() {
    let mut fleet = Fleet::new(6, &Quota::token_bucket(Rate::per_minute(5)).unwrap(), Consistency::Leased);
    let mut admitted = 0;
    for step in 0..600 {
        let (is_allowed, source) = fleet.ask(step % 6, "k");
        assert!(source != Source::Lease);
        admitted += u64::from(is_allowed);
        fleet.pass(Ticks::from_millis(500));
    }
    // The burst of five, and one every twelve seconds until the last request.
    assert_eq!(admitted, 5 + 24);
    assert!(fleet.nodes.iter().all(|node| node.store().report().held == 0));
}

/// Expired units are returned, and other nodes can use them.
#[test]
fn expired_units_are_returned() {
    let mut fleet =
        Fleet::new(2, &Quota::token_bucket(Rate::per_hour(100).burst(1_000)).unwrap(), Consistency::Leased);
    let mut passed = 0;
    for _ in 0..400 {
        passed += u64::from(fleet.ask(0, "k").0);
        fleet.pass(Ticks::from_millis(1));
    }
    assert_eq!(passed, 400);
    assert!(fleet.nodes[0].store().report().held > 0);
    // A few sweeps cover all keys.
    fleet.pass(Ticks::from_millis(300));
    (0..8).for_each(|_| fleet.pass(Ticks::from_millis(5)));
    assert_eq!(fleet.nodes[0].store().report().held, 0);
    let mut others = 0;
    for _ in 0..1_000 {
        others += u64::from(fleet.ask(1, "k").0);
    }
    assert_eq!(others, 600);
}

/// A denied key is denied without the store until it may pass, and then passes.
#[test]
fn denials_are_remembered() {
    let mut fleet = Fleet::new(1, &per_second(10, 10), Consistency::Leased);
    for _ in 0..10 {
        assert!(fleet.ask(0, "k").0);
    }
    assert!(!fleet.ask(0, "k").0);
    assert_eq!(fleet.ask(0, "k"), (false, Source::DenyCache));
    let before = fleet.nodes[0].store().report().store_charges;
    for _ in 0..50 {
        assert!(!fleet.ask(0, "k").0);
    }
    assert_eq!(fleet.nodes[0].store().report().store_charges, before);
    fleet.pass(Ticks::from_millis(200));
    assert!(fleet.ask(0, "k").0);
}

/// Units of a window expire with it.
#[test]
fn window_units_expire_with_their_window() {
    let quota =
        Quota::fixed_window(Rate::per_second(100), crate::algorithm::fixed_window::Align::Epoch).unwrap();
    let mut fleet = Fleet::new(3, &quota, Consistency::Leased);
    for second in 0..5 {
        let mut admitted = 0;
        for step in 0..1_000 {
            admitted += u64::from(fleet.ask(step % 3, "k").0);
            fleet.pass(Ticks::from_millis(1));
        }
        assert!(admitted <= 100, "{admitted} in second {second}");
        assert!(admitted >= 90, "{admitted} in second {second}");
    }
}

/// With `auto`, only hot keys are leased.
#[test]
fn only_hot_keys_are_leased_automatically() {
    let mut fleet = Fleet::new(2, &per_second(1_000, 1_000), Consistency::Auto);
    let mut leased = 0;
    for step in 0..2_000u32 {
        leased += u32::from(fleet.ask(0, "hot").1 == Source::Lease);
        if step % 500 == 0 {
            assert_eq!(fleet.ask(0, &format!("quiet {step}")).1, Source::Exact);
        }
        fleet.pass(Ticks::from_millis(1));
    }
    assert!(leased > 1_000, "{leased}");
}

/// A store that may lend without answering, or be unreachable.
struct Faulty {
    lending: MemoryLender,
    is_silent: AtomicBool,
    is_away: AtomicBool,
    /// Units lent without an answer, and calls while unreachable.
    unanswered: AtomicU64,
    missed: AtomicU64,
}

impl Store for Faulty {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        self.lending.charge(charges, now).await
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.lending.refund(charges, now).await
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.lending.reset(charges, now).await
    }

    fn hold(&self, hold: &Hold) {
        self.lending.hold(hold);
    }

    fn nodes(&self) -> u32 {
        self.lending.nodes()
    }
}

impl Lender for Faulty {
    type Receipt = <MemoryLender as Lender>::Receipt;

    async fn lend(
        &self,
        charges: &[Charge<'_>],
        requests: &[LeaseRequest],
        now: Timestamp,
    ) -> Result<Loans<Self::Receipt>, StoreFailure> {
        if self.is_away.load(Ordering::Relaxed) {
            self.missed.fetch_add(1, Ordering::Relaxed);
            return Err(StoreFailure::Unreachable);
        }
        let loans = self.lending.lend(charges, requests, now).await?;
        if self.is_silent.load(Ordering::Relaxed) {
            self.unanswered.fetch_add(loans.iter().map(|loan| loan.extra).sum(), Ordering::Relaxed);
            std::future::pending::<()>().await;
        }
        Ok(loans)
    }

    fn quota_of<'r>(&self, receipt: &'r Self::Receipt) -> &'r Quota {
        self.lending.quota_of(receipt)
    }

    async fn lend_more(
        &self,
        receipt: &Self::Receipt,
        request: LeaseRequest,
        now: Timestamp,
    ) -> Result<Loan<Self::Receipt>, StoreFailure> {
        self.lending.lend_more(receipt, request, now).await
    }

    async fn return_units(
        &self,
        receipt: &Self::Receipt,
        units: u64,
        acquired_at: Timestamp,
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        self.lending.return_units(receipt, units, acquired_at, now).await
    }
}

/// A renewal that is cancelled before its answer may have lent units: they count as stranded. An unreachable
/// store lends nothing.
#[test]
fn unanswered_loans_count_as_stranded() {
    let limit = Limit::new("limit", per_second(1_000, 1_000)).by(["key"]).consistency(Consistency::Leased);
    let policy = Policy::new(vec![limit.lease(50_000, Ticks::from_millis(250))]).unwrap();
    let store = Faulty {
        lending: MemoryLender::new(MemoryStore::new(1 << 20, START), 1),
        is_silent: AtomicBool::new(false),
        is_away: AtomicBool::new(false),
        unanswered: AtomicU64::new(0),
        missed: AtomicU64::new(0),
    };
    let node = Engine::builder()
        .policy(policy)
        .store(LeasedStore::new(store, 10))
        .secret(Secret::repeatable(7))
        .build();
    let request = CheckRequest::new().with("key", "k").unwrap();
    let (mut now, mut cut_off) = (START, 0);
    for step in 0..600 {
        let store = node.store().store();
        store.is_silent.store((200..400).contains(&step), Ordering::Relaxed);
        store.is_away.store(step >= 400, Ordering::Relaxed);
        now = now + Ticks::from_millis(1);
        let mut check = pin!(node.check(&request, now));
        cut_off += u64::from(check.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        if step == 199 {
            assert!(node.store().report().acquired > 100 && node.store().report().stranded == 0);
        }
    }
    let report = node.store().report();
    let store = node.store().store();
    let (unanswered, missed) =
        (store.unanswered.load(Ordering::Relaxed), store.missed.load(Ordering::Relaxed));
    assert!(
        cut_off > 0 && unanswered > 0 && missed > 0,
        "{cut_off} cut off, {unanswered} lost, {missed} missed"
    );
    assert!(report.stranded >= unanswered && report.stranded <= cut_off * 50, "{unanswered} of {report:?}");
}

/// Leases are sized for the configured minimum of nodes, even if the store sees fewer.
#[test]
fn leases_are_sized_for_the_expected_nodes() {
    let held = |nodes_min: u32| {
        let limit = Limit::new("limit", per_second(1_000, 1_000)).by(["key"]);
        let limit = limit.consistency(Consistency::Leased).lease(500_000, Ticks::from_secs(1));
        let lending = MemoryLender::new(MemoryStore::new(1 << 20, START), 1);
        let store = LeasedStore::new(lending, 10).expect_nodes(nodes_min);
        let node = Engine::builder()
            .policy(Policy::new(vec![limit]).unwrap())
            .store(store)
            .secret(Secret::repeatable(7))
            .build();
        let request = CheckRequest::new().with("key", "k").unwrap();
        let each = (1..400).map(|step| {
            block_on(node.check(&request, START + Ticks::from_millis(step)));
            node.store().report().held
        });
        each.max().unwrap()
    };
    assert!(held(0) > 100, "{}", held(0));
    assert!((1..=50).contains(&held(10)), "{}", held(10));
}

/// Regression: a node paused past the expiry of its lease. A request came before the sweep, and its renewal
/// extended the expired units. They are returned now.
#[test]
fn renewals_do_not_extend_expired_units() {
    let mut fleet = Fleet::new(1, &per_second(1_000, 1_000), Consistency::Leased);
    for _ in 0..400 {
        fleet.ask(0, "k");
        fleet.pass(Ticks::from_millis(1));
    }
    let held = fleet.nodes[0].store().report().held;
    assert!(held > 0, "something is held");
    // The node pauses: no maintenance runs, and the lease expires.
    fleet.now = fleet.now + Ticks::from_secs(2);
    assert_eq!(fleet.ask(0, "k"), (true, Source::Exact));
    let before = fleet.nodes[0].store().report();
    fleet.pass(Ticks::from_micros(1));
    let after = fleet.nodes[0].store().report();
    assert_eq!(after.returned - before.returned, held, "all that had ended went back");
}
