//! Calendar windows: the minute, hour, day, week, month or year around an instant, as a wall clock in a time zone shows
//! it. Counting inside a window is left to [`crate::algorithm::fixed_window`].

use std::sync::atomic::{AtomicU64, Ordering};

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{Span, ToSpan};

use crate::rate::QuotaError;
use crate::time::{TICKS_PER_SECOND, Ticks, Timestamp};

/// Bits of the memo that hold a window's length in seconds: a leap year needs 25.
const LENGTH_BITS: u32 = 26;

/// The last day of a month that a billing month may begin on.
pub(crate) const BILLING_DAY_MAX: u8 = 31;

/// The unit of a calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// From second 0 to the next.
    Minute,
    /// From minute 0 to the next.
    Hour,
    /// From midnight to midnight: 23, 24 or 25 hours.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first to the first.
    Month,
    /// From the first of January to the next.
    Year,
}

impl CalendarUnit {
    /// Its usual length: a month has 30 days, a year 365.
    #[must_use]
    pub const fn usual(self) -> Ticks {
        Ticks::from_secs(match self {
            CalendarUnit::Minute => 60,
            CalendarUnit::Hour => 3_600,
            CalendarUnit::Day => 86_400,
            CalendarUnit::Week => 7 * 86_400,
            CalendarUnit::Month => 30 * 86_400,
            CalendarUnit::Year => 365 * 86_400,
        })
    }

    /// The first day of the week, month or year around `date`; for shorter units the day itself.
    fn first_day(self, date: Date) -> Option<Date> {
        match self {
            CalendarUnit::Week => {
                let since_monday = i64::from(date.weekday().to_monday_zero_offset());
                date.checked_sub(since_monday.days()).ok()
            }
            CalendarUnit::Month => Some(date.first_of_month()),
            CalendarUnit::Year => Some(date.first_of_year()),
            CalendarUnit::Minute | CalendarUnit::Hour | CalendarUnit::Day => Some(date),
        }
    }

    /// A number of units as a span of whole days, months or years.
    fn span(self, units: i64) -> Span {
        match self {
            CalendarUnit::Week => units.weeks(),
            CalendarUnit::Month => units.months(),
            CalendarUnit::Year => units.years(),
            CalendarUnit::Minute | CalendarUnit::Hour | CalendarUnit::Day => units.days(),
        }
    }
}

/// A calendar unit in a time zone. Cheap to query: it remembers the last window it found.
#[derive(Debug)]
pub struct Calendar {
    unit: CalendarUnit,
    zone: TimeZone,
    /// The day of the month on which a month begins.
    billing_day: u8,
    memo: AtomicU64,
}

impl Calendar {
    /// Windows of `unit` in the time zone that the IANA database has under this name.
    ///
    /// # Errors
    /// When the database has no such zone.
    pub fn new(unit: CalendarUnit, zone: &str) -> Result<Self, QuotaError> {
        let unknown = || QuotaError::Zone { zone: zone.to_owned() };
        let zone = TimeZone::get(zone).map_err(|_| unknown())?;
        if zone.iana_name().is_none() {
            return Err(unknown());
        }
        Ok(Self { unit, zone, billing_day: 1, memo: AtomicU64::new(0) })
    }

    /// The same months, beginning on this day instead of the first. A month without such a day begins on its last day.
    ///
    /// # Errors
    /// When the windows are not months, or the day is not one of 1 to 31.
    pub fn billed_on(self, day: u8) -> Result<Self, QuotaError> {
        let accepted = match self.unit {
            CalendarUnit::Month if (1..=BILLING_DAY_MAX).contains(&day) => {
                return Ok(Self { billing_day: day, memo: AtomicU64::new(0), ..self });
            }
            CalendarUnit::Month => format!("1 to {BILLING_DAY_MAX}"),
            _ => "a calendar of months".to_owned(),
        };
        Err(QuotaError::Range { field: "billing_day", value: u64::from(day), accepted })
    }

    /// The day of the month on which its months begin.
    #[must_use]
    pub const fn billing_day(&self) -> u8 {
        self.billing_day
    }

    /// The unit of its windows.
    #[must_use]
    pub const fn unit(&self) -> CalendarUnit {
        self.unit
    }

