//! Path templates: `/users/{id}` matches the path of every user, so that a limit counts the route and not each path.

use tollgate::path::loose_path;
use tollgate::policy::Problem;

use super::path::{EscapedSlashes, normalise};

/// Most templates of one attribute.
pub const TEMPLATES_MAX: usize = 1_000;

/// One template. A `{name}` matches one non-empty segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    segments: Vec<Segment>,
    /// The segments of its loose form.
    loose: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Exactly(String),
    Any,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// When no path could match it.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let accepted = "/users/{id} or /health, in the one spelling that paths are normalised to";
        let refused = |why: &str| Err(Problem::new(format!("{text:?}{why}"), accepted));
        let mut segments = Vec::new();
        let Some(path) = text.strip_prefix('/') else {
            return refused(" does not begin with /");
        };
        for segment in path.split('/') {
            let name = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            segments.push(match name {
                Some(name) if is_name(name) => Segment::Any,
                Some(_) => return refused(&format!(": {segment} is no name in braces")),
                None if segment.contains('*') => {
                    return refused(": * is no part of a template; write {name} for one segment");
                }
                None => Segment::Exactly(segment.to_owned()),
            });
        }
        let plain: Vec<&str> = segments.iter().map(Segment::example).collect();
        let plain = format!("/{}", plain.join("/"));
        match normalise(&plain, EscapedSlashes::Keep) {
            Ok(normal) if normal == plain => {
                let loose = segments.iter().filter_map(Segment::loose).collect();
                Ok(Self { text: text.to_owned(), segments, loose })
            }
            Ok(normal) => refused(&format!(" matches no path: it is normalised to {normal}")),
            Err(problem) => refused(&format!(": {problem}")),
        }
    }

    /// The template as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a normalised path matches.
    pub fn matches(&self, path: &str) -> bool {
        let mut parts = path.strip_prefix('/').unwrap_or(path).split('/');
        self.segments.iter().all(|segment| parts.next().is_some_and(|part| segment.matches(part)))
            && parts.next().is_none()
    }
}

impl Template {
    /// Whether a path in its loose form matches, with or without a format suffix.
    pub fn matches_loosely(&self, path: &str) -> bool {
        let mut parts = path.split('/').filter(|part| !part.is_empty()).peekable();
        let mut matches = |segment: &Segment| {
            let Some(part) = parts.next() else { return false };
            segment.matches(part) || parts.peek().is_none() && segment.matches_format(part)
        };
        // A format may follow the last slash.
        let is_format = |part: &str| part.starts_with('.');
        self.loose.iter().all(&mut matches) && parts.next().is_none_or(is_format) && parts.next().is_none()
    }
}

impl Segment {
    /// The segment in the loose form of a path. Returns `None` if the loose form drops it.
    fn loose(&self) -> Option<Self> {
        match self {
            Segment::Any => Some(Segment::Any),
            Segment::Exactly(text) => {
                let path = format!("/{text}");
                let loose = loose_path(&path);
                let segment = loose.strip_prefix('/').filter(|segment| !segment.is_empty())?;
                Some(Segment::Exactly(segment.to_owned()))
            }
        }
    }

    fn matches(&self, part: &str) -> bool {
        match self {
            Segment::Exactly(text) => text == part,
            Segment::Any => !part.is_empty(),
        }
    }

    /// Whether a part is this segment with a format suffix. Only the last segment of a path may have one.
    fn matches_format(&self, part: &str) -> bool {
        match self {
            Segment::Exactly(text) => {
                part.strip_prefix(text.as_str()).is_some_and(|rest| rest.starts_with('.'))
            }
            Segment::Any => false,
        }
    }

    /// A segment that it matches.
    fn example(&self) -> &str {
        match self {
            Segment::Exactly(text) => text,
            Segment::Any => "x",
        }
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name matches exactly one segment.
    #[test]
    fn templates_match_whole_paths() {
        let matches = |template: &str, path: &str| Template::parse(template).unwrap().matches(path);
        assert!(matches("/users/{id}", "/users/7"));
        assert!(matches("/users/{id}/orders/{order}", "/users/7/orders/9"));
        assert!(matches("/", "/"));
        for path in ["/users", "/users/", "/users/7/", "/users/7/orders", "/user/7", "/x/users/7"] {
            assert!(!matches("/users/{id}", path), "{path}");
        }
    }

    #[test]
    fn templates_match_loose_paths() {
        let matches = |template: &str, path: &str| {
            Template::parse(template).unwrap().matches_loosely(&loose_path(path))
        };
        for path in ["/users/7", "/USERS/7/", "/Users;x/7.", "/users/7;v=2"] {
            assert!(matches("/users/{id}", path) && matches("/Users/{id}/", path), "{path}");
        }
        assert!(matches("/", "/") && matches("/", "/;x"));
        assert!(
            matches("/users/{id}/posts", "/users/7/posts.json")
                && matches("/a", "/a/.json")
                && matches("/a.b", "/a.b.xml")
        );
        assert!(!matches("/users/{id}/posts", "/users.json/7/posts") && !matches("/a.b", "/a.c"));
        for path in ["/users", "/users/", "/users/;x", "/users/7/8", "/user/7"] {
            assert!(!matches("/users/{id}", path), "{path}");
        }
    }

    #[test]
    fn templates_that_match_nothing_are_refused() {
        for wrong in ["users", "/a//b", "/a/../b", "/%61", "/{}", "/{a b}", "/x{id}", "/a\\b/%zz"] {
            assert!(
                Template::parse(wrong).is_err_and(|error| error.accepted.starts_with("/users/{id}")),
                "{wrong}"
            );
        }
    }

    /// The story: `/v1/*` was accepted with a literal star, so only a request for `/v1/*` itself had the attribute.
    #[test]
    fn stars_are_refused() {
        for text in ["/v1/*", "*", "/a*/b"] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
        assert!(Template::parse("/v1/*").unwrap_err().message.contains("{name}"));
    }
}
