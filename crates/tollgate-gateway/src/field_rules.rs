//! Which header fields of a request pass, by their names. A server may read one name as another, so a field passes only
//! if no server can take it for one that the gateway treats specially.

use http::header::HeaderName;
use tollgate_tower::attributes::Reader;
use tollgate_tower::attributes::source::{SetBy, Source};
use tollgate_tower::spelling::{MethodOverride, Treatment, is_plain, plain, treatment};

pub(crate) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Which header names the gateway sends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderNames {
    /// Only names of letters, digits and `-`. Many servers confuse other names with one of these.
    #[default]
    Plain,
    /// All names, except those that servers could confuse with a name that the gateway treats specially.
    Any,
}

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestSender {
    Stranger,
    TrustedProxy,
}

/// The header fields that attributes are read from, and which names are sent on.
#[derive(Debug)]
pub(crate) struct FieldRules {
    mapped: Vec<(HeaderName, SetBy)>,
    pub(crate) names: HeaderNames,
    method_override: MethodOverride,
}

impl FieldRules {
    pub(crate) fn new(reader: &Reader, names: HeaderNames) -> Self {
        let mapped = mapped(reader).map(|(name, set_by)| (name.clone(), set_by)).collect();
        Self { mapped, names, method_override: reader.method_override }
    }

    /// Whether a request's field is dropped because of its name.
    pub(crate) fn ends(&self, name: &str, sender: RequestSender) -> bool {
        if let Some((_, set_by)) = self.mapped.iter().find(|(mapped, _)| mapped == name) {
            return *set_by == SetBy::Proxy && sender == RequestSender::Stranger;
        }
        if !is_plain(name) {
            return self.names == HeaderNames::Plain || self.stands_for_another(name);
        }
        match treatment(name) {
            None | Some(Treatment::Keep) => self.is_read_as_mapped(name),
            Some(Treatment::Hop | Treatment::Drop) => true,
            Some(Treatment::TrustedOnly) => sender == RequestSender::Stranger,
            Some(Treatment::MethodOverride) => self.method_override == MethodOverride::Drop,
        }
    }

    /// Whether servers may read a name with other characters as one that the gateway treats specially.
    pub(crate) fn stands_for_another(&self, name: &str) -> bool {
        treatment(&plain(name)).is_some() || self.is_read_as_mapped(name)
    }

    /// Whether servers may read a name as a different one that attributes are read from.
    fn is_read_as_mapped(&self, name: &str) -> bool {
        let is_it = |mapped: &HeaderName| {
            let mapped = mapped.as_str();
            mapped.len() == name.len() && mapped != name && plain(mapped) == plain(name)
        };
        self.mapped.iter().any(|(mapped, _)| is_it(mapped))
    }

    /// Whether a field identifies the client or its request, so that `Connection` may not remove it.
    pub(crate) fn is_kept(&self, name: &str) -> bool {
        self.is_read(name) || matches!(treatment(name), Some(Treatment::Keep | Treatment::TrustedOnly))
    }

    /// Whether attributes are read from a field.
    pub(crate) fn is_read(&self, name: &str) -> bool {
        self.mapped.iter().any(|(mapped, _)| mapped == name)
    }
}

/// The headers that attributes are read from, and which senders may set them.
fn mapped(reader: &Reader) -> impl Iterator<Item = (&HeaderName, SetBy)> {
    let mut found = Vec::new();
    reader.mapped.iter().for_each(|mapped| headers_of(&mapped.source, &mut found));
    found.into_iter()
}

fn headers_of<'s>(source: &'s Source, found: &mut Vec<(&'s HeaderName, SetBy)>) {
    match source {
        Source::Header { name, set_by } => found.push((name, *set_by)),
        Source::Hashed(inner) | Source::Attribute { source: inner, .. } => headers_of(inner, found),
        Source::FirstOf(all) => all.iter().for_each(|inner| headers_of(inner, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An upstream sees the same method as the limits, unless the config leaves overrides to the upstream.
    #[test]
    fn methods_are_not_overridden() {
        let ends = |name: &str, method_override| {
            let rules = FieldRules { mapped: Vec::new(), names: HeaderNames::Any, method_override };
            [RequestSender::Stranger, RequestSender::TrustedProxy].map(|sender| rules.ends(name, sender))
        };
        for name in ["x-http-method-override", "x-http-method", "x-method-override"] {
            assert_eq!(ends(name, MethodOverride::Drop), [true; 2]);
            assert_eq!(ends(name, MethodOverride::Keep), [false; 2]);
            let hidden = name.replacen('-', "_", 1);
            assert_eq!(ends(&hidden, MethodOverride::Drop), [true; 2]);
            assert_eq!(ends(&hidden, MethodOverride::Keep), [true; 2]);
        }
    }
}
