//! Values of `when` that look like a pattern that the attribute does not support. Each is refused with the right spelling:
//! as plain text it would match nothing, and the limit would never apply.

use crate::address::Network;
use crate::host::Host;
use crate::path::{EscapedSlashes, is_parameter, normalise_path, normalise_pattern};
use crate::policy::finding::{Problem, quoted};
use crate::policy::vocabulary::Kind;

/// The problem with one choice of a condition, if there is one.
pub(crate) fn problem(kind: Kind, name: &str, written: &str) -> Option<Problem> {
    if written.is_empty() {
        return empty(kind, name);
    }
    if written.bytes().all(|byte| byte == b'*') {
        return None;
    }
    if let Some(problem) = of_any_kind(name, written) {
        return Some(problem);
    }
    match kind {
        Kind::Address => address(name, written),
        Kind::Method => method(written),
        Kind::Host => host(written),
        Kind::Path => path(written),
        Kind::Text => text(name, written),
    }
}

/// An empty text, which no address, method, host or path is.
pub(super) fn empty(kind: Kind, name: &str) -> Option<Problem> {
    let accepted =
        format!("{name}: \"*\" for any value, or {name}: {{ not: \"*\" }} for requests without one");
    (kind != Kind::Text).then(|| Problem::new(format!("an empty text is no {name}"), accepted))
}

/// A value as a table writes it, in quotes where YAML would take its first character for something else.
fn shown(value: &str) -> String {
    let is_special = value.starts_with(['*', '&', '!', '{', '[', '|', '>', '%', '@', '`', '\'', '#']);
    if is_special { format!("\"{}\"", quoted(value)) } else { quoted(value) }
}

/// The right spelling of a text that is meant literally.
pub(super) fn literally(name: &str, written: &str) -> String {
    let quoted = written.replace('\\', "\\\\").replace('\'', "\\'");
    format!("\"{name} == '{quoted}'\" as the whole `when` if the text is meant as it stands")
}

pub(super) fn refused(written: &str, why: &str, accepted: impl Into<String>) -> Option<Problem> {
    Some(Problem::new(format!("{} {why}", quoted(written)), accepted))
}

/// Spellings of other languages that no attribute supports.
pub(super) fn of_any_kind(name: &str, written: &str) -> Option<Problem> {
    if written.trim() != written {
        return refused(written, "has white space around it", format!("{name}: {}", quoted(written.trim())));
    }
    negated(name, written)
        .or_else(|| compared(name, written))
        .or_else(|| keyword(name, written))
        .or_else(|| expression(name, written))
        .or_else(|| call(name, written))
        .or_else(|| alternatives(name, written))
        .or_else(|| in_quotes(name, written))
}

/// `!GET`, `!= GET`, `not GET`.
pub(super) fn negated(name: &str, written: &str) -> Option<Problem> {
    let after =
        ["!=", "!", "<>", "not ", "NOT ", "not:"].iter().find_map(|sign| written.strip_prefix(sign))?;
    let value = after.trim_start_matches(['~', '*', '=', ' ']).trim_end_matches('$').trim_start_matches('^');
    refused(written, "is not how `not` is written", format!("{name}: {{ not: {} }}", shown(value)))
}

/// `>= 5`, `== GET`, `1..5`.
fn compared(name: &str, written: &str) -> Option<Problem> {
    if let Some(value) = ["==", "="].iter().find_map(|sign| written.strip_prefix(sign)) {
        if value.starts_with('~') {
            return matching(name, written, value.trim_start_matches(['~', '*', ' ']));
        }
        return refused(written, "has a sign before its value", format!("{name}: {}", quoted(value.trim())));
    }
    let sign = [">=", "<=", ">", "<"].into_iter().find(|sign| written.starts_with(sign))?;
    let value = written[sign.len()..].trim();
    let is_parameter = sign == "<" && value.ends_with('>');
    if is_parameter {
        return None;
    }
    refused(written, "compares, and a value does not", format!("when: \"{name} {sign} {}\"", quoted(value)))
}

