//! Numbers, durations and instants as servers write them. Everything is counted in whole microseconds, rounded up, so
//! that a caller waits long enough.

use jiff::civil::DateTime;
use jiff::fmt::rfc2822;
use tollgate::{Ticks, Timestamp};

use super::{COUNT_MAX, WAIT_MAX};

const MICROS: u128 = 1_000_000;
/// A longer number is none.
const DIGITS_MAX: usize = 24;
/// A reset above this is an instant and no duration: 1,000,000,000 s are 31 years.
const EPOCH_SECONDS_MIN: u128 = 1_000_000_000;

/// A decimal number in millionths, rounded up.
fn millionths(text: &str) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |part: &str| part.len() <= DIGITS_MAX && part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() && fraction.is_empty() || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let (kept, rest) = fraction.split_at(fraction.len().min(6));
    let kept: u128 = if kept.is_empty() { 0 } else { format!("{kept:0<6}").parse().ok()? };
    let up = u128::from(rest.bytes().any(|byte| byte != b'0'));
    Some(whole * MICROS + kept + up)
}

/// A count. Fractions are rounded down, and absurd counts are capped.
pub(super) fn count(text: &str) -> Option<u64> {
    let whole = text.split_once('.').map_or(text, |(whole, _)| whole);
    let count = millionths(text).filter(|_| !whole.is_empty())? / MICROS;
    Some(u64::try_from(count).unwrap_or(u64::MAX).min(COUNT_MAX))
}

/// A duration of this many microseconds, capped.
fn ticks(micros: u128) -> Ticks {
    u64::try_from(micros).map_or(WAIT_MAX, Ticks::from_micros).min(WAIT_MAX)
}

/// Seconds, with or without a fraction.
pub(super) fn seconds(text: &str) -> Option<Ticks> {
    millionths(text).map(ticks)
}

/// Milliseconds, with or without a fraction.
pub(super) fn millis(text: &str) -> Option<Ticks> {
    millionths(text).map(|millionths| ticks(millionths.div_ceil(1_000)))
}

/// A duration as Go writes it, such as `6m0s`, `1h2m3.5s` or `12ms`.
pub(super) fn go_duration(text: &str) -> Option<Ticks> {
    let mut rest = text;
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(unit_at);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let unit_nanos: u128 = match unit {
            "d" => 86_400_000_000_000,
            "h" => 3_600_000_000_000,
            "m" => 60_000_000_000,
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            "us" | "µs" | "μs" => 1_000,
            "ns" => 1,
            _ => return None,
        };
        nanos = nanos.checked_add(millionths(number)?.checked_mul(unit_nanos)?.div_ceil(MICROS))?;
        rest = tail;
    }
    (!text.is_empty()).then(|| ticks(nanos.div_ceil(1_000)))
}

/// An instant: the three forms of HTTP dates, or RFC 3339 with or without a zone.
pub(super) fn date(text: &str) -> Option<Timestamp> {
    let imf = || rfc2822::DateTimeParser::new().parse_timestamp(text).ok();
    let rfc3339 = || text.parse::<jiff::Timestamp>().ok();
    let civil = |parsed: DateTime| parsed.in_tz("UTC").ok().map(|zoned| zoned.timestamp());
    let local = || text.parse::<DateTime>().ok().filter(|_| text.contains(':')).and_then(civil);
    let obsolete = || {
        let forms = ["%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"];
        forms.iter().find_map(|form| DateTime::strptime(form, text).ok()).and_then(civil)
    };
    let instant = imf().or_else(rfc3339).or_else(local).or_else(obsolete)?;
    u64::try_from(instant.as_microsecond()).ok().map(Timestamp::from_unix_micros)
}

/// A wait until an instant in the clock of the server, or zero if it is over.
pub(super) fn until(date: Timestamp, server_now: Timestamp) -> Ticks {
    date.since(server_now).min(WAIT_MAX)
}

/// When a counter resets: seconds, an epoch in seconds, ms, µs or ns, a Go duration, or a date.
pub(super) fn reset(text: &str, server_now: Timestamp) -> Option<Ticks> {
    let Some(number) = millionths(text) else {
        return go_duration(text).or_else(|| date(text).map(|date| until(date, server_now)));
    };
    // The number in seconds, by its size.
    let micros = match number / MICROS / EPOCH_SECONDS_MIN {
        0 => return Some(ticks(number)),
        1..1_000 => number,
        1_000..1_000_000 => number.div_ceil(1_000),
        1_000_000..1_000_000_000 => number.div_ceil(1_000_000),
        _ => number.div_ceil(1_000_000_000),
    };
    Some(ticks(micros.saturating_sub(u128::from(server_now.unix_micros()))))
}
