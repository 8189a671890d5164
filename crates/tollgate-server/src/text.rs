//! Text that came from outside, made fit for people to read: in logs, in the live view, among the top keys. Nothing in it moves
//! a cursor, begins a line or turns the direction of reading, and it is short.

use std::borrow::Cow;
use std::fmt::Write;

use tollgate::credential::CREDENTIAL;
use tollgate::request::Attribute;
use tollgate::{CheckRequest, CredentialDigest, Value};

/// Most characters that are shown of one value; those that are escaped count as one.
pub(crate) const VALUE_CHARS_MAX: usize = 64;

/// Adds a value to a text.
pub(crate) fn push_value(into: &mut String, value: Value<'_>) {
    match value {
        Value::Text(text) => push(into, text),
        Value::Number(number) => {
            // Writing to a string cannot fail.
            let _ = write!(into, "{number}");
        }
    }
}

/// Adds a text that somebody else wrote.
pub(crate) fn push(into: &mut String, text: &str) {
    for (count, character) in text.chars().enumerate() {
        if count == VALUE_CHARS_MAX {
            into.push('…');
            return;
        }
        match character {
            // It would begin an escape that is none.
            '\\' => into.push_str(r"\\"),
            _ => push_plain(into, character),
        }
    }
}

/// The same, as a text of its own.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::new();
    push(&mut shown, text);
    shown
}

/// A value as it may be seen. Most ways in tell digests; rules of other programs are asked with credentials as they are.
pub(crate) fn unsecret<'v>(name: &str, value: &'v str) -> Cow<'v, str> {
    if name == CREDENTIAL {
        Cow::Owned(CredentialDigest::of_value(value).to_string())
    } else {
        Cow::Borrowed(value)
    }
}

/// The attributes of a request, as text.
pub(crate) fn attributes(request: &CheckRequest<'_>) -> Vec<(String, String)> {
    let pair = |attribute: &Attribute<'_>| {
        let mut value = String::new();
        match attribute.value {
            Value::Text(text) => push(&mut value, &unsecret(attribute.name, text)),
            Value::Number(_) => push_value(&mut value, attribute.value),
        }
        (shown(attribute.name), value)
    };
    request.attributes().iter().map(pair).collect()
}

/// A text of any length in which nothing acts. What was escaped before stays as it is.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    text.chars().for_each(|character| push_plain(&mut plain, character));
    plain
}

/// Adds one character, escaped if it does anything but look like itself.
pub(crate) fn push_plain(into: &mut String, character: char) {
    if is_plain(character) {
        into.push(character);
    } else {
        into.extend(character.escape_default());
    }
}

/// Whether a character only looks like itself.
const fn is_plain(character: char) -> bool {
    let turns_direction = matches!(character,
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    let breaks_lines = matches!(character, '\u{2028}' | '\u{2029}');
    let is_control = matches!(character, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}');
    let is_tag = matches!(character, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !(turns_direction || breaks_lines || is_control || is_tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing that a terminal or a log reader acts on comes through, and what is harmless stays readable.
    #[test]
    fn what_acts_is_escaped() {
        assert_eq!(shown("naïve ключ 鍵"), "naïve ключ 鍵");
        assert_eq!(shown("a\nb\r\u{1b}[2J\u{7}"), r"a\nb\r\u{1b}[2J\u{7}");
        assert_eq!(shown("\u{9b}31m\u{202e}x\u{2028}y\0"), r"\u{9b}31m\u{202e}x\u{2028}y\u{0}");
        assert_eq!(shown(r"a\nb"), r"a\\nb");
        assert_eq!(plain("a\n\u{2028}b"), r"a\n\u{2028}b");
        assert_eq!(plain(&shown("a\n\\b")), shown("a\n\\b"), "what is escaped is not escaped again");
    }

    /// A value of any length is short.
    #[test]
    fn text_is_short() {
        let long = "é".repeat(5_000);
        assert_eq!(shown(&long).chars().count(), VALUE_CHARS_MAX + 1);
        assert!(shown(&"\u{10ffff}".repeat(5_000)).chars().count() <= VALUE_CHARS_MAX + 1);
        assert!(shown(&"\u{1b}".repeat(5_000)).len() <= VALUE_CHARS_MAX * 10 + 3);
    }
}
