//! Patterns with `*`.

use std::fmt;

/// A pattern in which `*` stands for any run of characters, none included. There is no escape: a value with a star in it is
/// a case for CEL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    pattern: Box<str>,
}

impl Glob {
    /// The pattern, if the text has a star; without one it is a plain value.
    #[must_use]
    pub fn new(pattern: &str) -> Option<Self> {
        pattern.contains('*').then(|| Self { pattern: pattern.into() })
    }

    /// Whether the whole of `text` fits. Each piece between stars is taken at its first place, which finds a fit if there is
    /// one, in time linear in the text.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let mut pieces = self.pattern.split('*');
        let (Some(first), Some(last)) = (pieces.next(), pieces.next_back()) else {
            return false;
        };
        let Some(rest) = text.strip_prefix(first) else {
            return false;
        };
        let Some(mut rest) = rest.strip_suffix(last) else {
            return false;
        };
        for piece in pieces {
            match rest.find(piece) {
                Some(found) => rest = &rest[found + piece.len()..],
                None => return false,
            }
        }
        true
    }

    /// Whether every text fits.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.pattern.bytes().all(|byte| byte == b'*')
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A star is any run of characters, and everything else is itself.
    #[test]
    fn globs_match_whole_texts() {
        for (pattern, text, fits) in [
            ("/v1/*", "/v1/chat", true),
            ("/v1/*", "/v1/", true),
            ("/v1/*", "/v2/", false),
            ("*.json", "a.json", true),
            ("*.json", "a.jsonx", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("*", "", true),
            ("**", "x", true),
            ("é*", "éa", true),
        ] {
            let glob = Glob::new(pattern).unwrap();
            assert_eq!(glob.matches(text), fits, "{pattern} on {text}");
        }
        assert_eq!(Glob::new("plain"), None);
    }
}
