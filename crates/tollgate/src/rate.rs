//! Rates, the bounds of their numbers, and why numbers cannot be a quota. Parsing rates from text is left to `rate_text`.

use std::convert::Infallible;
use std::time::Duration;

pub use crate::problem::Problem;
use crate::time::{REACH_MAX, TICKS_PER_SECOND, Ticks};

/// Largest integer that a quota's arithmetic may reach: the largest that Lua's doubles hold exactly, so that Redis
/// agrees with memory.
pub const EXACT_MAX: u64 = (1 << 53) - 1;
/// Accepted names of time zones, for messages.
pub(crate) const ZONES: &str = "a name of the IANA database, such as Europe/Rome or UTC";
/// Longest period of a rate: a leap year.
pub const PERIOD_MAX: Ticks = Ticks::from_secs(366 * 86_400);
const _: () = assert!(2 * PERIOD_MAX.as_micros() < REACH_MAX.as_micros()); // A window may end two periods ahead.
/// Fastest rate, in units per second.
pub const UNITS_PER_SECOND_MAX: u64 = 10_000_000;

/// A number of units per period, and how many of them may pass at once.
///
/// ```
/// use tollgate::Rate;
/// let rate = Rate::per_second(10).burst(20);
/// assert_eq!(rate.units(), 10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    units: u64,
    period: Ticks,
    burst: Option<u64>,
}

impl Rate {
    /// `units` every `period`.
    #[must_use]
    pub fn per(units: u64, period: Duration) -> Self {
        Self::per_ticks(units, Ticks::ceil_from(period))
    }

    /// `units` every `period`, in ticks.
    #[must_use]
    pub const fn per_ticks(units: u64, period: Ticks) -> Self {
        Self { units, period, burst: None }
    }

    /// `units` each second.
    #[must_use]
    pub const fn per_second(units: u64) -> Self {
        Self::per_ticks(units, Ticks::from_secs(1))
    }

    /// `units` each minute.
    #[must_use]
    pub const fn per_minute(units: u64) -> Self {
        Self::per_ticks(units, Ticks::from_secs(60))
    }

    /// `units` each hour.
    #[must_use]
    pub const fn per_hour(units: u64) -> Self {
        Self::per_ticks(units, Ticks::from_secs(3_600))
    }

    /// `units` each day of 24 hours.
    #[must_use]
    pub const fn per_day(units: u64) -> Self {
        Self::per_ticks(units, Ticks::from_secs(86_400))
    }

    /// `units` each month of 30 days. Calendar months are a property of a fixed window.
    #[must_use]
    pub const fn per_month(units: u64) -> Self {
        Self::per_ticks(units, Ticks::from_secs(30 * 86_400))
    }

    /// Lets this many units pass at once. The default is the rate's units of one period.
    #[must_use]
    pub const fn burst(mut self, units: u64) -> Self {
        self.burst = Some(units);
        self
    }

    /// Units per period.
    #[must_use]
    pub const fn units(self) -> u64 {
        self.units
    }

    /// The period.
    #[must_use]
    pub const fn period(self) -> Ticks {
        self.period
    }

    /// The burst, if it was set.
    #[must_use]
    pub const fn burst_units(self) -> Option<u64> {
        self.burst
    }

    /// Checks the bounds that hold for every algorithm.
    ///
    /// # Errors
    /// See [`QuotaError`].
    pub fn checked(self) -> Result<Self, QuotaError> {
        if self.units == 0 {
            return Err(QuotaError::NoUnits);
        }
        if self.burst == Some(0) {
            return Err(QuotaError::NoBurst);
        }
        if self.period.is_zero() || self.period > PERIOD_MAX {
            return Err(QuotaError::Period { ticks: self.period.as_micros() });
        }
        let per_second = u128::from(self.units) * u128::from(TICKS_PER_SECOND);
        if per_second > u128::from(UNITS_PER_SECOND_MAX) * u128::from(self.period.as_micros()) {
            return Err(QuotaError::TooFast);
        }
        Ok(self)
    }
}

/// Why numbers cannot be a quota. Each message says what would be accepted.
///
/// ```
/// use tollgate::rate::Problem;
/// use tollgate::{Gate, QuotaError};
///
/// let Err(QuotaError::Text(Problem { message, accepted })) = Gate::new("5/fortnight") else { panic!() };
/// assert!(message.contains("fortnight") && accepted.contains("min"), "{message}; accepted: {accepted}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// A text that is not a rate.
    #[error(transparent)]
    Text(#[from] Problem),
    /// Zero units.
    #[error(
        "a rate of 0 admits no request; accepted: at least 1, `rate: deny` to deny every request, or `mode: off` to switch the limit off"
    )]
    NoUnits,
    /// Zero burst.
    #[error("a burst of 0 admits no request; accepted: at least 1")]
    NoBurst,
    /// A period that is zero or too long.
    #[error("a period of {ticks} microseconds; accepted: 1 microsecond to 366 days")]
    Period {
        /// The period.
        ticks: u64,
    },
    /// Faster than [`UNITS_PER_SECOND_MAX`].
    #[error("faster than 10,000,000 a second; accepted: rates up to that")]
    TooFast,
    /// Numbers whose arithmetic would not be exact.
    #[error("{what}; {cure}")]
    Inexact {
        /// The arithmetic that does not fit.
        what: String,
        /// The accepted values.
        cure: String,
    },
    /// A number outside its range.
    #[error("{field}: {value} is out of range; accepted: {accepted}")]
    Range {
        /// The name of the number.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The accepted values.
        accepted: String,
    },
    /// A time zone that the database does not have.
    #[error("timezone: `{zone}` is unknown; accepted: {ZONES}")]
    Zone {
        /// The name that was given.
        zone: String,
    },
}

/// A quota is a quota: the conversion that [`Gate::new`](crate::Gate::new) needs for one never fails.
impl From<Infallible> for QuotaError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl QuotaError {
    /// The same error, with another alternative that would be accepted.
    pub(crate) fn or(mut self, alternative: &str) -> Self {
        if let QuotaError::Inexact { cure: text, .. } | QuotaError::Range { accepted: text, .. } = &mut self {
            text.push_str(", or ");
            text.push_str(alternative);
        }
        self
    }
}
