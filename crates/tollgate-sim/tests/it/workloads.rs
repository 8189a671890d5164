//! Seeded traffic through every algorithm: short traces against the oracle, long ones against their bound.

use tollgate::algorithm::sliding_log::SlidingLog;
use tollgate::algorithm::sliding_window::{Estimate, SlidingWindow};
use tollgate::{Quota, Rate, Ticks, Timestamp};
use tollgate_sim::limiter::Limiter;

use crate::bound;
use crate::oracle::{Bucket, Log, Oldest, Oracle, SubWindows, WindowCount, Windows};
use crate::workload::{Hit, Shape, trace};

const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_040);
const MINUTE: Ticks = Ticks::from_secs(60);
const LIMIT: u64 = 12;

const SHAPES: [Shape; 5] = [
    Shape::Poisson { rate: LIMIT },
    Shape::OnOff { rate: 6 * LIMIT },
    Shape::Diurnal { peak: 2 * LIMIT },
    Shape::Straddling { burst: LIMIT },
    Shape::Adversarial { cost: LIMIT },
];

fn subjects() -> Vec<(Quota, Box<dyn Oracle>)> {
    use tollgate::algorithm::fixed_window::{Align, FixedWindow};
    let rate = Rate::per_ticks(LIMIT, MINUTE);
    let period = MINUTE.as_micros();
    let fixed = |align| Quota::FixedWindow(FixedWindow::new(rate, align).unwrap());
    let sliding =
        |precision, estimate| Quota::SlidingWindow(SlidingWindow::new(rate, precision, estimate).unwrap());
    let windows = |windows| Box::new(WindowCount::new(LIMIT, windows));
    let wide = i128::from(period);
    vec![
        (Quota::token_bucket(rate).unwrap(), Box::new(Bucket::new(LIMIT, period, LIMIT))),
        (Quota::gcra(rate.burst(2)).unwrap(), Box::new(Bucket::new(LIMIT, period, 2))),
        (fixed(Align::Epoch), windows(Windows::Multiples(wide))),
        (fixed(Align::FirstHit), windows(Windows::FromHit(wide))),
        (sliding(1, Estimate::Interpolate), Box::new(SubWindows::new(LIMIT, period, 1, Oldest::Share))),
        (sliding(10, Estimate::Strict), Box::new(SubWindows::new(LIMIT, period / 10, 10, Oldest::Whole))),
        (Quota::SlidingLog(SlidingLog::new(rate).unwrap()), Box::new(Log::new(LIMIT, period))),
    ]
}

#[test]
fn workloads_agree_with_the_oracle() {
    for shape in SHAPES {
        for seed in 0..4 {
            let hits = trace(shape, MINUTE, T0, Ticks::from_secs(1_200), seed);
            for (quota, mut oracle) in subjects() {
                let name = quota.algorithm();
                let mut limiter = Limiter::new(quota);
                for &Hit { at, cost } in hits.iter().take(120) {
                    let answer = limiter.charge(at, cost);
                    assert_eq!(answer, oracle.charge(at, cost), "{name}, {shape:?}, seed {seed}, {at:?}");
                }
            }
        }
    }
}

/// In a day of traffic, no window of a log or of a strict sliding window exceeds the limit.
#[test]
fn a_day_of_traffic_stays_within_exact_limits() {
    let rate = Rate::per_ticks(LIMIT, MINUTE);
    let exact = [
        Quota::SlidingLog(SlidingLog::new(rate).unwrap()),
        Quota::SlidingWindow(SlidingWindow::new(rate, 10, Estimate::Strict).unwrap()),
        Quota::SlidingWindow(SlidingWindow::new(rate, 1, Estimate::Strict).unwrap()),
    ];
    for shape in SHAPES {
        let hits = trace(shape, MINUTE, T0, Ticks::from_secs(86_400), 11);
        for quota in &exact {
            let mut limiter = Limiter::new(quota.clone());
            let admitted: Vec<_> = hits
                .iter()
                .filter(|hit| limiter.charge(hit.at, hit.cost).is_allowed())
                .map(|hit| (hit.at, hit.cost))
                .collect();
            assert!(!admitted.is_empty());
            assert!(bound::worst_in_window(&admitted, MINUTE) <= LIMIT);
        }
    }
}
