//! An exact rational rate: credits per tick, and credits per unit. Token bucket, GCRA and leaky bucket compute with it.

use crate::rate::{EXACT_MAX, QuotaError, Rate};

/// Credits accrue by `gain` each tick; one unit costs `unit_credits` credits. `gain / unit_credits` is the rate in units per tick. It
/// is exact wherever the numbers fit, and otherwise less than one millionth below the requested rate, never above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pace {
    gain: Divisor,
    unit_credits: Divisor,
}

/// A divisor with its reciprocal, so that the fast path multiplies instead of dividing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Divisor {
    value: u64,
    reciprocal: u64,
}

impl Divisor {
    /// Prepares a divisor of at least 1.
    fn new(value: u64) -> Self {
        let value = value.max(1);
        let reciprocal = if value == 1 {
            u64::MAX
        } else {
            u64::try_from((1u128 << 64) / u128::from(value)).unwrap_or(u64::MAX)
        };
        Self { value, reciprocal }
    }

    /// The divisor itself.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u64 {
        self.value
    }

    /// `dividend / divisor`, rounded down, for dividends up to [`EXACT_MAX`].
    #[must_use]
    #[inline]
    pub const fn div_floor(self, dividend: u64) -> u64 {
        // The reciprocal is rounded down, so the product is at most one too small for dividends below 2^63.
        #[allow(clippy::cast_possible_truncation, reason = "the high half of a 128-bit product fits 64 bits")]
        let quotient = ((dividend as u128 * self.reciprocal as u128) >> 64) as u64;
        let rest = dividend - quotient * self.value;
        if rest >= self.value { quotient + 1 } else { quotient }
    }

    /// `dividend / divisor`, rounded up, for dividends up to [`EXACT_MAX`].
    #[must_use]
    #[inline]
    pub const fn div_ceil(self, dividend: u64) -> u64 {
        let floor = self.div_floor(dividend);
        if floor * self.value < dividend { floor + 1 } else { floor }
    }
}

impl Pace {
    /// The pace of `rate` for a bucket that holds `capacity` units, with `gain` at most `gain_max`.
    ///
    /// # Errors
    /// When the rate is out of range, or no pace within a millionth below it has exact arithmetic.
    pub fn new(rate: Rate, capacity: u64, gain_max: u64) -> Result<Self, QuotaError> {
        let rate = rate.checked()?;
        let divisor = gcd(rate.units(), rate.period().as_micros());
        let gain = rate.units() / divisor;
        let unit_credits = rate.period().as_micros() / divisor;
        // Credits of a full bucket, plus one tick's gain of rounding, must stay exact.
        let unit_credits_max = EXACT_MAX.saturating_sub(gain_max.min(gain)) / capacity.max(1);
        let (gain, unit_credits) = if gain <= gain_max && unit_credits <= unit_credits_max {
            (gain, unit_credits)
        } else {
            best_below(gain, unit_credits, gain_max, unit_credits_max)
                .filter(|&(g, p)| within_a_millionth(gain, unit_credits, g, p))
                .ok_or_else(|| inexact(rate, capacity))?
        };
        Ok(Self { gain: Divisor::new(gain), unit_credits: Divisor::new(unit_credits) })
    }

    /// Credits per tick.
    #[must_use]
    #[inline]
    pub const fn gain(self) -> Divisor {
        self.gain
    }

    /// Credits per unit.
    #[must_use]
    #[inline]
    pub const fn unit_credits(self) -> Divisor {
        self.unit_credits
    }
}

