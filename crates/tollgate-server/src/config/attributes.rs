//! The `attributes` section of the config: where attributes of a request are read from, in addition to those that every
//! request has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use http::HeaderName;
use serde::Deserialize;
use tollgate::credential::CREDENTIAL;
use tollgate_tower::attributes::jwt::Verifier;
use tollgate_tower::attributes::source::{SetBy, Source};
use tollgate_tower::attributes::template::{TEMPLATES_MAX, Template};
use tollgate_tower::attributes::{BUILT_IN, MAPPED_MAX, Mapped};

/// Longest name of an attribute, a parameter or a cookie.
const NAME_BYTES_MAX: usize = 64;

/// The source of one attribute, as the config writes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mapping {
    header: Option<String>,
    set_by: Option<Setter>,
    query: Option<String>,
    cookie: Option<String>,
    path: Option<Templates>,
    jwt: Option<String>,
    first_of: Option<Vec<String>>,
    #[serde(default)]
    hash: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Setter {
    Proxy,
    Client,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "accepted: a path such as /users/{id}, or a list of such paths")]
enum Templates {
    One(String),
    Several(Vec<String>),
}

/// The other parts of the config that sources of attributes need.
pub(super) struct OtherSections<'c> {
    pub(super) tokens: TrustedTokens,
    pub(super) callers: Option<&'c Path>,
    /// The names in the section that could not be read. Their problems are reported already.
    pub(super) unreadable: BTreeSet<String>,
}

/// Which tokens the config trusts.
pub(super) enum TrustedTokens {
    /// It names no keys.
    None,
    /// The keys that it names cannot be used, which is reported already.
    Unusable,
    Of(Arc<Verifier>),
}

/// Compiles the section.
pub(super) fn mapped(
    attributes: BTreeMap<String, Mapping>,
    others: OtherSections<'_>,
    problems: &mut Vec<String>,
) -> Vec<Mapped> {
    let OtherSections { tokens, callers, mut unreadable } = others;
    if attributes.len() > MAPPED_MAX {
        problems.push(format!("attributes: more than {MAPPED_MAX}; map those that the policy mentions"));
    }
    let (chosen, plain): (Vec<_>, Vec<_>) =
        attributes.into_iter().take(MAPPED_MAX).partition(|(_, mapping)| mapping.first_of.is_some());
    let mut mapped: Vec<Mapped> = Vec::new();
    // An attribute that is chosen among others is compiled after them, and not among its like.
    for group in [plain, chosen] {
        let mut read = Vec::new();
        for (name, mapping) in group {
            let known = AttributeNames { mapped: &mapped, callers, unreadable: &unreadable };
            match one(&name, mapping, &tokens, &known) {
                Ok(source) => read.push((name, source)),
                Err(problem) => {
                    problems.push(format!("attributes.{name}: {problem}"));
                    read.push((name, None));
                }
            }
        }
        for (name, source) in read {
            match source {
                Some(source) => mapped.push(Mapped { name, source }),
                None => drop(unreadable.insert(name)),
            }
        }
    }
    mapped.sort_by(|one, other| one.name.cmp(&other.name));
    mapped
}

