//! The one spelling of a path: what limits are matched against, and what a gateway sends on. Two spellings that a server would
//! take for the same path are one here; what servers disagree about is refused. Policies and operators name paths in this spelling, too.

use std::borrow::Cow;

/// The treatment of escaped slashes, escaped backslashes, and backslashes. Servers disagree about whether
/// it parts two segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EscapedSlashes {
    /// Refuse the path.
    #[default]
    Reject,
    /// Leave it in its segment, as an escape.
    Keep,
    /// Take it for a slash.
    Decode,
}

/// Why a path has no one spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathProblem {
    /// It does not begin with a slash.
    #[error("it does not begin with /")]
    NotAbsolute,
    /// `%` without two hexadecimal digits.
    #[error("% stands without two hexadecimal digits")]
    Escape,
    /// A control character, as it is or as an escape.
    #[error("it has a control character")]
    Control,
    /// Bytes that are no text.
    #[error("it is not UTF-8")]
    NotText,
    /// A slash or backslash that not every server takes for one.
    #[error("it has an escaped slash or a backslash; `escaped_slashes: keep` in the config accepts them")]
    EscapedSlash,
    /// `.;` or `..;`, which some servers read as a dot segment.
    #[error("it has a parameter behind a dot segment, such as ..;")]
    DotParameter,
}

/// The one spelling of a path without its query. Doing it again changes nothing.
///
/// Escapes of what may stand in a segment are undone, all others are written in capitals; dot segments are resolved and
/// repeated slashes merged. Case, a trailing slash and what follows `;` are kept: they tell apart what servers tell apart.
///
/// # Errors
/// When servers would disagree about what it means.
pub fn normalise_path(path: &str, slashes: EscapedSlashes) -> Result<Cow<'_, str>, PathProblem> {
    if !path.starts_with('/') {
        return Err(PathProblem::NotAbsolute);
    }
    if is_normal(path.as_bytes()) {
        return Ok(Cow::Borrowed(path));
    }
    let decoded = decode(path.as_bytes(), slashes)?;
    if decoded.split('/').any(is_dot_parameter) {
        return Err(PathProblem::DotParameter);
    }
    Ok(Cow::Owned(resolve(&decoded)))
}

/// The one spelling of a path that a policy names, with `*` and `{name}` where it has them. Whether escaped slashes are kept is the
/// config's affair, so here they are.
///
/// # Errors
/// When no request has such a path.
pub(crate) fn normalise_pattern(pattern: &str) -> Result<Cow<'_, str>, PathProblem> {
    let mut parts = Vec::new();
    for segment in pattern.split('/') {
        parts.push(match is_parameter(segment) {
            true => Cow::Borrowed(segment),
            false => normalise_part(segment)?,
        });
    }
    if parts.iter().any(|part| is_dot_parameter(part)) {
        return Err(PathProblem::DotParameter);
    }
    let (last, ends_open) = (parts.len() - 1, parts.last().is_some_and(|part| part.is_empty()));
    // Repeated slashes are one; those at both ends stay.
    let kept = parts
        .iter()
        .enumerate()
        .filter(|(at, part)| *at == 0 || (*at == last && ends_open) || !part.is_empty());
    let joined = kept.map(|(_, part)| &**part).collect::<Vec<_>>().join("/");
    Ok(if joined == pattern { Cow::Borrowed(pattern) } else { Cow::Owned(joined) })
}

/// A part of a path, each byte in its one form.
///
/// # Errors
/// When no request has it in its path.
pub(crate) fn normalise_part(part: &str) -> Result<Cow<'_, str>, PathProblem> {
    if part.bytes().all(|byte| byte == b'/' || is_kept(byte)) {
        return Ok(Cow::Borrowed(part));
    }
    decode(part.as_bytes(), EscapedSlashes::Keep).map(Cow::Owned)
}

