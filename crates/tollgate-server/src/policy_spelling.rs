//! Warnings about limits that never apply to HTTP requests, and nothing else would show it: by names that are nearly
//! those of requests or that nothing supplies, by unknown methods, and by paths that mean less than they seem to.

use tollgate::Policy;
use tollgate::policy::source::{nearest, quoted};
use tollgate::policy::{By, Condition, ExtraAttributes, Finding, Limit, Mode, Negation};
use tollgate_tower::attributes::path::PathMatch;
use tollgate_tower::attributes::{BUILT_IN, Reader};

use crate::policy_warnings::Doubts;

/// The methods that HTTP and WebDAV define, and those that caches and databases are known for.
const METHODS: [&str; 21] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "CONNECT",
    "OPTIONS",
    "TRACE",
    "PATCH",
    "QUERY",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "PURGE",
    "REPORT",
    "SEARCH",
    "MERGE",
];

/// Whether it is known which attributes HTTP requests can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Supply {
    /// The server is a gateway, or the config says where attributes, credentials or callers are.
    Known,
    /// Callers may send any attribute.
    Unknown,
}

/// The warnings about the names, methods and paths of a policy for requests that `reader` reads. Names that the policy
/// declares in `attributes` are meant.
pub(crate) fn misspelt(doubts: Doubts<'_>, reader: &Reader, supply: Supply) -> Vec<Finding> {
    let Doubts { policy, .. } = doubts;
    let mut found = Vec::new();
    for (index, limit) in policy.limits().iter().enumerate().filter(|(_, limit)| limit.mode() != Mode::Off) {
        for (field, name) in names(limit) {
            let Some(meant) = meant(name, policy, reader) else { continue };
            let name = quoted(name);
            let message = format!("no HTTP request has an attribute {name}; did you mean {meant}?");
            let accepted = format!("{meant}, or `{name}` in the policy's `attributes` if callers send it");
            found.push(doubts.finding(index, &field, message, accepted));
        }
        for (field, name) in needed(limit).filter(|_| supply == Supply::Known) {
            if is_supplied(name, policy, reader) || meant(name, policy, reader).is_some() {
                continue;
            }
            let name = quoted(name);
            let message = format!(
                "no request through the gateway or /v1/authz has {name}, since the config maps nothing to it: there the limit \
                 never applies"
            );
            let accepted = format!(
                "{name} under `attributes` of the config, with where it is read (docs/config.md), or in the policy's `attributes` \
                 if other callers send it"
            );
            found.push(doubts.finding(index, &field, message, accepted));
        }
        found.extend(only_elsewhere(limit).filter(|_| supply == Supply::Known).map(|name| {
            let message = format!(
                "a request through the gateway or /v1/authz always has {name}, which the limit does not name: there it never \
                 applies"
            );
            doubts.finding(index, "extra_attributes", message, "extra_attributes: any".to_owned())
        }));
        for path in limit.when().iter().flat_map(paths) {
            let Some((what, accepted)) = other_meaning(path, reader.paths) else { continue };
            found.push(doubts.finding(index, "when.path", format!("{} {what}", quoted(path)), accepted));
        }
        for method in limit.when().iter().flat_map(methods) {
            // The compiler refuses other spellings than capitals.
            if METHODS.contains(&method.as_str()) || method.contains(['*', '{', '|', '!']) {
                continue;
            }
            let meant = nearest(method, METHODS).map(|meant| format!("; did you mean {meant}?"));
            let (method, meant) = (quoted(method), meant.unwrap_or_default());
            let message = format!("{method} is no method that HTTP defines{meant}");
            found.push(doubts.finding(index, "when.method", message, String::new()));
        }
    }
    found
}

/// The names that decide whether a limit applies, each with where it stands.
fn names(limit: &Limit) -> impl Iterator<Item = (String, &str)> {
    let by = limit.by().iter().enumerate().map(|(index, by)| (format!("by[{index}]"), By::name(by)));
    let when = limit.when().iter().flat_map(|condition| {
        let place = move |name: &str| match condition {
            Condition::OneOf { .. } => format!("when.{name}"),
            Condition::Holds(_) => "when".to_owned(),
        };
        condition.mentioned().map(move |name| (place(name), name))
    });
    by.chain(when)
}

/// The names without which the limit never applies, each with where it stands.
pub(crate) fn needed(limit: &Limit) -> impl Iterator<Item = (String, &str)> {
    names(limit).filter(|(_, name)| {
        let is_needed = |condition: &Condition| match condition {
            Condition::OneOf { name: of, sense, .. } => of == name && *sense == Negation::Is,
            Condition::Holds(expression) => expression.needed().any(|needed| needed == *name),
        };
        limit.by().iter().any(|by| By::name(by) == *name) || limit.when().iter().any(is_needed)
    })
}

