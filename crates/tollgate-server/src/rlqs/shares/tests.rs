//! Fleets of Envoys in virtual time, against a counter that the test keeps.

use proptest::prelude::*;

use super::*;
use crate::rlqs::grant::Strategy;

mod fleet;

use fleet::{Fleet, Load, STEP, seconds};

const HOUR: Ticks = Ticks::from_secs(3_600);

fn per_second(units: u64, burst: u64) -> QuotaParameters {
    QuotaParameters { rate: units * NANO, period: Ticks::from_secs(1), capacity: burst, is_steady: true }
}

/// A single Envoy has the whole limit from its first request, and receives the same assignment as long as nothing
/// changes.
#[test]
fn alone_it_has_all() {
    let mut fleet = Fleet::new(per_second(100, 200), &[(Load::steady(50), 0)]);
    fleet.run(seconds(1));
    let first = fleet.envoys[0].strategy;
    assert_eq!(
        first,
        Some(Strategy::TokenBucket { max_tokens: 200, tokens_per_fill: 1_000, fill_seconds: 10 })
    );
    fleet.run(seconds(20));
    let (settled, replaced) = (fleet.envoys[0].strategy, fleet.envoys[0].replaced);
    fleet.run(seconds(60));
    assert_eq!((fleet.envoys[0].strategy, fleet.envoys[0].replaced), (settled, replaced));
    assert_eq!(fleet.envoys[0].refused, 1); // The first request, for which there was no assignment.
}

/// With unequal demand, the smaller Envoy gets all it asks for and the busy one gets the rest, within two reports. The
/// same holds after the demand changes.
#[test]
fn shares_follow_demand_within_two_reports() {
    let mut fleet = Fleet::new(per_second(600, 600), &[(Load::steady(800), 0), (Load::steady(100), 1_700)]);
    fleet.run(seconds(13));
    let rates = fleet.rates();
    assert!((440..=490).contains(&rates[0]) && (105..=150).contains(&rates[1]), "{rates:?}");
    let before = fleet.admitted();
    fleet.run(seconds(5));
    assert!(fleet.admitted() - before >= 2_700, "{}", fleet.admitted() - before);

    // The busy Envoy stops and the other one wants everything. The next report of each shows it, and the report after
    // that completes it.
    fleet.run(seconds(2) + STEP);
    (fleet.envoys[0].load, fleet.envoys[1].load) = (Load::steady(0), Load::steady(900));
    let reports = fleet.envoys[0].reports;
    while fleet.envoys[0].reports < reports + 2 {
        fleet.run(STEP);
    }
    fleet.run(seconds(1));
    let rates = fleet.rates();
    assert!(rates[1] >= 530, "{rates:?}");
}

/// A new Envoy gets a first share immediately, even if everything is assigned. It gets its full part once the other
/// Envoy has certainly read its smaller assignment.
#[test]
fn a_newcomer_has_a_first_share() {
    let mut fleet = Fleet::new(per_second(1_000, 1_000), &[(Load::steady(2_000), 0)]);
    fleet.run(seconds(12));
    fleet.join(Load::steady(2_000), 0);
    fleet.run(seconds(1));
    let rates = fleet.rates();
    assert!((480..=520).contains(&rates[0]) && (30..=60).contains(&rates[1]), "{rates:?}");
    fleet.run(seconds(6));
    let rates = fleet.rates();
    assert!(rates.iter().all(|rate| (470..=520).contains(rate)), "{rates:?}");
}

