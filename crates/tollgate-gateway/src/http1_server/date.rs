//! The `Date` field of an answer. Each thread formats it once a second.

use std::cell::Cell;

use jiff::fmt::rfc2822::DateTimePrinter;
use tollgate::Timestamp;

/// A date as RFC 9110 writes it.
pub(super) type Date = [u8; 29];

thread_local! {
    /// The last second that was formatted, and its date.
    static LAST: Cell<(i64, Date)> = const { Cell::new((0, *b"Thu, 01 Jan 1970 00:00:00 GMT")) };
}

/// The date at an instant.
pub(super) fn at(now: Timestamp) -> Date {
    let second = i64::try_from(now.unix_micros() / 1_000_000).unwrap_or(i64::MAX);
    let (last, date) = LAST.get();
    if last == second {
        return date;
    }
    let written = jiff::Timestamp::from_second(second).ok();
    let written = written.and_then(|at| DateTimePrinter::new().timestamp_to_rfc9110_string(&at).ok());
    // Every instant can be formatted. This fallback is here so that a mistake yields an old date instead of a panic.
    let date = written.and_then(|text| text.as_bytes().try_into().ok()).unwrap_or(date);
    LAST.set((second, date));
    date
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 9110, 5.6.7, then the next second, then the first again.
    #[test]
    fn dates_are_written() {
        let at = |second| String::from_utf8(at(Timestamp::from_unix_seconds(second)).to_vec()).unwrap();
        assert_eq!(at(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(at(784_111_778), "Sun, 06 Nov 1994 08:49:38 GMT");
        assert_eq!(at(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(at(0), "Thu, 01 Jan 1970 00:00:00 GMT");
    }
}
