//! The core of token bucket, GCRA and leaky bucket: a reservoir of credits that refills at a [`Pace`], and the outcome
//! that follows from how many credits it lacks. The three differ in how they remember the missing credits between
//! charges.

use crate::algorithm::pace::Pace;
use crate::outcome::{Outcome, Verdict};
use crate::rate::{EXACT_MAX, QuotaError, Rate};
use crate::time::{REACH_MAX, Ticks};

/// Longest time from empty to full: two years. Beyond it a counter would outlive the process that keeps it.
const FILL_TICKS_MAX: u64 = 2 * 366 * 86_400 * 1_000_000;
const _: () = assert!(FILL_TICKS_MAX < REACH_MAX.as_micros());

/// Bits of a [`Word`] that hold the fraction of a tick.
pub(crate) const FRACTION_BITS: u32 = 16;
/// Maximum credits per tick of a reservoir whose state fits one word.
pub(crate) const GAIN_MAX: u64 = 1 << FRACTION_BITS;
const FRACTION_MASK: u64 = GAIN_MAX - 1;

/// The arithmetic of a reservoir whose whole state fits one word: the tick at which it is full again in the upper 48
/// bits, the fraction of a tick, in credits, below. Words compare as instants do, so one unit costs an addition and a
/// comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word {
    /// The time from empty to full.
    reach: u64,
    /// The credits of one unit.
    step: u64,
    /// The fraction of a tick in `step`.
    step_fraction: u64,
    gain: u64,
}

/// The effect of one unit on a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordStep {
    /// Admitted; the next word.
    Admit(u64),
    /// Denied for this many ticks.
    Deny(u64),
    /// The word is out of the quota's range, as after a clock that stepped back: the full arithmetic has to decide.
    OutOfRange,
}

impl Word {
    /// Asks for one unit of a reservoir that is full again at `word`, at the instant `now`, both counted from one
    /// origin.
    #[must_use]
    #[inline(always)]
    pub(crate) const fn unit(&self, word: u64, now: u64) -> WordStep {
        // No operation wraps: an instant has 48 bits of ticks, and reach and step are at most two years, which is 46
        // bits.
        let base = if word > now { word } else { now };
        let limit = now.wrapping_add(self.reach);
        if base > limit {
            return WordStep::OutOfRange;
        }
        let mut next = base.wrapping_add(self.step);
        if self.gain > 1 {
            let fraction = (base & FRACTION_MASK).wrapping_add(self.step_fraction);
            if fraction >= self.gain {
                next = next.wrapping_add(GAIN_MAX - self.gain);
            }
        }
        if next <= limit {
            WordStep::Admit(next)
        } else {
            // The first tick at which the next word is within reach, a fraction of a tick rounded up.
            let early = (next & FRACTION_MASK) > (limit & FRACTION_MASK);
            WordStep::Deny(
                (next >> FRACTION_BITS).wrapping_sub(limit >> FRACTION_BITS).wrapping_add(early as u64),
            )
        }
    }
}

/// The maximum units of a reservoir with a given rate, and why not more; zero when not even one unit can be counted
/// exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CapacityBound {
    pub(crate) units: u64,
    pub(crate) because: &'static str,
}

impl CapacityBound {
    /// The maximum for a rate that is in range. More units leave less precision and take longer to refill, so every
    /// number below one that fits also fits.
    pub(crate) fn of(rate: Rate, gain_max: u64) -> Self {
        let fits = |units: u64| Reservoir::fitting(rate, units, gain_max).is_some();
        let (mut most, mut too_many) = (0, EXACT_MAX);
        while too_many - most > 1 {
            let middle = most + (too_many - most) / 2;
            *(if fits(middle) { &mut most } else { &mut too_many }) = middle;
        }
        let is_exact = Pace::new(rate, too_many, gain_max).is_ok();
        let because = if is_exact { "what refills in two years" } else { "what can be counted exactly" };
        Self { units: most, because }
    }

