//! A steady flow of requests of one key to nodes of a fleet, each with its part of it: who gets what of a limit that is less than all
//! ask for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate::policy::Findings;
use tollgate::{CheckRequest, Quota, Source, Ticks};

use super::{Fleet, START, Scene, TEND_EVERY, Way, at_once};
use crate::random::Random;

/// What flows.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The limit of the key.
    pub quota: Quota,
    /// The share of a limit that a node may hold, in millionths, and for how long.
    pub lease: (u32, Ticks),
    /// Requests a second, of the whole fleet, and what each costs.
    pub offered: u64,
    /// See `offered`.
    pub cost: u64,
    /// How they are divided among the nodes, by number.
    pub parts: Vec<u64>,
    /// When they are divided otherwise, and how.
    pub turned: Option<(Ticks, Vec<u64>)>,
    /// From when on it is counted who got what, and until when.
    pub counted: (Ticks, Ticks),
    /// What chance follows.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flowed {
    /// The units that each node was asked for, and those of them that passed, while it was counted.
    pub asked: Vec<u64>,
    /// See `asked`.
    pub passed: Vec<u64>,
    /// Calls to the store while it was counted.
    pub calls: u64,
    /// Units that passed, from the beginning.
    pub passed_in_all: u64,
    /// The longest time after which a denied request was told to come back.
    pub retry_after: Ticks,
}

/// Lets it flow.
///
/// # Errors
/// The limit cannot be leased.
pub fn flow(flow: &Flow, way: Way) -> Result<Flowed, Findings> {
    let count = flow.parts.len().max(1);
    let scene = Scene {
        quota: flow.quota.clone(),
        nodes: u32::try_from(count).unwrap_or(u32::MAX),
        keys: 1,
        offered: flow.offered,
        time: flow.counted.1,
        lease: flow.lease,
        skew: 0,
        losses: 0,
        cuts: false,
        seed: flow.seed,
    };
    let fleet = Fleet::new(&scene, way)?;
    let mut seen = Flowed { asked: vec![0; count], passed: vec![0; count], ..Flowed::default() };
    let request = CheckRequest::new().with("key", "key").and_then(|request| request.cost(flow.cost));
    let Ok(request) = request else { return Ok(seen) };
    let mut random = Random::new(flow.seed);
    let (from, until) = (START + flow.counted.0, START + flow.counted.1);
    let turned = flow.turned.as_ref().map(|(at, parts)| (START + *at, parts));
    // In nanoseconds, since of a large flow several come within a microsecond.
    let gap = 1_000_000_000 / flow.offered.max(1);
    let (mut passed, mut now, mut tended, mut calls) = (0u64, START, START, 0);
    while now < until {
        passed += random.exponential(gap).max(1);
        let before = now;
        now = START + Ticks::from_micros(passed / 1_000);
        if now.since(tended) >= TEND_EVERY {
            for (node, _) in &fleet.nodes {
                let _ = at_once(node.store().maintain(now));
            }
            tended = now;
        }
        if before < from && now >= from {
            calls = fleet.calls.load(Ordering::Relaxed);
        }
        let parts = turned.filter(|(at, _)| now >= *at).map_or(&flow.parts, |(_, parts)| parts);
        let place = place(&mut random, parts);
        let Some(decision) = at_once(fleet.nodes[place].0.check(&request, now)) else { continue };
        let is_passed = decision.is_allowed()
            && decision.limits().all(|status| matches!(status.source, Source::Exact | Source::Lease));
        let units = if is_passed { flow.cost } else { 0 };
        seen.passed_in_all += units;
        if now >= from && now < until {
            seen.asked[place] += flow.cost;
            seen.passed[place] += units;
            if let Some(retry_after) = decision.retry_after() {
                seen.retry_after = seen.retry_after.max(retry_after);
            }
        }
    }
    seen.calls = Arc::clone(&fleet.calls).load(Ordering::Relaxed) - calls;
    Ok(seen)
}

/// Which node is asked next.
fn place(random: &mut Random, parts: &[u64]) -> usize {
    let mut left = random.below(parts.iter().sum());
    for (place, &part) in parts.iter().enumerate() {
        if left < part {
            return place;
        }
        left -= part;
    }
    0
}
