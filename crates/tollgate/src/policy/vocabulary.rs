//! The names of attributes: which kind of value each has, which names a policy declares, and which names are spellings of
//! other products that no request has here.

use std::collections::BTreeMap;

use crate::credential::CREDENTIAL;
use crate::policy::finding::{Problem, nearest, quoted};

/// Most attributes that a policy may declare.
pub(crate) const DECLARED_MAX: usize = 1_000;

/// The kind of an attribute's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The address of a client, such as `ip`: compared and counted by its bits.
    Address,
    /// `method`.
    Method,
    /// `host`.
    Host,
    /// `path`.
    Path,
    /// Anything else.
    Text,
}

/// Names that are addresses without being declared; so are names that end in `_ip` or `-ip`.
const ADDRESSES: [&str; 3] = ["ip", "remote_address", "masked_remote_address"];

/// The attributes that a policy declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Vocabulary {
    /// Each with the kind that the policy gives it, if it gives one; none if the policy declares no names.
    declared: Option<BTreeMap<String, Option<Kind>>>,
}

impl PartialOrd for Kind {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Kind {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (*self as u8).cmp(&(*other as u8))
    }
}

impl Vocabulary {
    /// The vocabulary of a policy that declares these names.
    pub(crate) fn declared(names: BTreeMap<String, Option<Kind>>) -> Self {
        Self { declared: Some(names) }
    }

    /// Whether the policy declares names at all.
    pub(crate) fn is_declared(&self) -> bool {
        self.declared.is_some()
    }

    /// Whether a request may have an attribute with this name.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.declared.as_ref().is_none_or(|declared| declared.contains_key(name))
    }

    /// Whether the policy declares this exact name.
    pub(crate) fn declares(&self, name: &str) -> bool {
        self.declared.as_ref().is_some_and(|declared| declared.contains_key(name))
    }

    /// The declared names; none if the policy declares no names.
    pub(crate) fn declared_names(&self) -> impl Iterator<Item = &str> {
        self.declared.iter().flat_map(BTreeMap::keys).map(String::as_str)
    }

    /// The declared names, each with the kind that the policy gives it; none if it declares no names.
    pub(crate) fn names(&self) -> Option<impl Iterator<Item = String>> {
        let shown = |(name, kind): (&String, &Option<Kind>)| match kind {
            Some(Kind::Address) => format!("{} (address)", quoted(name)),
            Some(_) => format!("{} (text)", quoted(name)),
            None => quoted(name),
        };
        self.declared.as_ref().map(|declared| declared.iter().map(shown))
    }

    /// The kind of an attribute's values.
    pub(crate) fn kind(&self, name: &str) -> Kind {
        let declared = self.declared.as_ref().and_then(|declared| declared.get(name).copied().flatten());
        declared.unwrap_or_else(|| Kind::of(name))
    }

    /// The problem with a name in a policy, if there is one: it is not declared, or it is the spelling of another product.
    pub(crate) fn problem(&self, name: &str) -> Option<Problem> {
        match &self.declared {
            Some(declared) if declared.contains_key(name) => None,
            Some(declared) => {
                let message = match nearest(name, declared.keys().map(String::as_str)) {
                    Some(meant) => {
                        format!("{} is not declared in `attributes`; did you mean {meant}?", quoted(name))
                    }
                    None => format!("{} is not declared in `attributes`", quoted(name)),
                };
                let known: Vec<String> = declared.keys().map(|name| quoted(name)).collect();
                Some(Problem::new(message, known.join(", ")))
            }
            None => elsewhere(name),
        }
    }
}

impl Kind {
    /// The kind that a name has by itself.
    pub(crate) fn of(name: &str) -> Self {
        match name {
            "method" => Kind::Method,
            "host" => Kind::Host,
            "path" => Kind::Path,
            _ if ADDRESSES.contains(&name) || name.ends_with("_ip") || name.ends_with("-ip") => Kind::Address,
            _ => Kind::Text,
        }
    }
}

/// Sources of attributes in a config, by their names in other products.
const SOURCES: [(&[&str], &str, &str); 4] = [
    (&["header", "headers", "http", "req", "request"], "header", "X-Tenant"),
    (&["cookie", "cookies"], "cookie", "sid"),
    (&["query", "querystring", "param", "params", "arg", "args"], "query", "v"),
    (&["jwt", "claim", "claims"], "jwt", "sub"),
];
/// Names of whole tables in other products, which are not names of single values.
const TABLES: [&str; 5] = ["headers", "cookies", "claims", "request", "params"];

/// Names of other products for attributes that every request has here.
const BUILT_IN: [(&str, &str); 16] = [
    ("remote_addr", "ip"),
    ("binary_remote_addr", "ip"),
    ("client_addr", "ip"),
    ("source.address", "ip"),
    ("source.ip", "ip"),
    ("clientip", "ip"),
    ("request_method", "method"),
    ("request.method", "method"),
    ("req.method", "method"),
    ("http.method", "method"),
    ("request_uri", "path"),
    ("request.path", "path"),
    ("req.path", "path"),
    ("http.path", "path"),
    ("request.host", "host"),
    ("http.host", "host"),
];

