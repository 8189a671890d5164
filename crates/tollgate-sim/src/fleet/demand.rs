//! Steady demand for one key, divided unevenly among the nodes of a fleet: how a limit smaller than the demand is shared.

use std::sync::atomic::Ordering;

use tollgate::policy::Findings;
use tollgate::{CheckRequest, Quota, Source, Ticks};

use super::{CountingMode, Fleet, FleetScenario, MAINTAIN_EVERY, START, poll_ready};
use crate::random::Random;

/// The requests for one key.
#[derive(Clone, Debug)]
pub struct Demand {
    /// The limit of the key.
    pub quota: Quota,
    /// The share of a limit that a node may hold, in millionths, and for how long.
    pub lease: (u32, Ticks),
    /// Requests a second to the whole fleet.
    pub offered: u64,
    /// Cost of each request.
    pub cost: u64,
    /// The weight of each node's part of the requests.
    pub weights: Vec<u64>,
    /// When the weights change, and the new weights.
    pub shift: Option<(Ticks, Vec<u64>)>,
    /// Start and end of the measurement.
    pub measured: (Ticks, Ticks),
    /// Seed of the random numbers.
    pub seed: u64,
}

/// The units that the fleet admitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DemandOutcome {
    /// Units requested from each node during the measurement.
    pub asked: Vec<u64>,
    /// Units that each node admitted during the measurement.
    pub admitted: Vec<u64>,
    /// Calls to the store during the measurement.
    pub calls: u64,
    /// Units admitted from the beginning on.
    pub admitted_in_all: u64,
    /// The longest `retry_after` of a denial.
    pub retry_after: Ticks,
}

/// Sends the demand to a fleet.
///
/// # Errors
/// The limit cannot be leased.
pub fn run_demand(demand: &Demand, mode: CountingMode) -> Result<DemandOutcome, Findings> {
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