    /// The time zone's IANA name.
    #[must_use]
    pub fn zone(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// The window around `now`: from its first instant up to, and without, the first of the next. Windows cover all
    /// time and never overlap. A window that starts before the Unix epoch is returned as starting there.
    #[must_use]
    pub fn window(&self, now: Timestamp) -> (Timestamp, Timestamp) {
        let second = now.unix_micros() / TICKS_PER_SECOND;
        // One word holds the whole window, so every value read is a valid window: no ordering with other memory is
        // needed.
        let memo = self.memo.load(Ordering::Relaxed);
        let (start, length) = (memo >> LENGTH_BITS, memo & ((1 << LENGTH_BITS) - 1));
        if second.wrapping_sub(start) < length {
            return instants(start, start + length);
        }
        let (start, end) = self.find(second);
        if end - start < 1 << LENGTH_BITS {
            self.memo.store(start << LENGTH_BITS | (end - start), Ordering::Relaxed);
        }
        instants(start, end)
    }

    /// The window around a second, in seconds. Should the database fail on a date, which it does not before the year
    /// 9999, the window is UTC's, so that a limit stays a limit.
    fn find(&self, second: u64) -> (u64, u64) {
        let found = i64::try_from(second).ok().and_then(|second| match self.unit {
            CalendarUnit::Minute => self.by_clock(second, 60),
            CalendarUnit::Hour => self.by_clock(second, 3_600),
            _ => self.by_date(second),
        });
        let usual = self.unit.usual().as_micros() / TICKS_PER_SECOND;
        let fallback = second - second % usual;
        found
            .and_then(|(start, end)| Some((u64::try_from(start.max(0)).ok()?, u64::try_from(end).ok()?)))
            .unwrap_or((fallback, fallback + usual))
    }

    /// Minutes and hours last 60 and 3600 seconds, even where the wall clock shows one twice. Where a zone shifts by a
    /// fraction of the unit (Lord Howe, by half an hour), the fragment belongs to the window before it.
    fn by_clock(&self, second: i64, length: i64) -> Option<(i64, i64)> {
        let past = |at: i64| {
            let offset = self.zone.to_offset(jiff::Timestamp::from_second(at).ok()?);
            Some((at + i64::from(offset.seconds())).rem_euclid(length))
        };
        let aligned = second - past(second)?;
        let start = aligned - past(aligned)?;
        let end = aligned + length;
        let end = match past(end)? {
            0 => end,
            fragment => end + length - fragment,
        };
        Some((start, end))
    }

    /// The day on which a window begins, given the first day of its unit.
    fn on_billing_day(&self, first: Date) -> Option<Date> {
        let day = i8::try_from(self.billing_day).ok()?.min(first.days_in_month());
        if day == 1 { Some(first) } else { first.with().day(day).build().ok() }
    }

    /// Days, weeks, months and years start at the first instant of their first date, whatever the clock then shows.
    /// Where a clock is set back over midnight a date comes twice. So the neighbouring windows are tried, until one
    /// contains the instant.
    fn by_date(&self, second: i64) -> Option<(i64, i64)> {
        let today = self.zone.to_datetime(jiff::Timestamp::from_second(second).ok()?).date();
        let first = self.unit.first_day(today)?;
        let begin = |units: i64| {
            let date = self.on_billing_day(first.checked_add(self.unit.span(units)).ok()?)?;
            let midnight = date.to_datetime(Time::midnight());
            Some(self.zone.to_timestamp(midnight).ok()?.as_second())
        };
        [0, 1, -1].into_iter().find_map(|units| {
            let (start, end) = (begin(units)?, begin(units + 1)?);
            (start <= second && second < end).then_some((start, end))
        })
    }
}

fn instants(start: u64, end: u64) -> (Timestamp, Timestamp) {
    (Timestamp::from_unix_seconds(start), Timestamp::from_unix_seconds(end))
}

impl Clone for Calendar {
    fn clone(&self) -> Self {
        Self {
            unit: self.unit,
            zone: self.zone.clone(),
            billing_day: self.billing_day,
            memo: AtomicU64::new(self.memo.load(Ordering::Relaxed)), // Whole in any order, as in `window`.
        }
    }
}

/// Equal calendars have the same windows; their memos do not matter.
impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        self.unit == other.unit && self.zone == other.zone && self.billing_day == other.billing_day
    }
}

