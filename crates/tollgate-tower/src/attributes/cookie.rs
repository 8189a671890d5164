//! Strict parsing of cookies. Parsers separate cookies at semicolons, and some at commas and white space as well. Some
//! decode escapes, quotes or other characters of a name. A cookie that only some parsers would find is refused.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::COOKIE;

use super::Unreadable;
use super::source::text;
use crate::spelling::parameter::{escaped, is_read_as};

/// The value of a cookie, without quotes and percent-escapes, which only some servers remove.
///
/// # Errors
/// The cookie has several different values; its value has characters that RFC 6265 does not allow; or only some parsers
/// find it.
pub(super) fn cookie<'h>(headers: &'h HeaderMap, wanted: &str) -> Result<Option<Cow<'h, str>>, Unreadable> {
    let wrong = |what: &str| Err(Unreadable(format!("cookie {wanted}: {what}")));
    let mut found: Option<Cow<'h, str>> = None;
    for line in headers.get_all(COOKIE) {
        for pair in text("cookie", line)?.split(';') {
            let (name, given) =
                pair.split_once('=').map_or((pair, None), |(name, value)| (name, Some(value)));
            if name.trim() != wanted {
                if is_hidden_in(pair, wanted) {
                    return wrong(
                        "some servers find it in another spelling; send it as NAME=VALUE, with `; ` between cookies",
                    );
                }
                continue;
            }
            let Some(given) = given else { continue };
            let Some(value) = one_value(given.trim_matches([' ', '\t'])) else {
                return wrong(
                    "accepted: values without spaces, commas, quotes inside, backslashes, control characters and bytes beyond ASCII",
                );
            };
            if found.replace(value.clone()).is_some_and(|before| before != value) {
                return wrong("given more than once, and not the same; send it once");
            }
        }
    }
    Ok(found)
}

/// Whether some parser reads a pair of another name as this cookie, or finds it inside of the pair.
fn is_hidden_in(pair: &str, wanted: &str) -> bool {
    // Some parsers skip an empty name.
    let pair = pair.trim_start_matches(|c: char| c == '=' || c.is_whitespace());
    let Some((name, _)) = pair.split_once('=') else { return false };
    if is_read_as(&loose(name), wanted) {
        return true;
    }
    // Python, and old versions of Java, Perl and Ruby separate cookies here as well.
    let is_separator =
        |c: char| c.is_whitespace() || c.is_control() || !c.is_ascii() || matches!(c, ',' | '"');
    pair.match_indices('=').any(|(at, _)| {
        let before = pair.get(..at).unwrap_or_default().trim_end();
        let name = before.rsplit(is_separator).next().unwrap_or_default();
        !name.contains('=') && is_read_as(&loose(name), wanted)
    })
}

/// The normalised value of a cookie. Returns `None` if servers may read it differently.
fn one_value(value: &str) -> Option<Cow<'_, str>> {
    let bare = match value.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"')?,
        None => value,
    };
    if !bare.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b'\\')) {
        return None;
    }
    if !bare.contains('%') {
        return Some(Cow::Borrowed(bare));
    }
    // Some parsers read `+` as a space, and some servers send a space as `%20`.
    let decoded = String::from_utf8(unescaped(bare)).ok()?.replace(' ', "+");
    (!decoded.contains(|c: char| c.is_control() || c == '"' || c == '\\')).then_some(Cow::Owned(decoded))
}

/// A name as PHP decodes it before it replaces characters.
fn loose(name: &str) -> Cow<'_, str> {
    if !name.contains(['%', '+']) {
        return Cow::Borrowed(name);
    }
    Cow::Owned(String::from_utf8_lossy(&unescaped(&name.replace('+', " "))).into_owned())
}

