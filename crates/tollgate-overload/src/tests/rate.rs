//! The adaptive rate: exact spacing, one change per window, and no growth without use.

use super::T0;
use crate::{AdaptiveRate, Cause, ChangeReason, Ending, Priority, RateSettings};
use tollgate::policy::Mode;
use tollgate::time::{Ticks, Timestamp};

fn settings() -> RateSettings {
    RateSettings {
        target: Ticks::from_millis(100),
        min: 20,
        initial: 100,
        max: 150,
        step: 10,
        ..RateSettings::default()
    }
}

/// Offers requests at a rate for some seconds, each with this latency. Returns how many were admitted.
fn offer(
    rate: &AdaptiveRate,
    from: Timestamp,
    seconds: u64,
    per_second: u64,
    took: Ticks,
) -> (u64, Timestamp) {
    let mut admitted = 0;
    let mut now = from;
    for _ in 0..seconds * per_second {
        now = now + Ticks::from_micros(1_000_000 / per_second);
        if rate.begin(now) {
            admitted += 1;
            rate.end(now, now + took, Ending::Success);
        }
    }
    (admitted, now)
}

/// Above the target the rate falls by a tenth per window, down to its minimum. Below, it rises by a step, up
/// to its maximum.
#[test]
fn the_rate_follows_latency_once_per_window() {
    let rate = AdaptiveRate::new(settings());
    let (_, now) = offer(&rate, T0, 3, 1_000, Ticks::from_millis(300));
    assert!((72..=90).contains(&rate.rate()), "{}", rate.rate());
    assert_eq!(rate.report(now).reason, ChangeReason::AboveTarget);
    let (_, now) = offer(&rate, now, 40, 1_000, Ticks::from_millis(300));
    assert_eq!(rate.rate(), 20);
    let (_, now) = offer(&rate, now, 3, 1_000, Ticks::from_millis(20));
    assert!((40..=50).contains(&rate.rate()), "{}", rate.rate());
    let (_, now) = offer(&rate, now, 40, 1_000, Ticks::from_millis(20));
    assert_eq!((rate.rate(), rate.report(now).reason), (150, ChangeReason::BelowTarget));
    let (admitted, _) = offer(&rate, now, 10, 1_000, Ticks::from_millis(20));
    assert!((1_490..=1_520).contains(&admitted), "{admitted}");
}

/// An unused rate does not grow.
#[test]
fn the_rate_grows_only_while_it_is_used() {
    let rate = AdaptiveRate::new(settings());
    offer(&rate, T0, 30, 40, Ticks::from_millis(20));
    assert_eq!(rate.rate(), 100);
    offer(&rate, T0 + Ticks::from_secs(60), 5, 80, Ticks::from_millis(20));
    assert!(rate.rate() > 120);
}

/// Losses count as slow; cancellations do not count.
#[test]
fn losses_lower_the_rate() {
    let rate = AdaptiveRate::new(settings());
    for (turn, ending, expected) in [(0, Ending::Ignored, 100..=100), (1, Ending::Dropped, 20..=60)] {
        for tick in 0..1_000 {
            let now = T0 + Ticks::from_millis(10 * (1_000 * turn + tick));
            if rate.begin(now) {
                rate.end(now, now, ending);
            }
        }
        assert!(expected.contains(&rate.rate()), "{ending:?} {}", rate.rate());
    }
    assert_eq!(rate.refusal(Priority::Test).cause, Cause::Rate);
}

/// In shadow all requests pass and are counted; when killed they are not counted.
#[test]
fn modes_and_kill_switch() {
    let rate = AdaptiveRate::new(RateSettings { mode: Mode::Shadow, ..settings() });
    let (admitted, now) = offer(&rate, T0, 1, 1_000, Ticks::from_millis(20));
    assert_eq!(admitted, 1_000);
    let would_refuse = rate.report(now).would_refuse;
    assert!((850..900).contains(&would_refuse), "{would_refuse}");
    rate.switch().set(Mode::Enforce);
    rate.switch().kill(now + Ticks::from_secs(10));
    let (admitted, _) = offer(&rate, now, 1, 1_000, Ticks::from_millis(20));
    assert_eq!((admitted, rate.report(now).would_refuse), (1_000, would_refuse));
}