fn inexact(rate: Rate, capacity: u64) -> QuotaError {
    QuotaError::Inexact {
        what: format!(
            "{} units every {} microseconds with room for {capacity} cannot be counted exactly",
            rate.units(),
            rate.period().as_micros()
        ),
        cure: "accepted: room for fewer, or a rounder rate".to_owned(),
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

fn within_a_millionth(gain: u64, unit_credits: u64, g: u64, p: u64) -> bool {
    // g / p >= (1 - 1e-6) * gain / unit_credits, in integers.
    g > 0
        && u128::from(g) * u128::from(unit_credits) * 1_000_000 >= u128::from(gain) * u128::from(p) * 999_999
}

/// The largest fraction not above `gain / unit_credits` whose terms stay within both maxima: a walk down the Stern–Brocot
/// tree, whole runs at a time.
fn best_below(gain: u64, unit_credits: u64, gain_max: u64, unit_credits_max: u64) -> Option<(u64, u64)> {
    let (gain, unit_credits) = (u128::from(gain), u128::from(unit_credits));
    let (gain_max, unit_credits_max) = (u128::from(gain_max), u128::from(unit_credits_max));
    // The target lies in low..high, which are neighbours in the tree: initially 0/1 and 1/0.
    let (mut low, mut high) = ((0u128, 1u128), (1u128, 0u128));
    loop {
        let short = gain * low.1 - low.0 * unit_credits;
        let over = high.0 * unit_credits - gain * high.1;
        let run = short / over;
        let gain_room = gain_max.saturating_sub(low.0) / high.0.max(1);
        let unit_credits_room = unit_credits_max.saturating_sub(low.1).checked_div(high.1);
        let room = gain_room.min(unit_credits_room.unwrap_or(run)); // A run along 1/0 adds nothing to the unit_credits.
        let taken = run.min(room);
        low = (low.0 + taken * high.0, low.1 + taken * high.1);
        let short = gain * low.1 - low.0 * unit_credits;
        if taken < run || short == 0 {
            break; // A longer run does not fit, or the target itself was reached.
        }
        let run = (over - 1) / short;
        high = (high.0 + run * low.0, high.1 + run * low.1);
    }
    let found = (u64::try_from(low.0).ok()?, u64::try_from(low.1).ok()?);
    (low.0 > 0 && low.0 <= gain_max && low.1 <= unit_credits_max).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Ticks;

    /// The walk finds the same fraction as an exhaustive search.
    #[test]
    fn best_below_agrees_with_exhaustive_search() {
        for (gain, unit_credits) in [
            (33_333u64, 1_000_000u64),
            (999_999, 1_000_000),
            (7, 3),
            (1, 997),
            (355, 113),
            (9_999_991, 1_000_000),
        ] {
            for (gain_max, unit_credits_max) in [(40, 1_000), (100, 100), (7, 50_000), (1, 1_000_000)] {
                let mut best: Option<(u64, u64)> = None;
                for p in 1..=unit_credits_max.min(50_000) {
                    let n = u128::from(gain) * u128::from(p) / u128::from(unit_credits);
                    let n = u64::try_from(n).unwrap().min(gain_max);
                    if n > 0
                        && best.is_none_or(|(bn, bp)| {
                            u128::from(n) * u128::from(bp) > u128::from(bn) * u128::from(p)
                        })
                    {
                        best = Some((n, p));
                    }
                }
                let found = best_below(gain, unit_credits, gain_max, unit_credits_max.min(50_000));
                assert_eq!(found, best, "{gain}/{unit_credits} within {gain_max}/{unit_credits_max}");
            }
        }
    }

    /// Division by reciprocal equals division.
    #[test]
    fn reciprocals_divide() {
        for value in [1, 2, 3, 7, 10, 9_999, 1_000_000, 2_592_000_000_000, EXACT_MAX] {
            let divisor = Divisor::new(value);
            for dividend in [0, 1, value - 1, value, value + 1, 3 * (value / 2), EXACT_MAX - 1, EXACT_MAX] {
                let dividend = dividend.min(EXACT_MAX);
                assert_eq!(divisor.div_floor(dividend), dividend / value);
                assert_eq!(divisor.div_ceil(dividend), dividend.div_ceil(value));
            }
        }
    }

    /// Every rate from one a month to ten million a second has a pace, at most a millionth slow and never fast.
    #[test]
    fn paces_are_within_a_millionth_below_the_rate() {
        for units in [1u64, 3, 7, 10, 99, 1_000, 33_333, 999_983, 1_000_000, 7_654_321, 9_999_991, 10_000_000]
        {
            for seconds in [1u64, 60, 3_600, 86_400, 2_592_000, 31_536_000] {
                let rate = Rate::per_ticks(units, Ticks::from_secs(seconds));
                let pace = Pace::new(rate, units, u64::MAX)
                    .unwrap_or_else(|error| panic!("{units} per {seconds} s: {error}"));
                let (gain, unit_credits) =
                    (u128::from(pace.gain().get()), u128::from(pace.unit_credits().get()));
                let (n, d) = (u128::from(units), u128::from(seconds) * 1_000_000);
                assert!(gain * d <= n * unit_credits, "{units} per {seconds} s is not above its rate");
                assert!(
                    gain * d * 1_000_000 >= n * unit_credits * 999_999,
                    "{units} per {seconds} s is within a millionth"
                );
            }
        }
    }
}