/// Decodes percent-escapes. An invalid escape stays, as in browsers and servers.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        let byte = match (first, after) {
            (b'%', [high, low, ..]) => escaped(*high, *low),
            _ => None,
        };
        if byte.is_some() {
            rest = after.get(2..).unwrap_or_default();
        }
        bytes.push(byte.unwrap_or(first));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read(name: &str, lines: &[&str]) -> Result<Option<String>, String> {
        let line = |line: &&str| (COOKIE, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        let headers: HeaderMap = lines.iter().map(line).collect();
        cookie(&headers, name).map(|found| found.map(Cow::into_owned)).map_err(|error| error.to_string())
    }

    /// Quotes, escapes and repetitions of a cookie give one value. A value that servers read differently is refused.
    #[test]
    fn cookies_have_one_spelling() {
        let read = |lines: &[&str]| read("sid", lines);
        for spelled in
            ["sid=abc", "sid=\"abc\"", "sid=%61bc", "sid=%61%62%63", "a=1; sid = abc ; b=2", "sid=\"%61bc\""]
        {
            assert_eq!(read(&[spelled]), Ok(Some("abc".to_owned())), "{spelled}");
        }
        assert_eq!(read(&["sid=abc; sid=\"abc\"", "sid=%61bc"]), Ok(Some("abc".to_owned())));
        assert_eq!(read(&["sid=s%3Ax%2by"]), Ok(Some("s:x+y".to_owned())));
        assert_eq!(
            (read(&["sid=a+b"]), read(&["sid=a%20b"])),
            (Ok(Some("a+b".to_owned())), Ok(Some("a+b".to_owned())))
        );
        assert_eq!(read(&["sid=100%"]), Ok(Some("100%".to_owned())));
        assert_eq!((read(&["si=1; sid", "x=sid"]), read(&["sid="])), (Ok(None), Ok(Some(String::new()))));
        for refused in [
            "sid=a; sid=b",
            "sid=\"abc",
            "sid=a\"b",
            "sid=\"\\141bc\"",
            "sid=%00a",
            "sid=%ff",
            "s%69d=abc",
            "sid=%22a%22",
        ] {
            assert!(read(&[refused]).is_err(), "{refused}");
        }
    }

    /// The story: Python's `http.cookies` begins a new cookie at white space, and other parsers at a comma. `x=1 sid=abc`
    /// counted as anonymous and `sid=abc x=1` as a new caller, and the service served both as `abc`. Now they are refused.
    #[test]
    fn cookies_between_cookies_are_refused() {
        for refused in [
            "x=1 sid=abc",
            "x=1\tsid=abc",
            "sid=fake; x=1 sid=abc",
            "x sid=abc",
            "x=1 sid =abc",
            "x=1 sid = abc",
            "x=1,sid=abc",
            "x=1, sid=abc",
            "x=1,%73id=abc",
            "x=\"1\"sid=abc",
            "x=1 y=2 SID=abc",
            "x=1\u{a0}sid=abc",
            "=sid=abc",
            " = sid=abc",
            "sid=abc x=1",
            "sid=abc\tx=1",
            "sid=abc,x=1",
            "sid=abc, sid=abc",
            "sid=\"a c\"",
            "sid=\"a,c\"",
            "sid=\u{e1}",
            "sid=abc\u{a0}",
            "x=\"a; sid=zzz\"; sid=abc",
        ] {
            let message = read("sid", &[refused]).expect_err(refused);
            assert!(message.starts_with("cookie sid: ") && !message.contains("abc"), "{message}");
        }
        // The values of other cookies do not matter.
        for other in [
            "x=1 2, 3",
            "p={\"sid\": 1, \"a\": 2}",
            "to=/?sid=1&x=2",
            "x=sid=1",
            "t=your sid is over",
            "inside=1 ssid=2",
            "a-sid=1 b",
            "__Host-sid=1",
        ] {
            assert_eq!(read("sid", &[&format!("{other}; sid=abc")]), Ok(Some("abc".to_owned())), "{other}");
            assert_eq!(read("sid", &[other]), Ok(None), "{other}");
        }
    }

    /// The story: PHP reads `.`, a space and an open bracket in a name as `_`, and ASP.NET ignores case. `my.sid=abc`
    /// counted as anonymous, and the service served it as `my_sid`.
    #[test]
    fn names_that_servers_read_as_the_cookie_are_refused() {
        let names = "my.sid my+sid my[sid my%5Bsid my%2esid my%20sid my_sid[] my_sid[0] my_sid%5B%5D MY_SID my_sid%00 my_sid%00x%zz %20my_sid +my_sid [my_sid] my%5fsid";
        for name in names.split(' ').chain(["my sid", "my_sid[ ]"]) {
            for value in ["abc", ""] {
                assert!(read("my_sid", &[&format!("a=1; {name}={value}")]).is_err(), "{name}");
            }
        }
        assert!(read("__Host-sid", &["..Host-sid=abc"]).is_err());
        assert!(read("sid_", &["sid =abc"]).is_err(), "PHP makes `_` of a space that ends a name");
        for name in ["my-sid", "mysid", "my[sid]", "xmy_sid", "my_sidx", "my_sid-2", "my%zz_sid"] {
            assert_eq!(read("my_sid", &[&format!("{name}=abc")]), Ok(None), "{name}");
        }
    }
}
