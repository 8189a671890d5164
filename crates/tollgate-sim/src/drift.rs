//! No drift: a greedy caller is admitted at exactly the instants that the rational rate says, however many there are.

use tollgate::{Ticks, Timestamp, Verdict};

use crate::limiter::Limiter;

/// The first request of a greedy caller that was not answered as the rate demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drift {
    /// How many had been admitted after the burst.
    pub step: u64,
    /// When it came.
    pub at: Timestamp,
    /// What it was told.
    pub verdict: Verdict,
}

/// A bucket's rate as it counts: `gain` units every `price` ticks, and the burst before it.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Units in so many ticks.
    pub gain: u64,
    /// Ticks for so many units.
    pub price: u64,
    /// Units at once.
    pub burst: u64,
}

/// Takes the burst at `start`, then each unit at the tick at which the rate has earned it, `steps` times; a tick earlier it
/// must be denied, and told to wait for that tick. The instants come from the remainder of an exact division that is carried
/// along, so they are those of the rational rate itself.
///
/// # Errors
/// With the first answer that is not as it should be.
pub fn greedy(limiter: &mut Limiter, pace: Pace, start: Timestamp, steps: u64) -> Result<Timestamp, Drift> {
    let first = limiter.charge(start, pace.burst);
    if first.verdict != Verdict::Allow || first.remaining != 0 {
        return Err(Drift { step: 0, at: start, verdict: first.verdict });
    }
    // Of the unit to come: whole ticks from the last one, and what is left of the tick then, in 1/gain.
    let (mut now, mut surplus) = (start, 0u64);
    for step in 0..steps {
        let missing = pace.price.saturating_sub(surplus);
        let ticks = Ticks::from_micros(missing.div_ceil(pace.gain));
        surplus = surplus + ticks.as_micros() * pace.gain - pace.price;
        now = now + ticks;
        if !ticks.is_zero() {
            let early = limiter.charge(now - Ticks::ONE, 1).verdict;
            let expected = Verdict::Deny { retry_after: Ticks::ONE };
            require(early == expected, step, now - Ticks::ONE, early)?;
        }
        let due = limiter.charge(now, 1).verdict;
        require(due == Verdict::Allow, step, now, due)?;
    }
    Ok(now)
}

fn require(holds: bool, step: u64, at: Timestamp, verdict: Verdict) -> Result<(), Drift> {
    if holds { Ok(()) } else { Err(Drift { step, at, verdict }) }
}

/// When the rate has earned so many units: one multiplication and one division, with nothing carried along.
#[must_use]
pub fn earned_at(pace: Pace, start: Timestamp, units: u64) -> Timestamp {
    let ticks = (u128::from(units) * u128::from(pace.price)).div_ceil(u128::from(pace.gain));
    start + Ticks::from_micros(u64::try_from(ticks).unwrap_or(u64::MAX))
}
