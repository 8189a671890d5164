//! HAProxy's `option httplog`, with and without what syslog writes before it. The stamp is the arrival, in the local
//! time of the proxy and without a zone; it is read as UTC.

use std::borrow::Cow;

use memchr::{memchr, memchr_iter, memrchr};
use tollgate::{Ticks, Timestamp};

use super::record::{Precision, Record};
use super::stamp::{clf_day, clock, instant, micros};
use super::text::{Reason, address_and_port, hex, number, refuses, request_line_in, status, text, token};

/// Bytes of `06/Feb/2009:12:14:14.655`.
const STAMP_BYTES: usize = 24;

/// Reads one line.
pub(super) fn parse(line: &[u8]) -> Result<Record<'_>, Reason> {
    let (open, arrival) = find_stamp(line).ok_or("no date such as [06/Feb/2009:12:14:14.655]")?;
    let arrival = arrival?;
    let before = line[..open].trim_ascii_end();
    let client = &before[memrchr(b' ', before).map_or(0, |space| space + 1)..];
    let rest = line[open + 1 + STAMP_BYTES..].strip_prefix(b"] ").ok_or("nothing follows the date")?;
    let (_frontend, rest) = token(rest);
    let (_backend, rest) = token(rest);
    let (timers, rest) = token(rest);
    let (status_text, rest) = token(rest);
    let (bytes, rest) = token(rest);
    let mut record = Record::at(arrival, Precision::Exact);
    record.client = address_and_port(client);
    record.duration = total_time(timers)?;
    // A request that the client gave up has the status -1.
    record.status = match status_text {
        b"-1" => None,
        digits => Some(status(digits).ok_or("the status is not three digits")?),
    };
    record.bytes = Some(number(unsigned(bytes)).ok_or("the number of bytes is not a number")?);
    let request = captured(skip_fields(rest), &mut record)?;
    let request = quoted_request(request).ok_or("no request in quotes")?;
    let request = request_line_in(request, decoded);
    (record.method, record.target, record.host) = (request.method, request.target, request.host);
    record.refused = refuses(record.status);
    Ok(record)
}

/// Whether a line has a date as HAProxy writes it.
pub(super) fn has_date(line: &[u8]) -> bool {
    find_stamp(line).is_some()
}

/// The bracket of the date, and its instant. A process id in brackets before it is not a date.
fn find_stamp(line: &[u8]) -> Option<(usize, Result<Timestamp, Reason>)> {
    memchr_iter(b'[', line).find_map(|open| {
        let stamp = line.get(open + 1..open + 1 + STAMP_BYTES)?;
        let (day, rest) = (clf_day(&stamp[..12])?, &stamp[12..]);
        let (seconds, fraction) = (clock(&rest[..8])?, rest[8..].strip_prefix(b".")?);
        Some((open, instant(day + seconds, micros(fraction)?)))
    })
}

/// The last of the five timers `TR/Tw/Tc/Tr/Ta`. `+` before it says that the transfer went on after the log line.
fn total_time(timers: &[u8]) -> Result<Option<Ticks>, Reason> {
    let five = timers.iter().filter(|byte| **byte == b'/').count() == 4;
    let last = memrchr(b'/', timers).filter(|_| five).ok_or("no five timers: not `option httplog`")?;
    Ok(number(unsigned(&timers[last + 1..])).map(Ticks::from_millis))
}

fn unsigned(number: &[u8]) -> &[u8] {
    number.strip_prefix(b"+").unwrap_or(number)
}

/// Steps over the cookies, the termination state, the connections and the queues.
fn skip_fields(rest: &[u8]) -> &[u8] {
    (0..5).fold(rest, |rest, _| token(rest).1)
}

/// Reads the captured headers in braces as attributes `captured_1`, `captured_2` and so on; the log has no names.
fn captured<'a>(mut rest: &'a [u8], record: &mut Record<'a>) -> Result<&'a [u8], Reason> {
    let mut place = 0;
    while let Some(inside) = rest.strip_prefix(b"{") {
        let end = memchr(b'}', inside).ok_or("the braces of captured headers do not close")?;
        for value in inside[..end].split(|byte| *byte == b'|') {
            place += 1;
            if !value.is_empty() {
                record.attributes.push((format!("captured_{place}").into(), decoded(value)));
            }
        }
        rest = inside[end + 1..].trim_ascii_start();
    }
    Ok(rest)
}

