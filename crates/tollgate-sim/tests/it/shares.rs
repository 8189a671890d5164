//! Steady demand above the limit: each node of a fleet gets its part of it, all of the limit is used, and the store is asked seldom.
//!
//! It is counted from two seconds on, for so long that the node with the least gets more than three hundred units. Chance alone makes that one
//! in twenty more or less, so that what nodes get of each other is counted over three runs.

use tollgate::algorithm::fixed_window::Align;
use tollgate::algorithm::sliding_window::Estimate;
use tollgate::{Quota, Rate, Ticks};
use tollgate_sim::fleet::{Flow, Flowed, Way, flow};

/// What a limit's demand is divided into among its nodes, and how many tenths of the limit it is.
const PARTS: [&[u64]; 3] = [&[1, 1], &[4, 1], &[10, 1, 1, 1, 1, 1]];
const TENTHS: [u64; 3] = [15, 30, 200];
/// Limits a second, what a request costs, and for how many seconds it is counted.
const LIMITS: [(u64, u64, u64); 3] = [(100, 1, 50), (1_000, 1, 5), (50_000, 50, 5)];

fn steady(quota: Quota, parts: &[u64], offered: u64) -> Flow {
    Flow {
        quota,
        lease: (50_000, Ticks::from_millis(250)),
        offered,
        cost: 1,
        parts: parts.to_vec(),
        turned: None,
        counted: (Ticks::from_secs(2), Ticks::from_secs(7)),
        seed: 7,
    }
}

fn sum(each: &[u64]) -> u64 {
    each.iter().sum()
}

/// Whether each node got its part of the demand, a fifth more or less.
fn assert_fair(seen: &Flowed, told: &str) {
    let (asked, passed) = (sum(&seen.asked), sum(&seen.passed));
    for (&mine, &got) in seen.asked.iter().zip(&seen.passed) {
        let (got, due) = (u128::from(got) * u128::from(asked), u128::from(passed) * u128::from(mine));
        assert!(got * 10 >= due * 8 && got * 10 <= due * 12, "{told}: {seen:?}");
    }
}

/// Several runs as one, as far as nodes are compared.
fn together(first: &Flowed, others: &[Flowed]) -> Flowed {
    let mut all = first.clone();
    for other in others {
        let add = |to: &mut Vec<u64>, of: &[u64]| to.iter_mut().zip(of).for_each(|(to, of)| *to += of);
        add(&mut all.asked, &other.asked);
        add(&mut all.passed, &other.passed);
    }
    all
}

/// Runs all limits, divisions and loads of an algorithm. What is used is at least 98 in a hundred of the limit, or, where not even one
/// counter that is asked about each request gives as much, of what that gives.
fn each_gets_its_part(quota: impl Fn(Rate) -> Quota, way: Way) {
    for (limit, cost, seconds) in LIMITS {
        for parts in PARTS {
            for tenths in TENTHS {
                let quota = quota(Rate::per_second(limit));
                let told = format!("{quota:?} of {limit}, {tenths} tenths, {parts:?}");
                let flows = Flow {
                    cost,
                    counted: (Ticks::from_secs(2), Ticks::from_secs(2 + seconds)),
                    ..steady(quota, parts, limit * tenths / 10 / cost)
                };
                let seen = flow(&flows, Way::Leased).unwrap();
                let others = [8, 9].map(|seed| flow(&Flow { seed, ..flows.clone() }, Way::Leased).unwrap());
                assert_fair(&together(&seen, &others), &told);
                let given = match way {
                    Way::Exact => sum(&flow(&flows, Way::Exact).unwrap().passed),
                    _ => limit * seconds,
                };
                assert!(sum(&seen.passed) * 100 >= given * 98, "{told}: {given}, {seen:?}");
                // No more than a full burst or window, and what came since; of a window, that of one more.
                assert!(seen.passed_in_all <= limit * (seconds + 3), "{told}: {seen:?}");
                let calls = seen.calls / seconds / parts.len() as u64;
                assert!(calls <= 80, "{told}: {calls} calls a second of each node");
                assert!(seen.retry_after <= Ticks::from_micros(1_101_000), "{told}: {seen:?}");
            }
        }
    }
}

