//! Under steady demand above the limit, each node of a fleet gets its share, the fleet uses the whole limit, and nodes
//! rarely call the store.
//!
//! The measurement starts after two seconds. It lasts until the node with the least demand gets more than 300 units.
//! Chance alone changes that number by 5 %, so nodes are compared over three runs.

use std::sync::atomic::Ordering;

use tollgate::algorithm::fixed_window::Align;
use tollgate::algorithm::sliding_window::Estimate;
use tollgate::policy::Findings;
use tollgate::{CheckRequest, Quota, Rate, Source, Ticks};

use super::{CountingMode, Fleet, FleetScenario, MAINTAIN_EVERY, START, poll_ready};
use crate::random::Random;

/// How the demand is divided among the nodes.
const WEIGHTS: [&[u64]; 3] = [&[1, 1], &[4, 1], &[10, 1, 1, 1, 1, 1]];
/// The demand in tenths of the limit.
const TENTHS: [u64; 3] = [15, 30, 200];
/// Limits a second, the cost of a request, and the seconds of the measurement.
const LIMITS: [(u64, u64, u64); 3] = [(100, 1, 50), (1_000, 1, 5), (50_000, 50, 5)];

/// The requests for one key.
#[derive(Clone, Debug)]
struct Demand {
    /// The limit of the key.
    quota: Quota,
    /// The share of a limit that a node may hold, in millionths, and for how long.
    lease: (u32, Ticks),
    /// Requests a second to the whole fleet.
    offered: u64,
    /// Cost of each request.
    cost: u64,
    /// The weight of each node's part of the requests.
    weights: Vec<u64>,
    /// When the weights change, and the new weights.
    shift: Option<(Ticks, Vec<u64>)>,
    /// Start and end of the measurement.
    measured: (Ticks, Ticks),
    /// Seed of the random numbers.
    seed: u64,
}

/// The units that the fleet admitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DemandOutcome {
    /// Units requested from each node during the measurement.
    asked: Vec<u64>,
    /// Units that each node admitted during the measurement.
    admitted: Vec<u64>,
    /// Calls to the store during the measurement.
    calls: u64,
    /// Units admitted from the beginning on.
    admitted_in_all: u64,
    /// The longest `retry_after` of a denial.
    retry_after: Ticks,
}

/// Sends the demand to a fleet.
///
/// # Errors
/// The limit cannot be leased.
fn run_demand(demand: &Demand, mode: CountingMode) -> Result<DemandOutcome, Findings> {
    let count = demand.weights.len().max(1);
    let scenario = FleetScenario {
        quota: demand.quota.clone(),
        nodes: u32::try_from(count).unwrap_or(u32::MAX),
        keys: 1,
        offered: demand.offered,
        time: demand.measured.1,
        lease: demand.lease,
        skew: 0,
        losses: 0,
        cuts: false,
        seed: demand.seed,
    };
    let fleet = Fleet::new(&scenario, mode)?;
    let mut outcome =
        DemandOutcome { asked: vec![0; count], admitted: vec![0; count], ..DemandOutcome::default() };
    let request = CheckRequest::new().with("key", "key").and_then(|request| request.cost(demand.cost));
    let Ok(request) = request else { return Ok(outcome) };
    let mut random = Random::new(demand.seed);
    let (from, until) = (START + demand.measured.0, START + demand.measured.1);
    let shift = demand.shift.as_ref().map(|(at, weights)| (START + *at, weights));
    // In nanoseconds, because several requests of a large demand arrive within a microsecond.
    let gap = 1_000_000_000 / demand.offered.max(1);
    let (mut elapsed, mut now, mut maintained, mut calls_before) = (0u64, START, START, 0);
    while now < until {
        elapsed += random.exponential(gap).max(1);
        let before = now;
        now = START + Ticks::from_micros(elapsed / 1_000);
        if now.since(maintained) >= MAINTAIN_EVERY {
            for (node, _) in &fleet.nodes {
                let _ = poll_ready(node.store().maintain(now));
            }
            maintained = now;
        }
        if before < from && now >= from {
            calls_before = fleet.calls.load(Ordering::Relaxed);
        }
        let weights = shift.filter(|(at, _)| now >= *at).map_or(&demand.weights, |(_, weights)| weights);
        let node = pick_node(&mut random, weights);
        let Some(decision) = poll_ready(fleet.nodes[node].0.check(&request, now)) else { continue };
        let is_admitted = decision.is_allowed()
            && decision.limits().all(|status| matches!(status.source, Source::Exact | Source::Lease));
        let units = if is_admitted { demand.cost } else { 0 };
        outcome.admitted_in_all += units;
        if now >= from && now < until {
            outcome.asked[node] += demand.cost;
            outcome.admitted[node] += units;
            if let Some(retry_after) = decision.retry_after() {
                outcome.retry_after = outcome.retry_after.max(retry_after);
            }
        }
    }
    outcome.calls = fleet.calls.load(Ordering::Relaxed) - calls_before;
    Ok(outcome)
}