/// Undoes HAProxy's escapes: `#22` for a quote.
fn decoded(bytes: &[u8]) -> Cow<'_, str> {
    if memchr(b'#', bytes).is_none() {
        return text(bytes);
    }
    let (mut plain, mut rest) = (Vec::with_capacity(bytes.len()), bytes);
    while let [byte, after @ ..] = rest {
        rest = match rest {
            [b'#', high, low, after @ ..] if hex(*high).is_some() && hex(*low).is_some() => {
                plain.push(hex(*high).unwrap_or(0) << 4 | hex(*low).unwrap_or(0));
                after
            }
            _ => {
                plain.push(*byte);
                after
            }
        };
    }
    Cow::Owned(text(&plain).into_owned())
}

/// The request in quotes. HAProxy escapes quotes within it, and leaves out the last one where it cuts a long line.
fn quoted_request(rest: &[u8]) -> Option<&[u8]> {
    let inside = rest.strip_prefix(b"\"")?;
    Some(&inside[..memchr(b'"', inside).unwrap_or(inside.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"10.0.1.2:33317 [06/Feb/2009:12:14:14.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu|key-7} {} "GET /index.html?x=1 HTTP/1.1""#;

    #[test]
    fn a_line_of_the_manual_with_every_prefix() {
        for prefix in [
            "",
            "haproxy[14389]: ",
            "Feb  6 12:14:14 localhost haproxy[14389]: ",
            "<134>1 2009-02-06T12:14:14.655Z lb1 haproxy 14389 - - ",
        ] {
            let line = format!("{prefix}{LINE}");
            let record = parse(line.as_bytes()).unwrap();
            assert_eq!(record.arrival.unix_micros(), 1_233_922_454_655_000);
            assert_eq!(record.duration, Some(Ticks::from_millis(109)));
            assert_eq!(record.client, Some("10.0.1.2".parse().unwrap()));
            assert_eq!(record.method.as_deref(), Some("GET"));
            assert_eq!(record.target.as_deref(), Some("/index.html?x=1"));
            assert_eq!((record.status, record.bytes), (Some(200), Some(2_750)));
            assert_eq!(
                record.attributes,
                [("captured_1".into(), "1wt.eu".into()), ("captured_2".into(), "key-7".into())]
            );
        }
    }

    #[test]
    fn requests_that_got_no_answer() {
        let aborted = LINE.replace("10/0/30/69/109 200 2750", "-1/-1/-1/-1/+8490 -1 +0");
        let record = parse(aborted.as_bytes()).unwrap();
        assert_eq!((record.status, record.duration), (None, Some(Ticks::from_millis(8_490))));
        let refused = LINE.replace(" 200 ", " 429 ").replace("10.0.1.2:", "2001:db8::9:");
        let record = parse(refused.as_bytes()).unwrap();
        assert!(record.refused);
        assert_eq!(record.client, Some("2001:db8::9".parse().unwrap()));
        let quotes = LINE.replace("/index.html?x=1", "/#22a#23\\b#zz");
        assert_eq!(parse(quotes.as_bytes()).unwrap().target.as_deref(), Some("/\"a#\\b#zz"));
        let bad = LINE.replace("\"GET /index.html?x=1 HTTP/1.1\"", "\"<BADREQ>\"");
        assert_eq!(parse(bad.as_bytes()).unwrap().method, None);
        let cut = &LINE[..LINE.len() - 5];
        assert_eq!(parse(cut.as_bytes()).unwrap().method.as_deref(), Some("GET"));
    }

    #[test]
    fn lines_that_are_not_requests_say_why() {
        for (line, complaint) in [
            ("", "no date"),
            ("Server static/srv1 is DOWN", "no date"),
            ("10.0.1.2:3 [06/Feb/2009:12:14:14.655] tcp-in b/s 1/2/3 200 4", "no five timers"),
            (&LINE.replace(" 200 ", " ok "), "status"),
            (&LINE.replace("06/Feb/2009", "06/Feb/1909"), "before 1970"),
            (&LINE[..LINE.find("key-7").unwrap()], "do not close"),
            (&LINE[..LINE.find("\"GET").unwrap()], "no request in quotes"),
        ] {
            let reason = parse(line.as_bytes()).unwrap_err();
            assert!(reason.contains(complaint), "{line}: {reason}");
        }
    }
}
