//! Leases before a store in memory, which several nodes share.

mod short_way;

use pollster::block_on;

use super::{Leased, Lending};
use crate::decision::Source;
use crate::engine::Engine;
use crate::key::Secret;
use crate::memory::MemoryStore;
use crate::policy::{Consistency, Limit, Policy};
use crate::quota::{Quota, Rate};
use crate::request::CheckRequest;
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