    /// Why a burst of `units` is rejected.
    pub(crate) fn refuse(self, rate: Rate, units: u64) -> QuotaError {
        let (per_period, period) = (rate.units(), rate.period().as_micros());
        match (self.units, rate.burst_units()) {
            (0, _) => QuotaError::Inexact {
                what: format!("{per_period} units every {period} microseconds cannot be counted exactly"),
                cure: "accepted: a rounder rate".to_owned(),
            },
            (_, Some(_)) => {
                QuotaError::Range { field: "burst", value: units, accepted: format!("1 to {self}") }
            }
            (_, None) => QuotaError::Inexact {
                what: format!("{units} at once, as many as a period has, is too much"),
                cure: format!("accepted: a burst of 1 to {self}"),
            },
        }
    }
}

impl std::fmt::Display for CapacityBound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.units, self.because)
    }
}

/// A reservoir of credits. All its arithmetic stays below 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservoir {
    pace: Pace,
    units: u64,
    credits: u64,
    fill_ticks: u64,
}

impl Reservoir {
    /// A reservoir that refills at `rate` and holds `units`; its pace gains at most `gain_max` credits a tick.
    ///
    /// # Errors
    /// When the rate is out of range, or so many units cannot be counted exactly or do not refill in two years. The
    /// error then calls the units the rate's burst.
    pub fn new(rate: Rate, units: u64, gain_max: u64) -> Result<Self, QuotaError> {
        let rate = rate.checked()?;
        Self::fitting(rate, units, gain_max)
            .ok_or_else(|| CapacityBound::of(rate, gain_max).refuse(rate, units))
    }

    /// As [`Reservoir::new`], for a rate that is in range; `None` when it does not fit.
    pub(crate) fn fitting(rate: Rate, units: u64, gain_max: u64) -> Option<Self> {
        let pace = Pace::new(rate, units, gain_max).ok()?;
        let credits = units * pace.unit_credits().get();
        let fill_ticks = pace.gain().div_ceil(credits);
        (fill_ticks <= FILL_TICKS_MAX).then_some(Self { pace, units, credits, fill_ticks })
    }

    /// Its pace.
    #[must_use]
    #[inline]
    pub const fn pace(&self) -> Pace {
        self.pace
    }

    /// Units it holds when full.
    #[must_use]
    #[inline]
    pub const fn units(&self) -> u64 {
        self.units
    }

    /// Credits it holds when full.
    #[must_use]
    #[inline]
    pub const fn credits(&self) -> u64 {
        self.credits
    }

    /// Ticks from empty to full.
    #[must_use]
    #[inline]
    pub const fn fill_ticks(&self) -> u64 {
        self.fill_ticks
    }

    /// Credits gained in so many ticks, at most the whole reservoir.
    #[must_use]
    #[inline]
    pub const fn gained(&self, ticks: u64) -> u64 {
        if ticks >= self.fill_ticks { self.credits } else { ticks * self.pace.gain().get() }
    }

    /// Whether a state carried over from `previous` is full here no later than there: this reservoir holds no more, and
    /// refills no slower.
    pub(crate) fn forgets_with(&self, previous: &Reservoir) -> bool {
        let speed = |one: &Reservoir, other: &Reservoir| {
            u128::from(one.pace.gain().get()) * u128::from(other.pace.unit_credits().get())
        };
        self.units <= previous.units && speed(self, previous) >= speed(previous, self)
    }

    /// The same arithmetic in one word, where a fraction of a tick fits sixteen bits.
    #[must_use]
    pub(crate) fn word(&self) -> Option<Word> {
        let gain = self.pace.gain();
        let split = |credits: u64| {
            let ticks = gain.div_floor(credits);
            (ticks << FRACTION_BITS) | (credits - ticks * gain.get())
        };
        let fits = gain.get() <= GAIN_MAX;
        let step = split(self.pace.unit_credits().get());
        let word =
            Word { reach: split(self.credits), step, step_fraction: step & FRACTION_MASK, gain: gain.get() };
        fits.then_some(word)
    }

    /// Takes `cost` units from a reservoir that lacks `missing` credits. Returns the credits it lacks then, and the
    /// verdict.
    #[must_use]
    #[inline]
    pub const fn take(&self, missing: u64, cost: u64) -> (u64, Verdict) {
        if cost > self.units {
            return (missing, Verdict::Never);
        }
        let wanted = missing + cost * self.pace.unit_credits().get();
        if wanted <= self.credits {
            (wanted, Verdict::Allow)
        } else {
            let retry_after = Ticks::from_micros(self.pace.gain().div_ceil(wanted - self.credits));
            (missing, Verdict::Deny { retry_after })
        }
    }

