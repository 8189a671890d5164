//! How paths are read and compared. Their one spelling is the engine's own, so that policies name paths as requests have them.

use tollgate::path::loose_path;
pub use tollgate::path::{EscapedSlashes, PathProblem, normalise_path as normalise};

pub use crate::spelling::parameter::escaped;

/// How a path is compared with what limits and templates name. What is counted by and sent on is the same with both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathMatch {
    /// By its loose form as well, since many servers take `/Login`, `/login/` and `/login;x` for `/login`: see [`tollgate::path::loose_path`].
    /// A limit then holds for more rather than for less.
    #[default]
    Loose,
    /// Byte by byte, for services that tell all of these apart.
    Exact,
}

/// What a path usually is, if it is another one or below it, both in their loose form ([`loose_path`]) and the other without a slash at
/// its end. Some servers take an escaped slash for one, and others what follows a dot for a format: nobody gets around a rule about a
/// path by that.
#[must_use]
pub fn usual<'u>(above: &'u str, path: &'u str) -> Option<&'u str> {
    match path.strip_prefix(above)?.bytes().next() {
        None | Some(b'/') => Some(path),
        Some(b'%' | b'.') => Some(above),
        Some(_) => None,
    }
}

/// Whether a server may take a path, as a client spells it, for another one or for one below it.
#[must_use]
pub fn may_be_at(above: &str, path: &str) -> bool {
    let normal = normalise(path, EscapedSlashes::Decode);
    let path = normal.as_deref().unwrap_or(path);
    usual(loose_path(above).trim_end_matches('/'), &loose_path(path)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No spelling that a server may take for the path gets around what holds for it.
    #[test]
    fn paths_and_what_is_below() {
        let spellings = [
            "/graphql",
            "/graphql/",
            "/graphql/x",
            "/GraphQL",
            "/graphql;v=1",
            "/graphql%2Fx",
            "/graphql.",
            "/graphql%20",
            "/graphql.json",
        ];
        for path in spellings {
            assert!(usual("/graphql", &loose_path(path)).is_some() && may_be_at("/graphql", path), "{path}");
        }
        for path in ["//graphql", "/x/../graphql", "/%67raphql", "/x%2F..%2Fgraphql", "/graphql/..;/x"] {
            assert!(may_be_at("/graphql", path), "{path}");
        }
        for path in ["/", "/graphqlx", "/graph", "/graphq\u{e9}", "/x/graphql"] {
            assert!(usual("/graphql", &loose_path(path)).is_none() && !may_be_at("/graphql", path), "{path}");
        }
        assert_eq!(usual("/graphql", "/graphql.json"), Some("/graphql"));
        assert!(usual("", "/anything").is_some() && may_be_at("/", "/anything"));
    }
}
