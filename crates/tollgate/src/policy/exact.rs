//! Values in fields that accept single values only: names of tiers and overrides, texts that CEL compares, and operators'
//! blocks. A pattern, or a spelling that no request has, would match nothing there. It is refused with the right spelling.

use std::borrow::Cow;

use crate::address::{IPV6_PREFIX_DEFAULT, Network, Prefixes};
use crate::host::Host;
use crate::path::{EscapedSlashes, is_parameter, normalise_part, normalise_path};
use crate::policy::finding::{Problem, Severity, quoted};
use crate::policy::pattern::{self, NO_ADDRESS, refused};
use crate::policy::vocabulary::Kind;

/// The shortest prefix of IPv6 that one client may have: that of a whole site.
const IPV6_CLIENT_MIN: u8 = 48;

/// Whether a value stands for many values of an attribute of this kind.
pub(crate) fn is_pattern(kind: Kind, written: &str) -> bool {
    match kind {
        Kind::Path => written.contains('*') || written.split('/').any(is_parameter),
        Kind::Address => written != NO_ADDRESS && is_wide(written),
        Kind::Method | Kind::Host | Kind::Text => written.contains('*'),
    }
}

/// Whether a network may be what one client has.
pub(crate) fn is_client(network: &Network) -> bool {
    if network.first().is_ipv4() { network.is_single() } else { network.prefix() >= IPV6_CLIENT_MIN }
}

/// Whether a text is a network of many clients.
fn is_wide(written: &str) -> bool {
    written.contains('*') || written.parse::<Network>().is_ok_and(|network| !is_client(&network))
}

/// The problem with a single value of an attribute, if there is one.
pub(crate) fn problem(kind: Kind, name: &str, written: &str) -> Option<Problem> {
    if written.is_empty() {
        return pattern::empty(kind, name);
    }
    if is_pattern(kind, written) {
        let accepted = match pattern::address(name, written).filter(|_| kind == Kind::Address) {
            Some(meant) => {
                format!("a single value; for many, a limit of its own with `when: {{ {} }}`", meant.accepted)
            }
            None => instead(name, written),
        };
        return refused(written, "stands for many values, and only single ones are known here", accepted);
    }
    match kind {
        Kind::Address => client(name, written),
        Kind::Method => pattern::method(written),
        Kind::Host => pattern::host(written),
        Kind::Path => pattern::path(written),
        Kind::Text if written.contains('/') && written.parse::<Network>().is_ok() => {
            let accepted =
                format!("`attributes: [{{{name}: address}}]` in the policy if its values are addresses");
            refused(written, &format!("is a network, and {} is no address", quoted(name)), accepted)
        }
        Kind::Text => None,
    }
}

/// The problem with the name of a tier or an override, if there is one. It may also be a pattern of another product.
pub(crate) fn name_problem(kind: Kind, name: &str, written: &str) -> Option<Problem> {
    let looks_like_one = || {
        let is_list = |_: &Problem| is_list(written);
        pattern::negated(name, written)
            .or_else(|| pattern::expression(name, written))
            .or_else(|| pattern::alternatives(name, written).filter(is_list))
            .filter(|_| kind == Kind::Text)
    };
    let elsewhere = |problem: Problem| {
        let accepted = format!("a single value; for many, a limit of its own with {}", problem.accepted);
        Problem::new(problem.message, accepted)
    };
    problem(kind, name, written).or_else(|| looks_like_one().map(elsewhere))
}

