//! Patterns with `*` and `{name}`.

use std::fmt;

use crate::path::{fold_case, is_with_format, without_format};

/// Format suffixes that are tried for a pattern with both stars and names, the longest first: a path may have a dot in each byte.
const FORMATS_TRIED: usize = 8;

/// A pattern: `*` stands for any run of characters, none included, and `{name}` for one segment of a path, which is not empty.
/// There is no escape: a value with a star in it is a case for CEL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    pattern: Box<str>,
}

impl Glob {
    /// The pattern, if the text has a star or is the template of a path; otherwise it is a plain value.
    #[must_use]
    pub fn new(pattern: &str) -> Option<Self> {
        let is_pattern = pattern.contains('*') || (pattern.starts_with('/') && pattern.contains('{'));
        is_pattern.then(|| Self { pattern: pattern.into() })
    }

    /// Whether the whole of `text` matches. Each piece between stars is taken at its first occurrence, which finds a match if
    /// there is one.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        fits(&self.pattern, text)
    }

    /// Whether the whole of a path in its loose form fits, whatever the case of the pattern and with or without a format suffix.
    /// The loose form has no slash at the end, so `/v1/*` fits `/v1`.
    pub(crate) fn matches_loosely(&self, path: &str) -> bool {
        let pattern = fold_case(&self.pattern);
        let above = pattern.strip_suffix("/*").or_else(|| pattern.strip_suffix('/'));
        fits_path(&pattern, path) || above.is_some_and(|above| fits_path(above, path))
    }

    /// Whether every text fits.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.pattern.bytes().all(|byte| byte == b'*')
    }

    /// A text that fits.
    #[must_use]
    pub fn example(&self) -> String {
        let mut example = String::new();
        let mut rest = &*self.pattern;
        while let Some((before, after)) = rest.split_once(['*', '{']) {
            example.push_str(before);
            example.push_str("demo");
            let is_star = rest.as_bytes().get(before.len()) == Some(&b'*');
            rest = if is_star { after } else { after.split_once('}').map_or("", |(_, after)| after) };
        }
        example + rest
    }
}

fn fits(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let (Some(first), Some(last)) = (pieces.next(), pieces.next_back()) else {
        return leading(pattern, text) == Some(text.len());
    };
    let Some(rest) = leading(first, text).map(|length| &text[length..]) else {
        return false;
    };
    let Some(mut rest) = before_last(last, rest) else {
        return false;
    };
    for piece in pieces {
        let found = if piece.contains('{') {
            places(rest).find_map(|start| Some(start + leading(piece, &rest[start..])?))
        } else {
            rest.find(piece).map(|start| start + piece.len())
        };
        match found {
            Some(end) => rest = &rest[end..],
            None => return false,
        }
    }
    true
}

/// The same for a path that may have a format suffix.
fn fits_path(pattern: &str, path: &str) -> bool {
    match (pattern.contains('*'), pattern.contains('{')) {
        (false, false) => is_with_format(path, pattern),
        (false, true) => leading(pattern, path).is_some_and(|end| is_with_format(path, &path[..end])),
        (true, false) => after_pieces(pattern, path).is_some_and(|(rest, last)| {
            rest.ends_with(last) || without_format(rest).any(|rest| rest.ends_with(last))
        }),
        (true, true) => {
            let mut forms = without_format(path).take(FORMATS_TRIED);
            fits(pattern, path) || forms.any(|form| fits(pattern, form))
        }
    }
}

/// The rest of a text after all pieces of a pattern but the last, and the last piece.
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

/// How much of the text a piece without stars takes from its beginning.
fn leading(piece: &str, text: &str) -> Option<usize> {
    let (mut piece, mut rest) = (piece, text);
    while let Some((before, after)) = piece.split_once('{') {
        rest = rest.strip_prefix(before)?;
        let segment = rest.find('/').unwrap_or(rest.len());
        if segment == 0 {
            return None;
        }
        rest = &rest[segment..];
        piece = after.split_once('}').map_or("", |(_, after)| after);
    }
    rest = rest.strip_prefix(piece)?;
    Some(text.len() - rest.len())
}

/// The text before the last piece, which ends it.
fn before_last<'t>(last: &str, text: &'t str) -> Option<&'t str> {
    if !last.contains('{') {
        return text.strip_suffix(last);
    }
    let ends = |start: &usize| leading(last, &text[*start..]) == Some(text.len() - *start);
    places(text).rev().find(ends).map(|start| &text[..start])
}

/// Where a piece may begin in a text.
fn places(text: &str) -> impl DoubleEndedIterator<Item = usize> {
    text.char_indices().map(|(start, _)| start).chain(std::iter::once(text.len()))
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

    /// A name in braces is one whole segment, beside stars too.
    #[test]
    fn templates_match_segments() {
        for (pattern, text, fits) in [
            ("/users/{id}", "/users/7", true),
            ("/users/{id}", "/users/", false),
            ("/users/{id}", "/users/7/", false),
            ("/users/{id}", "/users/7/orders", false),
            ("/users/{id}", "/users/{id}", true),
            ("/users/{id}/orders/{order}", "/users/7/orders/9", true),
            ("/users/{id}/orders/{order}", "/users/7/orders", false),
            ("/users/{id}/*", "/users/7/orders/9", true),
            ("/users/{id}/*", "/users/7", false),
            ("/*/users/{id}", "/a/b/users/7", true),
            ("/*/users/{id}", "/a/users/b/users/7", true),
            ("/*/users/{id}", "/a/users/7/x", false),
            ("/*/{a}/x/*/{b}", "/1/2/x/3/4", true),
            ("/*/{a}/x/*/{b}", "/1/x/3", false),
        ] {
            let glob = Glob::new(pattern).unwrap();
            assert_eq!(glob.matches(text), fits, "{pattern} on {text}");
        }
        assert_eq!(Glob::new("/users/{id}/*").unwrap().example(), "/users/demo/demo");
        assert!(Glob::new("/Users/{ID}").unwrap().matches_loosely("/users/7"));
        assert!(Glob::new("/users/{id}/").unwrap().matches_loosely("/users/7"));
        // A format suffix belongs to the handler of the path without it.
        assert!(Glob::new("/users/{id}/orders").unwrap().matches_loosely("/users/7/orders.json"));
        assert!(Glob::new("/*/users/{id}/orders").unwrap().matches_loosely("/v1/users/7/orders.json"));
        assert!(!Glob::new("/users/{id}/orders").unwrap().matches_loosely("/users/7/orders/x.json"));
        assert_eq!(Glob::new("{plain}"), None);
    }

    /// A path in its loose form fits what its other spellings would.
    #[test]
    fn globs_match_loose_paths() {
        for (pattern, path, fits) in [
            ("/V1/*", "/v1/chat", true),
            ("/CAF%C3%89/*", "/caf%c3%a9/x", true),
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
