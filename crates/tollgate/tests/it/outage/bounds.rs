//! Bounds on the units that a fleet admits during and after an outage.

use tollgate::algorithm::fixed_window::Align;
use tollgate::algorithm::sliding_window::Estimate;
use tollgate::{Quota, Rate, Timestamp};

use super::{Dice, Fleet, after};
use crate::fixture::{NOW, limit};

/// The admitted units, and when.
#[derive(Default)]
struct Record(Vec<(u64, u64)>);

impl Record {
    fn note(&mut self, at: Timestamp, cost: u64) {
        self.0.push((at.since(NOW).as_micros(), cost));
    }

    /// The most that any interval admitted beyond the rate, in millionths of a unit: `admitted − ρ·t`.
    fn worst(&self, rate: Rate) -> i128 {
        let refill = |micros: u64| {
            i128::from(micros) * i128::from(rate.units()) * 1_000_000 / i128::from(rate.period().as_micros())
        };
        let (mut best, mut ending, mut last) = (0i128, 0i128, 0u64);
        for &(at, cost) in &self.0 {
            // An interval begins with an admission, or goes on from the one before.
            ending = (ending - refill(at - last)).max(0) + i128::from(cost) * 1_000_000;
            best = best.max(ending);
            last = at;
        }
        best
    }
}

struct Trial {
    fleet: Fleet,
    rate: Rate,
    burst: u64,
    nodes: u64,
    largest: u64,
    skew: u64,
}

impl Trial {
    fn roll(dice: &mut Dice, largest: u64) -> Self {
        let nodes = [1, 2, 3, 5, 8, 20][usize::try_from(dice.below(6)).unwrap_or(0)];
        let period = [1, 10, 60][usize::try_from(dice.below(3)).unwrap_or(0)];
        let units = 1 + dice.below(40);
        let rate = Rate::per(units, std::time::Duration::from_secs(period));
        let kind = dice.below(5);
        let burst = if kind < 2 { largest + dice.below(60) } else { units };
        let quota = match kind {
            0 => Quota::token_bucket(rate.burst(burst)),
            1 => Quota::gcra(rate.burst(burst)),
            2 => Quota::fixed_window(rate, Align::Epoch),
            3 => Quota::sliding_window(rate, 10, Estimate::Strict),
            _ => Quota::sliding_log(rate),
        };
        let quota = quota.expect("the numbers are small");
        let fleet = Fleet::of(nodes, || limit("limit", quota.clone()));
        Self { fleet, rate, burst, nodes: u64::from(nodes), largest, skew: dice.below(3) }
    }

    /// Asks at random nodes, evenly or mostly at one, with more than the limit admits.
    fn ask(&self, dice: &mut Dice, now: Timestamp) -> Option<u64> {
        let node = if dice.below(3) < self.skew { 0 } else { dice.below(self.nodes) };
        let cost = 1 + dice.below(self.largest);
        let decision = self.fleet.check(usize::try_from(node).unwrap_or(0), "k", cost, now);
        decision.is_allowed().then_some(cost)
    }

    /// The most at once of all shares together: of single units the burst or one for each node; a larger request takes a whole share.
    fn at_once(&self) -> i128 {
        i128::from(self.burst.max(self.nodes * self.largest)) * 1_000_000
    }
}

/// How often each is tried.
const TRIALS: u64 = 80;

/// Runs trials, each with traffic before, during and after an outage; hands what was admitted in each time to `judge`.
fn trials(largest: u64, forgets: bool, mut judge: impl FnMut(&Trial, [Record; 3])) {
    for seed in 1..=TRIALS {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let trial = Trial::roll(&mut dice, largest);
        trial.fleet.shared.forgets_debits.store(forgets, std::sync::atomic::Ordering::SeqCst);
        let mut records = <[Record; 3]>::default();
        let mut at = 0u64;
        trial.fleet.see(NOW);
        let phase = trial.rate.period().as_micros() * (1 + dice.below(4));
        for (index, record) in records.iter_mut().enumerate() {
            trial.fleet.shared.set(index == 1);
            if index == 2 {
                trial.fleet.settle(after(at));
            }
            let end = at + phase;
            while at < end {
                at += dice.below(2 * phase / 150);
                if let Some(cost) = trial.ask(&mut dice, after(at)) {
                    record.note(after(at), cost);
                }
            }
        }
        assert!(trial.fleet.shared.failures.load(std::sync::atomic::Ordering::SeqCst) > 0, "seed {seed}");
        judge(&trial, records);
    }
}

