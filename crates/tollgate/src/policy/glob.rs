//! Patterns with `*`.

use std::borrow::Cow;
use std::fmt;

use crate::path::{is_with_format, without_format};

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

    /// Whether the whole of a path in its loose form fits, whatever the case of the pattern and with or without a format suffix. What is
    /// below a path has that path for its own, since a slash at the end is none of the loose form: `/v1/*` fits `/v1`.
    pub(crate) fn matches_loosely(&self, path: &str) -> bool {
        let is_small = !self.pattern.bytes().any(|byte| byte.is_ascii_uppercase());
        let pattern = match is_small {
            true => Cow::Borrowed(&*self.pattern),
            false => Cow::Owned(self.pattern.to_ascii_lowercase()),
        };
        let above = pattern.strip_suffix("/*").or_else(|| pattern.strip_suffix('/'));
        fits_path(&pattern, path) || above.is_some_and(|above| fits_path(above, path))
    }

    /// Whether every text fits.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.pattern.bytes().all(|byte| byte == b'*')
    }
}

fn fits(pattern: &str, text: &str) -> bool {
    match pattern.contains('*') {
        false => pattern == text,
        true => after_pieces(pattern, text).is_some_and(|(rest, last)| rest.ends_with(last)),
    }
}

/// The same for a path that may have a format suffix.
fn fits_path(pattern: &str, path: &str) -> bool {
    if !pattern.contains('*') {
        return is_with_format(path, pattern);
    }
    let ends = |(rest, last): (&str, &str)| {
        rest.ends_with(last) || without_format(rest).any(|rest| rest.ends_with(last))
    };
    after_pieces(pattern, path).is_some_and(ends)
}

/// What is left of a text behind all pieces of a pattern but the last, and the last piece.
fn after_pieces<'t, 'p>(pattern: &'p str, text: &'t str) -> Option<(&'t str, &'p str)> {
    let mut pieces = pattern.split('*');
    let (first, last) = (pieces.next()?, pieces.next_back()?);
    let mut rest = text.strip_prefix(first)?;
    for piece in pieces {
        let found = rest.find(piece)?;
        rest = &rest[found + piece.len()..];
    }
    Some((rest, last))
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
            ("*/login", "/a/login.json", true),
            ("*/login", "/a/login.x.y", true),
            ("*/login", "/a/login.x/y", false),
            ("*/login", "/a/logins.json", false),
            ("/files/*.pdf", "/files/a.pdf", true),
            ("/files/*.pdf", "/files/a.pdf.json", true),
            ("/files/*.pdf", "/files/a.html", false),
            ("*a.a", "/a.a.ab", true),
            ("/v1/*", "/v1.json", true),
        ] {
            let glob = Glob::new(pattern).unwrap();
            assert_eq!(glob.matches_loosely(path), fits, "{pattern} on {path}");
        }
    }
}
