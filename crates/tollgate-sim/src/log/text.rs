//! Pieces of a line that several formats share: quoted fields, numbers, addresses and request lines.

use std::borrow::Cow;
use std::net::IpAddr;
use std::str::FromStr;

use memchr::{memchr, memchr2, memrchr};
use tollgate::Ticks;

/// Why a line is not a request: a sentence for the list of bad lines.
pub(super) type Reason = Cow<'static, str>;

/// The bytes as text. Bytes that are not UTF-8 become U+FFFD.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    // The check of a whole text is much quicker than the search for its bad bytes.
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => String::from_utf8_lossy(bytes),
    }
}

/// The text of a field, unless the log writes `-` or nothing for it.
pub(super) fn present(bytes: &[u8]) -> Option<Cow<'_, str>> {
    if bytes.is_empty() || bytes == b"-" { None } else { Some(unescaped(bytes)) }
}

/// Splits at the first space: the token, and what follows the space.
pub(super) fn token(line: &[u8]) -> (&[u8], &[u8]) {
    match memchr(b' ', line) {
        Some(at) => (&line[..at], &line[at + 1..]),
        None => (line, &[]),
    }
}

/// Splits off a field in double quotes, in which a backslash protects the byte after it.
pub(super) fn quoted(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let inside = line.strip_prefix(b"\"")?;
    let mut from = 0;
    loop {
        let at = from + memchr2(b'"', b'\\', inside.get(from..)?)?;
        if inside[at] == b'"' {
            return Some((&inside[..at], &inside[at + 1..]));
        }
        from = at + 2;
    }
}

/// Undoes the escapes of nginx and Apache: `\"`, `\\`, `\x22`, `\n`, `\t` and the like.
pub(super) fn unescaped(bytes: &[u8]) -> Cow<'_, str> {
    let Some(first) = memchr(b'\\', bytes) else { return text(bytes) };
    let mut plain = Vec::with_capacity(bytes.len());
    plain.extend_from_slice(&bytes[..first]);
    let mut rest = &bytes[first..];
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte != b'\\' {
            plain.push(*byte);
            continue;
        }
        match after {
            [b'x' | b'X', high, low, after @ ..] if hex(*high).is_some() && hex(*low).is_some() => {
                plain.push(hex(*high).unwrap_or(0) << 4 | hex(*low).unwrap_or(0));
                rest = after;
            }
            [escape, after @ ..] => {
                plain.push(match escape {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'r' => b'\r',
                    b'b' => 8,
                    b'f' => 12,
                    b'v' => 11,
                    other => *other,
                });
                rest = after;
            }
            [] => plain.push(b'\\'),
        }
    }
    Cow::Owned(text(&plain).into_owned())
}

/// The value of a hexadecimal digit.
pub(super) fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// A number in decimal digits.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let mut value = 0_u64;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// A status in three digits.
pub(super) fn status(digits: &[u8]) -> Option<u16> {
    match digits {
        [a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
            Some(u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0'))
        }
        _ => None,
    }
}

/// Most that an exponent may move the decimal point: enough for any number that a log means.
const EXPONENT_MAX: i32 = 40;

/// The decimal number times 10^`shift`, what is below one cut off. Reads `12`, `0.125` and `5e-05`, without a sign.
pub(super) fn scaled(decimal: &[u8], shift: i32) -> Option<u64> {
    let (mantissa, exponent) = match memchr2(b'e', b'E', decimal) {
        Some(at) => (&decimal[..at], exponent(&decimal[at + 1..])?),
        None => (decimal, 0),
    };
    let point = memchr(b'.', mantissa).unwrap_or(mantissa.len());
    let wanted = i32::try_from(point).ok()?.checked_add(shift)?.checked_add(exponent)?;
    let (mut value, mut taken) = (0_u64, 0_i32);
    for (at, byte) in mantissa.iter().enumerate() {
        if at == point {
            continue;
        }
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        if taken < wanted {
            value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
        }
        taken = taken.checked_add(1)?;
    }
    if taken == 0 {
        return None;
    }
    while taken < wanted && value > 0 {
        value = value.checked_mul(10)?;
        taken += 1;
    }
    Some(value)
}

fn exponent(text: &[u8]) -> Option<i32> {
    let (digits, negative) = match text {
        [b'-', digits @ ..] => (digits, true),
        [b'+', digits @ ..] => (digits, false),
        digits => (digits, false),
    };
    let size = i32::try_from(number(digits)?).ok()?.min(EXPONENT_MAX);
    Some(if negative { -size } else { size })
}

/// A duration in decimal seconds.
pub(super) fn seconds(decimal: &[u8]) -> Option<Ticks> {
    scaled(decimal, 6).map(Ticks::from_micros)
}

/// A duration in decimal milliseconds.
pub(super) fn millis(decimal: &[u8]) -> Option<Ticks> {
    scaled(decimal, 3).map(Ticks::from_micros)
}

/// A duration in decimal nanoseconds.
pub(super) fn nanos(decimal: &[u8]) -> Option<Ticks> {
    scaled(decimal, -3).map(Ticks::from_micros)
}

/// A duration as Go writes it, such as `1m2.5s`, `12ms` or `350µs`.
pub(super) fn go_duration(text: &[u8]) -> Option<Ticks> {
    if text.is_empty() {
        return None;
    }
    let (mut total, mut rest) = (Ticks::ZERO, text);
    while !rest.is_empty() {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
        let (count, after) = rest.split_at(digits);
        let letters = after.iter().take_while(|byte| !byte.is_ascii_digit()).count();
        let (unit, after) = after.split_at(letters);
        total = total
            + match unit {
                b"h" => Ticks::from_micros(seconds(count)?.as_micros().checked_mul(3_600)?),
                b"m" => Ticks::from_micros(seconds(count)?.as_micros().checked_mul(60)?),
                b"s" => seconds(count)?,
                b"ms" => millis(count)?,
                b"us" | b"\xC2\xB5s" | b"\xCE\xBCs" => Ticks::from_micros(scaled(count, 0)?),
                b"ns" => nanos(count)?,
                _ => return None,
            };
        rest = after;
    }
    Some(total)
}

/// An address, with or without a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80`.
pub(super) fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Some(inside) = bytes.strip_prefix(b"[") {
        return bare_address(&inside[..memchr(b']', inside)?]);
    }
    bare_address(bytes).or_else(|| {
        let colon = memrchr(b':', bytes)?;
        number(&bytes[colon + 1..])?;
        bare_address(&bytes[..colon])
    })
}

