//! How paths are read and compared. The engine normalises them, so that policies and requests spell paths in the same way.

use tollgate::path::loose_path;
pub use tollgate::path::{EscapedSlashes, PathProblem, normalise_path as normalise};

pub use crate::spelling::parameter::escaped;

/// How a path is compared with those of limits and templates. It does not change the path that is counted or sent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathMatch {
    /// By its loose form as well, because many servers take `/Login`, `/login/` and `/login;x` for `/login`: see
    /// [`tollgate::path::loose_path`]. In doubt a limit applies.
    #[default]
    Loose,
    /// Byte by byte, for services that distinguish all of these.
    Exact,
}

/// The path that a server usually takes `path` for, if that is `above` or a path below it. Both are in their loose form
/// ([`loose_path`]), and `above` has no slash at its end. Some servers decode an escaped slash, and others cut a format
/// suffix off, so both spellings count as `above`.
#[must_use]
pub fn usual<'u>(above: &'u str, path: &'u str) -> Option<&'u str> {
    match path.strip_prefix(above)?.bytes().next() {
        None | Some(b'/') => Some(path),
        Some(b'%' | b'.') => Some(above),
        Some(_) => None,
    }
}

/// Whether a server may take a path, as a client spells it, for `above` or for a path below it.
#[must_use]
pub fn may_be_at(above: &str, path: &str) -> bool {
    let normal = normalise(path, EscapedSlashes::Decode);
    let path = normal.as_deref().unwrap_or(path);
    usual(loose_path(above).trim_end_matches('/'), &loose_path(path)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every spelling that a server may take for the path is recognised.
    #[test]
    fn spellings_of_a_path_and_of_paths_below_are_recognised() {
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
