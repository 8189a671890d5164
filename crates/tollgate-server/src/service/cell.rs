//! redis-cell's arithmetic: one limit, told with each call, against the instant at which a key is as if never used. Pure; where
//! that instant is kept is left to [`super::cells`].
//!
//! An instant is in nanoseconds since 1970, as redis-cell keeps it. What does not fit is cut off at the ends of the range
//! instead of wrapping around, so that no number a client sends admits what it should not.

/// Nanoseconds in a second, in a millisecond and in a microsecond.
const SECOND: i64 = 1_000_000_000;
const MILLISECOND: i64 = 1_000_000;
const MICROSECOND: i64 = 1_000;

/// A limit, as one call tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Nanoseconds that one unit takes to come back; never zero, and negative when one of the numbers is.
    interval: i64,
    /// How far ahead of now a key may be.
    tolerance: i128,
    /// The most units at once.
    most: i64,
}

/// What a charge did, in units and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charged {
    pub(crate) limited: bool,
    pub(crate) most: i64,
    pub(crate) remaining: i64,
    /// How long to stay away; none when the units were given, and none when they can never be had at once.
    pub(crate) retry_after: Option<i128>,
    /// Until the key is as if never used.
    pub(crate) reset_after: i128,
}

impl Charged {
    /// The same where the limit only counts, and denies nobody.
    pub(crate) const fn in_shadow(self) -> Self {
        Self { limited: false, retry_after: None, ..self }
    }
}

impl Limit {
    /// `count` units in `period` seconds, and `most` at once. None for a rate of zero: of nothing, in no time, or so many that
    /// one takes less than a nanosecond.
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

    /// As `CL.THROTTLE` tells it: the burst comes on top of one.
    pub(crate) fn beyond_one(max_burst: i64, count: i64, period: i64) -> Option<Self> {
        Self::new(i128::from(max_burst) + 1, count, period)
    }

    /// As `THROTTLE` tells it: the burst is all.
    pub(crate) fn in_all(max_burst: i64, count: i64, period: i64) -> Option<Self> {
        Self::new(i128::from(max_burst), count, period)
    }

    /// The numbers that tell this limit from others.
    pub(crate) const fn identity(&self) -> [i64; 2] {
        [self.interval, self.most]
    }

    /// Charges `quantity` units to a key that is as if never used from `stored` on. With the answer comes the new instant, if
    /// there is one.
    pub(crate) fn charge(&self, stored: Option<i64>, now: i64, quantity: i64) -> (Charged, Option<i64>) {
        let wide_now = i128::from(now);
        let held = i128::from(stored.map_or(now, |stored| stored.max(now)));
        let increment = i128::from(self.interval) * i128::from(quantity);
        let next = held.saturating_add(increment);
        let wait = next.saturating_sub(self.tolerance).saturating_sub(wide_now);
        if wait > 0 {
            let retry_after = (increment <= self.tolerance).then_some(wait);
            return (self.charged(true, retry_after, held - wide_now), None);
        }
        let charged = self.charged(false, None, next.saturating_sub(wide_now));
        (charged, Some(clamped(next)))
    }

    /// The answer when no counter could be had: nothing is given, and one unit's time later there may be room.
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

    /// The answer while an operator lets nobody have any, for so long.
    pub(crate) fn blocked(&self, rest: i128) -> Charged {
        Charged { limited: true, most: self.most, remaining: 0, retry_after: Some(rest), reset_after: rest }
    }

    /// The answer while an operator has every limit off: that of a key never used, and nothing is counted.
    pub(crate) fn unasked(&self) -> Charged {
        self.charged(false, None, 0)
    }

    fn charged(&self, limited: bool, retry_after: Option<i128>, reset_after: i128) -> Charged {
        let remaining = self.remaining(self.tolerance.saturating_sub(reset_after));
        Charged { limited, most: self.most, remaining, retry_after, reset_after }
    }

    /// Units in the time that is left, in whole microseconds as redis-cell has it; for units that take less than one of them,
    /// in nanoseconds.
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

/// Whole seconds, rounded up if there are whole milliseconds beyond them.
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
