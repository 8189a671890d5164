//! Calendar windows: the unit and the time zone whose midnight counts.

use crate::quota::QuotaError;

/// What a calendar window spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day.
    Day,
    /// A week, from Monday.
    Week,
    /// A month.
    Month,
    /// A year.
    Year,
}

/// A unit in a time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    unit: CalendarUnit,
    zone: String,
}

impl Calendar {
    /// The calendar of `zone`, an IANA name such as `Europe/Rome`.
    ///
    /// # Errors
    /// When nobody knows the zone.
    pub fn new(unit: CalendarUnit, zone: &str) -> Result<Self, QuotaError> {
        jiff::tz::TimeZone::get(zone).map_err(|_| QuotaError::Zone {
            zone: zone.to_owned(),
        })?;
        Ok(Self {
            unit,
            zone: zone.to_owned(),
        })
    }

    /// The unit.
    #[must_use]
    pub const fn unit(&self) -> CalendarUnit {
        self.unit
    }

    /// The zone's name.
    #[must_use]
    pub fn zone(&self) -> &str {
        &self.zone
    }
}
