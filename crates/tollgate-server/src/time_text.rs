//! Instants and durations as text: as the server writes them in JSON, and as people type them. Each error says what
//! would be accepted.

use tollgate::time::WallOffset;
use tollgate::{Ticks, Timestamp};
pub(crate) use tollgate_gateway::time_text::{duration, signed};

use crate::text::plain;

/// By how many milliseconds two clocks may differ and be called in step.
const CLOCK_MS_MAX: u64 = 1_000;
const DAY_SECONDS: u64 = 86_400;

/// An instant of the decision clock as RFC 3339, converted by the offset of the wall clock: in UTC, with as many digits
/// as it needs. Empty if the instant cannot be written.
pub(crate) fn rfc3339(at: Timestamp, wall: WallOffset) -> String {
    written(at.on_wall(wall)).map(|instant| instant.to_string()).unwrap_or_default()
}

/// An instant of the wall clock, always to the millisecond, for columns.
pub(crate) fn rfc3339_millis(at: Timestamp) -> String {
    written(at).map(|instant| format!("{instant:.3}")).unwrap_or_default()
}

/// An instant in RFC 3339 for a column: without fractions of a second, and without the date where the next such time of
/// day is meant. Any other text stays as it is.
pub(crate) fn brief_instant(text: &str, now: Timestamp) -> String {
    let Ok(at) = instant(text) else { return plain(text) };
    let second = Timestamp::from_unix_seconds(at.unix_micros() / 1_000_000);
    let whole = rfc3339(second, WallOffset::NONE);
    let is_next = at >= now && at.since(now) < Ticks::from_secs(DAY_SECONDS);
    match whole.split_once('T') {
        Some((_, time)) if is_next => time.to_owned(),
        _ => whole,
    }
}

/// A duration for people: see [`Ticks::readable`].
pub(crate) fn people(millis: u64) -> String {
    Ticks::from_millis(millis).readable()
}

/// How far a clock is from another one, such as `2 s ahead`. `None` if it is in step.
pub(crate) fn clock_text(ms: i64) -> Option<String> {
    let side = if ms < 0 { "behind" } else { "ahead" };
    (ms.unsigned_abs() >= CLOCK_MS_MAX).then(|| format!("{} {side}", people(ms.unsigned_abs())))
}

fn written(at: Timestamp) -> Option<jiff::Timestamp> {
    let micros = i64::try_from(at.unix_micros()).ok()?;
    jiff::Timestamp::from_microsecond(micros).ok()
}

/// Parses an RFC 3339 instant.
pub(crate) fn instant(text: &str) -> Result<Timestamp, String> {
    let accepted = "accepted: 1970-01-01T00:00:00Z to 2112-09-17T00:00:00Z, such as 2030-01-31T12:00:00Z";
    let instant: jiff::Timestamp = text.parse().map_err(|_| format!("not a time of RFC 3339; {accepted}"))?;
    u64::try_from(instant.as_microsecond())
        .ok()
        .filter(|&micros| micros <= Timestamp::MAX.unix_micros())
        .map(Timestamp::from_unix_micros)
        .ok_or_else(|| format!("out of range; {accepted}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instants are written in the standard form, up to the last one.
    #[test]
    fn instants_are_written() {
        let second = Timestamp::from_unix_seconds(1);
        assert_eq!(rfc3339(second, WallOffset::NONE), "1970-01-01T00:00:01Z");
        assert_eq!(rfc3339(second, WallOffset::from_micros(3_600_000_000)), "1970-01-01T01:00:01Z");
        assert_eq!(
            rfc3339(second + Ticks::from_micros(250_000), WallOffset::NONE),
            "1970-01-01T00:00:01.25Z"
        );
        assert_eq!(rfc3339_millis(second), "1970-01-01T00:00:01.000Z");
        let last = Timestamp::from_unix_micros(u64::MAX);
        assert_eq!(rfc3339_millis(last), "2112-09-17T23:53:47.370Z", "the last instant there is");
    }

    /// An instant has no date where the next such time of day is meant, and no fraction.
    #[test]
    fn a_near_instant_has_no_date() {
        let now = instant("2026-11-19T23:28:15.306Z").unwrap();
        for (given, expected) in [
            ("2026-11-19T23:28:15.999Z", "23:28:15Z"),
            ("2026-11-20T00:03:15.306Z", "00:03:15Z"),
            ("2026-11-20T23:28:15.305Z", "23:28:15Z"),
            ("2026-11-20T23:28:15.306Z", "2026-11-20T23:28:15Z"),
            ("2026-11-19T23:28:15Z", "2026-11-19T23:28:15Z"),
            ("soon", "soon"),
        ] {
            assert_eq!(brief_instant(given, now), expected);
        }
    }

    /// Times outside the supported range are refused, not adjusted.
    #[test]
    fn times() {
        assert_eq!(instant("1970-01-01T00:00:01Z"), Ok(Timestamp::from_unix_seconds(1)));
        assert!(instant("1969-12-31T23:59:59Z").is_err());
        assert!(instant("2113-01-01T00:00:00Z").is_err());
        assert!(instant("tomorrow").is_err());
    }
}
