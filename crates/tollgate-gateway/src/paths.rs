//! The paths of a route.

use serde::Deserialize;
use tollgate::path::loose_path;
use tollgate_tower::attributes::template::Template;

/// One text or a list of them, as the config may write it.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "accepted: a text, or a list of texts")]
pub(crate) enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl OneOrMore {
    pub(crate) fn list(self) -> Vec<String> {
        match self {
            OneOrMore::One(text) => vec![text],
            OneOrMore::More(texts) => texts,
        }
    }
}

/// Which paths a route matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Paths {
    /// This path and all below it; without a slash at its end, so that `/` is empty.
    Below(String),
    Template(Template),
}

impl Paths {
    pub(crate) fn matches(&self, path: &str) -> bool {
        match self {
            Paths::Template(template) => template.matches(path),
            Paths::Below(above) => is_below(above, path),
        }
    }

    /// Matches the loose form of a path.
    pub(crate) fn matches_loosely(&self, loose: &str) -> bool {
        match self {
            Paths::Template(template) => template.matches_loosely(loose),
            Paths::Below(above) => is_below(loose_path(above).trim_end_matches('/'), loose),
        }
    }
}

/// Whether a path equals another one, or is below it at a slash.
fn is_below(above: &str, path: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
