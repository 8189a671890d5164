//! The record of a denied key: its text, the paths of its denied requests, and the programs that sent them.

use tollgate::policy::Limit;
use tollgate::{CheckRequest, Value};

use crate::log::Record;

/// Most texts that are counted apart. When another comes, the rarest makes room for it, so frequent ones stay.
const TEXTS_MAX: usize = 4;
/// Most characters of a text that are kept.
const TEXT_CHARS_MAX: usize = 120;

/// The shortest value of a key that is hidden in its route. A shorter one, such as `v1`, is hardly a name.
const OWN_BYTES: usize = 3;

/// Texts with how often each was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Frequent(Vec<(String, u64)>);

impl Frequent {
    /// Counts a text among at most `room`.
    pub(super) fn count(&mut self, text: &str, room: usize) {
        if let Some((_, count)) = self.0.iter_mut().find(|(known, _)| known == text) {
            *count += 1;
        } else if self.0.len() < room {
            self.0.push((text.to_owned(), 1));
        } else if let Some((rarest, count)) = self.0.iter_mut().min_by_key(|(_, count)| *count) {
            text.clone_into(rarest);
            *count += 1;
        }
    }

    /// The texts, the most frequent first.
    pub(super) fn sorted(mut self) -> Vec<(String, u64)> {
        self.0.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        self.0
    }

    fn bytes(&self) -> usize {
        let texts: usize = self.0.iter().map(|(text, _)| text.capacity()).sum();
        texts + self.0.capacity() * size_of::<(String, u64)>()
    }

    fn first(&self) -> Option<String> {
        self.clone().sorted().into_iter().next().map(|(text, _)| text)
    }
}

/// A key that was denied.
#[derive(Clone, Debug, Default)]
pub(super) struct Touched {
    text: String,
    routes: Frequent,
    agents: Frequent,
}

impl Touched {
    /// The key that a limit counts a request by.
    pub(super) fn new(limit: &Limit, request: &CheckRequest<'_>, descriptor: usize) -> Self {
        Self { text: key_text(limit, request, descriptor), ..Self::default() }
    }

    /// Counts a denied request.
    pub(super) fn count(&mut self, record: &Record<'_>) {
        if let Some(route) = self.route_of(record) {
            self.routes.count(&route, TEXTS_MAX);
        }
        if let Some(agent) = &record.user_agent {
            self.agents.count(cut(agent), TEXTS_MAX);
        }
    }

    /// Where a request of the key goes. A segment that is a value of the key is `*`, too.
    pub(super) fn route_of(&self, record: &Record<'_>) -> Option<String> {
        let is_own =
            |segment: &str| segment.len() >= OWN_BYTES && self.text.split(' ').any(|value| value == segment);
        let route = route(record)?;
        let segments = route.split('/').map(|segment| if is_own(segment) { "*" } else { segment });
        Some(segments.collect::<Vec<&str>>().join("/"))
    }

    /// Bytes that it takes, with its texts.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.text.capacity() + self.routes.bytes() + self.agents.bytes()
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn routes(&self) -> impl Iterator<Item = (&str, u64)> {
        self.routes.0.iter().map(|(route, count)| (route.as_str(), *count))
    }

    pub(super) fn route(&self) -> Option<String> {
        self.routes.first()
    }

    pub(super) fn user_agent(&self) -> Option<String> {
        self.agents.first()
    }
}

/// The values that a limit counts a request by.
fn key_text(limit: &Limit, request: &CheckRequest<'_>, descriptor: usize) -> String {
    let mut texts = Vec::new();
    let attributes = request.descriptors().nth(descriptor).map(|found| found.attributes());
    for by in limit.by() {
        let given = attributes.into_iter().flatten().find(|given| given.name == by.name());
        let value = given.map_or(Value::Text(""), |given| given.value);
        texts.push(cut(&by.key_text(value)).to_owned());
    }
    if texts.is_empty() { "all requests".to_owned() } else { texts.join(" ") }
}

