//! Stamps of logs as instants: dates of the common log format, RFC 3339, and seconds since 1970.

use tollgate::Timestamp;

use super::record::Precision;
use super::text::{Reason, number, scaled, text};

/// Bytes of a date in the common log format.
const CLF_BYTES: usize = 26;
/// Where the time of day starts in it, and where it ends.
const CLF_CLOCK: std::ops::Range<usize> = 12..20;
const DAY: i64 = 86_400;
/// Bytes of `2024-03-01T12:00:00`, before the fraction and the zone.
const RFC3339_CLOCK: usize = 19;

/// A stamp and how fine it is.
pub(super) type Stamped = (Timestamp, Precision);

/// Reads dates such as `10/Oct/2000:13:55:36 -0700`. Lines of a log come in the same second or on the same day, so it
/// remembers the last date and the midnight before it.
#[derive(Clone, Debug)]
pub(super) struct ClfDates {
    last: [u8; CLF_BYTES],
    at: Timestamp,
    /// Seconds since 1970 at the midnight of `last`, in its zone.
    midnight: i64,
    /// A stamp had no zone, and was read as UTC.
    pub(super) has_no_zone: bool,
}

impl ClfDates {
    pub(super) fn new() -> Self {
        Self { last: [0; CLF_BYTES], at: Timestamp::default(), midnight: 0, has_no_zone: false }
    }

    /// The instant of a date.
    pub(super) fn read(&mut self, date: &[u8]) -> Result<Timestamp, Reason> {
        let Ok(date) = <&[u8; CLF_BYTES]>::try_from(date) else { return Err(unusual(date)) };
        if *date == self.last {
            return Ok(self.at);
        }
        let same_day = date[..CLF_CLOCK.start] == self.last[..CLF_CLOCK.start]
            && date[CLF_CLOCK.end..] == self.last[CLF_CLOCK.end..];
        let midnight = if same_day {
            self.midnight
        } else {
            let day = clf_day(&date[..CLF_CLOCK.start]).ok_or_else(|| not_a_date(date))?;
            if date[CLF_CLOCK.end] != b' ' {
                return Err(not_a_date(date));
            }
            day - zone(&date[CLF_CLOCK.end + 1..])?
        };
        let clock = clock(&date[CLF_CLOCK]).ok_or_else(|| not_a_date(date))?;
        let at = instant(midnight + clock, 0)?;
        (self.last, self.at, self.midnight) = (*date, at, midnight);
        Ok(at)
    }
}

/// The problem with a date of the wrong length.
fn unusual(date: &[u8]) -> Reason {
    match date.get(CLF_CLOCK.end..) {
        Some([b' ', rest @ ..]) if clf_day(&date[..CLF_CLOCK.start]).is_some() => unknown_zone(rest),
        Some([]) => "the date has no zone: expected 10/Oct/2000:13:55:36 -0700".into(),
        _ => not_a_date(date),
    }
}

fn not_a_date(date: &[u8]) -> Reason {
    let date = super::text::excerpt(&date[..date.len().min(40)]);
    format!("`{date}` is not a date: expected 10/Oct/2000:13:55:36 -0700").into()
}

fn unknown_zone(zone: &[u8]) -> Reason {
    let zone = super::text::excerpt(&zone[..zone.len().min(20)]);
    format!("the zone `{zone}` is unknown: expected an offset such as +0200").into()
}

/// Seconds since 1970 at midnight UTC of `10/Oct/2000:`.
pub(super) fn clf_day(date: &[u8]) -> Option<i64> {
    let [d, e, b'/', month @ .., b'/', y, e2, a, r, b':'] = date else { return None };
    let month = match month {
        b"Jan" => 1,
        b"Feb" => 2,
        b"Mar" => 3,
        b"Apr" => 4,
        b"May" => 5,
        b"Jun" => 6,
        b"Jul" => 7,
        b"Aug" => 8,
        b"Sep" => 9,
        b"Oct" => 10,
        b"Nov" => 11,
        b"Dec" => 12,
        _ => return None,
    };
    midnight(number(&[*y, *e2, *a, *r])?, month, number(&[*d, *e])?)
}

