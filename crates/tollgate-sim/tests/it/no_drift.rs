//! Buckets do not drift: the millionth request is admitted at the exact tick of the rational rate, for rates from one a
//! month to ten million a second. `examples/drift.rs` checks a thousand million requests.

use tollgate::algorithm::gcra::Gcra;
use tollgate::algorithm::leaky_bucket::LeakyBucket;
use tollgate::algorithm::reservoir::Reservoir;
use tollgate::algorithm::token_bucket::TokenBucket;
use tollgate::{Quota, Rate, Ticks, Timestamp};
use tollgate_sim::limiter::Limiter;

use crate::drift::{self, Pace};

const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
/// Requests at each awkward rate by each algorithm: ten million in all.
const STEPS: u64 = 1_700_000;

fn pace(reservoir: &Reservoir) -> Pace {
    Pace {
        gain: reservoir.pace().gain().get(),
        period: reservoir.pace().unit_credits().get(),
        burst: reservoir.units(),
    }
}

/// Both buckets at a rate. A token bucket supports every rate. A GCRA, whose state is one word, may reject an awkward one
/// with an error that names the alternative.
fn both(rate: Rate) -> Vec<(Quota, Pace)> {
    let bucket = TokenBucket::new(rate).unwrap();
    let mut quotas = vec![(Quota::TokenBucket(bucket), pace(bucket.reservoir()))];
    match Gcra::new(rate) {
        Ok(gcra) => quotas.push((Quota::Gcra(gcra), pace(gcra.reservoir()))),
        Err(error) => assert!(error.to_string().contains("or `algorithm: token-bucket`"), "{error}"),
    }
    quotas
}

fn assert_no_drift(quota: Quota, pace: Pace, steps: u64) {
    let name = quota.algorithm();
    let ended = drift::greedy(&mut Limiter::new(quota), pace, T0, steps);
    let expected = drift::earned_at(pace, T0, steps);
    assert_eq!(ended, Ok(expected), "{name} at {pace:?}");
}

#[test]
fn seven_a_second() {
    for (quota, pace) in both(Rate::per_second(7)) {
        assert_no_drift(quota, pace, STEPS);
    }
}

#[test]
fn a_prime_number_a_day() {
    for (quota, pace) in both(Rate::per_day(999_983).burst(11)) {
        assert_no_drift(quota, pace, STEPS);
    }
}

#[test]
fn three_million_and_one_a_second() {
    for (quota, pace) in both(Rate::per_second(3_000_001).burst(10_000)) {
        assert_no_drift(quota, pace, STEPS);
    }
}

/// The pace of a bucket is never above the rate of its quota, and at most a millionth below.
fn assert_within_a_millionth(rate: Rate, pace: Pace) {
    let counted = u128::from(pace.gain) * u128::from(rate.period().as_micros());
    let asked = u128::from(rate.units()) * u128::from(pace.period);
    assert!(counted <= asked, "{rate:?} counts at {pace:?}");
    assert!(counted * 1_000_000 >= asked * 999_999, "{rate:?} counts at {pace:?}");
}

/// From one a month to ten million a second, with the burst of a period and with the least that can hold a tick's gain.
#[test]
fn extreme_rates_neither_drift_nor_lag() {
    let periods = [1, 60, 3_600, 86_400, 30 * 86_400].map(Ticks::from_secs);
    for units in [1u64, 2, 3, 7, 10, 97, 1_000, 33_333, 999_983, 1_000_000, 3_000_001, 9_999_991, 10_000_000]
    {
        for period in periods {
            let rate = Rate::per_ticks(units, period);
            let in_a_tick = units.div_ceil(period.as_micros());
            for rate in [rate.burst(units.max(2)), rate.burst(1 + in_a_tick)] {
                for (quota, pace) in both(rate) {
                    assert_within_a_millionth(rate, pace);
                    assert_no_drift(quota, pace, 50);
                }
                if let Ok(leaky) = LeakyBucket::new(rate.burst(1), 10) {
                    assert_within_a_millionth(rate, pace(leaky.shape().reservoir()));
                }
            }
        }
    }
}

/// A burst of one cannot hold what a tick gains beyond the unit: at 3 a second it admits every 333,334 ticks, not every
/// 333,333 and a third. Otherwise it would admit two units in less than one interval.
#[test]
fn a_burst_of_one_is_spaced_by_whole_ticks() {
    for (quota, _) in both(Rate::per_second(3).burst(1)) {
        let mut limiter = Limiter::new(quota);
        let mut now = T0;
        for _ in 0..100 {
            assert!(limiter.charge(now, 1).is_allowed());
            let retry_after = limiter.charge(now, 1).verdict.retry_after().unwrap();
            assert_eq!(retry_after, Ticks::from_micros(333_334));
            now = now + retry_after;
        }
    }
}
