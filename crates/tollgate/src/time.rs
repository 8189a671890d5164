//! Time as values: instants and durations in whole ticks. Reading a clock is left to [`Clock`](crate::Clock), the edge.
//!
//! One tick is one microsecond everywhere. It is the finest resolution of Redis, so memory and Redis agree bit for bit,
//! and an instant stays below 2^53, the largest integer that Lua holds exactly.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Ticks in one second.
pub const TICKS_PER_SECOND: u64 = 1_000_000;

/// How far ahead of a decision its counter may reach: three years of 366 days, which is more than any quota remembers.
pub(crate) const REACH_MAX: Ticks = Ticks(3 * 366 * 86_400 * TICKS_PER_SECOND);

/// An instant: ticks since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

/// A duration in whole ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticks(u64);

/// How far the wall clock is ahead of the clock that decisions are made by, in ticks; negative where it is behind.
///
/// Decisions run on the monotonic clock, which never steps. The wall clock does: an operator or NTP sets it. Everything
/// that follows the wall clock (calendar windows, absolute times in headers) is computed at [`Timestamp::on_wall`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WallOffset(i64);

impl WallOffset {
    /// The wall clock agrees with the decisions' clock.
    pub const NONE: WallOffset = WallOffset(0);

    /// The most that the two clocks may differ.
    const MAX: i64 = Timestamp::MAX.0.cast_signed();

    /// The wall clock is this many microseconds ahead, or behind if negative. Saturates at the span of all timestamps.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        if micros > Self::MAX {
            Self(Self::MAX)
        } else if micros < -Self::MAX {
            Self(-Self::MAX)
        } else {
            Self(micros)
        }
    }

    /// The offset at which the decisions' clock shows `decided` while the wall clock shows `wall`.
    #[must_use]
    pub const fn between(decided: Timestamp, wall: Timestamp) -> Self {
        Self(wall.0.cast_signed() - decided.0.cast_signed())
    }

    /// Microseconds that the wall clock is ahead; negative where it is behind.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }
}

impl Timestamp {
    /// The time of the wall clock at this instant of the decisions' clock. Saturates at the ends of time.
    #[must_use]
    #[inline]
    pub const fn on_wall(self, wall: WallOffset) -> Self {
        Self::from_unix_micros(self.0.saturating_add_signed(wall.0))
    }

    /// The instant of the decisions' clock at which the wall clock shows this one. Saturates at the ends of time.
    #[must_use]
    #[inline]
    pub const fn off_wall(self, wall: WallOffset) -> Self {
        Self::from_unix_micros(self.0.saturating_add_signed(-wall.0))
    }

    /// The last instant that Tollgate can represent (the year 2112). Later instants saturate to it.
    pub const MAX: Timestamp = Timestamp((1 << 52) - 1);

    /// The last instant at which anything is decided (the year 2109): the state of a counter lies ahead of the decision
    /// that made it, and must still be representable. Later, time stands still here: nothing refills, and nothing is
    /// admitted that the quota does not allow.
    pub const LAST: Timestamp = Timestamp(Self::MAX.0 - REACH_MAX.0);

    /// The instant this many microseconds after the Unix epoch, saturating at [`Timestamp::MAX`].
    #[must_use]
    pub const fn from_unix_micros(micros: u64) -> Self {
        if micros > Self::MAX.0 { Self::MAX } else { Self(micros) }
    }

    /// An instant whose microseconds are known to be in range, because they come from another instant.
    #[inline]
    pub(crate) const fn from_valid_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The instant this many seconds after the Unix epoch, saturating at [`Timestamp::MAX`].
    #[must_use]
    pub const fn from_unix_seconds(seconds: u64) -> Self {
        Self::from_unix_micros(seconds.saturating_mul(TICKS_PER_SECOND))
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn unix_micros(self) -> u64 {
        self.0
    }

    /// Seconds since the Unix epoch, rounded up: a caller that waits until then has waited long enough.
    pub(crate) const fn ceil_unix_seconds(self) -> u64 {
        self.0.div_ceil(TICKS_PER_SECOND)
    }

    /// The instant in RFC 3339, to the second, rounded up in the same way.
    #[cfg(feature = "policy")]
    pub(crate) fn rfc3339(self) -> impl std::fmt::Display {
        let seconds = i64::try_from(self.ceil_unix_seconds()).unwrap_or(i64::MAX);
        jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX)
    }

