//! Leases before a store in memory, which several nodes share.

mod accounts;
mod refunds;
mod short_way;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};

use pollster::block_on;

use super::{Leased, Lender, Lending, Loan, Loans, Want};
use crate::charge::{Answers, Charge};
use crate::decision::Source;
use crate::engine::Engine;
use crate::key::Secret;
use crate::memory::MemoryStore;
use crate::policy::{Consistency, Limit, Policy};
use crate::quota::{Quota, Rate};
use crate::request::CheckRequest;
use crate::store::{Hold, Store, StoreFailure};
use crate::time::{Ticks, Timestamp};

const START: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

/// Nodes that share one counter of each key.
struct Fleet {
    nodes: Vec<Engine<Leased<Lending>>>,
    now: Timestamp,
}

impl Fleet {
    fn new(count: u32, quota: &Quota, consistency: Consistency) -> Self {
        let lending = Lending::new(MemoryStore::new(16 << 20, START), count);
        let node = |_| {
            let limit = Limit::new("limit", quota.clone()).by(["key"]).consistency(consistency);
            let policy = Policy::new(vec![limit.lease(50_000, Ticks::from_millis(250))]).unwrap();
            Engine::with_store(policy, Leased::new(lending.clone(), 1_000), Secret::repeatable(7))
        };
        Self { nodes: (0..count).map(node).collect(), now: START }
    }

    /// Asks a node; who answered, and whether it passed.
    fn ask(&self, node: usize, key: &str) -> (bool, Source) {
        let request = CheckRequest::new().with("key", key).unwrap();
        let decision = block_on(self.nodes[node].check(&request, self.now));
        let status = decision.limits().next().unwrap();
        (decision.is_allowed(), status.source)
    }

    fn pass(&mut self, time: Ticks) {
        self.now = self.now + time;
        self.nodes.iter().for_each(|node| block_on(node.store().tend(self.now)));
    }
}

fn per_second(rate: u64, burst: u64) -> Quota {
    Quota::token_bucket(Rate::per_second(rate).burst(burst)).unwrap()
}

/// Whatever nodes ask, and however often: together they get what one counter would give, nearly all of it, and seldom ask it.
#[test]
fn a_fleet_gets_what_the_limit_gives() {
    let mut fleet = Fleet::new(4, &per_second(1_000, 1_000), Consistency::Leased);
    let (mut admitted, mut exact, mut asked, mut lately) = (0, 0, 0, 0);
    let seconds = 4;
    for step in 0..seconds * 10_000 {
        // Four times as much as the limit gives, most of it to one node.
        let node = [0, 0, 0, 1, 0, 2, 0, 3][step % 8];
        for _ in 0..(if step % 10 == 0 { 4 } else { 0 }) {
            let (is_allowed, source) = fleet.ask(node, "k");
            admitted += u64::from(is_allowed);
            lately += u64::from(is_allowed && step >= 20_000);
            exact += u64::from(source == Source::Exact);
            asked += 1;
        }
        fleet.pass(Ticks::from_micros(100));
    }
    let bound = 1_000 + 1_000 * seconds as u64;
    assert!(admitted <= bound, "{admitted} of {bound}");
    assert!(lately * 100 >= 2_000 * 98, "{lately} of 2,000");
    assert!(exact * 4 < asked, "{exact} of {asked} asked the store");
}

/// A key that is asked about seldom is answered by the counter itself, and nothing of it is held.
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
    // Five at once, and one every twelve seconds until the last is asked.
    assert_eq!(admitted, 5 + 24);
    assert!(fleet.nodes.iter().all(|node| node.store().report().held == 0));
}

/// What nobody spends goes back in time, and is there for others.
#[test]
fn what_is_not_spent_goes_back() {
    let mut fleet =
        Fleet::new(2, &Quota::token_bucket(Rate::per_hour(100).burst(1_000)).unwrap(), Consistency::Leased);
    let mut passed = 0;
    for _ in 0..400 {
        passed += u64::from(fleet.ask(0, "k").0);
        fleet.pass(Ticks::from_millis(1));
    }
    assert_eq!(passed, 400);
    assert!(fleet.nodes[0].store().report().held > 0);
    // All keys are seen within a few turns.
    fleet.pass(Ticks::from_millis(300));
    (0..8).for_each(|_| fleet.pass(Ticks::from_millis(5)));
    assert_eq!(fleet.nodes[0].store().report().held, 0);
    let mut others = 0;
    for _ in 0..1_000 {
        others += u64::from(fleet.ask(1, "k").0);
    }
    assert_eq!(others, 600);
}