/// An address that a port always follows, so that the last colon is the port's also without brackets.
pub(super) fn address_and_port(bytes: &[u8]) -> Option<IpAddr> {
    match memrchr(b':', bytes) {
        Some(colon) if !bytes.starts_with(b"[") => {
            bare_address(&bytes[..colon]).or_else(|| bare_address(bytes))
        }
        _ => address(bytes),
    }
}

/// An address without a port. A zone, as in `fe80::1%eth0`, is left out; IPv4 in IPv6 becomes IPv4.
fn bare_address(bytes: &[u8]) -> Option<IpAddr> {
    let bytes = match memchr(b'%', bytes) {
        Some(zone) => &bytes[..zone],
        None => bytes,
    };
    IpAddr::from_str(std::str::from_utf8(bytes).ok()?).ok().map(|address| address.to_canonical())
}

/// The parts of a request line. Each is `None` for `-` and for bytes that are not HTTP.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RequestHead<'a> {
    pub(super) method: Option<Cow<'a, str>>,
    pub(super) target: Option<Cow<'a, str>>,
    pub(super) host: Option<Cow<'a, str>>,
}

/// Reads `GET /path?query HTTP/1.1`, with the escapes of nginx and Apache.
pub(super) fn request_line(line: &[u8]) -> RequestHead<'_> {
    request_line_in(line, unescaped)
}