/// Regression: a counter was in debt for units taken by other callers, so less than the limit was assigned while the
/// other Envoy still followed all of it. A new Envoy then got one request in ten seconds instead of its first share,
/// until the other Envoy reported.
#[test]
fn a_newcomer_has_a_first_share_while_something_is_owed() {
    let parameters = per_second(1_000, 1_000);
    let (mut shares, counter) = (Shares::default(), CounterId(1, 2));
    let verdict = BucketVerdict::Limited(vec![BucketCounter { counter, parameters, cost: 1 }]);
    let (old, newcomer) = (SubscriptionId { stream: 0, bucket: 9 }, SubscriptionId { stream: 1, bucket: 9 });
    let mut now = Timestamp::from_unix_seconds(1_700_000_000);
    for _ in 0..4 {
        shares.used(old, 5_000, now);
        shares.acquire(counter, parameters, 0, 1_000, now);
        shares.report(old, Usage { allowed: 5_000, denied: 100 }, &verdict, now);
        now = now + seconds(5);
    }
    let followed = shares.subscriptions[&old].grants.effective(now).rate;
    assert!(followed >= 900 * NANO, "the other has nearly all: {followed}");
    for (bucket, owed) in [(1, 0), (2, 2_000), (3, 2_000)] {
        shares.acquire(counter, parameters, owed, 0, now);
        let id = SubscriptionId { bucket, ..newcomer };
        shares.report(id, Usage { allowed: 1, denied: 0 }, &verdict, now);
        let first = shares.subscriptions[&id].grants.effective(now).rate;
        assert!(first >= parameters.rate / 100, "{owed} owed: {first}");
        assert!(
            shares.counters[&counter].out.rate <= parameters.rate / 10 * 11 + 3 * NANO,
            "within the promise"
        );
    }
}

/// The grants of a lost stream stay reserved until they expire, and go to others then.
#[test]
fn a_lost_share_returns_when_it_ends() {
    let mut fleet =
        Fleet::new(per_second(1_000, 1_000), &[(Load::steady(2_000), 0), (Load::steady(2_000), 0)]);
    fleet.run(seconds(14));
    fleet.lose(0);
    fleet.run(seconds(9));
    assert!(fleet.rates()[1] <= 540, "{:?}", fleet.rates());
    fleet.run(seconds(12));
    assert!(fleet.rates()[1] >= 950, "{:?}", fleet.rates());
}

/// A bucket that is unused for a minute is abandoned. A bucket that is used now and then is not.
#[test]
fn idle_buckets_are_abandoned() {
    let mut fleet = Fleet::new(per_second(100, 100), &[(Load::once(), 0), (Load::steady(1), 0)]);
    fleet.run(seconds(59));
    assert_eq!(fleet.shares.summary(fleet.now).subscriptions, 2);
    fleet.run(seconds(12));
    assert!(fleet.envoys[0].strategy.is_none() && fleet.envoys[1].strategy.is_some());
    let summary = fleet.shares.summary(fleet.now);
    assert_eq!((summary.subscriptions, summary.buckets), (1, 1));
    fleet.lose(1);
    fleet.idle(seconds(40));
    fleet.shares.sweep(fleet.now);
    assert!(fleet.shares.subscriptions.is_empty() && fleet.shares.counters.is_empty());
}

/// Usage by other callers lowers the assignments. The assignments recover when those callers stop.
#[test]
fn the_counter_is_shared() {
    let mut fleet = Fleet::new(per_second(100, 100), &[(Load::steady(200), 0), (Load::steady(200), 2_000)]);
    fleet.elsewhere = 60;
    fleet.run(seconds(60));
    let (before, elsewhere) = (fleet.admitted(), fleet.admitted_elsewhere);
    fleet.run(seconds(60));
    let (ours, theirs) = (fleet.admitted() - before, fleet.admitted_elsewhere - elsewhere);
    assert!((5_600..=6_100).contains(&(ours + theirs)), "{ours} and {theirs}");
    assert!(theirs >= 3_000, "{ours} and {theirs}");
    fleet.elsewhere = 0;
    fleet.run(seconds(30));
    assert!(fleet.rates().iter().sum::<u64>() >= 85, "{:?}", fleet.rates());
}

/// A window that gives nothing back is used up and not exceeded, and is used again when it starts anew.
#[test]
fn windows_are_not_passed() {
    let day =
        QuotaParameters { rate: 1_000 * NANO / 86_400, period: HOUR, capacity: 1_000, is_steady: false };
    let mut fleet = Fleet::new(day, &[(Load::steady(40), 0), (Load::steady(4), 900)]);
    fleet.run(seconds(300));
    assert!((950..=1_004).contains(&fleet.admitted()), "{}", fleet.admitted());
    fleet.refill();
    fleet.run(seconds(300));
    assert!((1_900..=2_010).contains(&fleet.admitted()), "{}", fleet.admitted());
}