    /// The instant that a decision at this one uses: this one, but none after [`Timestamp::LAST`].
    #[must_use]
    #[inline]
    pub(crate) const fn decidable(self) -> Self {
        if self.0 > Self::LAST.0 { Self::LAST } else { self }
    }

    /// The time from `earlier` to here; zero when `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Timestamp) -> Ticks {
        Ticks(self.0.saturating_sub(earlier.0))
    }
}

impl Ticks {
    /// The zero duration.
    pub const ZERO: Ticks = Ticks(0);
    /// The smallest duration.
    pub const ONE: Ticks = Ticks(1);
    /// Longer than any duration that Tollgate measures.
    pub const MAX: Ticks = Ticks(Timestamp::MAX.0);

    /// This many microseconds, saturating at [`Ticks::MAX`].
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        if micros > Self::MAX.0 { Self::MAX } else { Self(micros) }
    }

    /// This many milliseconds, saturating.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self::from_micros(millis.saturating_mul(1_000))
    }

    /// This many seconds, saturating.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self::from_micros(seconds.saturating_mul(TICKS_PER_SECOND))
    }

    /// The duration in ticks, a fraction of a tick rounded up.
    #[must_use]
    pub fn ceil_from(duration: Duration) -> Self {
        let micros = duration.as_nanos().div_ceil(1_000);
        Self::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// Whole microseconds.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Milliseconds, rounded up, so that waiting for them is always long enough.
    #[must_use]
    pub const fn ceil_millis(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// Seconds, rounded up, so that waiting for them is always long enough.
    #[must_use]
    pub const fn ceil_seconds(self) -> u64 {
        self.0.div_ceil(TICKS_PER_SECOND)
    }

    /// Whether the duration is zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The duration for people, in its two largest units: `412 ms`, `2.5 s`, `3 min 20 s`, `14 d 18 h`. Rounded up, as
    /// all advice.
    #[must_use]
    pub fn readable(self) -> String {
        const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
        let millis = self.ceil_millis();
        if millis < 1_000 {
            return if millis == 0 { "0 s".to_owned() } else { format!("{millis} ms") };
        }
        let tenths = millis.div_ceil(100);
        if tenths < 600 && !tenths.is_multiple_of(10) {
            return format!("{}.{} s", tenths / 10, tenths % 10);
        }
        let mut seconds = millis.div_ceil(1_000);
        let largest = |seconds: u64| UNITS.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(3);
        // The remainder below the second unit is rounded up.
        let smallest = UNITS.get(largest(seconds) + 1).map_or(1, |(unit, _)| *unit);
        seconds = seconds.div_ceil(smallest).saturating_mul(smallest);
        let mut parts = Vec::new();
        for (unit, name) in UNITS.iter().skip(largest(seconds)).take(2) {
            if seconds >= *unit {
                parts.push(format!("{} {name}", seconds / unit));
            }
            seconds %= unit;
        }
        parts.join(" ")
    }
}

impl From<Ticks> for Duration {
    fn from(ticks: Ticks) -> Self {
        Duration::from_micros(ticks.0)
    }
}

impl Add<Ticks> for Timestamp {
    type Output = Timestamp;
    fn add(self, ticks: Ticks) -> Timestamp {
        Timestamp::from_unix_micros(self.0.saturating_add(ticks.0))
    }
}

impl Sub<Ticks> for Timestamp {
    type Output = Timestamp;
    fn sub(self, ticks: Ticks) -> Timestamp {
        Timestamp(self.0.saturating_sub(ticks.0))
    }
}

impl Add for Ticks {
    type Output = Ticks;
    fn add(self, other: Ticks) -> Ticks {
        Ticks::from_micros(self.0.saturating_add(other.0))
    }
}

impl Sub for Ticks {
    type Output = Ticks;
    fn sub(self, other: Ticks) -> Ticks {
        Ticks(self.0.saturating_sub(other.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Durations have at most two units, and are never shorter than what they stand for.
    #[test]
    fn durations_are_readable() {
        for (millis, expected) in [
            (0, "0 s"),
            (1, "1 ms"),
            (412, "412 ms"),
            (1_000, "1 s"),
            (2_450, "2.5 s"),
            (59_999, "1 min"),
            (61_000, "1 min 1 s"),
            (62_276, "1 min 3 s"),
            (200_000, "3 min 20 s"),
            (3_600_000, "1 h"),
            (3_599_999, "1 h"),
            (1_276_469_864, "14 d 19 h"),
            (86_399_500, "1 d"),
        ] {
            assert_eq!(Ticks::from_millis(millis).readable(), expected, "{millis}");
        }
    }
}
