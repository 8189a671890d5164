//! Warnings about names in a policy that are nearly those of HTTP requests: such a limit would never apply, and nothing
//! else would show it.

use tollgate::Policy;
use tollgate::policy::source::{nearest, quoted};
use tollgate::policy::{By, Condition, Finding, Limit, Mode};
use tollgate_tower::attributes::{BUILT_IN, Reader};

use crate::policy_warnings::Doubts;

/// Minimum length of a name for which a few wrong letters are a misspelling. Shorter ones are near to many names.
const NAME_MIN: usize = 4;
/// Names that other programs have for the address of a client.
const ADDRESSES: [&str; 5] = ["client_ip", "remote_ip", "source_ip", "ip_address", "ip_addr"];
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

/// The warnings about the names and methods of a policy for requests that `reader` reads. Names that the policy declares
/// in `attributes` are meant.
pub(crate) fn misspelt(doubts: Doubts<'_>, reader: &Reader) -> Vec<Finding> {
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

/// The values of a condition on the method.
fn methods(condition: &Condition) -> &[String] {
    match condition {
        Condition::OneOf { name, choices, .. } if name == "method" => choices.written(),
        _ => &[],
    }
}

/// The known name that is nearly this one, unless this one is known.
fn meant<'k>(name: &str, policy: &Policy, reader: &'k Reader) -> Option<&'k str> {
    let known = || BUILT_IN.into_iter().chain(reader.mapped.iter().map(|mapped| mapped.name.as_str()));
    let is_given = reader.callers.as_ref().is_some_and(|callers| callers.gives(name));
    if is_given || policy.declares(name) || known().any(|known| known == name) {
        return None;
    }
    if ADDRESSES.contains(&name) {
        return Some("ip");
    }
    let letters = |name: &str| name.replace(['-', '_'], "").to_ascii_lowercase();
    let is_same = |known: &&str| letters(known) == letters(name);
    known().find(is_same).or_else(|| nearest(name, known().filter(|known| known.len() >= NAME_MIN)))
}

#[cfg(test)]
mod tests {
    use tollgate_tower::attributes::Mapped;
    use tollgate_tower::attributes::source::Source;

    use super::*;

    fn warnings(text: &str, mapped: &str) -> String {
        let mapped = vec![Mapped { name: mapped.to_owned(), source: Source::Query("q".to_owned()) }];
        let policy = Policy::compile("p", text.as_bytes()).unwrap();
        let found = misspelt(Doubts { file: "p", policy: &policy }, &Reader { mapped, ..Reader::default() });
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