/// An attribute that every HTTP request has, and for which a limit applies to none of them.
fn only_elsewhere(limit: &Limit) -> impl Iterator<Item = &'static str> {
    let is_only = limit.extra_attributes() == ExtraAttributes::None;
    let always = ["ip", "method", "path"];
    always.into_iter().filter(move |name| is_only && !limit.attributes().any(|named| named == *name)).take(1)
}

/// Whether HTTP requests can have an attribute of this name, or the policy expects it of other callers.
fn is_supplied(name: &str, policy: &Policy, reader: &Reader) -> bool {
    policy.declares(name)
        || BUILT_IN.contains(&name)
        || reader.mapped.iter().any(|mapped| mapped.name == name)
        || reader.callers.as_ref().is_some_and(|callers| callers.gives(name))
}

/// The values of a condition on the path.
fn paths(condition: &Condition) -> &[String] {
    match condition {
        Condition::OneOf { name, choices, .. } if name == "path" => choices.written(),
        _ => &[],
    }
}

/// The meaning of a path that other programs take for something else, and what would be accepted.
fn other_meaning(path: &str, matching: PathMatch) -> Option<(&'static str, String)> {
    if let Some(stem) = path.strip_suffix("/**") {
        return Some((
            "has ** where * is enough: it stands for any characters, / included",
            format!("{stem}/*"),
        ));
    }
    // In an exact comparison the slash belongs to the path.
    let stem = path.strip_suffix('/').filter(|stem| !stem.is_empty() && matching == PathMatch::Loose)?;
    let is_plain = !stem.contains(['*', '{']);
    is_plain.then(|| {
        (
            "is this path alone, and nothing below it",
            format!("{stem}/* for both, or {stem} for the path alone"),
        )
    })
}

/// The values of a condition on the method.
fn methods(condition: &Condition) -> &[String] {
    match condition {
        Condition::OneOf { name, choices, .. } if name == "method" => choices.written(),
        _ => &[],
    }
}

/// The known name that is nearly this one, unless this one is known.
fn meant<'k>(name: &str, policy: &Policy, reader: &'k Reader) -> Option<&'k str> {
    let known = BUILT_IN.into_iter().chain(reader.mapped.iter().map(|mapped| mapped.name.as_str()));
    if is_supplied(name, policy, reader) {
        return None;
    }
    nearest(name, known)
}

#[cfg(test)]
mod tests {
    use tollgate_tower::attributes::Mapped;
    use tollgate_tower::attributes::source::Source;

    use super::*;