/// Picks the node of the next request.
fn pick_node(random: &mut Random, weights: &[u64]) -> usize {
    let mut left = random.below(weights.iter().sum());
    for (node, &weight) in weights.iter().enumerate() {
        if left < weight {
            return node;
        }
        left -= weight;
    }
    0
}

fn steady(quota: Quota, weights: &[u64], offered: u64) -> Demand {
    Demand {
        quota,
        lease: (50_000, Ticks::from_millis(250)),
        offered,
        cost: 1,
        weights: weights.to_vec(),
        shift: None,
        measured: (Ticks::from_secs(2), Ticks::from_secs(7)),
        seed: 7,
    }
}

fn sum(each: &[u64]) -> u64 {
    each.iter().sum()
}

/// Each node gets its share of the demand, ± 20 %.
fn assert_fair(outcome: &DemandOutcome, case: &str) {
    let (asked, admitted) = (sum(&outcome.asked), sum(&outcome.admitted));
    for (&mine, &got) in outcome.asked.iter().zip(&outcome.admitted) {
        let (got, due) = (u128::from(got) * u128::from(asked), u128::from(admitted) * u128::from(mine));
        assert!(got * 10 >= due * 8 && got * 10 <= due * 12, "{case}: {outcome:?}");
    }
}

/// Adds up the units of several runs.
fn together(first: &DemandOutcome, others: &[DemandOutcome]) -> DemandOutcome {
    let mut all = first.clone();
    for other in others {
        let add = |to: &mut Vec<u64>, of: &[u64]| to.iter_mut().zip(of).for_each(|(to, of)| *to += of);
        add(&mut all.asked, &other.asked);
        add(&mut all.admitted, &other.admitted);
    }
    all
}

/// Runs all limits, weights and loads of an algorithm. The fleet uses at least 98 % of the limit. With a `baseline` of
/// `CountingMode::Exact` it uses at least 98 % of what exact counting admits, which is less for some algorithms.
fn assert_shared_by_demand(quota: impl Fn(Rate) -> Quota, baseline: CountingMode) {
    for (limit, cost, seconds) in LIMITS {
        for weights in WEIGHTS {
            for tenths in TENTHS {
                let quota = quota(Rate::per_second(limit));
                let case = format!("{quota:?} of {limit}, {tenths} tenths, {weights:?}");
                let demand = Demand {
                    cost,
                    measured: (Ticks::from_secs(2), Ticks::from_secs(2 + seconds)),
                    ..steady(quota, weights, limit * tenths / 10 / cost)
                };
                let outcome = run_demand(&demand, CountingMode::Leased).unwrap();
                let others = [8, 9].map(|seed| {
                    run_demand(&Demand { seed, ..demand.clone() }, CountingMode::Leased).unwrap()
                });
                assert_fair(&together(&outcome, &others), &case);
                let given = match baseline {
                    CountingMode::Exact => sum(&run_demand(&demand, CountingMode::Exact).unwrap().admitted),
                    _ => limit * seconds,
                };
                assert!(sum(&outcome.admitted) * 100 >= given * 98, "{case}: {given}, {outcome:?}");
                // At most a full burst or window, what was earned since, and for windows one more window.
                assert!(outcome.admitted_in_all <= limit * (seconds + 3), "{case}: {outcome:?}");
                let calls = outcome.calls / seconds / weights.len() as u64;
                assert!(calls <= 80, "{case}: {calls} calls a second of each node");
                assert!(outcome.retry_after <= Ticks::from_micros(1_101_000), "{case}: {outcome:?}");
            }
        }
    }
}

