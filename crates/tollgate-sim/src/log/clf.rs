//! The common and the combined log format of nginx and Apache, with what people append to them.
//!
//! Each line is read by what it has, so a log whose format gained a field at noon is read to its end. After the common
//! fields come, in quotes, the referer and the user agent; then any of: `$request_time` (`0.125`, `rt=0.125`), `$msec`
//! (`1709294400.250`), `$limit_req_status`, an `X-Forwarded-For` in quotes, and Traefik's duration (`12ms`).

use std::borrow::Cow;
use std::net::IpAddr;

use memchr::{memchr, memchr_iter};
use tollgate::{Ticks, Timestamp};

use super::record::{Precision, Record};
use super::stamp::{ClfDates, epoch};
use super::text::{
    Reason, address, millis, number, present, quoted, refuses, request_line, seconds, status, token,
};

/// Reads one line.
pub(super) fn parse<'a>(line: &'a [u8], dates: &mut ClfDates) -> Result<Record<'a>, Reason> {
    let (first, rest) = token(line);
    let open = date_bracket(rest).ok_or("no date in brackets")?;
    let close = open + memchr(b']', &rest[open..]).ok_or("the date's bracket is not closed")?;
    let names = Names::read(first, &rest[..open]);
    let stamp = dates.read(&rest[open + 1..close])?;
    let after = rest[close + 1..].strip_prefix(b" ").ok_or("no request after the date")?;
    let (request, after) = quoted(after).ok_or("no request in quotes after the date")?;
    let after = after.strip_prefix(b" ").ok_or("no status after the request")?;
    let (status_text, after) = token(after);
    let (bytes, rest) = token(after);
    let mut record = Record::at(stamp, Precision::Second);
    record.status = Some(status(status_text).ok_or("the status is not three digits")?);
    record.bytes = match bytes {
        b"-" => Some(0),
        digits => Some(number(digits).ok_or("the number of bytes is not a number")?),
    };
    let request = request_line(request);
    (record.method, record.target) = (request.method, request.target);
    record.client = names.client;
    record.user = names.user;
    record.host = request.host.or(names.host);
    record.refused = refuses(record.status);
    Appended::default().read(rest, &mut record)?.time(&mut record);
    Ok(record)
}

/// Whether a line has a date in brackets.
pub(super) fn has_date(line: &[u8]) -> bool {
    date_bracket(line).is_some()
}

/// The bracket before a date. An address of IPv6 may stand in brackets before it.
fn date_bracket(line: &[u8]) -> Option<usize> {
    memchr_iter(b'[', line).find(|open| line.get(open + 3) == Some(&b'/'))
}

/// The fields before the date.
struct Names<'a> {
    client: Option<IpAddr>,
    user: Option<Cow<'a, str>>,
    host: Option<Cow<'a, str>>,
}

impl<'a> Names<'a> {
    /// Reads `client identity user`, where a user may contain spaces, or `host client identity user`.
    fn read(first: &'a [u8], rest: &'a [u8]) -> Self {
        let rest = rest.trim_ascii_end();
        let client = address(first);
        if client.is_none() {
            let (second, others) = token(rest);
            if let Some(client) = address(second) {
                let host = present(first);
                return Self { client: Some(client), user: present(token(others).1), host };
            }
        }
        Self { client, user: present(token(rest).1), host: None }
    }
}

/// The durations in the fields after the bytes.
#[derive(Default)]
struct Appended {
    end: Option<Timestamp>,
    /// From the arrival to the stamp.
    before_stamp: Option<Ticks>,
    /// From the stamp, which is the arrival, to the end.
    after_stamp: Option<Ticks>,
}

