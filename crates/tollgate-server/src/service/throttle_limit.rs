//! redis-cell's arithmetic. Each call carries its limit, which is applied to the instant at which the key's counter is
//! empty again. Pure: [`super::throttle_counters`] stores that instant.
//!
//! An instant is in nanoseconds since 1970, as in redis-cell. Values out of range saturate instead of wrapping around,
//! so that no number from a client admits too much.

/// Nanoseconds in a second, in a millisecond and in a microsecond.
const SECOND: i64 = 1_000_000_000;
const MILLISECOND: i64 = 1_000_000;
const MICROSECOND: i64 = 1_000;

/// A limit, as one call specifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Nanoseconds until one unit comes back. Never zero, and negative if one of the numbers is.
    interval: i64,
    /// How far ahead of now a key's instant may be.
    tolerance: i128,
    /// The maximum number of units at one instant.
    most: i64,
}

/// The result of a charge, in units and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charged {
    pub(crate) limited: bool,
    pub(crate) most: i64,
    pub(crate) remaining: i64,
    /// How long to wait before a retry. `None` if the charge was admitted, or if it can never be admitted.
    pub(crate) retry_after: Option<i128>,
    /// The time until the key's counter is empty again.
    pub(crate) reset_after: i128,
}

impl Charged {
    /// The same result for a limit in shadow, which counts but denies no request.
    pub(crate) const fn in_shadow(self) -> Self {
        Self { limited: false, retry_after: None, ..self }
    }
}

impl Limit {
    /// `count` units in `period` seconds, and `most` at one instant. `None` for a rate of zero: no units, no time, or
    /// so many units that one takes less than a nanosecond.
    #[allow(
        clippy::float_arithmetic,
        clippy::cast_possible_truncation,
        reason = "redis-cell divides so, and above 104 days an exact quotient may be another nanosecond; the cast saturates"
    )]
    fn new(most: i128, count: i64, period: i64) -> Option<Self> {
        if count == 0 || period == 0 {
            return None;
        }
        let period = i128::from(period) * i128::from(SECOND);
        let interval = (period as f64 / count as f64) as i64;
        let tolerance = i128::from(interval).saturating_mul(most);
        (interval != 0).then(|| Self { interval, tolerance, most: clamped(most) })
    }

    /// The limit as `CL.THROTTLE` specifies it: the burst comes on top of one unit.
    pub(crate) fn beyond_one(max_burst: i64, count: i64, period: i64) -> Option<Self> {
        Self::new(i128::from(max_burst) + 1, count, period)
    }

    /// The limit as `THROTTLE` specifies it: the burst includes all units.
    pub(crate) fn in_all(max_burst: i64, count: i64, period: i64) -> Option<Self> {
        Self::new(i128::from(max_burst), count, period)
    }

    /// Charges `quantity` units to a key whose counter is empty from `stored` on. Returns the result, and the new
    /// instant if it changes.
    pub(crate) fn charge(&self, stored: Option<i64>, now: i64, quantity: i64) -> (Charged, Option<i64>) {
        let wide_now = i128::from(now);
        let held = i128::from(stored.map_or(now, |stored| stored.max(now)));
        let increment = i128::from(self.interval) * i128::from(quantity);
        let next = held.saturating_add(increment);
        let wait = next.saturating_sub(self.tolerance).saturating_sub(wide_now);
        if wait > 0 {
            let retry_after = (increment <= self.tolerance).then_some(wait);
            let charged = self.charged(held - wide_now);
            return (Charged { limited: true, retry_after, ..charged }, None);
        }
        let charged = self.charged(next.saturating_sub(wide_now));
        (charged, Some(clamped(next)))
    }

    /// The answer when no counter is available: the charge is denied, and the caller may retry after the time of one
    /// unit.
    pub(crate) fn refused(&self) -> Charged {
        let wait = i128::from(self.interval.saturating_abs());
        Charged {
            limited: true,
            most: self.most,
            remaining: 0,
            retry_after: Some(wait),
            reset_after: self.tolerance,
        }
    }

    /// The answer while an operator blocks the key for another `rest` nanoseconds.
    pub(crate) fn blocked(&self, rest: i128) -> Charged {
        Charged { limited: true, most: self.most, remaining: 0, retry_after: Some(rest), reset_after: rest }
    }

    /// The answer while an operator has turned every limit off: that of an unused key. Nothing is counted.
    pub(crate) fn unasked(&self) -> Charged {
        self.charged(0)
    }

    /// The answer to an admitted charge after which the counter is empty in `reset_after` nanoseconds.
    fn charged(&self, reset_after: i128) -> Charged {
        let remaining = self.remaining(self.tolerance.saturating_sub(reset_after));
        Charged { limited: false, most: self.most, remaining, retry_after: None, reset_after }
    }

    /// Units in the remaining time, computed in whole microseconds as redis-cell does. Units that take less than a
    /// microsecond are computed in nanoseconds.
    fn remaining(&self, left: i128) -> i64 {
        if left <= -i128::from(self.interval) {
            return 0;
        }
        let unit = if self.interval.unsigned_abs() >= MICROSECOND.unsigned_abs() { MICROSECOND } else { 1 };
        match i64::try_from(left) {
            Ok(left) => (left / unit).saturating_div(self.interval / unit),
            Err(_) => clamped((left / i128::from(unit)) / i128::from(self.interval / unit)),
        }
    }
}

/// Whole seconds, rounded up if whole milliseconds remain.
pub(crate) fn seconds_up(nanoseconds: i128) -> i64 {
    let (whole, rest) = seconds(nanoseconds);
    whole.saturating_add(i64::from(rest / MILLISECOND > 0))
}

/// Whole seconds, rounded down.
pub(crate) fn seconds_down(nanoseconds: i128) -> i64 {
    seconds(nanoseconds).0
}

/// Whole seconds, and the nanoseconds beyond them.
fn seconds(nanoseconds: i128) -> (i64, i64) {
    match i64::try_from(nanoseconds) {
        Ok(nanoseconds) => (nanoseconds / SECOND, nanoseconds % SECOND),
        Err(_) => {
            let second = i128::from(SECOND);
            (clamped(nanoseconds / second), clamped(nanoseconds % second))
        }
    }
}

fn clamped(number: i128) -> i64 {
    i64::try_from(number).unwrap_or(if number < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests;
