//! What a fleet admits while its store is away, and after it.

use tollgate::algorithm::fixed_window::Align;
use tollgate::algorithm::sliding_window::Estimate;
use tollgate::{Quota, Rate, Timestamp};

use super::{Dice, Fleet, after};
use crate::fixture::{NOW, limit};

/// What was admitted, and when.
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

/// Runs trials, each with traffic before, during and after an outage; hands what was admitted in each time to `judge`.
fn trials(largest: u64, forgets: bool, mut judge: impl FnMut(&Trial, [Record; 3])) {
    for seed in 1..=150u64 {
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
/// the time after it adds nothing, because the store is told.
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
        assert!(trials_run == 150 && reached > 30, "the bound is tight: {reached} of {trials_run}");
    }
}

/// The same without telling the store is found out: the check above can fail.
#[test]
fn a_store_that_is_not_told_admits_too_much() {
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
fn a_share_tells_when_to_come_back() {
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
                let told = decision.limits().next().expect("one limit").outcome;
                assert!(told.remaining <= told.limit && told.limit == (10 / u64::from(nodes)).max(1));
            }
        }
    }
}