impl Appended {
    /// Reads the fields one after the other.
    fn read<'a>(mut self, mut rest: &'a [u8], record: &mut Record<'a>) -> Result<Self, Reason> {
        let mut place = 0;
        while let [byte, after @ ..] = rest {
            if *byte == b' ' {
                rest = after;
                continue;
            }
            if *byte == b'"' {
                let (field, after) = quoted(rest).ok_or("a field in quotes does not end")?;
                text_field(place, field, record);
                rest = after;
            } else {
                let (field, after) = token(rest);
                self.bare_field(field, record);
                // A referer stands directly after the bytes, or nowhere.
                place = place.max(2);
                rest = after;
            }
            place += 1;
        }
        Ok(self)
    }

    fn bare_field(&mut self, field: &[u8], record: &mut Record<'_>) {
        match field {
            b"REJECTED" => record.refused = true,
            b"PASSED" | b"DELAYED" | b"DELAYED_DRY_RUN" | b"REJECTED_DRY_RUN" | b"-" => {}
            [digits @ .., b'm', b's'] => self.after_stamp = millis(digits).or(self.after_stamp),
            _ => self.decimal_field(field),
        }
    }

    /// A decimal is a point in time if it is as large as one, else a duration. A whole number may be anything.
    fn decimal_field(&mut self, field: &[u8]) {
        let value = match memchr(b'=', field) {
            Some(at) if matches!(&field[..at], b"rt" | b"request_time" | b"msec") => &field[at + 1..],
            Some(_) => return,
            None => field,
        };
        match memchr(b'.', value) {
            Some(9..=11) => {
                self.end = epoch(value).and_then(Result::ok).map(|(at, _)| at).or(self.end);
            }
            Some(1..=8) => self.before_stamp = self.before_stamp.or_else(|| seconds(value)),
            _ => {}
        }
    }

    /// Sets arrival, precision and duration.
    fn time(self, record: &mut Record<'_>) {
        if let Some(end) = self.end {
            (record.arrival, record.precision) = (end, Precision::Exact);
        }
        if let Some(duration) = self.before_stamp {
            record.arrival = record.arrival - duration;
        } else if let (Some(end), Some(duration)) = (self.end, self.after_stamp) {
            record.arrival = end - duration;
        }
        record.duration = self.before_stamp.or(self.after_stamp);
    }
}

