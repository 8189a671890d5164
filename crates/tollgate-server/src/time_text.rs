//! Instants and durations as text: as the server writes them in JSON, and as people type them. Each error says what
//! would be accepted.

use std::time::Duration;

use jiff::{SignedDuration, Span, SpanRelativeTo};
use tollgate::time::WallOffset;
use tollgate::{Ticks, Timestamp};

/// An instant of the decision clock as RFC 3339, converted by the offset of the wall clock: in UTC, with as many digits
/// as it needs. Empty if the instant cannot be written.
pub(crate) fn rfc3339(at: Timestamp, wall: WallOffset) -> String {
    written(at.on_wall(wall)).map(|instant| instant.to_string()).unwrap_or_default()
}

/// An instant of the wall clock, always to the millisecond, for columns.
pub(crate) fn rfc3339_millis(at: Timestamp) -> String {
    written(at).map(|instant| format!("{instant:.3}")).unwrap_or_default()
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

/// Parses a duration such as `100ms`, `1h 30m` or `7d`. A day has 24 hours.
pub(crate) fn duration(text: &str) -> Result<Ticks, String> {
    let accepted = "accepted: 0s and more, such as 100ms, 2s, 1h30m or 7d";
    let duration = signed(text).ok_or_else(|| format!("not a duration; {accepted}"))?;
    let duration = Duration::try_from(duration).map_err(|_| format!("time only moves on; {accepted}"))?;
    Ok(Ticks::ceil_from(duration))
}

/// Parses a duration of any sign. Months and years are refused, because their length varies.
pub(crate) fn signed(text: &str) -> Option<SignedDuration> {
    let span: Span = text.parse().ok()?;
    span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()
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

    /// Times and durations outside the supported range are refused, not adjusted.
    #[test]
    fn times() {
        assert_eq!(instant("1970-01-01T00:00:01Z"), Ok(Timestamp::from_unix_seconds(1)));
        assert!(instant("1969-12-31T23:59:59Z").is_err());
        assert!(instant("2113-01-01T00:00:00Z").is_err());
        assert!(instant("tomorrow").is_err());
        assert_eq!(duration("100ms"), Ok(Ticks::from_millis(100)));
        assert_eq!(duration("1m 30s"), Ok(Ticks::from_secs(90)));
        assert_eq!(duration("1.5h"), Ok(Ticks::from_secs(5_400)));
        assert_eq!(duration("7d"), duration("168h"));
        assert_eq!(duration("1w 1d 12h"), Ok(Ticks::from_secs(8 * 86_400 + 43_200)));
        for wrong in ["", "-1s", "-1d", "100", "1mo", "1y", "d"] {
            assert!(duration(wrong).is_err_and(|message| message.contains("or 7d")), "{wrong}");
        }
    }
}
