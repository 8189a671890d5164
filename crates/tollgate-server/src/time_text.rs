//! Instants and durations as text: as the server writes them in JSON, and as people type them. Each error says what
//! would be accepted.

use tollgate::Timestamp;
use tollgate::time::WallOffset;
pub(crate) use tollgate_gateway::time_text::{duration, signed};

/// An instant of the decision clock as RFC 3339, converted by the offset of the wall clock: in UTC, with as many digits
/// as it needs. Empty if the instant cannot be written.
pub(crate) fn rfc3339(at: Timestamp, wall: WallOffset) -> String {
    written(at.on_wall(wall)).map(|instant| instant.to_string()).unwrap_or_default()
}

/// An instant of the wall clock, always to the millisecond, for columns.
pub(crate) fn rfc3339_millis(at: Timestamp) -> String {
    written(at).map(|instant| format!("{instant:.3}")).unwrap_or_default()
}

/// A duration for people, with its two largest units: `412 ms`, `2.5 s`, `3 min 20 s`, `14 d 18 h`. Rounded up, as all
/// advice.
pub(crate) fn people(millis: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    if millis < 1_000 {
        return if millis == 0 { "0 s".to_owned() } else { format!("{millis} ms") };
    }
    let tenths = millis.div_ceil(100);
    if tenths < 600 && !tenths.is_multiple_of(10) {
        return format!("{}.{} s", tenths / 10, tenths % 10);
    }
    let mut seconds = millis.div_ceil(1_000);
    let Some(first) = UNITS.iter().position(|(unit, _)| seconds >= *unit) else { return "0 s".to_owned() };
    // What is smaller than the second unit is rounded up to it.
    let smallest = UNITS.get(first + 1).map_or(1, |(unit, _)| *unit);
    seconds = seconds.div_ceil(smallest).saturating_mul(smallest);
    let first = UNITS.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(first);
    let mut parts = Vec::new();
    for (unit, name) in UNITS.iter().skip(first).take(2) {
        if seconds >= *unit {
            parts.push(format!("{} {name}", seconds / unit));
        }
        seconds %= unit;
    }
    parts.join(" ")
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
    use tollgate::Ticks;

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

    /// Durations have at most two units, and are never shorter than what they stand for.
    #[test]
    fn durations_are_for_people() {
        for (millis, expected) in [
            (0, "0 s"),
            (1, "1 ms"),
            (412, "412 ms"),
            (1_000, "1 s"),
            (2_450, "2.5 s"),
            (59_999, "1 min"),
            (61_000, "1 min 1 s"),
            (200_000, "3 min 20 s"),
            (3_600_000, "1 h"),
            (3_599_999, "1 h"),
            (1_276_469_864, "14 d 19 h"),
            (86_399_500, "1 d"),
        ] {
            assert_eq!(people(millis), expected, "{millis}");
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
