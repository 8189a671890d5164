//! Paths: their canonical spelling, and their loose form. Paths that lenient servers treat as the same have the same
//! loose form. Limits are matched by it where the server behind them is unknown; the path that is counted and forwarded
//! keeps its own spelling.

mod canonical;
mod case;

use std::borrow::Cow;

pub use canonical::{EscapedSlashes, PathProblem, normalise_path};
pub(crate) use canonical::{is_parameter, normalise_part, normalise_pattern};
pub(crate) use case::fold_case;

/// Suffixes of a segment that some servers ignore.
const IGNORED: [&str; 3] = [".", " ", "%20"];

/// The loose form of a path in its canonical spelling: one case, no parameters (`;x`), no dots and spaces at the end of
/// a segment, no empty segments, no sessions of ASP.NET (`/(S(x))`), no slash at the end. It is idempotent. A text that does not begin with a slash is no
/// path, and stays as it is.
///
/// ```
/// assert_eq!(tollgate::path::loose_path("/Login;v=1/"), "/login");
/// assert_eq!(tollgate::path::loose_path("/login"), "/login");
/// assert_eq!(tollgate::path::loose_path("/log%C4%B1n"), "/login"); // a dotless i, which is an I in capitals
/// ```
#[must_use]
pub fn loose_path(path: &str) -> Cow<'_, str> {
    if !path.starts_with('/') || is_loose(path.as_bytes()) {
        return Cow::Borrowed(path);
    }
    let mut loose = String::with_capacity(path.len());
    for segment in path.split('/').map(kept).filter(|segment| !segment.is_empty()) {
        loose.push('/');
        loose.push_str(&fold_case(segment));
    }
    if loose.is_empty() {
        loose.push('/');
    }
    if loose == path { Cow::Borrowed(path) } else { Cow::Owned(loose) }
}

/// A segment without its ignored parts.
fn kept(segment: &str) -> &str {
    let mut kept = segment.split(';').next().unwrap_or_default();
    while let Some(shorter) = IGNORED.iter().find_map(|ignored| kept.strip_suffix(ignored)) {
        kept = shorter;
    }
    if is_session(kept) { "" } else { kept }
}

/// Whether a segment is where ASP.NET keeps the session of a client without cookies: `(S(x))`, or several such as
/// `(A(x)S(y))`. It takes the segment out before it looks for a handler, whatever is in it.
fn is_session(segment: &str) -> bool {
    matches!(segment.as_bytes(), [b'(', kind, b'(', .., b')', b')'] if kind.is_ascii_alphabetic())
}

/// Whether a path in its loose form equals another one, or equals it with a format suffix: in Rails, Spring, Django
/// REST framework and others the handler of `/login` serves `/login.json`, whatever the suffix is, and in some of them
/// `/login/.json`, too.
pub(crate) fn is_with_format(path: &str, wanted: &str) -> bool {
    let is_format = |rest: &str| {
        let suffix = rest.strip_prefix('/').unwrap_or(rest);
        suffix.starts_with('.') && !suffix.contains('/')
    };
    path.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || is_format(rest))
}

/// A path without its format suffix, once for each dot of its last segment: only the server knows which of them begins
/// the suffix. The shortest form comes first.
pub(crate) fn without_format(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    let last = path.rfind('/').map_or(0, |slash| slash + 1);
    let dots = path.bytes().enumerate().skip(last).filter(|(_, byte)| *byte == b'.');
    dots.filter_map(|(place, _)| {
        let form = path.get(..place)?;
        Some(form.strip_suffix('/').filter(|above| !above.is_empty()).unwrap_or(form))
    })
}

