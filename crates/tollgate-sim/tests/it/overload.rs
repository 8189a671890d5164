//! The adaptive limit in front of a server that is overloaded, slow, stuck or idle, over many seeds. Published limiters
//! fail in the same scenarios, which proves that each test can fail.

use tollgate::Ticks;
use tollgate_overload::Priority;

use crate::overloaded_server::limiters::LimiterKind;
use crate::overloaded_server::scenario::{OverloadScenario, ServiceTime, TimeoutReport};
use crate::overloaded_server::{OverloadOutcome, Queueing, simulate, simulate_priorities};

/// Number of seeds.
const SEEDS: u64 = 20;

/// The seeds of every run. `TOLLGATE_SEED` sets another first seed, for a campaign over new seeds.
fn seeds() -> std::ops::Range<u64> {
    let first = std::env::var("TOLLGATE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    first..first + SEEDS
}

const fn ms(millis: u64) -> Ticks {
    Ticks::from_millis(millis)
}

/// Requests answered in time between two seconds, in per cent of the possible.
fn goodput(scenario: &OverloadScenario, outcome: &OverloadOutcome, from: u64, to: u64) -> u64 {
    let most: u64 = (from..to).map(|second| scenario.optimum(second)).sum();
    outcome.good(from, to) * 100 / most.max(1)
}

/// Half of the capacity, then three times the capacity, then briefly half again.
fn step(workers: usize, service: ServiceTime, seed: u64) -> OverloadScenario {
    OverloadScenario::new(workers, service, seed).then(30, 50).then(60, 300).then(5, 50)
}

/// Ten seconds after an overload began, at least 90 % of the possible requests are answered, with at most twice the
/// latency of an idle server.
fn assert_bears_overload(scenario: &OverloadScenario, name: &str) -> OverloadOutcome {
    let outcome = simulate(scenario, LimiterKind::Tollgate);
    let good = goodput(scenario, &outcome, 40, 90);
    let (idle, busy) = (outcome.latency(10, 30, 990), outcome.latency(40, 90, 990));
    assert!(good >= 90, "{name}, seed {}: {good} % of the most", scenario.seed);
    assert!(busy <= 2 * idle, "{name}, seed {}: {busy} µs instead of {idle}", scenario.seed);
    assert_eq!(outcome.unfinished, 0);
    outcome
}

/// A step of the load on small and large servers, with varying and with fixed service times.
#[test]
fn tollgate_bears_three_times_the_load() {
    for seed in seeds() {
        for (workers, time) in [(8, 40), (16, 40), (64, 100)] {
            assert_bears_overload(&step(workers, ServiceTime::Exponential(ms(time)), seed), "exponential");
        }
        assert_bears_overload(&step(16, ServiceTime::Fixed(ms(40)), seed), "fixed");
    }
}

/// Vegas takes its luckiest sample as the baseline and admits a fraction. Gradient2 follows the overload, and its latency
/// more than doubles. Without a limit no request is answered in time.
#[test]
fn published_limiters_fail_at_three_times_the_load() {
    for seed in seeds() {
        let scenario = step(16, ServiceTime::Exponential(ms(40)), seed);
        assert!(goodput(&scenario, &simulate(&scenario, LimiterKind::Vegas), 40, 90) < 60);
        assert!(goodput(&scenario, &simulate(&scenario, LimiterKind::Unlimited), 40, 90) < 10);
        let scenario = step(16, ServiceTime::Fixed(ms(40)), seed);
        let outcome = simulate(&scenario, LimiterKind::Gradient2);
        assert!(outcome.latency(40, 90, 990) > 2 * outcome.latency(10, 30, 990));
    }
}

/// A backend that becomes five times as slow looks like a queue only at first. The limit falls, observes that fewer
/// requests in flight mean less throughput, and rises again. When the backend recovers, so does the throughput.
#[test]
fn the_limit_follows_a_slow_backend() {
    let (mut ours, mut vegas, mut gradient) = (0, 0, 0);
    for seed in seeds() {
        let scenario = OverloadScenario::new(48, ServiceTime::Exponential(ms(40)), seed)
            .then(30, 60)
            .then_slower(70, 60, 5)
            .then(30, 60);
        let outcome = simulate(&scenario, LimiterKind::Tollgate);
        let (slow, after) = (goodput(&scenario, &outcome, 50, 100), goodput(&scenario, &outcome, 110, 130));
        assert!(slow >= 75 && after >= 90, "seed {seed}: {slow} % while slow, {after} % after");
        ours += slow;
        vegas += goodput(&scenario, &simulate(&scenario, LimiterKind::Vegas), 50, 100);
        gradient += goodput(&scenario, &simulate(&scenario, LimiterKind::Gradient2), 50, 100);
    }
    assert!(ours >= 90 * SEEDS, "{} % on average", ours / SEEDS);
    assert!(vegas < 50 * SEEDS && gradient < 60 * SEEDS, "{} % and {} %", vegas / SEEDS, gradient / SEEDS);
}

/// When a backend with little load becomes three times as slow, less than one request in a hundred is refused.
#[test]
fn a_slow_backend_with_little_load_is_not_limited() {
    for seed in seeds() {
        let scenario = OverloadScenario::new(64, ServiceTime::Exponential(ms(40)), seed)
            .then(30, 8)
            .then_slower(60, 8, 3);
        let outcome = simulate(&scenario, LimiterKind::Tollgate);
        let refused: u64 = outcome.seconds.iter().map(|second| second.refused).sum();
        assert!(refused * 100 < 90 * scenario.capacity() * 8 / 100, "seed {seed}: {refused}");
    }
}

/// When every call times out, the limit falls, both if the limiter sees losses and if it sees slow answers. Gradient2 grows
/// to its maximum in both cases, and Vegas grows in the second.
#[test]
fn a_stable_timeout_shrinks_the_limit() {
    for seed in seeds() {
        for loss in [TimeoutReport::Loss, TimeoutReport::SlowAnswer] {
            let mut scenario = OverloadScenario::new(32, ServiceTime::Exponential(ms(40)), seed)
                .then(30, 50)
                .then_slower(60, 50, 100_000);
            (scenario.timeout, scenario.timeout_report) = (ms(1_000), loss);
            let outcome = simulate(&scenario, LimiterKind::Tollgate);
            let (_, before) = outcome.limits(20, 30);
            let (_, most) = outcome.limits(80, 90);
            assert!(before > 20 && most <= 10, "seed {seed}, {loss:?}: from {before} to {most}");
            assert_eq!(simulate(&scenario, LimiterKind::Gradient2).limits(80, 90), (200, 200));
            if loss == TimeoutReport::SlowAnswer {
                assert!(simulate(&scenario, LimiterKind::Vegas).limits(80, 90).0 > 200);
            }
        }
    }
}

/// Requests of two kinds, one twenty times as long as the other, with several shares of long requests. At one of them the
/// 90th percentile jumps between the kinds.
#[test]
fn two_kinds_of_requests_are_not_a_queue() {
    let mut worst = u64::MAX;
    for seed in seeds() {
        for percent in [5, 10, 30] {
            let scenario = step(16, ServiceTime::Bimodal(ms(20), ms(400), percent), seed);
            assert_bears_overload(&scenario, "two kinds");
            worst = worst.min(goodput(&scenario, &simulate(&scenario, LimiterKind::Vegas), 40, 90));
        }
    }
    assert!(worst < 80, "Vegas bears it: {worst} %");
}

/// After a minute without requests, a load of 90 % of the capacity is admitted immediately.
#[test]
fn a_burst_after_idleness_is_admitted() {
    for seed in seeds() {
        let scenario = OverloadScenario::new(32, ServiceTime::Exponential(ms(40)), seed)
            .then(30, 50)
            .then(60, 0)
            .then(20, 90);
        let outcome = simulate(&scenario, LimiterKind::Tollgate);
        let refused: u64 = outcome.seconds.iter().skip(90).take(5).map(|second| second.refused).sum();
        assert!(refused * 50 <= 5 * scenario.capacity() * 90 / 100, "seed {seed}: {refused} refused");
        assert!(goodput(&scenario, &outcome, 90, 110) >= 90);
        assert!(goodput(&scenario, &simulate(&scenario, LimiterKind::Vegas), 90, 110) < 50);
    }
}

/// A limiter that starts during an overload has never seen the server without a queue. It must find the baseline, and must
/// not drift for ten minutes afterwards.
#[test]
fn a_limiter_started_in_an_overload_finds_the_baseline() {
    for seed in seeds() {
        let scenario = OverloadScenario::new(16, ServiceTime::Exponential(ms(40)), seed).then(100, 300);
        let idle = simulate(
            &OverloadScenario::new(16, ServiceTime::Exponential(ms(40)), seed).then(30, 50),
            LimiterKind::Tollgate,
        );
        let outcome = simulate(&scenario, LimiterKind::Tollgate);
        let good = goodput(&scenario, &outcome, 50, 100);
        assert!(good >= 90, "seed {seed}: {good} %");
        assert!(outcome.latency(50, 100, 990) <= 2 * idle.latency(5, 30, 990), "seed {seed}");
    }
    for seed in seeds() {
        let scenario =
            OverloadScenario::new(16, ServiceTime::Exponential(ms(40)), seed).then(20, 50).then(600, 150);
        let outcome = simulate(&scenario, LimiterKind::Tollgate);
        let (_, most) = outcome.limits(500, 620);
        assert!(goodput(&scenario, &outcome, 500, 620) >= 90 && most <= 48, "seed {seed}: up to {most}");
    }
    // Gradient2 ends with a limit far above the capacity.
    let drifts = (seeds()).filter(|&seed| {
        let scenario = OverloadScenario::new(16, ServiceTime::Fixed(ms(40)), seed).then(100, 300);
        simulate(&scenario, LimiterKind::Gradient2).limits(50, 100).1 > 64
    });
    assert!(drifts.count() > 10);
}

/// A tenth of a thousand requests a second are canceled. They count neither as successes nor as losses, so the limit does
/// not shrink.
#[test]
fn canceled_requests_do_not_shrink_the_limit() {
    for seed in seeds() {
        let mut scenario = OverloadScenario::new(64, ServiceTime::Exponential(ms(40)), seed).then(60, 63);
        scenario.cancels = 10;
        let outcome = simulate(&scenario, LimiterKind::Tollgate);
        // A canceled request gets no answer, so the possible is what an unlimited server answers.
        let (stayed, most) = (outcome.good(20, 60), simulate(&scenario, LimiterKind::Unlimited).good(20, 60));
        assert!(stayed * 100 >= 90 * most, "seed {seed}: {stayed} of {most}");
        assert!(goodput(&scenario, &outcome, 20, 60) >= 88, "seed {seed}: {stayed}");
        assert!(outcome.limits(20, 60).0 >= 64, "seed {seed}: {:?}", outcome.limits(20, 60));
        assert_eq!(outcome.unfinished, 0);
    }
}

/// Every request is canceled, and every permit is returned.
#[test]
fn no_permit_leaks() {
    for seed in seeds() {
        let mut scenario = OverloadScenario::new(4, ServiceTime::Fixed(ms(40)), seed).then(20, 300);
        scenario.cancels = 100;
        let outcome = simulate(&scenario, LimiterKind::Tollgate);
        assert_eq!(outcome.unfinished, 0);
        assert!(outcome.seconds.iter().any(|second| second.in_flight > 0));
        // The limiter learns nothing from canceled requests.
        assert!(outcome.seconds.iter().all(|second| second.limit == 20));
    }
}

/// Callers that retry three times add to the overload. The throughput holds, and is normal again after the overload.
#[test]
fn tollgate_bears_a_retry_storm() {
    for seed in seeds() {
        let mut scenario = step(16, ServiceTime::Exponential(ms(40)), seed).then(15, 50);
        scenario.retries = 3;
        let outcome = simulate(&scenario, LimiterKind::Tollgate);
        assert!(goodput(&scenario, &outcome, 40, 90) >= 90, "seed {seed}");
        let after = outcome.good(95, 110) * 100 / (15 * scenario.optimum(95));
        assert!(after >= 90, "seed {seed}: {after} % after");
    }
}

/// A plain FIFO queue answers hardly a request in time, during the overload and long after it. The wait queue keeps 90 % of
/// the throughput.
#[test]
fn the_wait_queue_serves_where_a_fifo_queue_does_not() {
    for seed in seeds() {
        let mut scenario = OverloadScenario::new(16, ServiceTime::Exponential(ms(40)), seed)
            .then(20, 50)
            .then(40, 300)
            .then(20, 50);
        scenario.timeout = ms(500);
        let queue = simulate_priorities(&scenario, Queueing::ByPriority);
        let most = 20 * scenario.capacity();
        assert!(queue.good(40, 60) * 100 >= 90 * most, "seed {seed}: {} of {most}", queue.good(40, 60));
        assert!(queue.latency(40, 60, 990) <= 2 * queue.latency(5, 20, 990));
        assert_eq!(queue.unfinished, 0);
        let fifo = simulate_priorities(&scenario, Queueing::Fifo);
        assert!(fifo.good(40, 60) * 10 < most && fifo.good(65, 80) * 10 < most);
    }
}

/// At three times the load, test traffic and reads are shed, writes in part, and nearly all critical requests are served.
/// The level changes slowly, and after the overload it falls without rising again.
#[test]
fn critical_requests_are_served_at_three_times_the_load() {
    for seed in seeds() {
        let mut scenario = OverloadScenario::new(16, ServiceTime::Exponential(ms(40)), seed)
            .then(20, 50)
            .then(60, 300)
            .then(80, 50);
        scenario.timeout = ms(500);
        let outcome = simulate_priorities(&scenario, Queueing::Shed);
        let served = Priority::ALL.map(|priority| outcome.served(priority, 40, 80));
        assert!(served[3] >= 990, "seed {seed}: {served:?}");
        assert!(served.is_sorted() && served[0] < 50 && served[1] < 200, "seed {seed}: {served:?}");
        assert!(
            outcome.good(40, 80) * 100 >= 90 * 40 * scenario.capacity(),
            "seed {seed}: {}",
            outcome.good(40, 80)
        );
        assert!(outcome.latency(40, 80, 990) <= 2 * outcome.latency(5, 20, 990), "seed {seed}");
        assert_eq!((outcome.inversions, outcome.unfinished), (0, 0));
        let levels: Vec<u64> = outcome.seconds.iter().map(|second| second.level).collect();
        let steps = levels.windows(2).map(|pair| pair[1].abs_diff(pair[0])).max();
        assert!(steps <= Some(205), "seed {seed}: {levels:?}");
        assert!(levels[81..].is_sorted_by(|one, next| one >= next), "seed {seed}: {levels:?}");
        assert_eq!(levels.last(), Some(&0));
        // With one priority for all, critical requests are served no better than others.
        let served = simulate_priorities(&scenario, Queueing::OnePriority).served(Priority::Critical, 40, 80);
        assert!(served < 450, "seed {seed}: {served}");
    }
}

/// After a minute of three times the load, at half of the capacity, shedding ends within seconds and does not return.
#[test]
fn shedding_ends_soon_after_an_overload() {
    for seed in seeds() {
        let mut scenario = OverloadScenario::new(8, ServiceTime::Exponential(ms(40)), seed)
            .then(20, 50)
            .then(60, 300)
            .then(60, 50);
        scenario.timeout = ms(500);
        let outcome = simulate_priorities(&scenario, Queueing::Shed);
        let offered: u64 = outcome.seconds[80..90].iter().flat_map(|second| second.offered).sum();
        let share = outcome.good(80, 90) * 100 / offered;
        let last = outcome.seconds.iter().rposition(|second| second.refused > 0).unwrap() - 80;
        assert!(share >= 50 && last <= 15, "seed {seed}: {share} % in the first 10 s, refusals for {last} s");
        let levels: Vec<u64> = outcome.seconds[81..].iter().map(|second| second.level).collect();
        assert!(levels.is_sorted_by(|one, next| one >= next), "seed {seed}: {levels:?}");
    }
}

/// At loads near the capacity, where a shedder that restores quickly would oscillate, the level settles: throughput stays
/// near the possible, and the level changes little within ten seconds.
#[test]
fn the_shedder_does_not_oscillate_near_the_capacity() {
    for seed in seeds() {
        for percent in [90, 110, 130] {
            let mut scenario = OverloadScenario::new(16, ServiceTime::Exponential(ms(40)), seed)
                .then(20, 50)
                .then(100, percent);
            scenario.timeout = ms(500);
            let outcome = simulate_priorities(&scenario, Queueing::Shed);
            let most = 80 * scenario.capacity() * percent.min(100) / 100;
            let good = outcome.good(40, 120) * 100 / most;
            assert!(good >= 88, "{percent} %, seed {seed}: {good} % of the most");
            let levels: Vec<u64> = outcome.seconds[40..].iter().map(|second| second.level).collect();
            let swing =
                levels.windows(10).map(|ten| ten.iter().max().unwrap() - ten.iter().min().unwrap()).max();
            assert!(swing <= Some(1_000), "{percent} %, seed {seed}: {levels:?}");
        }
    }
}

/// Without a reserve and without a configured capacity, nearly all critical requests are answered in time, from the first
/// second of three times the load to the last, with the worker shedder and without it.
#[test]
fn critical_requests_are_served_from_the_start() {
    for seed in seeds() {
        let mut scenario = OverloadScenario::new(16, ServiceTime::Exponential(ms(40)), seed)
            .then(20, 50)
            .then(60, 300)
            .then(20, 50);
        scenario.timeout = ms(500);
        for queueing in [Queueing::Shed, Queueing::ByPriority] {
            let outcome = simulate_priorities(&scenario, queueing);
            let [onset, all] =
                [(20, 23), (20, 80)].map(|(from, to)| outcome.served(Priority::Critical, from, to));
            assert!(onset >= 990 && all >= 990, "{queueing:?}, seed {seed}: {onset} at first, {all} in all");
            let most = 60 * scenario.capacity();
            assert!(
                outcome.good(20, 80) * 100 >= 90 * most,
                "{queueing:?}, seed {seed}: {}",
                outcome.good(20, 80)
            );
            assert_eq!(outcome.unfinished, 0);
        }
        // With one priority for all, critical requests suffer from the overload like others.
        assert!(
            simulate_priorities(&scenario, Queueing::OnePriority).served(Priority::Critical, 20, 23) < 500
        );
    }
}

#[test]
fn simulations_are_repeatable() {
    let scenario = step(8, ServiceTime::Exponential(ms(40)), 7);
    assert_eq!(
        simulate(&scenario, LimiterKind::Tollgate).seconds,
        simulate(&scenario, LimiterKind::Tollgate).seconds
    );
}
