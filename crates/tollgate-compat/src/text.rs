//! Makes external text safe for people to read in logs, in the live view and among the top keys. The result cannot move
//! a cursor, start a line or change the reading direction, and it is short.

/// Maximum number of characters shown of one value. An escaped character counts as one.
pub const VALUE_CHARS_MAX: usize = 64;

/// Appends an external text.
pub fn push(into: &mut String, text: &str) {
    for (count, character) in text.chars().enumerate() {
        if count == VALUE_CHARS_MAX {
            into.push('…');
            return;
        }
        match character {
            // Otherwise it would look like the start of an escape.
            '\\' => into.push_str(r"\\"),
            _ => push_plain(into, character),
        }
    }
}

/// The escaped and shortened text.
#[must_use]
pub fn shown(text: &str) -> String {
    let mut shown = String::new();
    push(&mut shown, text);
    shown
}

/// Escapes a text of any length. Existing escapes stay unchanged.
#[must_use]
pub fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    text.chars().for_each(|character| push_plain(&mut plain, character));
    plain
}

/// Appends one character, escaped if it is not plain.
pub fn push_plain(into: &mut String, character: char) {
    if is_plain(character) {
        into.push(character);
    } else {
        into.extend(character.escape_default());
    }
}

/// Whether a character has no effect but its own glyph.
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

    /// No control character reaches a terminal or a log reader, and harmless text stays readable.
    #[test]
    fn active_characters_are_escaped() {
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