/// Seconds since 1970 at midnight UTC of a day of the Gregorian calendar; `None` for a day that does not exist.
fn midnight(year: u64, month: u64, day: u64) -> Option<i64> {
    let leap = (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    let length = match month {
        2 => 28 + u64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        _ => return None,
    };
    if year == 0 || day == 0 || day > length {
        return None;
    }
    // Years that start in March, so that the leap day is the last day of a year.
    let shifted = if month > 2 { year } else { year - 1 };
    let (era, of_era) = (shifted / 400, shifted % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    Some((i64::try_from(days).ok()? - 719_468) * DAY)
}

/// Seconds of the day of `13:55:36`. A leap second counts as the first second after it.
pub(super) fn clock(time: &[u8]) -> Option<i64> {
    let [h, h2, b':', m, m2, b':', s, s2] = time else { return None };
    let (hours, minutes, seconds) = (number(&[*h, *h2])?, number(&[*m, *m2])?, number(&[*s, *s2])?);
    if hours > 23 || minutes > 59 || seconds > 60 {
        return None;
    }
    i64::try_from(hours * 3_600 + minutes * 60 + seconds).ok()
}

/// Seconds that a zone is ahead of UTC: `Z`, `UTC`, `GMT`, `+02:00`, `+0200` or `+02`.
fn zone(written: &[u8]) -> Result<i64, Reason> {
    let (sign, digits) = match written {
        b"Z" | b"z" | b"UTC" | b"GMT" => return Ok(0),
        [b'+', digits @ ..] => (1, digits),
        [b'-', digits @ ..] => (-1, digits),
        other => return Err(unknown_zone(other)),
    };
    let (hours, minutes) = match digits {
        [h, h2, b':', m, m2] | [h, h2, m, m2] => (number(&[*h, *h2]), number(&[*m, *m2])),
        [h, h2] => (number(&[*h, *h2]), Some(0)),
        _ => (None, None),
    };
    match (hours, minutes) {
        (Some(hours @ 0..=23), Some(minutes @ 0..=59)) => {
            Ok(sign * i64::try_from(hours * 3_600 + minutes * 60).unwrap_or(0))
        }
        _ => Err(unknown_zone(written)),
    }
}

/// The instant so many seconds and microseconds after 1970, within what Tollgate can represent.
pub(super) fn instant(seconds: i64, micros: u64) -> Result<Timestamp, Reason> {
    let seconds = u64::try_from(seconds).map_err(|_| "the stamp is before 1970")?;
    within_time(seconds.saturating_mul(1_000_000).saturating_add(micros))
}

fn within_time(micros: u64) -> Result<Timestamp, Reason> {
    if micros > Timestamp::MAX.unix_micros() {
        return Err("the stamp is after the year 2112".into());
    }
    Ok(Timestamp::from_unix_micros(micros))
}

/// Reads `2024-03-01T12:00:00.123Z`, with a space for the `T`, and any offset. A stamp without a zone is UTC.
pub(super) fn rfc3339(written: &[u8]) -> Result<Stamped, Reason> {
    let broken = || Reason::from(format!("`{}` is not an RFC 3339 time", super::text::excerpt(written)));
    let Some((head, tail)) = written.split_at_checked(RFC3339_CLOCK) else { return Err(broken()) };
    let [y, y2, y3, y4, b'-', m, m2, b'-', d, d2, b'T' | b't' | b' ', time @ ..] = head else {
        return Err(broken());
    };
    let day = || midnight(number(&[*y, *y2, *y3, *y4])?, number(&[*m, *m2])?, number(&[*d, *d2])?);
    let (Some(day), Some(clock)) = (day(), clock(time)) else { return Err(broken()) };
    let (micros, precision, offset) = match tail {
        [b'.' | b',', fraction @ ..] => {
            let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let (digits, offset) = fraction.split_at(digits);
            (micros(digits).ok_or_else(broken)?, Precision::Exact, offset)
        }
        offset => (0, Precision::Second, offset),
    };
    let offset = match offset.trim_ascii_start() {
        [] => 0,
        offset => zone(offset)?,
    };
    Ok((instant(day + clock - offset, micros)?, precision))
}

/// The microseconds of a fraction of a second; digits after the sixth are cut off.
pub(super) fn micros(digits: &[u8]) -> Option<u64> {
    let kept = &digits[..digits.len().min(6)];
    let power = 6_u32.checked_sub(u32::try_from(kept.len()).ok()?)?;
    Some(number(kept)? * 10_u64.pow(power))
}

/// Reads a number of seconds, milliseconds, microseconds or nanoseconds since 1970, by its size.
pub(super) fn epoch(decimal: &[u8]) -> Option<Result<Stamped, Reason>> {
    let whole = decimal.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (shift, precision) = match whole {
        1..=11 if whole == decimal.len() => (6, Precision::Second),
        1..=11 => (6, Precision::Exact),
        12..=14 => (3, Precision::Exact),
        15..=17 => (0, Precision::Exact),
        18..=20 => (-3, Precision::Exact),
        _ => return None,
    };
    let micros = scaled(decimal, shift)?;
    Some(within_time(micros).map(|at| (at, precision)))
}

/// Reads a stamp of any of the kinds: RFC 3339, a number since 1970, or a date of the common log format.
pub(super) fn any_stamp(written: &[u8], dates: &mut ClfDates) -> Result<Stamped, Reason> {
    let written = written.trim_ascii();
    if let Some(read) = epoch(written) {
        return read;
    }
    if written.get(4) == Some(&b'-') {
        let is_of_zone = |byte: &u8| !byte.is_ascii_digit() && !matches!(byte, b'.' | b',');
        dates.has_no_zone |= !written.iter().skip(RFC3339_CLOCK).any(is_of_zone);
        return rfc3339(written);
    }
    let bare = written.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]")).unwrap_or(written);
    if bare.get(2) == Some(&b'/') {
        return dates.read(bare).map(|at| (at, Precision::Second));
    }
    let shown = text(&written[..written.len().min(40)]);
    Err(format!(
        "`{}` is not a time: expected RFC 3339, or seconds or milliseconds since 1970",
        shown.escape_debug()
    )
    .into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn clf(date: &str) -> Result<u64, Reason> {
        ClfDates::new().read(date.as_bytes()).map(Timestamp::unix_micros)
    }

    #[test]
    fn dates_of_the_common_log_format() {
        assert_eq!(clf("10/Oct/2000:13:55:36 -0700"), Ok(971_211_336_000_000));
        assert_eq!(clf("29/Feb/2024:23:59:59 +0530"), Ok(1_709_231_399_000_000));
        assert_eq!(clf("01/Jan/1970:00:00:00 +0000"), Ok(0));
        for (date, complaint) in [
            ("01/Jan/1970:00:00:00 +0100", "before 1970"),
            ("30/Feb/2024:00:00:00 +0000", "is not a date"),
            ("10/Okt/2000:13:55:36 +0200", "is not a date"),
            ("10/Oct/2000:24:55:36 +0200", "is not a date"),
            ("10/Oct/2000:13:55:36 CEST", "the zone `CEST` is unknown"),
            ("10/Oct/2000:13:55:36 +9900", "the zone `+9900` is unknown"),
            ("10/Oct/2000:13:55:36", "has no zone"),
            ("10/Oct/2200:13:55:36 +0000", "after the year 2112"),
            ("", "is not a date"),
        ] {
            let reason = clf(date).unwrap_err();
            assert!(reason.contains(complaint), "{date}: {reason}");
        }
    }

    /// A remembered day changes no answer, and a bad date in between does no harm.
    #[test]
    fn remembered_days_agree_with_fresh_ones() {
        let mut dates = ClfDates::new();
        for date in [
            "10/Oct/2000:13:55:36 -0700",
            "10/Oct/2000:13:55:36 -0700",
            "10/Oct/2000:13:55:37 -0700",
            "10/Oct/2000:13:55:37 +0700",
            "10/Oct/2000:99:55:37 +0700",
            "11/Oct/2000:00:00:00 +0700",
            "10/Oct/2000:13:55:36 -0700",
        ] {
            assert_eq!(dates.read(date.as_bytes()).map(Timestamp::unix_micros), clf(date), "{date}");
        }
    }

    #[test]
    fn stamps_of_every_kind() {
        let whole = 1_709_294_400_000_000;
        for (written, micros, precision) in [
            ("2024-03-01T12:00:00Z", whole, Precision::Second),
            ("2024-03-01 12:00:00", whole, Precision::Second),
            ("2024-03-01T13:00:00.5+01:00", whole + 500_000, Precision::Exact),
            ("2024-03-01 12:00:00.123456789 UTC", whole + 123_456, Precision::Exact),
            ("1709294400", whole, Precision::Second),
            ("1709294400.25", whole + 250_000, Precision::Exact),
            ("1709294400250", whole + 250_000, Precision::Exact),
            ("1709294400250.5", whole + 250_500, Precision::Exact),
            ("1709294400250001", whole + 250_001, Precision::Exact),
            ("1709294400250001999", whole + 250_001, Precision::Exact),
            ("[01/Mar/2024:12:00:00 +0000]", whole, Precision::Second),
        ] {
            let read = any_stamp(written.as_bytes(), &mut ClfDates::new());
            assert_eq!(read, Ok((Timestamp::from_unix_micros(micros), precision)), "{written}");
        }
        for (written, complaint) in [
            ("yesterday", "is not a time"),
            ("", "is not a time"),
            ("2024-13-01T12:00:00Z", "not an RFC 3339 time"),
            ("2024-03-01", "not an RFC 3339 time"),
            ("2024-03-01T12:00:00 Europe/Berlin", "the zone `Europe/Berlin` is unknown"),
            ("99999999999", "after the year 2112"),
        ] {
            let reason = any_stamp(written.as_bytes(), &mut ClfDates::new()).unwrap_err();
            assert!(reason.contains(complaint), "{written}: {reason}");
        }
    }

    proptest! {
        /// Every instant that another library writes is read back.
        #[test]
        fn another_library_agrees(micros in 0_i64..(1 << 52), offset in -14_i32 * 60..14 * 60) {
            let at = jiff::Timestamp::from_microsecond(micros).unwrap();
            let expected = Timestamp::from_unix_micros(u64::try_from(micros).unwrap());
            prop_assert_eq!(rfc3339(at.to_string().as_bytes()).unwrap().0, expected);
            let zone = jiff::tz::Offset::from_seconds(offset * 60).unwrap().to_time_zone();
            let date = at.to_zoned(zone).strftime("%d/%b/%Y:%H:%M:%S %z").to_string();
            let seconds = Timestamp::from_unix_seconds(u64::try_from(micros / 1_000_000).unwrap());
            prop_assert_eq!(ClfDates::new().read(date.as_bytes()).unwrap(), seconds, "{}", date);
        }

        #[test]
        fn no_stamp_panics(bytes in proptest::collection::vec(any::<u8>(), 0..40), text in "[-0-9/:. +TZJan]{0,40}") {
            let _ = any_stamp(&bytes, &mut ClfDates::new());
            let _ = any_stamp(text.as_bytes(), &mut ClfDates::new());
        }
    }
}
