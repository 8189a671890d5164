//! Path templates: `/users/{id}` stands for every user's path, so that a limit counts the route and not each address.

use super::path::{EscapedSlashes, normalise};

/// Most templates of one attribute.
pub const TEMPLATES_MAX: usize = 1_000;

/// One template. A `{name}` stands for one segment that is not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    segments: Vec<Segment>,
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
    /// When no path could match it; the message says what would be accepted.
    pub fn parse(text: &str) -> Result<Self, String> {
        let accepted = "accepted: /users/{id} or /health, in the one spelling that paths are normalised to";
        let mut segments = Vec::new();
        let Some(path) = text.strip_prefix('/') else {
            return Err(format!("{text:?} does not begin with /; {accepted}"));
        };
        for segment in path.split('/') {
            let name = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            segments.push(match name {
                Some(name) if is_name(name) => Segment::Any,
                Some(_) => return Err(format!("{text:?}: {segment} is no name in braces; {accepted}")),
                None => Segment::Exactly(segment.to_owned()),
            });
        }
        let plain: Vec<&str> = segments.iter().map(Segment::sample).collect();
        let plain = format!("/{}", plain.join("/"));
        match normalise(&plain, EscapedSlashes::Keep) {
            Ok(normal) if normal == plain => Ok(Self { text: text.to_owned(), segments }),
            Ok(normal) => Err(format!("{text:?} matches no path: it is normalised to {normal}; {accepted}")),
            Err(problem) => Err(format!("{text:?}: {problem}; {accepted}")),
        }
    }

    /// The template as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a normalised path is one of those it stands for.
    pub fn matches(&self, path: &str) -> bool {
        let mut parts = path.strip_prefix('/').unwrap_or(path).split('/');
        self.segments.iter().all(|segment| parts.next().is_some_and(|part| segment.matches(part)))
            && parts.next().is_none()
    }
}

impl Segment {
    fn matches(&self, part: &str) -> bool {
        match self {
            Segment::Exactly(text) => text == part,
            Segment::Any => !part.is_empty(),
        }
    }

    /// A segment that it stands for.
    fn sample(&self) -> &str {
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

    /// A name stands for one segment, no more and no less.
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

    /// A template that could never match is refused when the config is read.
    #[test]
    fn templates_that_match_nothing_are_refused() {
        for wrong in ["users", "/a//b", "/a/../b", "/%61", "/{}", "/{a b}", "/x{id}", "/a\\b/%zz"] {
            assert!(
                Template::parse(wrong).is_err_and(|error| error.contains("accepted: /users/{id}")),
                "{wrong}"
            );
        }
    }
}
