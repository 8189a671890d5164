//! The exact oracle: what each algorithm's definition demands. It remembers every admitted unit, counts with 128-bit
//! integers, and finds instants by asking the definition again and again, where the algorithms compute them at once.
//! Slow on purpose: it shares no arithmetic with what it judges.

pub mod bucket;
pub mod concurrency;
pub mod fixed_window;
pub mod sliding_log;
pub mod sliding_window;
pub mod trace;

use tollgate::{Outcome, Ticks, Timestamp, Verdict};

pub use bucket::Bucket;
pub use concurrency::Permits;
pub use fixed_window::{CivilUnit, WindowCount, Windows};
pub use sliding_log::Log;
pub use sliding_window::{Oldest, SubWindows};

/// An instant or a number of units, signed and wide enough that nothing here overflows.
pub type Wide = i128;

/// A definition. Instants are ticks since the Unix epoch.
pub trait Oracle {
    /// The most that can be admitted at once.
    fn limit(&self) -> Wide;

    /// How many units could be admitted at an instant, given what has been. Never more than the limit; the definition may
    /// go below zero. It never falls while time passes.
    fn free(&self, at: Wide) -> Wide;

    /// Whether at an instant nothing that was admitted matters any more.
    fn is_fresh(&self, at: Wide) -> bool;

    /// Draws back what lies further ahead of the clock than the definition believes.
    fn forgive(&mut self, now: Wide);

    /// Remembers an admission.
    fn admit(&mut self, now: Wide, units: Wide);

    /// Takes back units of one admission, counted from the first: from then on everything is counted as if they had never been
    /// admitted. That is the whole rule of refunds, whatever an algorithm remembers.
    fn take_back(&mut self, admission: usize, units: Wide);

    /// How long an admitted request must wait. Only shaping knows of it.
    fn wait(&self, _now: Wide) -> Wide {
        0
    }

    /// Answers a charge as the definition demands, and remembers what it admits.
    fn charge(&mut self, now: Timestamp, cost: u64) -> Outcome {
        let (at, cost) = (Wide::from(now.unix_micros()), Wide::from(cost));
        self.forgive(at);
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

/// The first instant from `from` on at which something holds that, once true, stays true.
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