/// The source of an attribute; none if it needs something that is reported already.
fn one(
    name: &str,
    mapping: Mapping,
    tokens: &TrustedTokens,
    known: &AttributeNames<'_>,
) -> Result<Option<Source>, String> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(format!("not a name; accepted: 1 to {NAME_BYTES_MAX} bytes without control characters"));
    }
    if name == CREDENTIAL {
        return Err("is the credential; say where it is read from with `credentials`, as in `credentials: [{header: X-API-Key}]`, or \
                    choose another name"
            .to_owned());
    }
    if BUILT_IN.contains(&name) {
        return Err("is read from every request and cannot be mapped; choose another name".to_owned());
    }
    if mapping.set_by.is_some() && mapping.header.is_none() {
        return Err("set_by: says who sets a header, and there is none; accepted beside header".to_owned());
    }
    let Mapping { header, query, cookie, path, jwt, first_of, .. } = mapping;
    let source = match (header, query, cookie, path, jwt, first_of) {
        (Some(header), None, None, None, None, None) => header_source(&header, mapping.set_by)?,
        (None, Some(name), None, None, None, None) => Source::Query(plain(name, "query")?),
        (None, None, Some(name), None, None, None) => Source::Cookie(plain(name, "cookie")?),
        (None, None, None, Some(templates), None, None) => Source::Path(templates_of(templates)?),
        (None, None, None, None, None, Some(names)) => chosen(&names, known)?,
        (None, None, None, None, Some(claim), None) => {
            let claim = plain(claim, "jwt")?;
            match tokens {
                TrustedTokens::Of(verifier) => Source::Jwt { verifier: Arc::clone(verifier), claim },
                TrustedTokens::Unusable => return Ok(None),
                TrustedTokens::None => {
                    return Err(
                        "jwt: no issuer's tokens are accepted yet; name its keys in `jwt: { jwks: FILE }`"
                            .to_owned(),
                    );
                }
            }
        }
        _ => {
            return Err(
                "has no source, or several; accepted: exactly one of header, query, cookie, path, jwt and \
                        first_of"
                    .to_owned(),
            );
        }
    };
    Ok(Some(if mapping.hash { source.hashed() } else { source }))
}

/// The attributes that a choice may name.
struct AttributeNames<'k> {
    mapped: &'k [Mapped],
    callers: Option<&'k Path>,
    /// Names that the config maps, and not well.
    unreadable: &'k BTreeSet<String>,
}

/// The first of some attributes that a request has.
fn chosen(names: &[String], known: &AttributeNames<'_>) -> Result<Source, String> {
    if names.is_empty() || names.len() > MAPPED_MAX {
        return Err(format!("first_of: accepted: 1 to {MAPPED_MAX} names, such as [api_key, ip]"));
    }
    let source = |name: &String| match known.mapped.iter().find(|mapped| mapped.name == *name) {
        Some(mapped) => Ok(Source::Attribute { name: name.clone(), source: Box::new(mapped.source.clone()) }),
        None => match name.as_str() {
            "ip" => Ok(Source::Client),
            CREDENTIAL => Ok(Source::Credential),
            "host" => Ok(Source::Host),
            "method" => Ok(Source::Method),
            // Whether a caller has it is known only when the file of callers is read.
            _ if known.callers.is_some() => Ok(Source::OfCaller(name.clone())),
            _ => Err(format!(
                "first_of: {name:?} is not known; accepted: ip, api_key, host, method, and what the config maps from a request itself"
            )),
        },
    };
    let names = names.iter().filter(|name| !known.unreadable.contains(*name));
    names.map(source).collect::<Result<_, _>>().map(Source::FirstOf)
}

fn header_source(header: &str, set_by: Option<Setter>) -> Result<Source, String> {
    let name: HeaderName =
        header.parse().map_err(|_| format!("header: {header:?} is no name of a header, such as X-Tenant"))?;
    let set_by = match set_by {
        Some(Setter::Client) => SetBy::Client,
        Some(Setter::Proxy) | None => SetBy::Proxy,
    };
    Ok(Source::Header { name, set_by })
}

pub(super) fn plain(name: String, field: &str) -> Result<String, String> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(format!("{field}: accepted: a name of 1 to {NAME_BYTES_MAX} bytes"));
    }
    Ok(name)
}

fn templates_of(templates: Templates) -> Result<Vec<Template>, String> {
    let texts = match templates {
        Templates::One(text) => vec![text],
        Templates::Several(texts) => texts,
    };
    if texts.is_empty() || texts.len() > TEMPLATES_MAX {
        return Err(format!("path: accepted: 1 to {TEMPLATES_MAX} templates, such as /users/{{id}}"));
    }
    texts.iter().map(|text| Template::parse(text).map_err(|problem| format!("path: {problem}"))).collect()
}