/// `~ ^/v1`, `^/v1`, `/v[0-9]+/`, `\d`: regular expressions.
pub(super) fn expression(name: &str, written: &str) -> Option<Problem> {
    let bare = written.trim_start_matches(['~', '*', ' ']);
    let is_signed = written.starts_with('~') || written.starts_with('^');
    let is_regular = written.contains('\\')
        || written.contains("(?")
        || written.contains(".+")
        || written.starts_with(".*")
        || written.contains("/.*")
        || written.contains("[^")
        || has_class(written)
        || (written.ends_with('$') && written.len() > 1 && !written.starts_with('$'));
    if is_signed || is_regular {
        return matching(name, written, bare);
    }
    if written.starts_with('$') || written.contains("${") || written.contains("{{") {
        return refused(
            written,
            "is a variable, and values are not substituted",
            format!("the value itself, or CEL such as when: \"{name} == tenant\" to compare two attributes"),
        );
    }
    None
}

/// Whether a text has a class of characters, such as `[0-9]` or `[abc]`. An IPv6 address in brackets is none.
fn has_class(written: &str) -> bool {
    let Some((_, rest)) = written.split_once('[') else { return false };
    let Some((inside, _)) = rest.split_once(']') else { return true };
    inside.parse::<std::net::Ipv6Addr>().is_err()
}

/// A condition in CEL that looks for a regular expression, as YAML in double quotes writes it.
fn matches(name: &str, expression: &str) -> String {
    let raw = if expression.contains('\\') { "r" } else { "" };
    let (outer, inner) = if expression.contains(['\\', '"']) { ("'", "\"") } else { ("\"", "'") };
    format!("when: {outer}{name}.matches({raw}{inner}{}{inner}){outer}", quoted(expression))
}

/// `/users/{id:[0-9]+}` as a regular expression: what stands behind the name of a parameter, or a whole segment.
fn of_template(expression: &str) -> String {
    let mut found = String::new();
    let mut rest = expression;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((inside, after)) = after.split_once('}') else { return expression.to_owned() };
        let is_name =
            |name: &str| !name.is_empty() && !name.starts_with(|first: char| first.is_ascii_digit());
        found.push_str(before);
        match inside.split_once(':') {
            Some((name, pattern)) if is_name(name) => found.push_str(pattern),
            None if is_name(inside) && before.ends_with('/') => found.push_str("[^/]+"),
            _ => found.extend(["{", inside, "}"]),
        }
        rest = after;
    }
    found.push_str(rest);
    let is_template = found != expression && found.starts_with('/');
    if is_template { format!("^{found}$") } else { found }
}

fn matching(name: &str, written: &str, expression: &str) -> Option<Problem> {
    let simple = expression.trim_start_matches('^').trim_end_matches('$').trim_end_matches(".*");
    let is_plain = !simple.is_empty()
        && simple.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'_'));
    let cel = matches(name, &of_template(expression));
    let accepted = match (is_plain, expression.ends_with('$')) {
        (true, true) => format!("{name}: {simple}, or {cel}"),
        (true, false) => format!("{name}: {simple}*, or {cel}"),
        (false, _) => cel,
    };
    refused(written, "looks like a regular expression, and values take * and {name} only", accepted)
}

/// `prefix:/v1`, `regex:^a`: matchers by name.
fn keyword(name: &str, written: &str) -> Option<Problem> {
    let (word, value) = written.split_once([':', '='])?;
    let value = value.trim();
    let accepted = of_keyword(name, word.trim(), value)?;
    refused(written, "names a way of matching, which a value does not", accepted)
}