    /// Refunds `units` that were charged `elapsed` ago. Returns the credits that are missing then. Credits that have
    /// come back since are not refunded again. So a refund never makes more room than the charge took: in every
    /// interval, what was admitted and kept stays within the burst and the rate.
    #[must_use]
    #[inline]
    pub const fn put(&self, missing: u64, units: u64, elapsed: Ticks) -> u64 {
        let units = if units < self.units { units } else { self.units };
        let regained = self.gained(elapsed.as_micros());
        missing.saturating_sub((units * self.pace.unit_credits().get()).saturating_sub(regained))
    }

    /// The outcome of a reservoir that lacks `missing` credits after the charge.
    #[must_use]
    #[inline]
    pub const fn outcome(&self, missing: u64, verdict: Verdict) -> Outcome {
        let available = self.credits - missing;
        let remaining = self.pace.unit_credits().div_floor(available);
        let next_unit_after = if missing == 0 {
            0
        } else {
            self.pace.gain().div_ceil((remaining + 1) * self.pace.unit_credits().get() - available)
        };
        Outcome {
            verdict,
            limit: self.units,
            remaining,
            next_unit_after: Ticks::from_micros(next_unit_after),
            reset_after: Ticks::from_micros(self.pace.gain().div_ceil(missing)),
        }
    }

    /// The credits that this reservoir lacks when it takes over from `other`, which lacks `missing`. The available
    /// units are kept, up to the size of this reservoir, with a fraction of a unit rounded against the caller. A full
    /// reservoir stays full.
    #[must_use]
    pub fn inherit(&self, other: &Reservoir, missing: u64) -> u64 {
        if missing == 0 {
            return 0;
        }
        let available = u128::from(other.credits - missing.min(other.credits));
        let scaled = available * u128::from(self.pace.unit_credits().get())
            / u128::from(other.pace.unit_credits().get());
        self.credits - u64::try_from(scaled).unwrap_or(u64::MAX).min(self.credits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::gcra;
    use crate::time::Timestamp;

    /// A decision about one unit in one word equals that of the full arithmetic: verdict, wait and next state, for
    /// every rate, state and instant.
    #[test]
    fn a_word_decides_as_the_whole_arithmetic() {
        let rates = [
            Rate::per_second(1).burst(1),
            Rate::per_second(3).burst(2),
            Rate::per_second(100).burst(200),
            Rate::per_second(7_000_000).burst(9),
            Rate::per_second(10_000_000).burst(1_000),
            Rate::per_minute(7),
            Rate::per_month(999).burst(3),
            Rate::per_second(33_333).burst(5),
        ];
        let mut seed = 0x5EED_u64;
        let mut random = |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below.max(1)
        };
        for rate in rates {
            let reservoir =
                Reservoir::new(rate, rate.burst_units().unwrap_or(rate.units()), GAIN_MAX).unwrap();
            let word = reservoir.word().unwrap();
            let (mut state, mut now) = (0u64, 1_000_000u64);
            for _ in 0..20_000 {
                now += random(2) * random(2 * reservoir.fill_ticks() / reservoir.units() + 2);
                let fraction = u16::try_from(state & FRACTION_MASK).unwrap();
                let unpacked =
                    gcra::State::new(Timestamp::from_unix_micros(state >> FRACTION_BITS), fraction);
                let (next, outcome) = gcra::charge(&reservoir, unpacked, Timestamp::from_unix_micros(now), 1);
                let (tick, fraction) = next.parts();
                match word.unit(state, now << FRACTION_BITS) {
                    WordStep::Admit(after) => {
                        assert_eq!(outcome.verdict, Verdict::Allow, "{rate:?}");
                        assert_eq!(
                            after,
                            (tick.unix_micros() << FRACTION_BITS) | u64::from(fraction),
                            "{rate:?}"
                        );
                        state = after;
                    }
                    WordStep::Deny(ticks) => {
                        let retry_after = Ticks::from_micros(ticks);
                        assert_eq!(outcome.verdict, Verdict::Deny { retry_after }, "{rate:?}");
                    }
                    WordStep::OutOfRange => panic!("the clock did not step back"),
                }
            }
        }
    }
}