/// Whether a segment of a pattern is `{name}`.
pub(crate) fn is_parameter(segment: &str) -> bool {
    let inside = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    inside.is_some_and(|name| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

/// The common case, in one pass: nothing to change.
fn is_normal(path: &[u8]) -> bool {
    let plain = path.iter().all(|&byte| byte == b'/' || is_kept(byte));
    plain && !path.windows(2).any(|pair| matches!(pair, b"//" | b"/."))
}

/// Whether a byte stands for itself in a segment.
const fn is_kept(byte: u8) -> bool {
    matches!(byte, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' | b'@')
        || matches!(byte, b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b'=' | b';')
}

/// The path with each byte in its one form.
fn decode(path: &[u8], slashes: EscapedSlashes) -> Result<String, PathProblem> {
    let mut text = String::with_capacity(path.len());
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, after)) = rest.split_first() {
        let (byte, is_escape, after) = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                (escaped(*high, *low).ok_or(PathProblem::Escape)?, true, after)
            }
            (b'%', _) => return Err(PathProblem::Escape),
            _ => (first, false, after),
        };
        rest = after;
        bytes.push(byte);
        match byte {
            0..0x20 | 0x7f => return Err(PathProblem::Control),
            b'/' if !is_escape => text.push('/'),
            b'/' | b'\\' => match slashes {
                EscapedSlashes::Reject => return Err(PathProblem::EscapedSlash),
                EscapedSlashes::Decode => text.push('/'),
                EscapedSlashes::Keep => push_escape(&mut text, byte),
            },
            // A semicolon begins a parameter for some servers, its escape never does.
            b';' if is_escape => push_escape(&mut text, byte),
            _ if is_kept(byte) => text.push(char::from(byte)),
            _ => push_escape(&mut text, byte),
        }
    }
    std::str::from_utf8(&bytes).map_err(|_| PathProblem::NotText)?;
    Ok(text)
}

