//! Structured fields (RFC 9651), as much of them as the RateLimit fields need: lists of strings with parameters.

use std::borrow::Cow;

use super::list::FIELD_BYTES_MAX;

/// Longest limit name that is shown as it is.
pub(super) const NAME_SHOWN_MAX: usize = 64;

/// The name of a limit as callers see it, in headers and bodies alike. A name that a header cannot carry is replaced by
/// a hash of it, which stays the same from answer to answer.
pub(super) fn shown_name(name: &str) -> Cow<'_, str> {
    let carried = name.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    // Outside quotes a value loses leading and trailing spaces, and would then name another limit.
    let is_trimmed = !name.starts_with(' ') && !name.ends_with(' ');
    if carried && name.len() <= NAME_SHOWN_MAX && !name.is_empty() && is_trimmed {
        Cow::Borrowed(name)
    } else {
        Cow::Owned(format!("limit-{:016x}", name_hash(name)))
    }
}

/// A hash of a limit's name (FNV-1a): stable between versions, because clients may remember it.
pub(super) fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Appends a string in quotes.
pub(super) fn push_string(out: &mut String, text: &str) {
    out.push('"');
    if !text.bytes().any(|byte| matches!(byte, b'"' | b'\\')) {
        out.push_str(text);
        out.push('"');
        return;
    }
    for character in text.chars() {
        if matches!(character, '"' | '\\') {
            out.push('\\');
        }
        out.push(character);
    }
    out.push('"');
}

/// Appends a parameter with an integer. The key includes its delimiters, as in `;q=`.
#[inline]
pub(super) fn push_parameter(out: &mut String, key: &str, value: u64) {
    out.push_str(key);
    super::list::push_number(out, value);
}

/// Appends the items of a list. Items that would make the field too long are left out, so the most important come
/// first.
pub(super) fn push_list<T>(
    out: &mut String,
    items: impl IntoIterator<Item = T>,
    mut push_item: impl FnMut(&mut String, T),
) {
    let start = out.len();
    for item in items {
        let end = out.len();
        if end > start {
            out.push_str(", ");
        }
        push_item(out, item);
        if out.len() - start > FIELD_BYTES_MAX {
            out.truncate(end);
            return;
        }
    }
}

/// Whether text may be the key of a parameter.
pub(super) fn is_key(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|first| matches!(first, b'a'..=b'z' | b'*'))
        && bytes.all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*'))
}