/// Reads `GET /path?query HTTP/1.1`, also without the version, and with `http://host` before the path. `decode` undoes the
/// escapes of the log.
pub(super) fn request_line_in(line: &[u8], decode: fn(&[u8]) -> Cow<'_, str>) -> RequestHead<'_> {
    let Some(space) = memchr(b' ', line) else { return RequestHead::default() };
    let method = &line[..space];
    let is_method = |byte: &u8| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_');
    if method == b"-" || method.is_empty() || !method.iter().all(is_method) {
        return RequestHead::default();
    }
    let rest = &line[space + 1..];
    let target = match memrchr(b' ', rest) {
        Some(at) if rest[at + 1..].starts_with(b"HTTP/") => &rest[..at],
        _ => rest,
    };
    let (host, target) = split_authority(target);
    RequestHead {
        method: Some(text(method)),
        target: (!target.is_empty()).then(|| decode(target)),
        host: host.map(decode),
    }
}

/// Splits `https://host:443/path` into the host, its port kept, and the path.
pub(super) fn split_authority(target: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let rest = [&b"http://"[..], b"https://", b"ws://", b"wss://"]
        .iter()
        .find_map(|scheme| target.strip_prefix(*scheme));
    let Some(rest) = rest else { return (None, target) };
    match memchr2(b'/', b'?', rest) {
        Some(path) => (Some(&rest[..path]), &rest[path..]),
        None => (Some(rest), b"/"),
    }
}

/// The status means that the live system refused the request.
pub(super) fn refuses(status: Option<u16>) -> bool {
    matches!(status, Some(429 | 503))
}

/// A short piece of a line that is safe to print: printable ASCII, everything else escaped.
pub(super) fn excerpt(line: &[u8]) -> String {
    const BYTES_MAX: usize = 120;
    let piece = &line[..line.len().min(BYTES_MAX)];
    let mut excerpt = piece.escape_ascii().to_string().replace("\\\"", "\"").replace("\\'", "'");
    if line.len() > BYTES_MAX {
        excerpt.push('…');
    }
    excerpt
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Escapes of nginx and Apache become what the client sent; a lone backslash stays.
    #[test]
    fn escapes_of_quoted_fields() {
        for (escaped, plain) in [
            (&br#"curl/8 \"x\" \x22y\x22"#[..], r#"curl/8 "x" "y""#),
            (br"a\\b\tc", "a\\b\tc"),
            (br"\xc3\xa9t\xc3\xa9", "été"),
            (br"end\", "end\\"),
            (br"\xZZ", "xZZ"),
            (b"\xff", "\u{fffd}"),
        ] {
            assert_eq!(unescaped(escaped), plain);
        }
        let (inside, rest) = quoted(br#""a \"b\" c" rest"#).unwrap();
        assert_eq!((inside, rest), (&br#"a \"b\" c"#[..], &b" rest"[..]));
        assert_eq!(quoted(br#""never ends \""#), None);
        assert_eq!(quoted(br#""ends in a backslash\"#), None);
    }

    #[test]
    fn addresses_with_ports_brackets_and_zones() {
        for (written, address_read) in [
            ("192.0.2.1", Some("192.0.2.1")),
            ("192.0.2.1:443", Some("192.0.2.1")),
            ("2001:db8::1", Some("2001:db8::1")),
            ("[2001:db8::1]:443", Some("2001:db8::1")),
            ("[2001:db8::1]", Some("2001:db8::1")),
            ("fe80::1%eth0", Some("fe80::1")),
            ("::ffff:192.0.2.7", Some("192.0.2.7")),
            ("1:2:3:4:5:6:7:8:443", Some("1:2:3:4:5:6:7:8")),
            ("unix:", None),
            ("-", None),
            ("example.org", None),
            ("[2001:db8::1", None),
            ("192.0.2.1:http", None),
        ] {
            let expected = address_read.map(|text| text.parse::<IpAddr>().unwrap());
            assert_eq!(address(written.as_bytes()), expected, "{written}");
        }
        assert_eq!(address_and_port(b"2001:db8::1:4321"), Some("2001:db8::1".parse().unwrap()));
        assert_eq!(address_and_port(b"192.0.2.1:4321"), Some("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn decimals_are_exact() {
        for (decimal, shift, expected) in [
            ("0.000929675", 6, Some(929)),
            ("1646861401.5241024", 6, Some(1_646_861_401_524_102)),
            ("5e-05", 6, Some(50)),
            ("1.5E+3", 0, Some(1_500)),
            ("12", 3, Some(12_000)),
            ("12.", 0, Some(12)),
            ("1999", -3, Some(1)),
            ("0", 6, Some(0)),
            ("0e999999999", 6, Some(0)),
            ("1e999999999", 6, None),
            ("1e-999999999", 6, Some(0)),
            (".", 6, None),
            ("", 6, None),
            ("-1", 6, None),
            ("1.2.3", 6, None),
            ("18446744073709551616", 0, None),
        ] {
            assert_eq!(scaled(decimal.as_bytes(), shift), expected, "{decimal} at {shift}");
        }
    }

    #[test]
    fn durations_in_the_words_of_go() {
        for (written, micros) in [
            ("12ms", Some(12_000)),
            ("1m2.5s", Some(62_500_000)),
            ("350µs", Some(350)),
            ("1h0m0s", Some(3_600_000_000)),
            ("1500ns", Some(1)),
            ("ms", None),
            ("12", None),
            ("12parsecs", None),
        ] {
            assert_eq!(go_duration(written.as_bytes()).map(Ticks::as_micros), micros, "{written}");
        }
    }

    #[test]
    fn request_lines_that_are_not_http_say_nothing() {
        let line = request_line(b"GET /a%20b?c=d HTTP/1.1");
        assert_eq!(
            (line.method.as_deref(), line.target.as_deref(), line.host),
            (Some("GET"), Some("/a%20b?c=d"), None)
        );
        let line = request_line(b"GET https://www.example.com:443/x HTTP/1.1");
        assert_eq!((line.host.as_deref(), line.target.as_deref()), (Some("www.example.com:443"), Some("/x")));
        assert_eq!(request_line(b"GET /").target.as_deref(), Some("/"));
        assert_eq!(request_line(b"GET /a b HTTP/1.1").target.as_deref(), Some("/a b"));
        for garbage in [&b"-"[..], b"", br"\x16\x03\x01\x02\x00", b"- - -", b"\x16\x03 x"] {
            assert_eq!(request_line(garbage), RequestHead::default());
        }
    }

    /// An excerpt prints no control character, whatever the log contains.
    #[test]
    fn excerpts_are_short_and_printable() {
        let excerpt = excerpt(&b"\x1b[31m\0\xff \"quoted\"".repeat(40));
        assert!(excerpt.starts_with("\\x1b[31m\\x00\\xff \"quoted\""), "{excerpt}");
        assert!(excerpt.ends_with('…') && excerpt.chars().all(|letter| !letter.is_control()));
    }
}