#[test]
fn token_buckets_are_shared_by_demand() {
    each_gets_its_part(|rate| Quota::token_bucket(rate).unwrap(), Way::Leased);
}

#[test]
fn gcra_is_shared_by_demand() {
    each_gets_its_part(|rate| Quota::gcra(rate).unwrap(), Way::Leased);
}

#[test]
fn fixed_windows_are_shared_by_demand() {
    each_gets_its_part(|rate| Quota::fixed_window(rate, Align::Epoch).unwrap(), Way::Leased);
}

#[test]
fn strict_sliding_windows_are_shared_by_demand() {
    each_gets_its_part(|rate| Quota::sliding_window(rate, 10, Estimate::Strict).unwrap(), Way::Exact);
}

#[test]
fn sliding_windows_are_shared_by_demand() {
    each_gets_its_part(|rate| Quota::sliding_window(rate, 10, Estimate::Interpolate).unwrap(), Way::Exact);
}

fn algorithms(rate: Rate) -> [Quota; 4] {
    [
        Quota::token_bucket(rate).unwrap(),
        Quota::gcra(rate).unwrap(),
        Quota::fixed_window(rate, Align::Epoch).unwrap(),
        Quota::sliding_window(rate, 10, Estimate::Interpolate).unwrap(),
    ]
}

/// Demand that goes from one node to another is followed within two seconds.
#[test]
fn a_demand_that_shifts_is_followed() {
    for quota in algorithms(Rate::per_second(1_000)) {
        let told = format!("{quota:?}");
        let shifting = Flow {
            turned: Some((Ticks::from_secs(4), vec![1, 10, 1, 1, 1, 1])),
            counted: (Ticks::from_secs(6), Ticks::from_secs(11)),
            ..steady(quota, &[10, 1, 1, 1, 1, 1], 3_000)
        };
        assert_fair(&flow(&shifting, Way::Leased).unwrap(), &told);
    }
}

/// Five a minute on six nodes, for twenty minutes: what comes is used, whichever way it is counted.
#[test]
fn a_small_limit_is_used_up() {
    for quota in algorithms(Rate::per_minute(5)) {
        for offered in [2, 20] {
            let slow = Flow {
                counted: (Ticks::from_secs(120), Ticks::from_secs(120 + 1_200)),
                ..steady(quota.clone(), &[1; 6], offered)
            };
            let exact = sum(&flow(&slow, Way::Exact).unwrap().passed);
            let seen = flow(&slow, Way::Leased).unwrap();
            assert!(sum(&seen.passed) * 100 >= exact * 98, "{quota:?}, {offered}: {exact}, {seen:?}");
            assert!(exact >= 90 && seen.passed_in_all <= 5 * 23, "{quota:?}, {offered}: {exact}, {seen:?}");
        }
    }
}

/// A key that is asked about a thousand times as often as its limit allows costs the store some dozens of calls a second of each node.
#[test]
fn a_runaway_key_is_cheap() {
    for limit in [10, 100] {
        for quota in algorithms(Rate::per_second(limit)) {
            let told = format!("{quota:?}");
            let runaway = Flow {
                counted: (Ticks::from_millis(500), Ticks::from_millis(3_500)),
                ..steady(quota, &[10, 1, 1, 1, 1, 1], limit * 1_000)
            };
            let seen = flow(&runaway, Way::Leased).unwrap();
            let calls = seen.calls / 3 / 6;
            assert!(calls <= 60, "{told}: {calls} calls a second of each node");
            assert!(sum(&seen.passed) >= limit * 5 / 2, "{told}: {seen:?}");
        }
    }
}