/// A denied key is answered without the store until it may pass, and then passes.
#[test]
fn denials_are_remembered() {
    let mut fleet = Fleet::new(1, &per_second(10, 10), Consistency::Leased);
    for _ in 0..10 {
        assert!(fleet.ask(0, "k").0);
    }
    assert!(!fleet.ask(0, "k").0);
    assert_eq!(fleet.ask(0, "k"), (false, Source::DenyCache));
    let before = fleet.nodes[0].store().report().asked;
    for _ in 0..50 {
        assert!(!fleet.ask(0, "k").0);
    }
    assert_eq!(fleet.nodes[0].store().report().asked, before);
    fleet.pass(Ticks::from_millis(200));
    assert!(fleet.ask(0, "k").0);
}

/// Units of a window end with it.
#[test]
fn windows_lend_their_own_units_only() {
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

/// Exact limits, and hot keys only of automatic ones.
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

/// A store that lends and then may not answer, or is not there.
struct Faulty {
    lending: Lending,
    is_silent: AtomicBool,
    is_away: AtomicBool,
    /// What it lent without saying so, and how often it was not there.
    unheard: AtomicU64,
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
    type Receipt = <Lending as Lender>::Receipt;

    async fn lend(
        &self,
        charges: &[Charge<'_>],
        wants: &[Want],
        now: Timestamp,
    ) -> Result<Loans<Self::Receipt>, StoreFailure> {
        if self.is_away.load(Ordering::Relaxed) {
            self.missed.fetch_add(1, Ordering::Relaxed);
            return Err(StoreFailure::Unreachable);
        }
        let loans = self.lending.lend(charges, wants, now).await?;
        if self.is_silent.load(Ordering::Relaxed) {
            self.unheard.fetch_add(loans.iter().map(|loan| loan.extra).sum(), Ordering::Relaxed);
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
        want: Want,
        now: Timestamp,
    ) -> Result<Loan<Self::Receipt>, StoreFailure> {
        self.lending.lend_more(receipt, want, now).await
    }

    async fn take_back(
        &self,
        receipt: &Self::Receipt,
        units: u64,
        drawn_at: Timestamp,
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        self.lending.take_back(receipt, units, drawn_at, now).await
    }
}

/// Whoever draws and is cut off before the answer comes loses what was lent: it counts as stranded, and so does whatever he asked for
/// beside. A store that is not there lent nothing.
#[test]
fn what_is_not_heard_of_is_stranded() {
    let limit = Limit::new("limit", per_second(1_000, 1_000)).by(["key"]).consistency(Consistency::Leased);
    let policy = Policy::new(vec![limit.lease(50_000, Ticks::from_millis(250))]).unwrap();
    let store = Faulty {
        lending: Lending::new(MemoryStore::new(1 << 20, START), 1),
        is_silent: AtomicBool::new(false),
        is_away: AtomicBool::new(false),
        unheard: AtomicU64::new(0),
        missed: AtomicU64::new(0),
    };
    let node = Engine::with_store(policy, Leased::new(store, 10), Secret::repeatable(7));
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
            assert!(node.store().report().drawn > 100 && node.store().report().stranded == 0);
        }
    }
    let report = node.store().report();
    let store = node.store().store();
    let (unheard, missed) = (store.unheard.load(Ordering::Relaxed), store.missed.load(Ordering::Relaxed));
    assert!(cut_off > 0 && unheard > 0 && missed > 0, "{cut_off} cut off, {unheard} lost, {missed} missed");
    assert!(report.stranded >= unheard && report.stranded <= cut_off * 50, "{unheard} of {report:?}");
}

/// A node counts on as many others as it is told at least, however few the store sees: it holds the less.
#[test]
fn a_lease_is_sized_for_the_nodes_there_may_be() {
    let held = |nodes_min: u32| {
        let limit = Limit::new("limit", per_second(1_000, 1_000)).by(["key"]);
        let limit = limit.consistency(Consistency::Leased).lease(500_000, Ticks::from_secs(1));
        let lending = Lending::new(MemoryStore::new(1 << 20, START), 1);
        let store = Leased::new(lending, 10).among(nodes_min);
        let node = Engine::with_store(Policy::new(vec![limit]).unwrap(), store, Secret::repeatable(7));
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

/// The story: a node that stood still past its lease was asked before anybody swept up, and its next draw made the units that had ended
/// good again. They go back now.
#[test]
fn a_draw_does_not_make_ended_units_good() {
    let mut fleet = Fleet::new(1, &per_second(1_000, 1_000), Consistency::Leased);
    for _ in 0..400 {
        fleet.ask(0, "k");
        fleet.pass(Ticks::from_millis(1));
    }
    let held = fleet.nodes[0].store().report().held;
    assert!(held > 0, "something is held");
    // It stands still: nobody tends, and the lease ends.
    fleet.now = fleet.now + Ticks::from_secs(2);
    assert_eq!(fleet.ask(0, "k"), (true, Source::Exact));
    let before = fleet.nodes[0].store().report();
    fleet.pass(Ticks::from_micros(1));
    let after = fleet.nodes[0].store().report();
    assert_eq!(after.returned - before.returned, held, "all that had ended went back");
}