/// The right spelling of `word: value`, where the word is a matcher of another product.
pub(crate) fn of_keyword(name: &str, word: &str, value: &str) -> Option<String> {
    let (list, starred) = (listed(value), shown(&format!("*{value}")));
    let regular = matches(name, value);
    let value = shown(value);
    Some(match word.to_ascii_lowercase().as_str() {
        "exact" | "equals" | "eq" | "is" | "value" | "string" => format!("{name}: {value}"),
        "prefix" | "starts_with" | "startswith" | "starts-with" => format!("{name}: {value}*"),
        "suffix" | "ends_with" | "endswith" | "ends-with" => format!("{name}: {starred}"),
        "contains" | "substring" => format!("{name}: {}*\"", starred.trim_end_matches('"')),
        "glob" | "wildcard" | "template" | "cidr" | "network" => format!("{name}: {value}"),
        "regex" | "regexp" | "re" | "safe_regex" | "pattern" | "matches" | "match" => regular,
        "in" | "any" | "any_of" | "anyof" | "one_of" | "oneof" | "or" => format!("{name}: {list}"),
        "not_in" | "none_of" | "except" => format!("{name}: {{ not: {list} }}"),
        "ne" | "neq" | "invert" => format!("{name}: {{ not: {value} }}"),
        "gt" | "min" => format!("when: \"{name} > {value}\""),
        "gte" | "ge" => format!("when: \"{name} >= {value}\""),
        "lt" | "max" => format!("when: \"{name} < {value}\""),
        "lte" | "le" => format!("when: \"{name} <= {value}\""),
        "present" | "exists" | "present_match" => format!("{name}: \"*\""),
        "absent" | "missing" => format!("{name}: {{ not: \"*\" }}"),
        _ => return None,
    })
}

/// Values that another product lists in one text, as a list.
fn listed(written: &str) -> String {
    let parts = written.trim_matches(['(', ')', '[', ']', '{', '}']).split([',', '|']);
    let parts: Vec<String> = parts.map(str::trim).filter(|part| !part.is_empty()).map(shown).collect();
    format!("[{}]", parts.join(", "))
}

/// `PathPrefix(/v1)`, `startsWith('/v1')`: calls of functions.
fn call(name: &str, written: &str) -> Option<Problem> {
    let (function, rest) = written.split_once('(')?;
    let argument = rest.strip_suffix(')')?.trim_matches(['`', '\'', '"']);
    let is_name = !function.is_empty()
        && function.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte));
    if !is_name {
        return None;
    }
    let accepted = match function.to_ascii_lowercase().as_str() {
        "pathprefix" | "startswith" | "prefix" => format!("{name}: {}*", quoted(argument)),
        "regex" | "pathregexp" | "hostregexp" | "matches" => matches(name, argument),
        _ => format!("{name}: {}, or CEL as the whole `when`", quoted(argument)),
    };
    refused(written, "calls a function, and a value does not", accepted)
}

/// `GET|POST`, `GET,POST`, `GET or POST`, `{a,b}`.
pub(super) fn alternatives(name: &str, written: &str) -> Option<Problem> {
    let inside =
        written.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).filter(|rest| rest.contains(','));
    let parts: Vec<&str> = if let Some(inside) = inside {
        inside.split(',').collect()
    } else if written.contains('|') {
        let around: &[char] = if name == "path" { &['(', ')'] } else { &['(', ')', '/'] };
        written.trim_matches(around).split('|').collect()
    } else if written.contains(',')
        && (!written.starts_with('/') || written.contains(",/") || written.contains(", "))
    {
        written.split(',').collect()
    } else if [" or ", " OR ", " and ", " AND "].iter().any(|word| written.contains(word)) {
        written.split(' ').filter(|word| !["or", "OR", "and", "AND"].contains(word)).collect()
    } else {
        return None;
    };
    let parts: Vec<String> =
        parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).map(shown).collect();
    let list = format!("{name}: [{}]", parts.join(", "));
    refused(written, "is several values in one text", format!("{list}, or {}", literally(name, written)))
}

fn in_quotes(name: &str, written: &str) -> Option<Problem> {
    let inside = ['\'', '"', '`'].iter().find_map(|mark| written.strip_prefix(*mark)?.strip_suffix(*mark))?;
    refused(written, "has quotes inside of its quotes", format!("{name}: {}", quoted(inside)))
}