/// During an outage all nodes together admit at most `max(burst, nodes) + rate × time`, whatever the load and wherever it arrives; and
/// the time after it adds nothing, because the deferred charges are reported.
#[test]
fn a_fleet_without_its_store_keeps_to_the_limit() {
    for largest in [1, 4] {
        let (mut reached, mut trials_run) = (0, 0);
        trials(largest, false, |trial, [_, during, after]| {
            let worst = during.worst(trial.rate);
            assert!(
                worst <= trial.at_once(),
                "{worst} of {} in an outage, {:?}",
                trial.at_once(),
                trial.rate
            );
            reached += u32::from(2 * worst >= trial.at_once());
            trials_run += 1;
            let both = Record(during.0.into_iter().chain(after.0).collect());
            let worst = both.worst(trial.rate);
            // A debit takes whole units, so less than one may be left that the outage had used. A window may begin anew with the
            // store's own; it admits twice its units at its edge.
            let slack = 1_000_000
                + if trial.burst == trial.rate.units() { i128::from(trial.burst) * 1_000_000 } else { 0 };
            assert!(worst <= trial.at_once() + slack, "{worst} of {} with the time after", trial.at_once());
        });
        assert!(trials_run == TRIALS && reached > 15, "the bound is tight: {reached} of {trials_run}");
    }
}

/// The same without telling the store is found out: the check above can fail.
#[test]
fn a_store_without_reports_admits_too_much() {
    let mut found = 0;
    trials(1, true, |trial, [_, during, after]| {
        let both = Record(during.0.into_iter().chain(after.0).collect());
        let is_bucket = trial.burst != trial.rate.units();
        found += u32::from(is_bucket && both.worst(trial.rate) > trial.at_once() + 1_000_000);
    });
    assert!(found > 5, "{found}");
}

/// Over all times together an outage costs at most what stands in on its entry.
#[test]
fn an_outage_costs_one_burst_of_the_fleet() {
    trials(1, false, |trial, records| {
        let all = Record(records.into_iter().flat_map(|record| record.0).collect());
        let windows = if trial.burst == trial.rate.units() { 2 } else { 1 };
        let bound = i128::from(trial.burst) * windows * 1_000_000 + trial.at_once() + 1_000_000;
        assert!(all.worst(trial.rate) <= bound, "{} of {bound}", all.worst(trial.rate));
    });
}

/// Five a minute on twenty nodes: twenty once, then five a minute by all of them.
#[test]
fn a_small_limit_on_many_nodes() {
    let fleet = Fleet::of(20, || limit("limit", Quota::token_bucket(Rate::per_minute(5)).expect("valid")));
    fleet.see(NOW);
    fleet.shared.set(true);
    let mut admitted = [0; 5];
    for second in 0..300u64 {
        let minute = usize::try_from(second / 60).unwrap_or(0);
        for node in 0..20 {
            let decision = fleet.check(node, "k", 1, after(second * 1_000_000));
            admitted[minute] += u32::from(decision.is_allowed());
        }
    }
    assert_eq!(admitted, [20, 0, 0, 0, 20], "each node's share is one in four minutes");
}

/// A month's window counts on in its share: what a node has used before the outage is not given again.
#[test]
fn a_large_window_is_warm() {
    let quota = Quota::fixed_window(Rate::per_hour(3_000), Align::Epoch).expect("valid");
    let fleet = Fleet::of(3, || limit("limit", quota.clone()));
    for node in 0..3 {
        assert!(fleet.check(node, "k", 800, NOW).is_allowed());
    }
    fleet.shared.set(true);
    for node in 0..3 {
        assert!(!fleet.check(node, "k", 201, NOW).is_allowed());
        assert!(fleet.check(node, "k", 200, NOW).is_allowed());
        assert!(!fleet.check(node, "k", 1, NOW).is_allowed());
    }
}

/// Retry advice of a share is exact, also for requests that cost more than the share has.
#[test]
fn retry_advice_of_a_share_is_exact() {
    for nodes in [1, 3, 7] {
        for cost in [1, 2, 5, 9] {
            let quota = Quota::token_bucket(Rate::per_second(3).burst(10)).expect("valid");
            let fleet = Fleet::of(nodes, || limit("limit", quota.clone()));
            fleet.see(NOW);
            fleet.shared.set(true);
            let mut now = NOW;
            for round in 0..6 {
                let decision = fleet.check(0, "k", cost, now);
                if decision.is_allowed() {
                    continue;
                }
                let wait = decision.retry_after().expect("waiting cures it");
                let early = now + wait - tollgate::Ticks::ONE;
                assert!(
                    !fleet.check(0, "k", cost, early).is_allowed(),
                    "{nodes} nodes, cost {cost}, {round}"
                );
                now = now + wait;
                let decision = fleet.check(0, "k", cost, now);
                assert!(decision.is_allowed(), "{nodes} nodes, cost {cost}, round {round}");
                let outcome = decision.limits().next().expect("one limit").outcome;
                assert!(
                    outcome.remaining <= outcome.limit && outcome.limit == (10 / u64::from(nodes)).max(1)
                );
            }
        }
    }
}

