//! Text for people: the attributes of a request in logs, in the live view and among the top keys, and numbers of things.
//! `tollgate_compat::text` makes external text safe to show.

use std::borrow::Cow;
use std::fmt::Display;

use tollgate::credential::CREDENTIAL;
pub(crate) use tollgate::policy::source::grouped;
use tollgate::policy::source::{explained, nearest};
use tollgate::request::Attribute;
use tollgate::{CheckRequest, CredentialDigest, Value};
pub(crate) use tollgate_compat::text::{VALUE_CHARS_MAX, plain, push, push_plain, shown};

/// A number of things: `1 limit`, `2 limits`.
pub(crate) fn counted(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

/// A problem with an unknown name: the nearest of the known ones, and all of them.
pub(crate) fn unknown_name(problem: &str, given: &str, known: &[&str]) -> String {
    let meant = nearest(given, known.iter().copied()).map(|meant| format!("; did you mean {meant}?"));
    explained(&format!("{problem}{}", meant.unwrap_or_default()), &known.join(", "))
}

/// A value for output. Most protocols use digests, but rules of other programs see plain credentials.
pub(crate) fn unsecret<'v>(name: &str, value: &'v str) -> Cow<'v, str> {
    if name == CREDENTIAL {
        Cow::Owned(CredentialDigest::of_value(value).to_string())
    } else {
        Cow::Borrowed(value)
    }
}

/// Names and values in one line.
pub(crate) fn joined<N: Display, V: Display>(pairs: impl IntoIterator<Item = (N, V)>) -> String {
    let pairs: Vec<String> = pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join(" ")
}

/// The attributes of a request, as text.
pub(crate) fn attributes(request: &CheckRequest<'_>) -> Vec<(String, String)> {
    let pair = |attribute: &Attribute<'_>| {
        let value = match attribute.value {
            Value::Text(text) => shown(&unsecret(attribute.name, text)),
            number @ Value::Number(_) => number.to_string(),
        };
        (shown(attribute.name), value)
    };
    request.attributes().iter().map(pair).collect()
}
