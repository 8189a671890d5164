//! One case for paths. Services that ignore case compare by Unicode's rules, by which a few letters outside of ASCII are ASCII letters in
//! another case: the dotless ı is `I` in capitals, and the Kelvin sign K is `k` in small letters.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::str;

/// A part of a path in one case: small letters, and escapes in small digits. What any comparison without case takes for the same is the
/// same here. Doing it again changes nothing.
pub(crate) fn fold_case(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let is_folded = |(place, byte): (usize, &u8)| match byte {
        b'A'..=b'Z' => false,
        b'%' => !is_letter_escape(&bytes[place..]),
        _ => byte.is_ascii(),
    };
    if bytes.iter().enumerate().all(is_folded) {
        return Cow::Borrowed(text);
    }
    let mut folded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let escaped = escaped_letters(rest);
        if escaped.is_empty() {
            push_folded(&mut folded, first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let (escapes, behind) = rest.split_at(3 * escaped.len());
        match str::from_utf8(&escaped) {
            Ok(letters) => letters.chars().for_each(|letter| push_folded(&mut folded, letter)),
            Err(_) => folded.push_str(&escapes.to_ascii_lowercase()),
        }
        rest = behind;
    }
    Cow::Owned(folded)
}

/// Whether this begins with the escape of a byte outside of ASCII.
pub(super) fn is_letter_escape(text: &[u8]) -> bool {
    matches!(text, [b'%', b'8' | b'9' | b'a'..=b'f' | b'A'..=b'F', low, ..] if low.is_ascii_hexdigit())
}

/// The bytes outside of ASCII that escapes at the beginning of a text stand for.
fn escaped_letters(text: &str) -> Vec<u8> {
    let escapes = text.as_bytes().chunks_exact(3).take_while(|escape| is_letter_escape(escape));
    let byte = |escape: &[u8]| u8::from_str_radix(str::from_utf8(&escape[1..]).ok()?, 16).ok();
    escapes.filter_map(byte).collect()
}

/// Adds a letter in the one case: ASCII as it is, all else as escapes.
fn push_folded(folded: &mut String, letter: char) {
    // Some comparisons take İ for `i`, and some for `i` with a dot above.
    let letter = if letter == 'İ' { 'i' } else { letter };
    if letter.is_ascii() {
        folded.push(letter.to_ascii_lowercase());
        return;
    }
    // Small, then capital, then small: ẞ is ß is SS is ss.
    let capitals = letter.to_lowercase().flat_map(char::to_uppercase);
    for letter in capitals.flat_map(char::to_lowercase) {
        if letter.is_ascii() {
            folded.push(letter);
            continue;
        }
        for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
            // Writing to a string does not fail.
            let _ = write!(folded, "%{byte:02x}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every letter of Unicode: its capital and its small letter have its fold, which stays as it is, and no letter becomes a sign that
    /// would part a path.
    #[test]
    fn cases_of_a_letter_have_one_fold() {
        for letter in ('\u{0}'..=char::MAX).filter(|letter| !letter.is_ascii()) {
            let folded = fold_case(letter.encode_utf8(&mut [0; 4])).into_owned();
            assert_eq!(fold_case(&folded), folded, "{letter}");
            let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'%';
            assert!(folded.bytes().all(is_plain), "{letter} {folded}");
            if letter != 'İ' {
                for other in [letter.to_lowercase().to_string(), letter.to_uppercase().to_string()] {
                    assert_eq!(fold_case(&other), folded, "{letter} {other}");
                }
            }
        }
    }

    /// Bytes that are no text keep their escapes, and ASCII is not decoded.
    #[test]
    fn other_escapes_stay() {
        for (text, folded) in [
            ("a%2Fb", "a%2fb"),
            ("%C3", "%c3"),
            ("%C3(", "%c3("),
            ("%FF%C4%B1", "%ff%c4%b1"),
            ("%4", "%4"),
            ("%c", "%c"),
            ("%Cé", "%c%c3%a9"),
            ("%C4%B1%20", "i%20"),
        ] {
            assert_eq!(fold_case(text), folded, "{text}");
        }
    }
}