    fn warnings(text: &str, mapped: &str) -> String {
        let mapped = vec![Mapped { name: mapped.to_owned(), source: Source::Query("q".to_owned()) }];
        let policy = Policy::compile("p", text.as_bytes()).unwrap();
        let reader = Reader { mapped, ..Reader::default() };
        let found = misspelt(Doubts { file: "p", policy: &policy }, &reader, Supply::Unknown);
        found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    /// The story: each of these typing errors turned a limit off, and nothing said so.
    #[test]
    fn near_misses_are_reported() {
        for (fields, expected) in [
            (
                "by: [apikey]",
                "p:1:25: warning: limits[0] \"a\".by[0]: no HTTP request has an attribute apikey; did you mean api_key?",
            ),
            ("by: [api-key]", "did you mean api_key?"),
            ("by: [client_ip]", "did you mean ip?"),
            ("by: [ipp]", "did you mean ip?"),
            ("by: [ipaddr]", "did you mean ip?"),
            ("by: [api]", "did you mean api_key?"),
            ("by: [tennant]", "did you mean tenant?"),
            (
                "when: {methd: POST}",
                "p:1:27: warning: limits[0] \"a\".when.methd: no HTTP request has an attribute methd; did you mean method?",
            ),
            (
                "when: \"pth == '/x'\"",
                "p:1:26: warning: limits[0] \"a\".when: no HTTP request has an attribute pth; did you mean path?",
            ),
            (
                "when: {method: GETT}",
                "p:1:27: warning: limits[0] \"a\".when.method: GETT is no method that HTTP defines; did you mean GET?",
            ),
        ] {
            let found = warnings(&format!("limits: [{{name: a, {fields}, rate: 5/s}}]"), "tenant");
            assert!(found.contains(expected), "{fields}: {found}");
        }
    }

    /// The story: a limit by `adress` behind a gateway was described as if it worked, and never applied. Names that the
    /// config maps or the policy declares, and those that a limit does not need, are no mistakes.
    #[test]
    fn names_that_nothing_supplies_are_reported() {
        let found = |fields: &str, supply| {
            let text = format!("limits: [{{name: a, {fields}, rate: 5/s}}]");
            let policy = Policy::compile("p", text.as_bytes()).unwrap();
            let source = Source::Query("q".to_owned());
            let mapped = vec![Mapped { name: "tenant".to_owned(), source }];
            let reader = Reader { mapped, ..Reader::default() };
            let found = misspelt(Doubts { file: "p", policy: &policy }, &reader, supply);
            found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        for (fields, place) in [
            (
                "by: [adress]",
                "p:1:25: warning: limits[0] \"a\".by[0]: no request through the gateway or /v1/authz has adress",
            ),
            ("by: [ip], when: {adress: x}", "limits[0] \"a\".when.adress: no request"),
            ("by: [ip], when: \"adress == 'x'\"", "limits[0] \"a\".when: no request"),
        ] {
            assert!(
                found(fields, Supply::Known).contains(place),
                "{fields}: {}",
                found(fields, Supply::Known)
            );
            assert_eq!(found(fields, Supply::Unknown), "", "{fields}");
        }
        for fields in ["by: [tenant, ip]", "by: [ip], when: {adress: {not: x}}", "by: [adress], mode: 'off'"]
        {
            assert_eq!(found(fields, Supply::Known), "", "{fields}");
        }
        let short = found("by: [ipp]", Supply::Known);
        assert!(short.contains("did you mean ip?") && short.lines().count() == 1, "{short}");
        let near = found("by: [tennant]", Supply::Known);
        assert!(near.contains("did you mean tenant?") && near.lines().count() == 1, "{near}");
    }

    /// A limit for its attributes alone never applies to an HTTP request that always has another one. Where the config says
    /// nothing about HTTP requests, callers may send any attributes.
    #[test]
    fn limits_without_extra_attributes_are_reported_for_http() {
        let found = |fields: &str, supply| {
            let text = format!("limits: [{{name: a, {fields}, rate: 5/s, extra_attributes: none}}]");
            let policy = Policy::compile("p", text.as_bytes()).unwrap();
            let found = misspelt(Doubts { file: "p", policy: &policy }, &Reader::default(), supply);
            found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        let expected = "p:1:59: warning: limits[0] \"a\".extra_attributes: a request through the gateway or /v1/authz always has \
                        method, which the limit does not name: there it never applies; accepted: extra_attributes: any";
        assert_eq!(found("by: [ip]", Supply::Known), expected);
        assert_eq!(found("by: [ip]", Supply::Unknown), "");
        assert_eq!(found("by: [ip, host], when: {method: GET, path: /x}", Supply::Known), "");
    }

    /// A path that other programs take for all below it gets a hint.
    #[test]
    fn paths_with_another_meaning_are_reported() {
        for (path, expected) in [
            (
                "/api/",
                "/api/ is this path alone, and nothing below it; accepted: /api/* for both, or /api for the path alone",
            ),
            (
                "/v1/**",
                "/v1/** has ** where * is enough: it stands for any characters, / included; accepted: /v1/*",
            ),
            ("[/ok, /api/]", "/api/ is this path alone"),
        ] {
            let found =
                warnings(&format!("limits: [{{name: a, when: {{path: {path}}}, rate: 5/s}}]"), "tenant");
            assert!(found.contains(expected) && found.lines().count() == 1, "{path}: {found}");
        }
        for path in ["/", "/api", "/api/*", "/users/{id}"] {
            let found =
                warnings(&format!("limits: [{{name: a, when: {{path: '{path}'}}, rate: 5/s}}]"), "tenant");
            assert_eq!(found, "", "{path}");
        }
    }

    /// Other names, and names that the config maps or the policy declares, are no mistakes.
    #[test]
    fn other_names_are_fine() {
        for fields in ["by: [user, ip, id]", "when: {method: [GET, PROPFIND], plan: pro}", "by: [client]"] {
            assert_eq!(
                warnings(&format!("limits: [{{name: a, {fields}, rate: 5/s}}]"), "tenant"),
                "",
                "{fields}"
            );
        }
        assert_eq!(warnings("limits: [{name: a, by: [apikey], rate: 5/s}]", "apikey"), "");
        assert_eq!(
            warnings("attributes: [apikey]\nlimits: [{name: a, by: [apikey], rate: 5/s}]", "tenant"),
            ""
        );
    }
}