/// The referer, the user agent, or a list of addresses after them.
fn text_field<'a>(place: usize, field: &'a [u8], record: &mut Record<'a>) {
    let Some(value) = present(field) else { return };
    match place {
        0 => record.headers.push((Cow::Borrowed("referer"), value)),
        1 => record.user_agent = Some(value),
        _ => {
            let addresses = value.split(',').all(|part| address(part.trim().as_bytes()).is_some());
            let known = record.headers.iter().any(|(name, _)| name == "x-forwarded-for");
            if addresses && !known {
                record.headers.push((Cow::Borrowed("x-forwarded-for"), value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Record<'_> {
        parse(line.as_bytes(), &mut ClfDates::new()).unwrap_or_else(|reason| panic!("{line}: {reason}"))
    }

    const COMBINED: &str = r#"203.0.113.9 - alice [01/Mar/2024:12:00:00 +0000] "GET /v1/items?page=2 HTTP/2.0" 200 512 "https://example.com/" "Mozilla/5.0 (X11)""#;

    #[test]
    fn a_line_of_combined() {
        let record = read(COMBINED);
        assert_eq!(record.arrival, Timestamp::from_unix_seconds(1_709_294_400));
        assert_eq!(record.precision, Precision::Second);
        assert_eq!(record.client, Some("203.0.113.9".parse().unwrap()));
        assert_eq!(record.user.as_deref(), Some("alice"));
        assert_eq!(record.method.as_deref(), Some("GET"));
        assert_eq!(record.target.as_deref(), Some("/v1/items?page=2"));
        assert_eq!(record.user_agent.as_deref(), Some("Mozilla/5.0 (X11)"));
        assert_eq!(record.headers, [("referer".into(), "https://example.com/".into())]);
        assert_eq!((record.status, record.bytes, record.refused), (Some(200), Some(512), false));
        assert_eq!(record.duration, None);
        assert!(matches!(record.target, Some(Cow::Borrowed(_))), "a plain field is not copied");
    }

    /// The arrival is the end minus the duration, to the millisecond where the log has `$msec`.
    #[test]
    fn appended_times() {
        let second = 1_709_294_400_000_000;
        for (appended, arrival, precision, duration) in [
            (" 0.250", second - 250_000, Precision::Second, Some(250_000)),
            (" rt=0.250", second - 250_000, Precision::Second, Some(250_000)),
            (" 1709294400.750", second + 750_000, Precision::Exact, None),
            (" 1709294400.750 0.250", second + 500_000, Precision::Exact, Some(250_000)),
            (" 0.250 1709294400.750", second + 500_000, Precision::Exact, Some(250_000)),
            (" msec=1709294400.750 request_time=0.250", second + 500_000, Precision::Exact, Some(250_000)),
            (" 17 \"web@docker\" \"http://10.0.0.2:80\" 250ms", second, Precision::Second, Some(250_000)),
            (" 42 -", second, Precision::Second, None),
        ] {
            let line = format!("{COMBINED}{appended}");
            let record = read(&line);
            let times =
                (record.arrival.unix_micros(), record.precision, record.duration.map(Ticks::as_micros));
            assert_eq!(times, (arrival, precision, duration), "{appended}");
        }
    }

    #[test]
    fn appended_texts() {
        let line = format!("{COMBINED} \"198.51.100.1, 10.0.0.1\" REJECTED");
        let record = read(&line);
        assert_eq!(record.headers[1], ("x-forwarded-for".into(), "198.51.100.1, 10.0.0.1".into()));
        assert!(record.refused);
        assert!(!read(&format!("{COMBINED} \"-\" REJECTED_DRY_RUN")).refused);
    }

    /// Lines that real servers write and that a pattern for tidy lines loses.
    #[test]
    fn untidy_lines() {
        let garbage = read(r#"::1 - - [01/Mar/2024:12:00:00 +0000] "\x16\x03\x01" 400 157 "-" "-""#);
        assert_eq!((garbage.method, garbage.target, garbage.user_agent), (None, None, None));
        assert_eq!(garbage.client, Some("::1".parse().unwrap()));
        let dash = read(r#"192.0.2.1 - - [01/Mar/2024:12:00:00 +0000] "-" 408 - "-" "-""#);
        assert_eq!((dash.method, dash.status, dash.bytes), (None, Some(408), Some(0)));
        let quotes = read(
            r#"192.0.2.1 - john doe [01/Mar/2024:12:00:00 +0000] "GET /\x22a\x22 HTTP/1.1" 429 0 "-" "say \"hi\"""#,
        );
        assert_eq!(quotes.user.as_deref(), Some("john doe"));
        assert_eq!(quotes.target.as_deref(), Some("/\"a\""));
        assert_eq!(quotes.user_agent.as_deref(), Some("say \"hi\""));
        assert!(quotes.refused);
        let host = read(
            r#"shop.example:443 [2001:db8::1]:99 - - [01/Mar/2024:12:00:00 +0000] "GET / HTTP/1.1" 200 5"#,
        );
        assert_eq!(host.host.as_deref(), Some("shop.example:443"));
        assert_eq!(host.client, Some("2001:db8::1".parse().unwrap()));
        let brackets = read(r#"[2001:db8::1]:99 - - [01/Mar/2024:12:00:00 +0000] "GET / HTTP/1.1" 200 5"#);
        assert_eq!(brackets.client, Some("2001:db8::1".parse().unwrap()));
        let named = read(r#"unix: - - [01/Mar/2024:12:00:00 +0000] "GET / HTTP/1.1" 200 5"#);
        assert_eq!(named.client, None);
    }

    /// A line that is cut anywhere before its last field is bad or says less, and never panics.
    #[test]
    fn lines_that_are_not_requests_say_why() {
        for (line, complaint) in [
            ("", "no date"),
            ("not a log line at all", "no date"),
            ("192.0.2.1 - - [01/Mar/2024:12:00:00 +0000", "bracket is not closed"),
            ("192.0.2.1 - - [01/Mar/2024:12:00:00 CET] \"GET / HTTP/1.1\" 200 5", "zone `CET` is unknown"),
            ("192.0.2.1 - - [01/Mar/2024:12:00:00 +0000] GET / 200 5", "no request in quotes"),
            ("192.0.2.1 - - [01/Mar/2024:12:00:00 +0000] \"GET / HTTP/1.1\" ok 5", "status"),
            ("192.0.2.1 - - [01/Mar/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 many", "bytes"),
            ("192.0.2.1 - - [01/Mar/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-", "does not end"),
        ] {
            let reason = parse(line.as_bytes(), &mut ClfDates::new()).unwrap_err();
            assert!(reason.contains(complaint), "{line}: {reason}");
        }
        for end in 0..COMBINED.len() {
            let _ = parse(&COMBINED.as_bytes()[..end], &mut ClfDates::new());
        }
    }
}