impl Eq for Calendar {}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        let instant: jiff::Timestamp = text.parse().unwrap();
        Timestamp::from_unix_micros(u64::try_from(instant.as_microsecond()).unwrap())
    }

    /// Asserts the window around `now`, that its last tick belongs to it, and that the next begins where it ends.
    fn assert_window(unit: CalendarUnit, zone: &str, now: &str, start: &str, end: &str) {
        let calendar = Calendar::new(unit, zone).unwrap();
        let window = (at(start), at(end));
        assert_eq!(calendar.window(at(now)), window, "{unit:?} in {zone} around {now}");
        assert_eq!(calendar.window(at(end) - Ticks::ONE), window, "up to its last tick");
        assert_eq!(calendar.window(at(start)), window, "from its first tick");
        assert_eq!(calendar.window(at(end)).0, at(end), "the next begins where it ends");
        assert_eq!(calendar.window(at(start) - Ticks::ONE).1, at(start), "the one before ends there");
    }

    /// Days that a clock change makes shorter or longer are one window each.
    #[test]
    fn days_of_23_and_25_hours() {
        use CalendarUnit::Day;
        let rome = "Europe/Rome";
        assert_window(Day, rome, "2024-03-31T12:00:00Z", "2024-03-30T23:00:00Z", "2024-03-31T22:00:00Z");
        assert_window(Day, rome, "2024-10-27T00:30:00Z", "2024-10-26T22:00:00Z", "2024-10-27T23:00:00Z");
        let new_york = "America/New_York";
        assert_window(Day, new_york, "2024-11-03T06:30:00Z", "2024-11-03T04:00:00Z", "2024-11-04T05:00:00Z");
    }

    /// Where midnight does not exist the day starts with its first instant.
    #[test]
    fn days_without_a_midnight() {
        use CalendarUnit::{Day, Month};
        // São Paulo went from 2018-11-03 24:00 straight to 2018-11-04 01:00.
        let day = ("2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z");
        assert_window(Day, "America/Sao_Paulo", "2018-11-04T12:00:00Z", day.0, day.1);
        // It then had 2018-02-17 23:00 twice.
        let day = ("2018-02-17T02:00:00Z", "2018-02-18T03:00:00Z");
        assert_window(Day, "America/Sao_Paulo", "2018-02-18T02:30:00Z", day.0, day.1);
        let day = ("2024-04-25T22:00:00Z", "2024-04-26T21:00:00Z");
        assert_window(Day, "Africa/Cairo", "2024-04-26T12:00:00Z", day.0, day.1);
        // Samoa skipped 2011-12-30; its December has 30 days.
        let day = ("2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z");
        assert_window(Day, "Pacific/Apia", "2011-12-30T10:00:01Z", day.0, day.1);
        let month = ("2011-12-01T10:00:00Z", "2011-12-31T10:00:00Z");
        assert_window(Month, "Pacific/Apia", "2011-12-30T10:00:01Z", month.0, month.1);
    }

    /// St John's set its clock back from 00:01 to 23:01 of the day before: the new day, once begun, is not left again.
    #[test]
    fn a_clock_set_back_over_midnight_keeps_the_new_day() {
        let day = ("2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z");
        for now in
            ["2010-11-07T02:30:30Z", "2010-11-07T02:31:00Z", "2010-11-07T03:29:00Z", "2010-11-07T03:31:00Z"]
        {
            assert_window(CalendarUnit::Day, "America/St_Johns", now, day.0, day.1);
        }
    }

    /// Months have their own lengths, years their leap days, weeks their Monday.
    #[test]
    fn months_years_and_weeks() {
        use CalendarUnit::{Month, Week, Year};
        let february = ("2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z");
        assert_window(Month, "UTC", "2024-02-29T23:59:59Z", february.0, february.1);
        let february = ("2100-02-01T00:00:00Z", "2100-03-01T00:00:00Z");
        assert_window(Month, "UTC", "2100-02-28T23:59:59Z", february.0, february.1);
        let march = ("2024-02-29T23:00:00Z", "2024-03-31T22:00:00Z");
        assert_window(Month, "Europe/Rome", "2024-03-31T21:00:00Z", march.0, march.1);
        let year = ("2023-12-31T18:15:00Z", "2024-12-31T18:15:00Z");
        assert_window(Year, "Asia/Kathmandu", "2024-06-01T00:00:00Z", year.0, year.1);
        let week = ("2024-10-27T23:00:00Z", "2024-11-03T23:00:00Z");
        assert_window(Week, "Europe/Rome", "2024-11-03T22:59:59Z", week.0, week.1);
        let week = ("2024-10-20T22:00:00Z", "2024-10-27T23:00:00Z");
        assert_window(Week, "Europe/Rome", "2024-10-27T22:59:59Z", week.0, week.1);
    }

    /// Months that begin on a billing day follow each other, also where a month has no such day, and over clock
    /// changes.
    #[test]
    fn months_from_a_billing_day() {
        let window = |day, zone: &str, now: &str| {
            let calendar = Calendar::new(CalendarUnit::Month, zone).unwrap().billed_on(day).unwrap();
            let (start, end) = calendar.window(at(now));
            assert_eq!(calendar.window(end).0, end);
            assert_eq!(calendar.window(start - Ticks::ONE).1, start);
            (start, end)
        };
        let from = |start: &str, end: &str| (at(start), at(end));
        let (rome, utc) = ("Europe/Rome", "UTC");
        let march = from("2024-03-14T23:00:00Z", "2024-04-14T22:00:00Z");
        assert_eq!(window(15, rome, "2024-03-14T23:00:00Z"), march);
        assert_eq!(window(15, rome, "2024-04-14T21:59:59Z"), march);
        let february = from("2024-02-29T00:00:00Z", "2024-03-31T00:00:00Z");
        assert_eq!(window(31, utc, "2024-03-30T12:00:00Z"), february);
        let january = from("2023-01-31T00:00:00Z", "2023-02-28T00:00:00Z");
        assert_eq!(window(31, utc, "2023-02-27T23:59:59Z"), january);
        assert_eq!(
            window(30, utc, "2023-02-28T00:00:00Z"),
            from("2023-02-28T00:00:00Z", "2023-03-30T00:00:00Z")
        );
        assert_eq!(
            window(1, rome, "2024-03-31T21:00:00Z"),
            from("2024-02-29T23:00:00Z", "2024-03-31T22:00:00Z")
        );
        for (unit, day) in [(CalendarUnit::Month, 0), (CalendarUnit::Month, 32), (CalendarUnit::Week, 5)] {
            assert!(Calendar::new(unit, utc).unwrap().billed_on(day).is_err());
        }
    }

    /// Hours and minutes follow the zone's wall clock, half-hour offsets and half-hour clock changes included.
    #[test]
    fn hours_and_minutes() {
        use CalendarUnit::{Hour, Minute};
        let hour = ("2024-06-01T11:30:00Z", "2024-06-01T12:30:00Z");
        assert_window(Hour, "Asia/Kolkata", "2024-06-01T12:00:00Z", hour.0, hour.1);
        // The hour that Rome has twice is two windows of an hour.
        let hour = ("2024-10-27T01:00:00Z", "2024-10-27T02:00:00Z");
        assert_window(Hour, "Europe/Rome", "2024-10-27T01:30:00Z", hour.0, hour.1);
        // Lord Howe's clock goes from 02:00 back to 01:30, and in spring from 02:00 to 02:30: one window of 90 minutes.
        let hour = ("2024-04-06T14:00:00Z", "2024-04-06T15:30:00Z");
        assert_window(Hour, "Australia/Lord_Howe", "2024-04-06T15:10:00Z", hour.0, hour.1);
        let hour = ("2024-10-05T14:30:00Z", "2024-10-05T16:00:00Z");
        assert_window(Hour, "Australia/Lord_Howe", "2024-10-05T15:40:00Z", hour.0, hour.1);
        let minute = ("2024-06-01T12:00:00Z", "2024-06-01T12:01:00Z");
        assert_window(Minute, "Asia/Kathmandu", "2024-06-01T12:00:59Z", minute.0, minute.1);
    }

    /// The ends of time have windows too, and a window that begins before the epoch begins there.
    #[test]
    fn the_ends_of_time() {
        use CalendarUnit::{Day, Hour, Minute, Month, Week, Year};
        for unit in [Minute, Hour, Day, Week, Month, Year] {
            for zone in ["UTC", "Pacific/Kiritimati", "Pacific/Niue", "Asia/Kathmandu", "Africa/Monrovia"] {
                let calendar = Calendar::new(unit, zone).unwrap();
                let (start, end) = calendar.window(Timestamp::default());
                assert_eq!(start, Timestamp::default());
                assert!(end > start);
                let (start, end) = calendar.window(Timestamp::MAX);
                assert!(start <= Timestamp::MAX && end == Timestamp::MAX, "{unit:?} in {zone}");
            }
        }
    }

    /// The memo of a calendar changes neither its answers nor its equality.
    #[test]
    fn the_memo_is_invisible() {
        let calendar = Calendar::new(CalendarUnit::Day, "Europe/Rome").unwrap();
        let fresh = calendar.clone();
        let (first, second) = (at("2024-03-31T12:00:00Z"), at("2024-10-27T12:00:00Z"));
        for now in [first, second, first, first, second] {
            let expected = Calendar::new(CalendarUnit::Day, "Europe/Rome").unwrap().window(now);
            assert_eq!(calendar.window(now), expected);
        }
        assert_eq!(calendar, fresh);
        assert_ne!(calendar, Calendar::new(CalendarUnit::Hour, "Europe/Rome").unwrap());
    }

    /// An unknown zone is rejected, and the message says what is accepted.
    #[test]
    fn unknown_zones_are_refused() {
        for zone in ["Mars/Olympus", "", "CEST-ish", "Etc/Unknown"] {
            let error = Calendar::new(CalendarUnit::Day, zone).unwrap_err();
            assert!(error.to_string().contains("Europe/Rome"), "{error}");
        }
    }
}