/// A counter shared by two buckets is divided between them, independently of the counters that each bucket has alone.
#[test]
fn a_counter_of_several_buckets_is_divided() {
    let (mut shares, now) = (Shares::default(), Timestamp::from_unix_seconds(1_700_000_000));
    let look = |key, units| BucketCounter {
        counter: CounterId(1, key),
        parameters: per_second(units, units),
        cost: 1,
    };
    let subscription = |bucket| SubscriptionId { stream: 1, bucket };
    for second in [0, 2, 7, 12, 17] {
        for bucket in [1, 2, 3] {
            let own = if bucket == 1 { 10 } else { 1_000 };
            let looks = vec![look(0, 300), look(bucket, own)];
            for look in &looks {
                let now = now + Ticks::from_secs(second);
                shares.acquire(look.counter, look.parameters, 0, look.parameters.capacity, now);
            }
            let verdict = BucketVerdict::Limited(looks);
            let usage = Usage { allowed: 1_000, denied: 4_000 };
            shares.report(subscription(bucket), usage, &verdict, now + Ticks::from_secs(second));
        }
    }
    let later = now + Ticks::from_secs(17);
    let rates: Vec<u64> = [1, 2, 3]
        .iter()
        .map(|&bucket| shares.subscriptions[&subscription(bucket)].grants.effective(later).rate / NANO)
        .collect();
    assert!(rates[0] <= 11 && rates[1..].iter().all(|rate| (140..=155).contains(rate)), "{rates:?}");
    assert!(shares.counters[&CounterId(1, 0)].out.rate <= 310 * NANO);
}

/// Buckets beyond the maximum are refused, and other buckets are unaffected.
#[test]
fn subscriptions_are_bounded() {
    let (mut shares, now) = (Shares::default(), Timestamp::from_unix_seconds(1_700_000_000));
    let usage = Usage { allowed: 1, denied: 0 };
    for bucket in 0..SUBSCRIPTIONS_MAX as u64 {
        shares.report(SubscriptionId { stream: 1, bucket }, usage, &BucketVerdict::Unlimited, now);
    }
    let over = SubscriptionId { stream: 2, bucket: 0 };
    let denied = Assignment { strategy: Strategy::DenyAll, ttl_seconds: 5 };
    assert_eq!(
        shares.report(over, usage, &BucketVerdict::Unlimited, now),
        [(over, Instruction::Assign(denied))]
    );
    assert_eq!(shares.subscriptions.len(), SUBSCRIPTIONS_MAX);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// The documented bound, for any arrivals, departures, demand and read delay. The followed grants add up to the
    /// limit plus a tenth. The requests admitted in any interval are at most what the limit admits in it, plus one
    /// second of its rate, a tenth of its burst, three requests per Envoy, and what Envoys with a broken stream could
    /// not report.
    #[test]
    fn the_bound_holds(
        rate in 1u64..2_000,
        burst in 1u64..4_000,
        keeps_ratio in any::<bool>(),
        envoys in prop::collection::vec((0u64..3_000, 0u64..3_000, 0u64..5_000), 1..7),
        events in prop::collection::vec((0usize..8, 0u64..4, 0u64..3_000), 12),
        latency in 1u64..30,
    ) {
        let parameters = per_second(rate, burst);
        let mut fleet = Fleet::new(parameters, &[]);
        (fleet.keeps_ratio, fleet.latency) = (keeps_ratio, latency);
        for (load, after, phase) in envoys {
            fleet.join(Load::steady(load), phase);
            fleet.run(Ticks::from_millis(after));
        }
        for (which, event, load) in events {
            let which = which % fleet.envoys.len();
            match event {
                0 => fleet.lose(which),
                1 if fleet.envoys.len() < 12 => fleet.join(Load::steady(load), load),
                _ => fleet.envoys[which].load = Load::steady(load),
            }
            fleet.run(Ticks::from_millis(load * 3));
            let count = fleet.envoys.len() as u64;
            let most = rate * 1_100 + burst * 1_000 / 20 + count * rate + 1_000;
            prop_assert!(fleet.most_followed <= most, "{} of {most} thousandths", fleet.most_followed);
        }
        let most = burst + rate + burst.div_ceil(10) + 3 * fleet.envoys.len() as u64 + fleet.unreported;
        // Before Envoy 1.33, a replaced bucket starts full.
        let most = if keeps_ratio { most } else { 3 * most };
        prop_assert!(fleet.most_beyond_rate <= most, "{} beyond the rate, of {most}", fleet.most_beyond_rate);
    }

    /// Whatever other callers take from the same counter, the sum is bounded in the long run. The excess is at most
    /// what was assigned to Envoys before they learned of that usage, and they pay it back.
    #[test]
    fn the_sum_with_others_is_bounded(
        rate in 1u64..1_000,
        burst in 1u64..2_000,
        elsewhere in prop::collection::vec(0u64..1_500, 6),
        envoys in prop::collection::vec((0u64..1_500, 0u64..5_000), 1..5),
    ) {
        let burst = burst + rate / 5; // A smaller burst is full again before the next acquisition.
        let mut fleet = Fleet::new(per_second(rate, burst), &[]);
        envoys.into_iter().for_each(|(load, phase)| fleet.join(Load::steady(load), phase));
        for load in elsewhere {
            fleet.elsewhere = load;
            fleet.run(seconds(20));
        }
        let most = burst + 120 * rate + 2 * burst + 10 * rate + 3 * fleet.envoys.len() as u64;
        let all = fleet.admitted() + fleet.admitted_elsewhere;
        prop_assert!(all <= most, "{all} of {most}: {} and {}", fleet.admitted(), fleet.admitted_elsewhere);
    }
}