#[test]
fn token_buckets_are_shared_by_demand() {
    assert_shared_by_demand(|rate| Quota::token_bucket(rate).unwrap(), CountingMode::Leased);
}

#[test]
fn gcra_is_shared_by_demand() {
    assert_shared_by_demand(|rate| Quota::gcra(rate).unwrap(), CountingMode::Leased);
}

#[test]
fn fixed_windows_are_shared_by_demand() {
    assert_shared_by_demand(|rate| Quota::fixed_window(rate, Align::Epoch).unwrap(), CountingMode::Leased);
}

#[test]
fn strict_sliding_windows_are_shared_by_demand() {
    assert_shared_by_demand(
        |rate| Quota::sliding_window(rate, 10, Estimate::Strict).unwrap(),
        CountingMode::Exact,
    );
}

#[test]
fn sliding_windows_are_shared_by_demand() {
    assert_shared_by_demand(
        |rate| Quota::sliding_window(rate, 10, Estimate::Interpolate).unwrap(),
        CountingMode::Exact,
    );
}

fn algorithms(rate: Rate) -> [Quota; 4] {
    [
        Quota::token_bucket(rate).unwrap(),
        Quota::gcra(rate).unwrap(),
        Quota::fixed_window(rate, Align::Epoch).unwrap(),
        Quota::sliding_window(rate, 10, Estimate::Interpolate).unwrap(),
    ]
}

/// When the demand moves from one node to another, the shares follow within two seconds.
#[test]
fn shares_follow_a_shift_of_the_demand() {
    for quota in algorithms(Rate::per_second(1_000)) {
        let case = format!("{quota:?}");
        let shifting = Demand {
            shift: Some((Ticks::from_secs(4), vec![1, 10, 1, 1, 1, 1])),
            measured: (Ticks::from_secs(6), Ticks::from_secs(11)),
            ..steady(quota, &[10, 1, 1, 1, 1, 1], 3_000)
        };
        assert_fair(&run_demand(&shifting, CountingMode::Leased).unwrap(), &case);
    }
}

/// Five a minute on six nodes, for twenty minutes: the fleet uses as many units as exact counting does.
#[test]
fn a_small_limit_is_used_up() {
    for quota in algorithms(Rate::per_minute(5)) {
        for offered in [2, 20] {
            let slow = Demand {
                measured: (Ticks::from_secs(120), Ticks::from_secs(120 + 1_200)),
                ..steady(quota.clone(), &[1; 6], offered)
            };
            let exact = sum(&run_demand(&slow, CountingMode::Exact).unwrap().admitted);
            let outcome = run_demand(&slow, CountingMode::Leased).unwrap();
            assert!(sum(&outcome.admitted) * 100 >= exact * 98, "{quota:?}, {offered}: {exact}, {outcome:?}");
            assert!(
                exact >= 90 && outcome.admitted_in_all <= 5 * 23,
                "{quota:?}, {offered}: {exact}, {outcome:?}"
            );
        }
    }
}

/// A key with a thousand times the requests of its limit costs at most 60 store calls a second of each node.
#[test]
fn a_runaway_key_is_cheap() {
    for limit in [10, 100] {
        for quota in algorithms(Rate::per_second(limit)) {
            let case = format!("{quota:?}");
            let runaway = Demand {
                measured: (Ticks::from_millis(500), Ticks::from_millis(3_500)),
                ..steady(quota, &[10, 1, 1, 1, 1, 1], limit * 1_000)
            };
            let outcome = run_demand(&runaway, CountingMode::Leased).unwrap();
            let calls = outcome.calls / 3 / 6;
            assert!(calls <= 60, "{case}: {calls} calls a second of each node");
            assert!(sum(&outcome.admitted) >= limit * 5 / 2, "{case}: {outcome:?}");
        }
    }
}
