//! The units that a caller got in the worst interval of a trace, measured without the algorithm.

use tollgate::{Ticks, Timestamp};

/// Admitted units with their instants, in order of time.
pub(crate) type Admitted = [(Timestamp, u64)];

/// The most units in any interval `(t - period, t]`.
#[must_use]
pub(crate) fn worst_in_window(admitted: &Admitted, period: Ticks) -> u64 {
    let (mut from, mut inside, mut worst) = (0, 0, 0);
    for &(at, units) in admitted {
        inside += units;
        while let Some(&(oldest, left)) = admitted.get(from)
            && oldest + period <= at
        {
            inside -= left;
            from += 1;
        }
        worst = worst.max(inside);
    }
    worst
}

/// The most by which any interval of length `t` exceeds `units / period × t`, in units × ticks. That is the burst that a
/// bucket must have held, times the period. It covers every interval: of those that end with a given request, the worst
/// starts where the balance was lowest before.
#[must_use]
pub(crate) fn worst_excess(admitted: &Admitted, units: u64, period: Ticks) -> i128 {
    let (units, period) = (i128::from(units), i128::from(period.as_micros()));
    let (mut total, mut lowest, mut worst) = (0i128, i128::MAX, 0i128);
    for &(at, cost) in admitted {
        let earned = units * i128::from(at.unix_micros());
        lowest = lowest.min(total * period - earned);
        total += i128::from(cost);
        worst = worst.max(total * period - earned - lowest);
    }
    worst
}

/// The most units in flight at the same time, each for `ttl` from its instant on.
#[must_use]
pub(crate) fn worst_in_flight(admitted: &Admitted, ttl: Ticks) -> u64 {
    worst_in_window(admitted, ttl)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(seconds: &[(u64, u64)]) -> Vec<(Timestamp, u64)> {
        let at = |&(second, units)| (Timestamp::from_unix_seconds(second), units);
        seconds.iter().map(at).collect()
    }

    #[test]
    fn worst_intervals_are_found() {
        let trace = hits(&[(0, 3), (50, 4), (60, 2), (61, 1), (200, 5)]);
        assert_eq!(worst_in_window(&trace, Ticks::from_secs(60)), 7);
        assert_eq!(worst_in_window(&trace, Ticks::from_secs(61)), 9);
        assert_eq!(worst_excess(&trace, 1, Ticks::from_secs(10)), 59_000_000); // 4 + 2 + 1 in 11 s, less 1.1.
        assert_eq!(worst_excess(&trace, 1, Ticks::from_secs(1)), 5_000_000);
    }
}
