//! Access logs of AWS Application Load Balancers: fields with spaces between them, some in quotes, 22 to 33 of them by
//! the age of the log. `time` is the end; `request_creation_time` is the arrival.

use memchr::memchr;
use tollgate::Ticks;

use super::record::{Precision, Record};
use super::stamp::rfc3339;
use super::text::{
    Reason, address_and_port, number, present, quoted, refuses, request_line, seconds, status,
};

/// Fields that are read; what follows them is newer than the arrival.
const FIELDS_READ: usize = 22;
/// Fewest fields of a line: logs of 2016 end with the protocol of TLS.
const FIELDS_MIN: usize = 16;

// Places of the fields, as Amazon numbers them, from zero.
const TIME: usize = 1;
const CLIENT: usize = 3;
const TIMES: [usize; 3] = [5, 6, 7];
const STATUS: usize = 8;
const SENT: usize = 11;
const REQUEST: usize = 12;
const USER_AGENT: usize = 13;
const TRACE: usize = 17;
const DOMAIN: usize = 18;
const CREATED: usize = 21;

/// Reads one line.
pub(super) fn parse(line: &[u8]) -> Result<Record<'_>, Reason> {
    if !is_line(line) {
        return Err("the first field is not a kind of connection (http, https, h2, grpcs, ws, wss)".into());
    }
    let fields = split(line)?;
    let (end, precision) = rfc3339(fields[TIME])?;
    let mut record = Record::at(end, precision);
    (record.arrival, record.duration) = match fields[CREATED] {
        b"" | b"-" => {
            let duration = processing_time(&fields);
            (end - duration.unwrap_or(Ticks::ZERO), duration)
        }
        created => {
            let (arrival, _) = rfc3339(created)?;
            (arrival, Some(end.since(arrival)))
        }
    };
    if precision == Precision::Second && fields[CREATED].contains(&b'.') {
        record.precision = Precision::Exact;
    }
    record.client = address_and_port(fields[CLIENT]);
    record.status = status(fields[STATUS]);
    record.bytes = number(fields[SENT]);
    let request = request_line(fields[REQUEST]);
    (record.method, record.target) = (request.method, request.target);
    record.host = present(fields[DOMAIN]).or(request.host);
    record.user_agent = present(fields[USER_AGENT]);
    if let Some(trace) = present(fields[TRACE]) {
        record.headers.push(("x-amzn-trace-id".into(), trace));
    }
    record.refused = refuses(record.status);
    Ok(record)
}

/// Whether a line begins as one of a load balancer does.
pub(super) fn is_line(line: &[u8]) -> bool {
    let kind = &line[..memchr(b' ', line).unwrap_or(line.len())];
    matches!(kind, b"http" | b"https" | b"h2" | b"grpcs" | b"ws" | b"wss")
}

/// The fields that are read; those that an old log does not have are empty.
fn split(line: &[u8]) -> Result<[&[u8]; FIELDS_READ], Reason> {
    let mut fields = [&[][..]; FIELDS_READ];
    let (mut rest, mut count) = (line, 0);
    while count < FIELDS_READ && !rest.is_empty() {
        let (field, after) = if rest.starts_with(b"\"") {
            quoted(rest).ok_or("a field in quotes does not end")?
        } else {
            rest.split_at(memchr(b' ', rest).unwrap_or(rest.len()))
        };
        fields[count] = field;
        count += 1;
        rest = match after {
            [b' ', after @ ..] => after,
            [] => after,
            _ => return Err("no space after a field in quotes".into()),
        };
    }
    if count < FIELDS_MIN {
        return Err(format!("{count} fields; a load balancer writes at least {FIELDS_MIN}").into());
    }
    Ok(fields)
}

/// The sum of the three processing times; `None` if one did not happen (`-1`).
fn processing_time(fields: &[&[u8]; FIELDS_READ]) -> Option<Ticks> {
    TIMES.iter().try_fold(Ticks::ZERO, |sum, place| Some(sum + seconds(fields[*place])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"https 2018-07-02T22:23:00.186641Z app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57 "GET https://www.example.com:443/a?b=c HTTP/1.1" "curl/7.46.0" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067 "Root=1-58337281-1d84f3d73c47ec4e58577259" "www.example.com" "arn:aws:acm:us-east-2:123456789012:certificate/12345678-1234-1234-1234-123456789012" 1 2018-07-02T22:22:48.364000Z "authenticate,forward" "-" "-" "10.0.0.1:80" "200" "-" "-" TID_123456"#;

    #[test]
    fn a_line_of_the_manual() {
        let record = parse(LINE.as_bytes()).unwrap();
        assert_eq!(record.arrival.unix_micros(), 1_530_570_168_364_000);
        assert_eq!(record.duration, Some(Ticks::from_micros(11_822_641)));
        assert_eq!(record.precision, Precision::Exact);
        assert_eq!(record.client, Some("192.168.131.39".parse().unwrap()));
        assert_eq!(record.method.as_deref(), Some("GET"));
        assert_eq!(record.target.as_deref(), Some("/a?b=c"));
        assert_eq!(record.host.as_deref(), Some("www.example.com"));
        assert_eq!(record.user_agent.as_deref(), Some("curl/7.46.0"));
        assert_eq!((record.status, record.bytes), (Some(200), Some(57)));
    }

    /// A log of 2016 has no arrival: it is the end minus the three processing times.
    #[test]
    fn an_old_line_without_the_arrival() {
        let old = &LINE[..LINE.find(" arn:").unwrap()];
        let record = parse(old.as_bytes()).unwrap();
        assert_eq!(record.duration, Some(Ticks::from_millis(171)));
        assert_eq!(record.arrival.unix_micros(), 1_530_570_180_015_641);
        let unknown = old.replace(" 0.048 ", " -1 ");
        let record = parse(unknown.as_bytes()).unwrap();
        assert_eq!((record.duration, record.arrival.unix_micros()), (None, 1_530_570_180_186_641));
    }

    #[test]
    fn failed_requests_and_ipv6() {
        let line = LINE
            .replace("192.168.131.39:2817", "[2001:db8::5]:2817")
            .replace("\"GET https://www.example.com:443/a?b=c HTTP/1.1\"", "\"- - - \"")
            .replace(" 200 200 ", " 503 - ");
        let record = parse(line.as_bytes()).unwrap();
        assert_eq!(record.client, Some("2001:db8::5".parse().unwrap()));
        assert_eq!((record.method.clone(), record.target.clone(), record.refused), (None, None, true));
    }

    #[test]
    fn lines_that_are_not_requests_say_why() {
        for (line, complaint) in [
            ("", "kind of connection"),
            ("tls 2018-07-02T22:23:00Z", "kind of connection"),
            ("http 2018-07-02T22:23:00.186641Z app/x", "3 fields"),
            (&LINE.replace("2018-07-02T22:23", "2018-07-32T22:23"), "not an RFC 3339 time"),
            (&LINE[..LINE.find("curl").unwrap()], "does not end"),
            (&LINE.replace("7.46.0\"", "7.46.0\"x"), "no space"),
        ] {
            let reason = parse(line.as_bytes()).unwrap_err();
            assert!(reason.contains(complaint), "{line}: {reason}");
        }
        for end in 0..LINE.len() {
            let _ = parse(&LINE.as_bytes()[..end]);
        }
    }
}