/// The common case, in one pass: whether nothing has to change.
fn is_loose(path: &[u8]) -> bool {
    let is_open =
        |before: &[u8]| matches!(before.last(), None | Some(b'/' | b'.' | b' ')) || before.ends_with(b"%20");
    let is_kept = |(place, byte): (usize, &u8)| match byte {
        b'A'..=b'Z' | b';' => false,
        b'/' => place == 0 || !is_open(&path[..place]),
        b'(' => !path[..place].ends_with(b"/"),
        b'%' => !case::is_letter_escape(&path[place..]),
        _ => byte.is_ascii(),
    };
    path == b"/" || path.iter().enumerate().all(is_kept) && !is_open(path)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Each row: the loose form, and spellings that have it.
    #[test]
    fn spellings() {
        let table = "
/login /login /login/ /LOGIN /Login/ /login;x /login;x=1;y /login. /login.. /login%20 /login%20. /login.%20 //login /;x/login /login/;x /LOGIN;jsessionid=1/
/login /(S(x))/login /(s(lit3py55))/LOGIN /(A(x)S(y))/login/ /(S(x)).;y/login /login/(F(%20))
/(s/login /(S/login /(s/LOGIN
/s(x)/(x))/(s) /s(x)/(x))/(s)
/ / // /;x /(S(x))/ /. /%20 /;a/;b
/a/b /a/b /a;x/b /a./b /a%20/B; /A//B/ /a/b/. /a/;x/b
/a%2fb /a%2fb /a%2Fb /A%2FB
/caf%c3%a9 /caf%C3%A9 /CAF%c3%a9/ /CAF%C3%89 /café
/login /log%C4%B1n /LOG%c4%b0N
/search /%C5%BFearch /%c5%bfEARCH;x
/keys /%E2%84%AAEYS /%e2%84%aaeys/ /\u{212a}eys
/files /%EF%AC%81les /%ef%ac%81LE%C5%BF
/.well-known/x /.well-known/x /.Well-Known/X/
/a.b /a.b /A.B.
";
        for line in table.lines().filter(|line| !line.is_empty()) {
            let (one, spellings) = line.split_once(' ').unwrap();
            for spelling in spellings.split(' ') {
                assert_eq!(loose_path(spelling), one, "{spelling}");
            }
            assert!(matches!(loose_path(one), Cow::Borrowed(_)), "{one}");
        }
        assert_eq!(loose_path("/a b /c"), "/a b/c");
        for none in ["", "*", "Login", "Login/"] {
            assert_eq!(loose_path(none), none);
        }
    }

    /// A suffix is all that follows a dot of the last segment, and nothing else is one.
    #[test]
    fn format_suffixes() {
        for path in ["/login", "/login.json", "/login.a.b", "/login.-", "/login/.json"] {
            assert!(is_with_format(path, "/login"), "{path}");
        }
        for path in ["/logins", "/login/x", "/login.x/y", "/login/x.json", "/log", "/", "login.json"] {
            assert!(!is_with_format(path, "/login"), "{path}");
        }
        assert!(is_with_format("/a.pdf.json", "/a.pdf") && !is_with_format("/a.html", "/a.pdf"));
        assert_eq!(without_format("/a.b/c.d.e").collect::<Vec<_>>(), ["/a.b/c", "/a.b/c.d"]);
        assert_eq!(without_format("/a.b/c").count(), 0);
        assert_eq!(without_format("/a/.b").chain(without_format("/.b")).collect::<Vec<_>>(), ["/a", "/"]);
    }

    proptest! {
        /// The path equals every one of its forms without a suffix, with a suffix added.
        #[test]
        fn forms_without_a_suffix_agree(path in "/([a-c./]){0,12}") {
            for wanted in without_format(&path) {
                prop_assert!(is_with_format(&path, wanted), "{path} {wanted}");
            }
        }

        /// The loose form of a loose form is itself, and is borrowed.
        #[test]
        fn loose_is_a_fixed_point(path in "/(/|;|\\.|%20|%C3| |\\(S\\(|\\)\\)|[a-zA-Z]){0,12}") {
            let once = loose_path(&path).into_owned();
            prop_assert!(matches!(loose_path(&once), Cow::Borrowed(same) if same == once), "{}", once);
        }
    }
}