/// The text for callers without an address, such as those of a Unix socket.
pub(crate) const NO_ADDRESS: &str = "none";

pub(super) fn address(name: &str, written: &str) -> Option<Problem> {
    if written == NO_ADDRESS {
        return None;
    }
    let Problem { message, accepted } = written.parse::<Network>().err()?;
    refused(written, &message, format!("{name}: {accepted}"))
}

pub(super) fn method(written: &str) -> Option<Problem> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'*');
    if !written.bytes().all(is_token) {
        return refused(written, "is no method", "a method such as GET, or a list such as [GET, POST]");
    }
    let upper = written.to_ascii_uppercase();
    if upper == written {
        return None;
    }
    refused(written, "is no method: they are written in capitals", format!("method: {upper}"))
}

pub(super) fn host(written: &str) -> Option<Problem> {
    if let Some(domain) = written.strip_prefix('.') {
        let accepted = format!("host: [{domain}, \"*.{domain}\"]");
        return refused(written, "begins with a dot, and no host does", accepted);
    }
    if let Some((_, rest)) = written.split_once("://") {
        return refused(
            written,
            "is a URL",
            format!("host: {}", quoted(rest.split('/').next().unwrap_or_default())),
        );
    }
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:*[]".contains(&byte);
    if !written.bytes().all(is_letter) {
        return refused(
            written,
            "is no host",
            "a name such as api.example.com, its ASCII form (xn--...) if it has other letters, or a pattern such as *.example.com",
        );
    }
    let lower = written.to_ascii_lowercase();
    if lower != written {
        return refused(
            written,
            "has capitals, and hosts are compared in small letters",
            format!("host: {}", shown(&lower)),
        );
    }
    // A star matches a part of a name, so it is checked as a plain name.
    let spelled = written.replace('*', STARRED);
    let one = Host::parse(&spelled).ok()?.as_str().replace(STARRED, "*");
    if one == written {
        return None;
    }
    refused(written, "is not the spelling in which hosts are compared", format!("host: {}", shown(&one)))
}

/// Replaces a star while a host is parsed.
const STARRED: &str = "xx--star--xx";

pub(super) fn path(written: &str) -> Option<Problem> {
    if let Some((_, rest)) = written.split_once("://") {
        let path = rest.find('/').map_or("/", |start| &rest[start..]);
        return refused(written, "is a URL", format!("path: {}", quoted(path)));
    }
    if !written.starts_with(['/', '*']) {
        return refused(
            written,
            "does not begin with /, and every path does",
            format!("path: /{}", quoted(written)),
        );
    }
    if let Some((path, query)) = written.split_once('?') {
        let accepted = if query.is_empty() || !query.contains('=') {
            format!("path: {}, in which * stands for anything", quoted(&written.replace('?', "*")))
        } else {
            format!("path: {}; the config maps a part of the query as an attribute", quoted(path))
        };
        return refused(written, "has a ?, and a path has no query", accepted);
    }
    if let Some((path, _)) = written.split_once('#') {
        return refused(written, "has a #, which clients do not send", format!("path: {}", quoted(path)));
    }
    let dotted = written.split('/').any(|segment| matches!(segment, "." | ".."));
    if dotted {
        let accepted = match normalise_path(written, EscapedSlashes::Keep) {
            Ok(path) if !written.contains(['*', '{']) => format!("path: {}", quoted(&path)),
            _ => "the path that it leads to".to_owned(),
        };
        return refused(written, "has . or .. in it, and paths are compared without", accepted);
    }
    template("path", written).or_else(|| spelled(written))
}

/// A path in another spelling than that of requests, which no request would match.
fn spelled(written: &str) -> Option<Problem> {
    let small = written.to_ascii_lowercase();
    if small.contains("%2a") {
        let meant = written.replace("%2A", "*").replace("%2a", "*");
        return refused(written, "escapes a *, and * is always a pattern here", literally("path", &meant));
    }
    match normalise_pattern(written) {
        Ok(one) if one == written => None,
        Ok(one) => {
            let why = "is not the spelling in which paths are compared";
            refused(written, why, format!("path: {}", shown(&one)))
        }
        Err(why) => {
            refused(written, &format!("is no path that can be served: {why}"), "a path such as /login")
        }
    }
}

