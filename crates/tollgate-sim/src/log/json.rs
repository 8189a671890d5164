//! A scanner of JSON that borrows from the line: members of an object, one after the other, numbers with all their
//! digits. It checks what it reads and steps over the rest by brackets and quotes, without recursion.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

use super::text::{Reason, hex, text};

/// A value. Objects and arrays are the bytes from bracket to bracket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Json<'a> {
    /// The text between the quotes, with its escapes.
    Text(&'a [u8]),
    Number(&'a [u8]),
    True,
    False,
    Null,
    Object(&'a [u8]),
    Array(&'a [u8]),
}

impl<'a> Json<'a> {
    /// Reads the value at the start; the second part is what follows it.
    fn read(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Reason> {
        let bytes = bytes.trim_ascii_start();
        match bytes {
            [b'"', inside @ ..] => {
                let end = string_end(inside).ok_or("a JSON text does not end")?;
                Ok((Self::Text(&inside[..end]), &inside[end + 1..]))
            }
            [b'{' | b'[', ..] => {
                let end = bracket_end(bytes).ok_or("a JSON bracket is not closed")?;
                let (inside, rest) = bytes.split_at(end);
                Ok((if bytes[0] == b'{' { Self::Object(inside) } else { Self::Array(inside) }, rest))
            }
            [b'-' | b'0'..=b'9', ..] => {
                let is_number = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let end = bytes.iter().take_while(|byte| is_number(byte)).count();
                Ok((Self::Number(&bytes[..end]), &bytes[end..]))
            }
            _ => [(&b"true"[..], Self::True), (b"false", Self::False), (b"null", Self::Null)]
                .into_iter()
                .find_map(|(word, value)| Some((value, bytes.strip_prefix(word)?)))
                .ok_or_else(|| "a JSON value is missing or misspelt".into()),
        }
    }

    /// A text without its escapes, or a number or truth value as written. `None` for null, `-`, nothing and brackets.
    pub(super) fn scalar(self) -> Option<Cow<'a, str>> {
        match self {
            Self::Text(b"" | b"-") => None,
            Self::Text(raw) => Some(unescaped(raw)),
            Self::Number(digits) => Some(text(digits)),
            Self::True => Some(Cow::Borrowed("true")),
            Self::False => Some(Cow::Borrowed("false")),
            Self::Null | Self::Object(_) | Self::Array(_) => None,
        }
    }

    /// The digits of a number, also where it stands in quotes.
    pub(super) fn digits(self) -> Option<&'a [u8]> {
        match self {
            Self::Number(digits) | Self::Text(digits) => Some(digits),
            _ => None,
        }
    }

    /// The first scalar of an array, or the scalar itself: headers are lists in some logs.
    pub(super) fn first(self) -> Option<Cow<'a, str>> {
        match self {
            Self::Array(inside) => Items::of(inside).next()?.ok()?.scalar(),
            other => other.scalar(),
        }
    }
}

/// The end of a string whose opening quote is already read.
fn string_end(inside: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + memchr2(b'"', b'\\', inside.get(from..)?)?;
        if inside[at] == b'"' {
            return Some(at);
        }
        from = at + 2;
    }
}

/// The end of the object or array that starts the bytes.
fn bracket_end(bytes: &[u8]) -> Option<usize> {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            b'"' => at += 1 + string_end(&bytes[at + 1..])?,
            _ => {}
        }
        at += 1;
    }
    None
}

/// Undoes the escapes of a JSON text. Half of a surrogate pair becomes U+FFFD.
pub(super) fn unescaped(raw: &[u8]) -> Cow<'_, str> {
    let Some(first) = memchr(b'\\', raw) else { return text(raw) };
    let mut plain = Vec::with_capacity(raw.len());
    plain.extend_from_slice(&raw[..first]);
    let mut rest = &raw[first..];
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte != b'\\' {
            plain.push(*byte);
            continue;
        }
        let [escape, after @ ..] = after else { break };
        rest = after;
        match escape {
            b'n' => plain.push(b'\n'),
            b't' => plain.push(b'\t'),
            b'r' => plain.push(b'\r'),
            b'b' => plain.push(8),
            b'f' => plain.push(12),
            b'u' => {
                let (letter, after) = unicode(rest);
                plain.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                rest = after;
            }
            other => plain.push(*other),
        }
    }
    Cow::Owned(text(&plain).into_owned())
}

/// The letter of `\u00e9` or of a surrogate pair, read after the `\u`.
fn unicode(rest: &[u8]) -> (char, &[u8]) {
    let Some((high, after)) = four_digits(rest) else { return (char::REPLACEMENT_CHARACTER, rest) };
    if (0xD800..0xDC00).contains(&high)
        && let Some((low @ 0xDC00..0xE000, after)) = after.strip_prefix(b"\\u").and_then(four_digits)
    {
        let code = 0x1_0000 + ((high - 0xD800) << 10) + (low - 0xDC00);
        return (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), after);
    }
    (char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER), after)
}

