//! Seeded workloads: traces of requests. A seed gives the same trace on every machine.

use tollgate::{Ticks, Timestamp};

use tollgate_sim::random::Random;

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// Its instant.
    pub(crate) at: Timestamp,
    /// Its cost.
    pub(crate) cost: u64,
}

/// The shape of the traffic. Rates are requests in a `period`, which is the period of the limit under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Independent requests at a steady rate.
    Poisson {
        /// Requests a period.
        rate: u64,
    },
    /// Poisson for the first quarter of each period and a half, then silence.
    OnOff {
        /// Requests a period during the first quarter.
        rate: u64,
    },
    /// Poisson at a rate that rises from a tenth of its peak to the peak over half a day, and falls back.
    Diurnal {
        /// Requests a period at the peak.
        peak: u64,
    },
    /// A burst over the last sixth of every other period, and another over the first sixth of the next.
    Straddling {
        /// Requests in each burst.
        burst: u64,
    },
    /// Awkward instants: bursts at one instant, requests one tick before, on and after a boundary, gaps of exactly a period.
    Adversarial {
        /// Largest cost.
        cost: u64,
    },
}

/// A day in ticks.
const DAY: u64 = 86_400 * 1_000_000;

/// The requests of a shape from `start` on for `length`, in order of time.
#[must_use]
pub(crate) fn trace(shape: Shape, period: Ticks, start: Timestamp, length: Ticks, seed: u64) -> Vec<Hit> {
    let mut random = Random::new(seed);
    let mut hits = Vec::new();
    let end = start + length;
    let period = period.as_micros();
    let mut now = start;
    while now < end {
        let before = hits.len();
        now = match shape {
            Shape::Poisson { rate } => now + gap(&mut random, period, rate),
            Shape::OnOff { rate } => on_off(now + gap(&mut random, period, rate), period),
            Shape::Diurnal { peak } => diurnal(&mut random, now, period, peak, &mut hits),
            Shape::Straddling { burst } => straddle(&mut random, now, period, burst, &mut hits),
            Shape::Adversarial { cost } => attack(&mut random, now, period, cost, &mut hits),
        };
        if hits.len() == before && now < end && !matches!(shape, Shape::Diurnal { .. }) {
            hits.push(Hit { at: now, cost: 1 });
        }
    }
    hits.retain(|hit| start <= hit.at && hit.at < end);
    hits
}

fn gap(random: &mut Random, period: u64, rate: u64) -> Ticks {
    Ticks::from_micros(random.exponential(period / rate.max(1)))
}

/// The instant itself if it is in an active phase, otherwise the start of the next one.
fn on_off(at: Timestamp, period: u64) -> Timestamp {
    let cycle = period + period / 2;
    let into = at.unix_micros() % cycle;
    if into < period / 4 { at } else { at + Ticks::from_micros(cycle - into) }
}

/// Thins a Poisson process at the peak rate down to the rate of the hour.
fn diurnal(random: &mut Random, now: Timestamp, period: u64, peak: u64, hits: &mut Vec<Hit>) -> Timestamp {
    let at = now + gap(random, period, peak);
    let into = at.unix_micros() % DAY;
    let height = into.min(DAY - into); // A triangle: 0 at midnight, half a day at noon.
    if random.below(DAY / 2) < DAY / 20 + height / 10 * 9 {
        hits.push(Hit { at, cost: 1 });
    }
    at
}

/// Adds the two bursts around the next boundary. Returns the end of the window after it.
fn straddle(random: &mut Random, now: Timestamp, period: u64, burst: u64, hits: &mut Vec<Hit>) -> Timestamp {
    let boundary = (now.unix_micros() / period + 1) * period;
    let sixth = (period / 6).max(1);
    for from in [boundary - sixth, boundary] {
        let mut instants: Vec<u64> = (0..burst).map(|_| from + random.below(sixth)).collect();
        instants.sort_unstable();
        hits.extend(instants.into_iter().map(|at| Hit { at: Timestamp::from_unix_micros(at), cost: 1 }));
    }
    Timestamp::from_unix_micros(boundary + period)
}

/// Adds requests at one awkward instant. Returns the instant to continue from.
fn attack(random: &mut Random, now: Timestamp, period: u64, cost: u64, hits: &mut Vec<Hit>) -> Timestamp {
    let boundary = (now.unix_micros() / period + 1) * period;
    let at = match random.below(8) {
        0 => now.unix_micros(),
        1 => now.unix_micros() + 1,
        2 => boundary - 1,
        3 => boundary,
        4 => boundary + 1,
        5 => now.unix_micros() + period,
        6 => now.unix_micros() + period - 1,
        _ => now.unix_micros() + random.below(period),
    };
    let at = Timestamp::from_unix_micros(at.max(now.unix_micros()));
    for _ in 0..=random.below(3) {
        let cost = match random.below(4) {
            0 => cost,
            1 => 1 + random.below(cost),
            _ => 1,
        };
        hits.push(Hit { at, cost });
    }
    at + Ticks::ONE
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_040);
    const MINUTE: Ticks = Ticks::from_secs(60);

    #[test]
    fn traces_are_ordered_within_bounds_and_repeatable() {
        let hour = Ticks::from_secs(3_600);
        for (shape, least, most) in [
            (Shape::Poisson { rate: 100 }, 5_700, 6_300),
            (Shape::OnOff { rate: 600 }, 5_600, 6_400),
            (Shape::Diurnal { peak: 100 }, 500, 6_000),
            (Shape::Straddling { burst: 80 }, 4_700, 4_900),
            (Shape::Adversarial { cost: 10 }, 100, 100_000),
        ] {
            let hits = trace(shape, MINUTE, T0, hour, 7);
            assert_eq!(hits, trace(shape, MINUTE, T0, hour, 7));
            assert!(hits.is_sorted_by_key(|hit| hit.at), "{shape:?}");
            assert!(hits.iter().all(|hit| hit.at >= T0 && hit.at < T0 + hour));
            assert!((least..=most).contains(&hits.len()), "{shape:?} has {}", hits.len());
        }
    }
}