/// The problem with the parameters of a path, if there is one: only a whole segment `{name}` is a parameter.
fn template(name: &str, written: &str) -> Option<Problem> {
    for segment in written.split('/') {
        let inside = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        if is_parameter(segment) || !segment.contains(['{', '}', ':', '<', '>']) {
            continue;
        }
        if let Some(inside) = inside {
            return parameter(name, written, segment, inside);
        }
        let other = segment.strip_prefix(':').or_else(|| segment.strip_prefix('<')?.strip_suffix('>'));
        if let Some(parameter) = other.map(|parameter| parameter.rsplit(':').next().unwrap_or(parameter)) {
            let meant = written.replace(segment, &format!("{{{parameter}}}"));
            return refused(
                written,
                "has a parameter that is not in braces",
                format!("{name}: {}", quoted(&meant)),
            );
        }
        if segment.contains(['{', '}']) {
            let starred = segment_star(segment);
            let meant = written.replace(segment, &starred);
            let why = if segment.matches('{').count() == segment.matches('}').count() {
                "has {} in a part of a segment, and they stand for a whole one"
            } else {
                "has a brace without its other half"
            };
            return refused(written, why, format!("{name}: {}, or /users/{{id}}", quoted(&meant)));
        }
    }
    None
}

/// `{id:[0-9]+}`, `{rest...}`, `{*rest}`, `{}`.
fn parameter(name: &str, written: &str, segment: &str, inside: &str) -> Option<Problem> {
    let is_rest = inside.contains('*') || inside.ends_with("...");
    let letters: String =
        inside.chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect();
    let meant = match (is_rest, letters.as_str()) {
        (true, _) => "*".to_owned(),
        (false, "") => "{id}".to_owned(),
        (false, letters) => format!("{{{letters}}}"),
    };
    let why =
        if is_rest { "has a parameter for several segments" } else { "has more than a name in its braces" };
    refused(written, why, format!("{name}: {}", quoted(&written.replace(segment, &meant))))
}

/// A segment with stars instead of braces.
fn segment_star(segment: &str) -> String {
    let mut starred = String::new();
    let mut rest = segment;
    while let Some((before, after)) = rest.split_once(['{', '}']) {
        starred.push_str(before);
        starred.push('*');
        rest = after.split_once('}').map_or(after, |(_, after)| after);
    }
    starred + rest
}

/// Attributes with other names. The kind of their values is unknown, so only their look counts.
fn text(name: &str, written: &str) -> Option<Problem> {
    if written.contains('/') && written.parse::<Network>().is_ok() {
        let accepted = format!(
            "ip, a name that ends in _ip, or `attributes: [{{{name}: address}}]` in the policy if its values are addresses; {}",
            literally(name, written)
        );
        return refused(written, &format!("is a network, and {} is no address", quoted(name)), accepted);
    }
    let is_slashed = written.len() > 2 && written.starts_with('/') && written[1..].contains('/');
    let flags = written.rsplit('/').next().unwrap_or_default();
    let is_pattern =
        is_slashed && !is_path_like(name) && written.matches('/').count() == 2 && matches!(flags, "" | "i");
    if is_pattern {
        return matching(name, written, written[1..].split('/').next().unwrap_or_default());
    }
    if written.starts_with('/') {
        return template(name, written);
    }
    if written.contains(['{', '}', '?']) {
        let accepted = format!("a text in which * stands for anything, or {}", literally(name, written));
        return refused(written, "looks like a pattern, and this one is not known", accepted);
    }
    None
}

/// Whether an attribute has paths for values, by its name.
fn is_path_like(name: &str) -> bool {
    ["path", "route", "uri", "url", "endpoint", "resource"].iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests;