/// Regression: an almost full counter was taken for one that had lost all that came back meanwhile, although other
/// callers had used it. What Envoys reported late was then forgiven again and again, and the sum passed its bound: by
/// one request with a steady load, and by more the longer an Envoy's load came and went.
#[test]
fn units_that_others_used_are_not_lost() {
    let run = |(rate, burst): (u64, u64), phase, loads: [u64; 2], elsewhere: [u64; 6]| {
        let mut fleet = Fleet::new(per_second(rate, burst), &[(Load::steady(loads[0]), phase)]);
        for (period, load) in elsewhere.repeat(10).into_iter().enumerate() {
            fleet.elsewhere = load;
            for load in loads.repeat(2) {
                fleet.envoys[0].load = Load::steady(load);
                fleet.run(seconds(5));
            }
            let most = burst + 20 * rate * (period as u64 + 1) + 2 * burst + 10 * rate;
            let sum = fleet.admitted() + fleet.admitted_elsewhere;
            assert!(sum <= most, "{sum} of {most} in period {period} at {rate}/s");
        }
    };
    run((677, 377), 4_810, [769, 769], [581, 356, 296, 497, 355, 975]);
    run((987, 317), 89, [0, 1_284], [1_198, 845, 344, 1_454, 421, 833]);
}

/// Regression: the last Envoy went away, and its usage was expected to continue until another one came. The next Envoy
/// met a limit that stayed closed for a minute or more. A departed Envoy owes only until its grants end, whatever the
/// gap.
#[test]
fn a_departed_envoy_owes_until_its_grants_expire() {
    let owed = |gap: u64| {
        let parameters = per_second(60, 60);
        let mut shares = Shares::default();
        let counter = CounterId(1, 2);
        let verdict = BucketVerdict::Limited(vec![BucketCounter { counter, parameters, cost: 1 }]);
        let (first, second) =
            (SubscriptionId { stream: 0, bucket: 9 }, SubscriptionId { stream: 1, bucket: 9 });
        let mut now = Timestamp::from_unix_seconds(1_700_000_000);
        for _ in 0..6 {
            shares.used(first, 250, now);
            shares.acquire(counter, parameters, 0, 60, now);
            shares.report(first, Usage { allowed: 250, denied: 0 }, &verdict, now);
            now = now + seconds(5);
        }
        shares.leave(0, now);
        now = now + seconds(gap);
        shares.used(second, 0, now);
        shares.acquire(counter, parameters, 0, 30, now);
        shares.report(second, Usage { allowed: 0, denied: 0 }, &verdict, now);
        shares.summary(now).owed
    };
    let soon = owed(60);
    assert!(soon <= 60 * 60, "a minute of the limit at most: {soon}");
    assert_eq!(owed(600), soon, "ten minutes later it owes no more");
    assert_eq!(owed(3_600), soon);
}