/// A store that comes and goes once a second for ten minutes costs no burst each time: at most what shares refill while it is there, which
/// nodes have to spare that were not asked then.
#[test]
fn a_flapping_store_costs_no_burst_each_time() {
    const NODES: u64 = 3;
    let rate = Rate::per_second(10).burst(30);
    let fleet = Fleet::of(3, || limit("limit", Quota::token_bucket(rate).expect("valid")));
    fleet.see(NOW);
    let (mut dice, mut record, mut local) = (Dice(11), Record::default(), 0);
    for tick in 0..30_000u64 {
        let now = after(tick * 20_000);
        fleet.shared.set(tick % 50 < 25);
        if tick % 5 == 0 {
            fleet.settle(now);
        }
        let node = usize::try_from(dice.below(NODES)).unwrap_or(0);
        let decision = fleet.check(node, "k", 1, now);
        if decision.is_allowed() {
            record.note(now, 1);
            local += u32::from(super::source(&decision) == "local");
        }
    }
    assert!(local > 1_000, "{local} were admitted by shares");
    let worst = record.worst(rate);
    let refilled_while_there = 300 * 10;
    assert!(worst <= (30 + 30 + refilled_while_there) * 1_000_000, "{worst}");
    assert!(
        worst <= (30 + 30) * 1_000_000 + 6_000_000_000 / 5,
        "a fifth of the rate where load is even: {worst}"
    );
    let fallback = fleet.engines[0].maintenance().fallback().expect("the store can be away");
    assert!(fallback.deferred_settled > 300 && fallback.deferred_dropped == 0, "{fallback:?}");
}

/// Nodes that join while the store is away bring their own share once; from then on all together keep to the rate.
#[test]
fn nodes_that_join_in_an_outage_keep_to_the_rate() {
    let rate = Rate::per_second(12).burst(60);
    let fleet = Fleet::counting(6, 3, || {
        crate::fixture::policy(vec![limit("limit", Quota::token_bucket(rate).expect("valid"))])
    });
    fleet.see(NOW);
    fleet.shared.set(true);
    let (mut record, mut dice) = (Record::default(), Dice(5));
    for tick in 0..12_000u64 {
        let now = after(tick * 5_000);
        let there = if tick < 2_000 { 3 } else { 6 };
        if tick == 2_000 {
            fleet.nodes.store(6, std::sync::atomic::Ordering::SeqCst);
        }
        let node = usize::try_from(dice.below(there)).unwrap_or(0);
        if fleet.check(node, "k", 1, now).is_allowed() {
            record.note(now, 1);
        }
    }
    let worst = record.worst(rate);
    assert!(worst <= (60 + 30) * 1_000_000, "{worst}: the burst, and the shares of three new nodes of six");
    let late = Record(record.0.iter().copied().filter(|(at, _)| *at > 30_000_000).collect());
    assert!(late.worst(rate) <= 60 * 1_000_000, "{}", late.worst(rate));
}

/// Threads that ask one node at once get its share and no more, of one limit and of several.
#[test]
fn a_share_is_not_given_twice() {
    for limits in [1, 2] {
        let fleet = Fleet::new(2, || {
            let names = ["one", "two"];
            crate::fixture::policy(
                names[..limits].iter().map(|name| crate::fixture::bucket(name, 400)).collect(),
            )
        });
        fleet.see(NOW);
        fleet.shared.set(true);
        let admitted = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..150 {
                        let allowed = fleet.check(0, "k", 1, NOW).is_allowed();
                        admitted.fetch_add(u32::from(allowed), std::sync::atomic::Ordering::SeqCst);
                    }
                });
            }
        });
        let admitted = admitted.into_inner();
        assert!((196..=200).contains(&admitted), "{admitted} of 200 with {limits} limits");
        let fallback = fleet.engines[0].maintenance().fallback().expect("the store can be away");
        assert_eq!(fallback.deferred_held, limits);
        fleet.shared.set(false);
        fleet.settle(NOW);
        let left = fleet.check(1, "k", 0, NOW);
        let left: Vec<u64> = left.limits().map(|status| status.outcome.remaining).collect();
        assert!(left.iter().all(|left| *left == u64::from(400 - admitted)), "{left:?} after {admitted}");
    }
}