/// Where a request goes: the method and the path without its query. Numbers and long identifiers in it are one route.
pub(super) fn route(record: &Record<'_>) -> Option<String> {
    let from_attributes =
        || record.attributes.iter().find(|(name, _)| name == "path").map(|(_, path)| &**path);
    let target = record.target.as_deref().or_else(from_attributes)?;
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let mut route = String::new();
    let is_slash = |text: &str| text.ends_with('/');
    for (index, segment) in path.split('/').enumerate() {
        // Slashes in a row are one, as in the paths that servers count by.
        if index > 0 && !is_slash(&route) {
            route.push('/');
        }
        route.push_str(if is_identifier(segment) { "*" } else { segment });
    }
    Some(if route.is_empty() { "/".to_owned() } else { cut(&route).to_owned() })
}

/// Whether a segment of a path names one thing among many: a number, a mail address, a long text of hexadecimal digits or
/// with digits in it, or one with a long number such as `order-20418`.
fn is_identifier(segment: &str) -> bool {
    let is_number = !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_digit());
    // An escape may be escaped again on its way.
    let is_address = ["@", "%40", "%2540"].iter().any(|at| segment.contains(at));
    let is_hex = segment.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let has_number =
        segment.split(|character: char| !character.is_ascii_digit()).any(|digits| digits.len() >= 5);
    let is_token = segment.len() >= 20 && segment.bytes().any(|byte| byte.is_ascii_digit());
    is_number || is_address || has_number || is_token || (segment.len() >= 16 && is_hex)
}

fn cut(text: &str) -> &str {
    text.char_indices().nth(TEXT_CHARS_MAX).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::fixture::record;

    /// A text that comes often is kept, whatever else comes.
    #[test]
    fn frequent_texts_stay() {
        let mut texts = Frequent::default();
        for index in 0..100 {
            texts.count("often", TEXTS_MAX);
            texts.count(&format!("once {index}"), TEXTS_MAX);
        }
        assert_eq!(texts.first().as_deref(), Some("often"));
    }

    /// A key that stands in its route is not shown there.
    #[test]
    fn a_key_is_not_in_its_route() {
        let record = Record { target: Some("/v1/users/frieda/x".into()), ..record(0) };
        let route_of = |text: &str| Touched { text: text.to_owned(), ..Touched::default() }.route_of(&record);
        assert_eq!(route_of("frieda v1").as_deref(), Some("/v1/users/*/x"));
        assert_eq!(route_of("192.0.2.1").as_deref(), Some("/v1/users/frieda/x"));
    }

    /// Paths with different numbers are one route.
    #[test]
    fn identifiers_are_one_route() {
        let route_of = |target: &str| {
            let record = Record { target: Some(target.to_owned().into()), ..record(0) };
            route(&record).unwrap()
        };
        assert_eq!(route_of("/users/42/export?all=1"), "/users/*/export");
        assert_eq!(route_of("/f/9f86d081-884c-4d65-9f2a"), "/f/*");
        assert_eq!(route_of("/export"), "/export");
        assert_eq!(route_of("/users/alice%40example.com/x"), "/users/*/x");
        assert_eq!(route_of("/users/alice@example.com/x"), "/users/*/x");
        assert_eq!(route_of("/users/alice%2540example.com"), "/users/*");
        assert_eq!(route_of("/orders/order-20418/lines"), "/orders/*/lines");
        assert_eq!(route_of("/s/Kx81LmQ0aZ_pTr47VbYw"), "/s/*");
        assert_eq!(route_of("/v2/2024/export-of-all-customers"), "/v2/*/export-of-all-customers");
        let long = format!("/{}/alice%40example.com", "z".repeat(TEXT_CHARS_MAX - 10));
        assert!(!route_of(&long).contains("alice"), "an address that is cut is none any more");
        assert_eq!(route_of("?"), "/");
        assert_eq!(route_of("//export"), "/export");
        assert_eq!(route_of("/a//b/"), "/a/b/");
    }
}