/// Whether a text lists several values. A comma alone is in names, too: `Acme, Inc.` is one.
fn is_list(written: &str) -> bool {
    let is_word = |part: &str| {
        let part = part.trim();
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    written.contains('|') || written.split(',').all(is_word)
}

/// Where a pattern is accepted.
fn instead(name: &str, written: &str) -> String {
    format!(
        "a single value; for many, a limit of its own with `when: {{ {}: {} }}`",
        quoted(name),
        quoted(written)
    )
}

/// An address is compared as it counts: a whole IPv4 address, or the network of an IPv6 address.
fn client(name: &str, written: &str) -> Option<Problem> {
    if let Some(problem) = pattern::address(name, written) {
        return Some(problem);
    }
    let one = Prefixes::Default.network(written)?.to_string();
    if one == written {
        return None;
    }
    let accepted =
        format!("{one}; `when: {{ {}: {} }}` for this address alone", quoted(name), quoted(written));
    let why = match written.parse::<Network>() {
        Ok(network) if network.is_single() && !network.first().is_ipv4() => {
            format!("is one IPv6 address, and clients are known by their /{IPV6_PREFIX_DEFAULT} here")
        }
        _ => "is not the spelling in which addresses are compared".to_owned(),
    };
    refused(written, &why, accepted)
}

/// The problem with a text that CEL compares an attribute with, if there is one.
pub(crate) fn literal(kind: Kind, name: &str, text: &str) -> Option<(Severity, Problem)> {
    let error = |problem: Problem| Some((Severity::Error, problem));
    if text.is_empty() {
        let accepted = format!("has({name}), or !has({name}) for requests without one");
        let found = Problem::new(format!("an empty text is no {name}"), accepted);
        return Some(found).filter(|_| kind != Kind::Text).and_then(error);
    }
    let (one, kind_of) = match kind {
        Kind::Text => return None,
        // There is no other way to name a path with a star in it.
        Kind::Path if text.contains('*') => return as_it_stands(name, text),
        Kind::Path if text.contains(['{', '?', '#']) || !text.starts_with('/') => {
            return problem(kind, name, text).and_then(error);
        }
        _ if is_pattern(kind, text) => {
            let accepted = format!("a table such as `when: {{ {}: {} }}`", quoted(name), quoted(text));
            return refused(text, "is a pattern, and CEL compares texts as they stand", accepted)
                .and_then(error);
        }
        Kind::Path => (normalise_path(text, EscapedSlashes::Keep).map(Cow::into_owned).ok(), "paths"),
        Kind::Host => (Host::parse(text).map(|host| host.as_str().to_owned()).ok(), "hosts"),
        Kind::Method => return pattern::method(text).and_then(|found| error(in_cel(found, name))),
        Kind::Address => return client(name, text).and_then(|found| error(in_cel(found, name))),
    };
    match one {
        Some(one) if one == text => None,
        Some(one) => {
            let why = format!("is not the spelling in which {kind_of} are compared");
            refused(text, &why, format!("'{}'", quoted(&one))).and_then(error)
        }
        None => problem(kind, name, text)
            .or_else(|| {
                refused(
                    text,
                    &format!("is none of the {kind_of} that requests can have"),
                    "one that they can",
                )
            })
            .and_then(error),
    }
}

/// The right spelling of a value, without the attribute that a table names before it.
fn in_cel(problem: Problem, name: &str) -> Problem {
    let accepted = problem.accepted.strip_prefix(name).and_then(|rest| rest.strip_prefix(": "));
    Problem { accepted: accepted.unwrap_or(&problem.accepted).to_owned(), message: problem.message }
}

/// A star in CEL has no special meaning.
fn as_it_stands(name: &str, text: &str) -> Option<(Severity, Problem)> {
    let accepted =
        format!("a table such as `when: {{ {}: {} }}` if it is a pattern", quoted(name), quoted(text));
    let found = refused(text, "is compared as it stands: * is no pattern in CEL", accepted);
    found.map(|problem| (Severity::Warning, problem))
}

/// Which part of a value CEL looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SearchKind {
    /// `startsWith`.
    Start,
    /// `endsWith` and `contains`.
    Other,
    /// `matches`.
    Expression,
}

/// The problem with a text that CEL searches in an attribute, if there is one.
pub(crate) fn part(kind: Kind, name: &str, part: SearchKind, text: &str) -> Option<(Severity, Problem)> {
    let error = |problem: Problem| Some((Severity::Error, problem));
    if kind == Kind::Text {
        return None;
    }
    if part == SearchKind::Expression {
        return search_expression(kind, name, text).and_then(error);
    }
    if kind == Kind::Address {
        return address_part(name, text).and_then(error);
    }
    let one = match kind {
        Kind::Path if text.contains('*') => return as_it_stands(name, text),
        Kind::Path if part == SearchKind::Start && !text.starts_with('/') && !text.is_empty() => {
            let why = "does not begin with /, and every path does";
            return refused(text, why, format!("'/{}'", quoted(text))).and_then(error);
        }
        Kind::Path if text.contains(['?', '#']) => return pattern::path(&format!("/{text}")).and_then(error),
        Kind::Path if text.contains("//") => single_slashes(text),
        Kind::Path => match normalise_part(text) {
            Ok(one) => one.into_owned(),
            Err(why) => {
                let why = format!("is no part of a path: {why}");
                return refused(text, &why, "a part such as /login").and_then(error);
            }
        },
        Kind::Method => text.to_ascii_uppercase(),
        _ if text.contains('*') => return as_it_stands(name, text),
        Kind::Host | Kind::Address | Kind::Text => text.to_ascii_lowercase(),
    };
    if one == text {
        return None;
    }
    let why = format!("is not the spelling in which {name} is compared");
    refused(text, &why, format!("'{}'", quoted(&one))).and_then(error)
}

fn single_slashes(text: &str) -> String {
    let mut one = text.to_owned();
    while one.contains("//") {
        one = one.replace("//", "/");
    }
    one
}

/// The problem with a text that is searched in an address. IPv4 has no other form, so its mapping into IPv6 never occurs.
fn address_part(name: &str, text: &str) -> Option<Problem> {
    let is_part = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f' | b':' | b'.' | b'/');
    let accepted =
        format!("a table such as `when: {{ {name}: 10.0.0.0/8 }}`, which compares addresses by their bits");
    if text.starts_with("::ffff:") {
        return refused(text, "is never there: a mapped address is compared as the IPv4 address", accepted);
    }
    let small = text.to_ascii_lowercase();
    if small != text && small.bytes().all(is_part) {
        return refused(
            text,
            &format!("is not the spelling in which {name} is compared"),
            format!("'{small}'"),
        );
    }
    let is_none = NO_ADDRESS.contains(text);
    if is_none || text.bytes().all(is_part) {
        return None;
    }
    refused(text, &format!("is in no {name}"), accepted)
}