fn four_digits(rest: &[u8]) -> Option<(u32, &[u8])> {
    let (digits, after) = rest.split_at_checked(4)?;
    let mut code = 0;
    for digit in digits {
        code = code << 4 | u32::from(hex(*digit)?);
    }
    Some((code, after))
}

/// The members of an object.
pub(super) struct Members<'a> {
    rest: &'a [u8],
    before_first: bool,
}

impl<'a> Members<'a> {
    /// The members of an object whose bytes start with its bracket.
    pub(super) fn of(object: &'a [u8]) -> Result<Self, Reason> {
        let rest = object.trim_ascii_start().strip_prefix(b"{").ok_or("not a JSON object")?;
        Ok(Self { rest, before_first: true })
    }

    /// The next member; `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<(Cow<'a, str>, Json<'a>)>, Reason> {
        let mut rest = self.rest.trim_ascii_start();
        if let Some(after) = rest.strip_prefix(b"}") {
            self.rest = after;
            return Ok(None);
        }
        if !self.before_first {
            rest = rest.strip_prefix(b",").ok_or("a comma is missing in the JSON object")?.trim_ascii_start();
        }
        self.before_first = false;
        let inside = rest.strip_prefix(b"\"").ok_or("a name is missing in the JSON object")?;
        let end = string_end(inside).ok_or("a JSON text does not end")?;
        let name = unescaped(&inside[..end]);
        let after = inside[end + 1..].trim_ascii_start();
        let after = after.strip_prefix(b":").ok_or("a colon is missing in the JSON object")?;
        let (value, rest) = Json::read(after)?;
        self.rest = rest;
        Ok(Some((name, value)))
    }

    /// Runs on every member of a line that is one object, and refuses anything after the object.
    pub(super) fn each(
        line: &'a [u8],
        mut member: impl FnMut(Cow<'a, str>, Json<'a>) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        let mut members = Self::of(line)?;
        while let Some((name, value)) = members.next()? {
            member(name, value)?;
        }
        if members.rest.trim_ascii().is_empty() {
            Ok(())
        } else {
            Err("something follows the JSON object on its line".into())
        }
    }
}

/// The values of an array whose bytes start with its bracket.
pub(super) struct Items<'a> {
    rest: &'a [u8],
}

impl<'a> Items<'a> {
    pub(super) fn of(array: &'a [u8]) -> Self {
        Self { rest: array.strip_prefix(b"[").unwrap_or_default() }
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<Json<'a>, Reason>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest.trim_ascii_start();
        if rest.is_empty() || rest.starts_with(b"]") {
            return None;
        }
        match Json::read(rest.strip_prefix(b",").unwrap_or(rest)) {
            Ok((value, rest)) => {
                self.rest = rest;
                Some(Ok(value))
            }
            Err(reason) => {
                self.rest = &[];
                Some(Err(reason))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_every_kind() {
        let line = br#" {"a" : "x\n\"\u00e9\ud83d\ude00\ud83d" , "b":-1.5e3,"c":{"d":["}",1]},"e":[true,null],"f":false} "#;
        let mut seen = Vec::new();
        Members::each(line, |name, value| {
            seen.push((name.into_owned(), value));
            Ok(())
        })
        .unwrap();
        assert_eq!(seen[0].1.scalar().unwrap(), "x\n\"é😀\u{fffd}");
        assert_eq!(seen[1].1, Json::Number(b"-1.5e3"));
        assert_eq!(seen[2].1, Json::Object(br#"{"d":["}",1]}"#));
        assert_eq!(seen[3].1.first().as_deref(), Some("true"));
        assert_eq!(seen[4], ("f".to_owned(), Json::False));
        let Json::Array(items) = seen[3].1 else { panic!("not an array") };
        assert_eq!(Items::of(items).collect::<Result<Vec<_>, _>>(), Ok(vec![Json::True, Json::Null]));
    }

    #[test]
    fn broken_json_says_why() {
        for (line, complaint) in [
            (r#"["a"]"#, "not a JSON object"),
            (r#"{"a":1"#, "comma is missing"),
            (r#"{"a" 1}"#, "colon is missing"),
            (r#"{"a":1 "b":2}"#, "comma is missing"),
            (r#"{a:1}"#, "name is missing"),
            (r#"{"a":"x}"#, "does not end"),
            (r#"{"a":{"#, "not closed"),
            (r#"{"a":nope}"#, "missing or misspelt"),
            (r#"{"a":1} {"b":2}"#, "follows the JSON object"),
            (r#"{"a"#, "does not end"),
        ] {
            let reason = Members::each(line.as_bytes(), |_, _| Ok(())).unwrap_err();
            assert!(reason.contains(complaint), "{line}: {reason}");
        }
    }

    /// Brackets as deep as a line is long need no stack.
    #[test]
    fn deep_brackets_do_not_recurse() {
        let line = format!("{{\"a\":{}{}}}", "[".repeat(400_000), "]".repeat(400_000));
        let mut seen = 0;
        Members::each(line.as_bytes(), |_, _| {
            seen += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, 1);
    }
}
