//! Patterns with `*`.

use std::borrow::Cow;
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
        fits(&self.pattern, text)
    }

    /// Whether the whole of a path in its loose form fits, whatever the case of the pattern. What is below a path has that path for its
    /// own, since a slash at the end is none of the loose form: `/v1/*` fits `/v1`.
    pub(crate) fn matches_loosely(&self, path: &str) -> bool {
        let is_small = !self.pattern.bytes().any(|byte| byte.is_ascii_uppercase());
        let pattern = match is_small {
            true => Cow::Borrowed(&*self.pattern),
            false => Cow::Owned(self.pattern.to_ascii_lowercase()),
        };
        let above = pattern.strip_suffix("/*").or_else(|| pattern.strip_suffix('/'));
        fits(&pattern, path) || above.is_some_and(|above| fits(above, path))
    }

    /// Whether every text fits.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.pattern.bytes().all(|byte| byte == b'*')
    }
}

fn fits(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let (Some(first), Some(last)) = (pieces.next(), pieces.next_back()) else {
        return pattern == text;
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

    /// A path in its loose form fits what its other spellings would.
    #[test]
    fn globs_match_loose_paths() {
        for (pattern, path, fits) in [
            ("/V1/*", "/v1/chat", true),
            ("/v1/*", "/v1", true),
            ("/v1/*/", "/v1/chat", true),
            ("/v*/*", "/v1", true),
            ("/v1/*", "/v10", false),
            ("/v1/*", "/", false),
            ("/*", "/", true),
            ("*/login", "/a/login", true),
            ("/v1*", "/v2", false),
        ] {
            let glob = Glob::new(pattern).unwrap();
            assert_eq!(glob.matches_loosely(path), fits, "{pattern} on {path}");
        }
    }
}
