//! Durations as people type them. Each error says what would be accepted.

use std::time::Duration;

use jiff::{SignedDuration, Span, SpanRelativeTo};
use tollgate::Ticks;

/// Parses a duration such as `100ms`, `1h 30m` or `7d`. A day has 24 hours.
///
/// # Errors
/// When it is none, or negative. The message says what would be accepted.
pub fn duration(text: &str) -> Result<Ticks, String> {
    let accepted = "accepted: 0s and more, such as 100ms, 2s, 1h30m or 7d";
    let duration = signed(text).ok_or_else(|| format!("not a duration; {accepted}"))?;
    let duration = Duration::try_from(duration).map_err(|_| format!("time only moves on; {accepted}"))?;
    Ok(Ticks::ceil_from(duration))
}

/// Parses a duration of any sign. Months and years are refused, because their length varies.
#[must_use]
pub fn signed(text: &str) -> Option<SignedDuration> {
    let span: Span = text.parse().ok()?;
    span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Durations outside the supported range are refused, not adjusted.
    #[test]
    fn durations() {
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
