//! The header fields of a response, and the clock of its server.

use http::{HeaderMap, StatusCode};
use tollgate::{Ticks, Timestamp};

use super::value;
use super::{NAME_BYTES_MAX, ResponseView};

/// A longer field is ignored.
const FIELD_BYTES_MAX: usize = 4_096;

/// The header fields of a response.
pub(super) struct Fields<'a> {
    pub(super) status: StatusCode,
    headers: &'a HeaderMap,
    /// The present in the clock of the server: its `Date`, which is older by less than a second, so that waits for an
    /// instant are never too short.
    pub(super) server_now: Timestamp,
}

impl<'a> Fields<'a> {
    pub(super) fn of(response: &ResponseView<'a>) -> Self {
        let mut fields =
            Self { status: response.status, headers: response.headers, server_now: response.received };
        if let Some(date) = fields.text("date").and_then(value::date) {
            fields.server_now = date;
        }
        fields
    }

    /// The first value of a field, without white space around it.
    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        let text = self.headers.get(name)?.to_str().ok()?.trim();
        (text.len() <= FIELD_BYTES_MAX).then_some(text)
    }

    /// All values of a field as one list.
    pub(super) fn list(&self, name: &str) -> Option<String> {
        let texts: Vec<&str> =
            self.headers.get_all(name).iter().map(|text| text.to_str().ok()).collect::<Option<_>>()?;
        let list = texts.join(", ");
        (!texts.is_empty() && list.len() <= FIELD_BYTES_MAX).then_some(list)
    }

    /// A field whose value is a number.
    pub(super) fn count(&self, name: &str) -> Option<u64> {
        self.text(name).and_then(value::count)
    }

    /// A field whose value is `true` or `false`.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        let text = self.text(name)?;
        let is = |word: &str| text.eq_ignore_ascii_case(word);
        if is("true") { Some(true) } else { is("false").then_some(false) }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.headers.contains_key(name)
    }

    /// The fields whose name is not absurdly long: lower-case name and value.
    pub(super) fn all(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let valid = self.headers.iter().filter(|(name, _)| name.as_str().len() <= NAME_BYTES_MAX);
        valid.filter_map(|(name, text)| Some((name.as_str(), text.to_str().ok()?.trim())))
    }

    /// How long the response was in a cache.
    pub(super) fn age(&self) -> Ticks {
        self.text("age").and_then(value::seconds).unwrap_or(Ticks::ZERO)
    }

    /// Whether the response comes from a cache.
    pub(super) fn is_cached(&self) -> bool {
        !self.age().is_zero()
    }

    /// Whether the response comes from GitHub's API.
    pub(super) fn is_github(&self) -> bool {
        self.has("x-github-request-id") || self.has("x-ratelimit-resource")
    }
}
