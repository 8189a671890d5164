//! The exact oracle: the outcome that the definition of each algorithm demands.
//!
//! It remembers every admitted unit and counts with 128-bit integers. It finds instants by a search with the definition,
//! where the algorithms compute them directly. It is slow because it shares no arithmetic with the algorithms.

pub(crate) mod bucket;
pub(crate) mod concurrency;
pub(crate) mod fixed_window;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
pub(crate) mod trace;

use tollgate::{Outcome, Ticks, Timestamp, Verdict};

pub(crate) use bucket::Bucket;
pub(crate) use concurrency::Permits;
pub(crate) use fixed_window::{CivilUnit, WindowCount, Windows};
pub(crate) use sliding_log::Log;
pub(crate) use sliding_window::{Oldest, SubWindows};

/// An instant or a number of units. It is signed, and wide enough that no computation of the oracle overflows.
pub(crate) type Wide = i128;

/// The definition of an algorithm. Instants are ticks since the Unix epoch.
pub(crate) trait Oracle {
    /// The most units that can be admitted at one instant.
    fn limit(&self) -> Wide;

    /// How many units can be admitted at an instant after the admissions so far. It is at most the limit, may be negative,
    /// and never falls while time passes.
    fn free(&self, at: Wide) -> Wide;

    /// Whether no admission affects decisions from this instant on.
    fn is_fresh(&self, at: Wide) -> bool;

    /// Moves admissions back that lie further ahead of the clock than the definition accepts.
    fn clamp_future(&mut self, now: Wide);

    /// Records an admission.
    fn admit(&mut self, now: Wide, units: Wide);

    /// Refunds units of one admission, which is numbered from 0. From then on the definition counts as if they had never
    /// been admitted. This is the whole rule of refunds, even where an algorithm remembers less.
    fn refund(&mut self, admission: usize, units: Wide);

    /// How long an admitted request must wait. Only the leaky bucket makes requests wait.
    fn wait(&self, _now: Wide) -> Wide {
        0
    }

    /// Computes the outcome of a charge, and records what it admits.
    fn charge(&mut self, now: Timestamp, cost: u64) -> Outcome {
        let (at, cost) = (Wide::from(now.unix_micros()), Wide::from(cost));
        self.clamp_future(at);
        let verdict = if cost > self.limit() {
            Verdict::Never
        } else if cost == 0 {
            Verdict::Allow
        } else if cost <= self.free(at) {
            self.admit(at, cost);
            match self.wait(at) {
                0 => Verdict::Allow,
                wait => Verdict::Wait(ticks(wait)),
            }
        } else {
            let retry_at = first_instant(at, |later| self.free(later) >= cost);
            Verdict::Deny { retry_after: ticks(retry_at - at) }
        };
        let remaining = self.free(at).max(0);
        let next_unit_at = first_instant(at, |later| self.is_fresh(later) || self.free(later) > remaining);
        let reset_at = first_instant(at, |later| self.is_fresh(later));
        Outcome {
            verdict,
            limit: unsigned(self.limit()),
            remaining: unsigned(remaining),
            next_unit_after: ticks(next_unit_at - at),
            reset_after: ticks(reset_at - at),
        }
    }
}

/// The first instant from `from` on at which a condition holds. A condition that holds must not cease to hold.
fn first_instant(from: Wide, holds: impl Fn(Wide) -> bool) -> Wide {
    if holds(from) {
        return from;
    }
    let (mut before, mut step) = (from, 1);
    while !holds(before + step) {
        before += step;
        step *= 2;
    }
    let mut after = before + step;
    while after - before > 1 {
        let middle = before + (after - before) / 2;
        if holds(middle) {
            after = middle;
        } else {
            before = middle;
        }
    }
    after
}

fn ticks(wide: Wide) -> Ticks {
    Ticks::from_micros(unsigned(wide))
}

fn unsigned(wide: Wide) -> u64 {
    u64::try_from(wide).unwrap_or(0)
}