/// The byte that two hexadecimal digits stand for.
fn escaped(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

fn push_escape(text: &mut String, byte: u8) {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
    text.push('%');
    text.push(DIGITS[usize::from(byte >> 4)]);
    text.push(DIGITS[usize::from(byte & 15)]);
}

/// Whether a segment is dots with a parameter behind them: a server that takes parameters away is left with a dot segment.
fn is_dot_parameter(segment: &str) -> bool {
    let dots = segment.strip_prefix("..").or_else(|| segment.strip_prefix('.'));
    dots.is_some_and(|rest| rest.starts_with(';') || rest.starts_with("%3B"))
}

/// The path without dot segments and repeated slashes.
fn resolve(path: &str) -> String {
    let mut segments = Vec::new();
    let mut ends_open = true;
    for segment in path.split('/') {
        ends_open = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    let mut resolved = String::with_capacity(path.len());
    for segment in &segments {
        resolved.push('/');
        resolved.push_str(segment);
    }
    if ends_open || resolved.is_empty() {
        resolved.push('/');
    }
    resolved
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn normal(path: &str) -> String {
        normalise_path(path, EscapedSlashes::Reject).unwrap().into_owned()
    }

    /// Spellings of one path, and paths that stay apart.
    #[test]
    fn spellings() {
        let cases = [
            ("/login", "/login"),
            ("//login", "/login"),
            ("/./login", "/login"),
            ("/a/../login", "/login"),
            ("/../../login", "/login"),
            ("/%6Cogin", "/login"),
            ("/%6cogin", "/login"),
            ("/%2e/login", "/login"),
            ("/a/%2E%2e/login", "/login"),
            ("/login/.", "/login/"),
            ("/login/..", "/"),
            ("/login/", "/login/"),
            ("/login//", "/login/"),
            ("/", "/"),
            ("//", "/"),
            ("/a/b/../c/./d//e", "/a/c/d/e"),
            ("/items%3Abatch", "/items:batch"),
            ("/a%40b", "/a@b"),
            ("/a%3bb", "/a%3Bb"),
            ("/a;b", "/a;b"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/café", "/caf%C3%A9"),
            ("/a b", "/a%20b"),
            ("/a%20b", "/a%20b"),
            ("/%25%32%65", "/%252e"),
            ("/a|b", "/a%7Cb"),
            ("/a.b/..c/...", "/a.b/..c/..."),
            ("/Login", "/Login"),
        ];
        for (path, expected) in cases {
            assert_eq!(normal(path), expected, "{path}");
        }
    }

    /// Paths that servers read differently are refused, or read as the config says.
    #[test]
    fn refusals() {
        let cases = [
            ("login", PathProblem::NotAbsolute),
            ("", PathProblem::NotAbsolute),
            ("*", PathProblem::NotAbsolute),
            ("/%", PathProblem::Escape),
            ("/%4", PathProblem::Escape),
            ("/%zz", PathProblem::Escape),
            ("/%+1", PathProblem::Escape),
            ("/%00", PathProblem::Control),
            ("/a%0d%0ab", PathProblem::Control),
            ("/%7F", PathProblem::Control),
            ("/%ff", PathProblem::NotText),
            ("/%c0%af", PathProblem::NotText),
            ("/%c3", PathProblem::NotText),
            ("/a%2Fb", PathProblem::EscapedSlash),
            ("/a%5cb", PathProblem::EscapedSlash),
            ("/a\\b", PathProblem::EscapedSlash),
            ("/x/..;/login", PathProblem::DotParameter),
            ("/x/..;a=b/login", PathProblem::DotParameter),
            ("/.;/login", PathProblem::DotParameter),
            ("/%2e%2E;", PathProblem::DotParameter),
            ("/x/..%3b/login", PathProblem::DotParameter),
        ];
        for (path, problem) in cases {
            assert_eq!(normalise_path(path, EscapedSlashes::Reject), Err(problem), "{path}");
        }
        assert_eq!(normalise_path("/a%2fb\\c", EscapedSlashes::Keep).unwrap(), "/a%2Fb%5Cc");
        assert_eq!(normalise_path("/a/..%2f..%5cb", EscapedSlashes::Decode).unwrap(), "/b");
    }

    /// A pattern has the spelling of the paths that it is for, its stars and names kept.
    #[test]
    fn patterns_have_the_spelling_of_paths() {
        for (pattern, expected) in [
            ("/café/*", "/caf%C3%A9/*"),
            ("*/a b", "*/a%20b"),
            ("/users/{id}/a%40b", "/users/{id}/a@b"),
            ("/users/{id}", "/users/{id}"),
            ("/v1//*", "/v1/*"),
            ("//a/", "/a/"),
            ("/", "/"),
            ("/*", "/*"),
            ("/a%2fb", "/a%2Fb"),
            ("/x{id}", "/x%7Bid%7D"),
        ] {
            let normal = normalise_pattern(pattern).unwrap();
            assert_eq!(normal, expected);
            assert_eq!(normalise_pattern(&normal).unwrap(), normal);
        }
        assert_eq!(normalise_pattern("/%zz"), Err(PathProblem::Escape));
        assert_eq!(normalise_pattern("/a/..;x"), Err(PathProblem::DotParameter));
    }

    proptest! {
        /// Once normal, always normal; and whatever is normal is plain ASCII without a dot segment or an empty one.
        #[test]
        fn normal_is_a_fixed_point(
            path in "/(/|\\.|\\.\\.|%2[eEfF]|%5[cC]|%[0-9a-fA-F]{2}|[a-zA-Z;:@%é\\\\ ]){0,12}",
            slashes in prop_oneof![
                Just(EscapedSlashes::Reject), Just(EscapedSlashes::Keep), Just(EscapedSlashes::Decode)
            ],
        ) {
            if let Ok(once) = normalise_path(&path, slashes) {
                // Kept escapes of slashes are refused where they are not kept, so the same setting is asked again.
                prop_assert_eq!(normalise_path(&once, slashes), Ok(Cow::Borrowed(&*once)));
                prop_assert!(once.is_ascii() && once.starts_with('/'));
                let inner = once.trim_start_matches('/').trim_end_matches('/');
                prop_assert!(inner.is_empty() || inner.split('/').all(|s| !matches!(s, "" | "." | "..")));
            }
        }

        /// A policy and a request have one spelling for a path, so what the one names the other has.
        #[test]
        fn policies_and_requests_spell_alike(path in "(/(%[0-9a-fA-F]{2}|[a-zA-Z;:@%é\\\\ ]){0,3}){1,4}") {
            let slashes = EscapedSlashes::Keep;
            match (normalise_path(&path, slashes), normalise_pattern(&path)) {
                // Only a request may have dots; a policy that has them is refused before.
                _ if path.contains("%2") && path.to_ascii_lowercase().contains("%2e") => {}
                (Ok(request), Ok(policy)) => prop_assert_eq!(request, policy),
                (request, policy) => prop_assert_eq!(request.is_err(), policy.is_err()),
            }
        }

        /// Escaping any letter of a path changes nothing.
        #[test]
        fn escapes_do_not_hide_a_path(path in "(/[a-z0-9]{1,5}){1,4}", at in 0usize..20) {
            let at = 1 + at % (path.len() - 1);
            let byte = path.as_bytes()[at];
            if byte != b'/' {
                let hidden = format!("{}%{byte:02x}{}", &path[..at], &path[at + 1..]);
                prop_assert_eq!(normal(&hidden), path);
            }
        }
    }
}
