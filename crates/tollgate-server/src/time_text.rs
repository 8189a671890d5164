//! Instants as text, for whatever the server tells as JSON.

use tollgate::Timestamp;

/// An instant as RFC 3339 writes it, in UTC, with as many digits as it needs. One that cannot be written is left empty.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    instant(at).map(|instant| instant.to_string()).unwrap_or_default()
}

/// The same, always to the millisecond: what stands in columns.
pub(crate) fn rfc3339_millis(at: Timestamp) -> String {
    instant(at).map(|instant| format!("{instant:.3}")).unwrap_or_default()
}

fn instant(at: Timestamp) -> Option<jiff::Timestamp> {
    let micros = i64::try_from(at.unix_micros()).ok()?;
    jiff::Timestamp::from_microsecond(micros).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::Ticks;

    /// Times are told as people and programs read them, up to the last one.
    #[test]
    fn instants_are_written() {
        let second = Timestamp::from_unix_seconds(1);
        assert_eq!(rfc3339(second), "1970-01-01T00:00:01Z");
        assert_eq!(rfc3339(second + Ticks::from_micros(250_000)), "1970-01-01T00:00:01.25Z");
        assert_eq!(rfc3339_millis(second), "1970-01-01T00:00:01.000Z");
        let last = Timestamp::from_unix_micros(u64::MAX);
        assert_eq!(rfc3339_millis(last), "2112-09-17T23:53:47.370Z", "the last instant there is");
    }
}