/// The problem with a name that is a source in another product, if it is one. No request has an attribute with that name,
/// so a limit on it would never apply.
fn elsewhere(name: &str) -> Option<Problem> {
    let bare = name.trim_start_matches(['$', '%', '{', '.']).trim_end_matches(['%', '}']);
    let small = bare.to_ascii_lowercase();
    let message = format!("no request has an attribute {}", quoted(name));
    if let Some((_, meant)) = BUILT_IN.iter().find(|(other, _)| *other == small) {
        return Some(Problem::new(message, *meant));
    }
    let (root, rest) = match small.find(['.', '[', '(', ':']) {
        Some(end) => (&small[..end], small[end + 1..].trim_matches([']', ')', '[', '"', '\'', '.', ':'])),
        None => (small.as_str(), ""),
    };
    let place = SOURCES.iter().find(|(roots, ..)| roots.contains(&root));
    if let Some((_, field, example)) = place.filter(|_| !rest.is_empty() || TABLES.contains(&root)) {
        let parts = rest.rsplit(['.', '[', '\'', '"', '(']).filter(|part| !part.is_empty());
        let key = parts.into_iter().find(|part| !SOURCES.iter().any(|(roots, ..)| roots.contains(part)));
        let key = key.unwrap_or(example);
        return Some(mapped(message, &attribute_name(&key.to_ascii_lowercase()), &format!("{field}: {key}")));
    }
    if name.starts_with('$') || name.contains('%') || name.contains("{{") {
        let key = bare.trim_matches(['{', '}', ' ', '.']);
        let header = key.strip_prefix("http_").unwrap_or(key).replace('_', "-");
        return Some(mapped(message, &attribute_name(&header), &format!("header: {header}")));
    }
    if is_header(bare) {
        return Some(mapped(message, &attribute_name(&small), &format!("header: {bare}")));
    }
    None
}

/// Shows how the config maps an attribute.
fn mapped(message: String, name: &str, source: &str) -> Problem {
    if name == CREDENTIAL {
        return Problem::new(message, format!("{name}, which is read from X-API-Key already"));
    }
    let accepted = format!(
        "{name}, which the config maps with `attributes: {{ {name}: {{ {source} }} }}` (docs/proxies.md); \
         or declare the name in the policy's `attributes` if callers send it"
    );
    Problem::new(message, accepted)
}

/// A name for the attribute that a header, a cookie or a claim becomes.
fn attribute_name(key: &str) -> String {
    let key = key.strip_prefix("x-").unwrap_or(key);
    let letters = key.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' });
    let name: String = letters.collect::<String>().trim_matches('_').to_owned();
    if name.is_empty() { "tenant".to_owned() } else { name }
}

/// Whether a name is written as headers are: `X-Tenant`, `x-tenant`, `User-Agent`, `Authorization`.
fn is_header(name: &str) -> bool {
    let is_word = |word: &str| {
        word.starts_with(|first: char| first.is_ascii_uppercase())
            && word.chars().all(|letter| letter.is_ascii_alphanumeric())
    };
    let small = name.to_ascii_lowercase();
    let is_titled = name.contains('-') && name.split('-').all(is_word);
    is_titled || small.starts_with("x-") || matches!(small.as_str(), "authorization" | "user-agent")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of other products are refused with what maps them; names that callers may send are not.
    #[test]
    fn names_of_other_products_are_refused() {
        for (name, accepted) in [
            ("header.x-tenant", "attributes: { tenant: { header: x-tenant } }"),
            ("headers.X", "attributes: { x: { header: x } }"),
            ("headers", "attributes: { tenant: { header: X-Tenant } }"),
            ("request.headers", "attributes: { tenant: { header: X-Tenant } }"),
            ("request.headers['x-tenant']", "attributes: { tenant: { header: x-tenant } }"),
            ("cookie.sid", "attributes: { sid: { cookie: sid } }"),
            ("query.v", "attributes: { v: { query: v } }"),
            ("jwt.sub", "attributes: { sub: { jwt: sub } }"),
            ("claims.org", "attributes: { org: { jwt: org } }"),
            ("$http_x_tenant", "attributes: { tenant: { header: x-tenant } }"),
            ("%REQ(X-Tenant)%", "header: x-tenant"),
            ("X-Tenant", "attributes: { tenant: { header: X-Tenant } }"),
            ("x-tenant", "attributes: { tenant: { header: x-tenant } }"),
            ("Authorization", "header: Authorization"),
            ("$remote_addr", "ip"),
            ("$binary_remote_addr", "ip"),
            ("request.method", "method"),
            ("source.address", "ip"),
        ] {
            let problem = elsewhere(name).unwrap_or_else(|| panic!("{name} is accepted"));
            assert!(problem.accepted.contains(accepted), "{name}: {}", problem.accepted);
        }
        for name in
            ["tenant", "api_key", "plan", "user.id", "auth_user", "header", "query", "tenant-id", "a.b"]
        {
            assert_eq!(elsewhere(name), None, "{name}");
        }
    }

    /// A policy that declares its names knows those and no others.
    #[test]
    fn declared_names_are_all_that_is_known() {
        let names = [("tenant".to_owned(), None), ("client".to_owned(), Some(Kind::Address))];
        let declared = Vocabulary::declared(names.into_iter().collect());
        assert!(declared.knows("tenant") && !declared.knows("plan"));
        assert_eq!(declared.kind("client"), Kind::Address);
        let problem = declared.problem("tenent").unwrap();
        assert!(problem.message.contains("did you mean tenant?"), "{}", problem.message);
        assert_eq!(problem.accepted, "client, tenant");
        assert!(Vocabulary::default().knows("plan"));
    }
}