/// The problem with a regular expression that no value of this kind matches. Only letters and signs that stand for themselves are looked
/// at, so what has classes or flags is not judged by them.
fn search_expression(kind: Kind, name: &str, text: &str) -> Option<Problem> {
    if !text.is_ascii() {
        let why = format!("has letters that no {name} has: they are ASCII");
        let accepted = if kind == Kind::Path { "escapes in capitals, such as caf%C3%A9" } else { "ASCII" };
        return refused(text, &why, accepted);
    }
    if text.contains("(?") {
        return None;
    }
    let letters = plain_letters(text);
    let turned = |wrong: fn(&u8) -> bool, other: fn(&u8) -> u8| {
        let is_wrong = |at: &usize| text.as_bytes().get(*at).is_some_and(wrong);
        let mut bytes = text.as_bytes().to_vec();
        let found: Vec<usize> = letters.iter().copied().filter(is_wrong).collect();
        found.iter().for_each(|at| bytes[*at] = other(&bytes[*at]));
        let one = String::from_utf8(bytes).unwrap_or_default();
        let why = format!("is not the spelling in which {name} is compared");
        if found.is_empty() { None } else { refused(text, &why, format!("'{}'", quoted(&one))) }
    };
    match kind {
        Kind::Method => turned(u8::is_ascii_lowercase, u8::to_ascii_uppercase),
        Kind::Host => turned(u8::is_ascii_uppercase, u8::to_ascii_lowercase),
        Kind::Path if text.contains("//") => {
            let accepted = format!("'{}'", quoted(&single_slashes(text)));
            refused(text, "has two slashes beside each other, and no path has", accepted)
        }
        Kind::Path if text.contains("\\?") => {
            refused(text, "has a ?, and a path has no query", "a pattern of the path alone")
        }
        Kind::Path => {
            let rest = text
                .strip_prefix('^')
                .filter(|rest| rest.starts_with(|c: char| c.is_ascii_alphanumeric()))?;
            let why = "does not begin with /, and every path does";
            refused(text, why, format!("'^/{}'", quoted(rest)))
        }
        Kind::Address => text.starts_with("^::ffff:").then(|| address_part(name, "::ffff:")).flatten(),
        Kind::Text => None,
    }
}

/// Where in a regular expression the letters are that stand for themselves: outside of classes and escapes.
fn plain_letters(text: &str) -> Vec<usize> {
    let (mut found, mut in_class, mut is_escaped) = (Vec::new(), false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'[' => in_class = true,
            b']' => in_class = false,
            _ if byte.is_ascii_alphabetic() && !in_class => found.push(at),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: each of these was accepted as the name of a tier or an override, and matched no request.
    #[test]
    fn names_that_no_request_has_are_refused() {
        for (name, written, accepted) in [
            ("api_key", "k*", "when: { api_key: k* }"),
            ("plan", "pro*", "when: { plan: pro* }"),
            ("plan", "!free", "plan: { not: free }"),
            ("plan", "^pro$", "plan: pro"),
            ("plan", "free|pro", "plan: [free, pro]"),
            ("plan", "a, b", "plan: [a, b]"),
            ("plan", "free,pro", "plan: [free, pro]"),
            ("path", "", "path: \"*\""),
            ("tenant", "10.0.0.0/8", "attributes: [{tenant: address}]"),
            ("ip", "10.0.0.0/8", "when: { ip: 10.0.0.0/8 }"),
            ("ip", "10.0.*", "when: { ip: 10.0.0.0/16 }"),
            ("ip", "localhost", "an address or a network"),
            ("ip", "::ffff:10.0.0.1", "10.0.0.1"),
            ("ip", "2001:DB8::1", "2001:db8::/64"),
            ("method", "get", "GET"),
            ("method", "G*", "when: { method: G* }"),
            ("path", "/v1/*", "when: { path: /v1/* }"),
            ("path", "/u/{id}", "when: { path: /u/{id} }"),
            ("path", "/café", "/caf%C3%A9"),
            ("path", "login", "/login"),
            ("host", "Example.com", "example.com"),
            ("host", "*.example.com", "when: { host: *.example.com }"),
        ] {
            let problem = name_problem(Kind::of(name), name, written);
            let problem = problem.unwrap_or_else(|| panic!("{name}: {written} is accepted"));
            assert!(problem.accepted.contains(accepted), "{name}: {written}: {}", problem.accepted);
        }
        for (name, written) in [
            ("plan", "free"),
            ("plan", ""),
            ("tenant", "Acme, Inc."),
            ("route", "/users/{id}"),
            ("ip", "10.0.0.1"),
            ("ip", "none"),
            ("ip", "2001:db8::/64"),
            ("ip", "2001:db8::/56"),
            ("method", "HEAD"),
            ("path", "/caf%C3%A9"),
            ("host", "example.com:8443"),
        ] {
            assert_eq!(name_problem(Kind::of(name), name, written), None, "{name}: {written}");
        }
    }
}
