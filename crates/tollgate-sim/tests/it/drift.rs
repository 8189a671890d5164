//! The drift check: a greedy caller is admitted at exactly the instants of the rational rate, after any number of
//! requests.

use tollgate::{Ticks, Timestamp, Verdict};

use tollgate_sim::limiter::Limiter;

/// The first request of a greedy caller with a wrong verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drift {
    /// Number of requests admitted since the burst.
    pub(crate) step: u64,
    /// The instant of the request.
    pub(crate) at: Timestamp,
    /// The wrong verdict.
    pub(crate) verdict: Verdict,
}

/// The burst of a bucket, and its rate: `gain` units every `period` ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Units earned in a period.
    pub(crate) gain: u64,
    /// Length of the period in ticks.
    pub(crate) period: u64,
    /// Units of a full bucket.
    pub(crate) burst: u64,
}

/// Takes the burst at `start`, then `steps` units, each at the tick at which the rate has earned it. A charge one tick
/// earlier must be denied with a `retry_after` of one tick. The instants are those of the rational rate itself: they come
/// from an exact division whose remainder is carried over.
///
/// # Errors
/// A verdict is wrong; the error describes the first.
pub(crate) fn greedy(
    limiter: &mut Limiter,
    pace: Pace,
    start: Timestamp,
    steps: u64,
) -> Result<Timestamp, Drift> {
    let first = limiter.charge(start, pace.burst);
    if first.verdict != Verdict::Allow || first.remaining != 0 {
        return Err(Drift { step: 0, at: start, verdict: first.verdict });
    }
    // The surplus is what the rate has earned beyond whole units, in `1 / period` of a unit.
    let (mut now, mut surplus) = (start, 0u64);
    for step in 0..steps {
        let missing = pace.period.saturating_sub(surplus);
        let ticks = Ticks::from_micros(missing.div_ceil(pace.gain));
        surplus = surplus + ticks.as_micros() * pace.gain - pace.period;
        now = now + ticks;
        if !ticks.is_zero() {
            expect(limiter, Verdict::Deny { retry_after: Ticks::ONE }, now - Ticks::ONE, step)?;
        }
        expect(limiter, Verdict::Allow, now, step)?;
    }
    Ok(now)
}

/// Charges one unit. Any other verdict is a drift.
fn expect(limiter: &mut Limiter, expected: Verdict, at: Timestamp, step: u64) -> Result<(), Drift> {
    let verdict = limiter.charge(at, 1).verdict;
    if verdict == expected { Ok(()) } else { Err(Drift { step, at, verdict }) }
}

/// The instant at which the rate has earned `units`: one multiplication and one division, without a remainder to carry.
#[must_use]
pub(crate) fn earned_at(pace: Pace, start: Timestamp, units: u64) -> Timestamp {
    let ticks = (u128::from(units) * u128::from(pace.period)).div_ceil(u128::from(pace.gain));
    start + Ticks::from_micros(u64::try_from(ticks).unwrap_or(u64::MAX))
}
