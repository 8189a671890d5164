//! The `headers` section of the config: which headers report quotas to callers, and the status of a denial.

use std::slice::from_ref;
use std::str::FromStr;

use serde::Deserialize;
use tollgate::HeaderPolicy;
use tollgate::headers::{DenialStatus, Dialect, Dialects, Disclosure, Exposure};

/// The section as the config writes it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeadersDocument {
    dialects: Option<DialectNames>,
    disclosure: Option<String>,
    anonymous: Option<String>,
    denied: Option<u16>,
}

/// One name, such as `none`, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "accepted: a list such as [ietf-11, x-ratelimit], or none")]
enum DialectNames {
    One(String),
    List(Vec<String>),
}

impl DialectNames {
    fn as_slice(&self) -> &[String] {
        match self {
            DialectNames::One(name) => from_ref(name),
            DialectNames::List(names) => names,
        }
    }
}

impl HeadersDocument {
    /// Compiles the section. Missing fields keep their defaults.
    pub(super) fn compile(self, problems: &mut Vec<String>) -> HeaderPolicy {
        let mut policy = HeaderPolicy::default();
        if let Some(names) = self.dialects {
            let names = names.as_slice().iter();
            let dialects = names.filter_map(|name| read::<Dialect>("dialects", name, problems));
            match Dialects::new(dialects.collect::<Vec<_>>()) {
                Ok(dialects) => policy.dialects = dialects,
                Err(problem) => problems.push(format!("headers.dialects: {problem}")),
            }
        }
        let disclosure = self.disclosure.and_then(|name| read::<Disclosure>("disclosure", &name, problems));
        policy.disclosure = disclosure.unwrap_or_default();
        let anonymous = self.anonymous.and_then(|name| read::<Exposure>("anonymous", &name, problems));
        policy.anonymous = anonymous.unwrap_or_default();
        policy.denial = match self.denied {
            None | Some(429) => DenialStatus::TooManyRequests,
            Some(503) => DenialStatus::ServiceUnavailable,
            Some(other) => {
                problems.push(format!("headers.denied: {other} is not accepted; accepted: 429 or 503"));
                DenialStatus::default()
            }
        };
        policy
    }
}

fn read<T: FromStr<Err: std::fmt::Display>>(
    field: &str,
    name: &str,
    problems: &mut Vec<String>,
) -> Option<T> {
    name.parse().map_err(|problem| problems.push(format!("headers.{field}: {problem}"))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::from_text;

    fn compiled(text: &str) -> (HeaderPolicy, Vec<String>) {
        let mut problems = Vec::new();
        let document: HeadersDocument = from_text(text).unwrap();
        (document.compile(&mut problems), problems)
    }

    /// Each setting is read by the library's name for it, and missing settings keep their defaults.
    #[test]
    fn settings_are_read_by_name() {
        let (policy, problems) = compiled(
            "{dialects: [x-ratelimit-delta], disclosure: denied-only, anonymous: full, denied: 503}",
        );
        assert_eq!(problems, Vec::<String>::new());
        assert!(policy.dialects.iter().eq([Dialect::XRateLimitDelta]));
        assert_eq!((policy.disclosure, policy.anonymous), (Disclosure::DeniedOnly, Exposure::Full));
        assert_eq!(policy.denial, DenialStatus::ServiceUnavailable);
        let (usual, problems) = compiled("{}");
        assert_eq!((usual.dialects, problems.len()), (Dialects::default(), 0));
    }

    /// `dialects: none` was once refused, because it is no list. One name needs no list, and the error for other values
    /// says what to write.
    #[test]
    fn one_dialect_needs_no_list() {
        for (text, dialects) in [
            ("{dialects: none}", &[Dialect::Silent][..]),
            ("{dialects: [none]}", &[Dialect::Silent]),
            ("{dialects: ietf-11}", &[Dialect::Ietf11]),
            ("{dialects: []}", &[]),
        ] {
            let (policy, problems) = compiled(text);
            assert_eq!(policy.dialects.iter().collect::<Vec<_>>(), dialects, "{text}: {problems:?}");
            assert!(problems.is_empty(), "{text}: {problems:?}");
        }
        for wrong in ["{dialects: {ietf-11: true}}", "{dialects: [[none]]}"] {
            let problem = from_text::<HeadersDocument>(wrong).unwrap_err();
            assert!(problem.contains("a list such as [ietf-11, x-ratelimit], or none"), "{problem}");
        }
    }

    /// All problems are reported at once, with what would be accepted.
    #[test]
    fn problems_name_the_field_and_the_accepted_values() {
        let (_, problems) =
            compiled("{dialects: [x, none, stripe], disclosure: often, anonymous: all, denied: 200}");
        for (problem, field) in
            problems.iter().zip(["dialects", "dialects", "disclosure", "anonymous", "denied"])
        {
            assert!(problem.starts_with(&format!("headers.{field}: ")), "{problems:?}");
        }
        assert_eq!(problems.len(), 5, "{problems:?}");
        assert!(problems[2].contains("near-exhaustion") && problems[4].contains("429 or 503"));
    }
}
