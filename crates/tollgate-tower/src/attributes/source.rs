//! The source of an attribute. Sources are values, so that config files and programs compose them in the same way.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::header::{HeaderName, HeaderValue, InvalidHeaderName};
use http::{Extensions, HeaderMap};
use tollgate::CredentialDigest;
use tollgate::path::loose_path;

use super::cookie::cookie;
use super::credential::bearer;
use super::host::Host;
use super::jwt::Verifier;
use super::path::PathMatch;
use super::query;
use super::template::Template;
use super::token::one_spelling;
use super::{BUILT_IN, CLIENT, HOST_INDEX, IDENTITY, METHOD_INDEX, Subject, Unreadable};
use crate::spelling::plain;

/// The parties that may set a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetBy {
    /// A trusted proxy, which must set or remove it. From another peer it is not read.
    #[default]
    Proxy,
    /// Any client.
    Client,
}

/// How the values of a source are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrecy {
    /// As they are.
    Plain,
    /// As digests of credentials.
    Digest,
    /// As digests or as they are, depending on where they were found.
    Mixed,
}

/// Where a value is read from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A header.
    Header {
        /// Its name.
        name: HeaderName,
        /// The parties that may set it.
        set_by: SetBy,
    },
    /// A parameter of the query.
    Query(String),
    /// A cookie.
    Cookie(String),
    /// The text of the first template that the path matches.
    Path(Vec<Template>),
    /// The peer address, also of a proxy.
    Peer,
    /// The address of the client, as in the built-in `ip`.
    Client,
    /// The method.
    Method,
    /// The host, in its normalised spelling.
    Host,
    /// The digest of the credential of the request, from [`Reader::credentials`](super::Reader::credentials). With a callers
    /// file, only a registered one.
    Credential,
    /// An attribute that the callers file gives to the caller.
    OfCaller(String),
    /// The digest of the bearer token.
    Bearer,
    /// A claim of the bearer token, if that is a valid JWT.
    Jwt {
        /// Verifies the token.
        verifier: Arc<Verifier>,
        /// The name of the claim.
        claim: String,
    },
    /// A value that the service puts into the extensions, such as the authenticated tenant.
    Extension(FromExtensions),
    /// The same value for every request.
    Fixed(String),
    /// The digest of a secret value.
    Hashed(Box<Source>),
    /// The source of another attribute, with its name.
    Attribute {
        /// Its name in policies.
        name: String,
        /// Where it is read from.
        source: Box<Source>,
    },
    /// The first source with a value.
    FirstOf(Vec<Source>),
}

/// A function of the extensions and headers of a request.
#[derive(Clone)]
pub struct FromExtensions(Arc<ExtensionFn>);

type ExtensionFn = dyn Fn(&Extensions, &HeaderMap) -> Option<String> + Send + Sync;

impl fmt::Debug for FromExtensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromExtensions")
    }
}

/// A header that a trusted proxy sets. From another peer it is not read.
///
/// # Errors
/// The name is not a valid header name.
pub fn header(name: &str) -> Result<Source, InvalidHeaderName> {
    Ok(Source::Header { name: name.parse()?, set_by: SetBy::Proxy })
}

/// A header that any client sets, and may forge.
///
/// # Errors
/// The name is not a valid header name.
pub fn header_of_client(name: &str) -> Result<Source, InvalidHeaderName> {
    Ok(Source::Header { name: name.parse()?, set_by: SetBy::Client })
}

/// A value that an outer layer puts into the extensions, such as the authenticated tenant.
pub fn from_extensions(
    by: impl Fn(&Extensions, &HeaderMap) -> Option<String> + Send + Sync + 'static,
) -> Source {
    Source::Extension(FromExtensions(Arc::new(by)))
}

impl Source {
    /// Uses another source if this one has no value.
    #[must_use]
    pub fn or(self, other: Source) -> Self {
        match self {
            Source::FirstOf(mut sources) => {
                sources.push(other);
                Source::FirstOf(sources)
            }
            first => Source::FirstOf(vec![first, other]),
        }
    }

    /// The digest of the value. A source of digests stays as it is.
    #[must_use]
    pub fn hashed(self) -> Self {
        match self {
            Source::Credential | Source::Bearer | Source::Hashed(_) => self,
            plain => Source::Hashed(Box::new(plain)),
        }
    }

    /// The names of the alternative attributes, if every alternative is one.
    #[must_use]
    pub fn alternatives(&self) -> Option<Vec<&str>> {
        match self {
            Source::FirstOf(sources) => sources.iter().map(Source::attribute).collect(),
            Source::Hashed(inner) => inner.alternatives(),
            _ => None,
        }
    }

    /// The attribute with the same value.
    fn attribute(&self) -> Option<&str> {
        match self {
            Source::Client => Some(CLIENT),
            Source::Credential => Some(IDENTITY),
            Source::Method => Some(BUILT_IN[METHOD_INDEX]),
            Source::Host => Some(BUILT_IN[HOST_INDEX]),
            Source::OfCaller(name) | Source::Attribute { name, .. } => Some(name),
            _ => None,
        }
    }

    /// How its values are stored.
    #[must_use]
    pub fn secrecy(&self) -> Secrecy {
        match self {
            Source::Credential | Source::Bearer | Source::Hashed(_) => Secrecy::Digest,
            Source::Attribute { source, .. } => source.secrecy(),
            Source::FirstOf(sources) => {
                let mut all = sources.iter().map(Source::secrecy);
                let first = all.next().unwrap_or(Secrecy::Plain);
                if all.all(|other| other == first) { first } else { Secrecy::Mixed }
            }
            _ => Secrecy::Plain,
        }
    }

    /// Whether it reads a header as which servers may read another field.
    pub(super) fn reads(&self, meant: &str, field: &HeaderName) -> bool {
        match self {
            Source::Header { name, .. } => name != field && plain(name.as_str()) == meant,
            Source::Hashed(inner) | Source::Attribute { source: inner, .. } => inner.reads(meant, field),
            Source::FirstOf(all) => all.iter().any(|inner| inner.reads(meant, field)),
            _ => false,
        }
    }

    /// The location of the value for error messages.
    fn location(&self) -> String {
        match self {
            Source::Header { name, .. } => name.to_string(),
            Source::Query(name) => format!("query parameter {name}"),
            Source::Cookie(name) => format!("cookie {name}"),
            _ => "a credential".to_owned(),
        }
    }

    /// The value, if the request has one. An empty value counts as none.
    ///
    /// # Errors
    /// The request has several values, or one that is not text.
    pub(super) fn read<'s>(&'s self, subject: &Subject<'s>) -> Result<Option<Cow<'s, str>>, Unreadable> {
        let found = match self {
            Source::Header { set_by: SetBy::Proxy, .. } if !subject.is_vouched => None,
            Source::Header { name, .. } => single(subject.headers, name)?.map(Cow::Borrowed),
            Source::Query(name) => query::attribute(subject.query, name)?,
            Source::Cookie(name) => cookie(subject.headers, name)?,
            Source::Path(templates) => {
                let path = subject.path.as_deref().unwrap_or_default();
                template(templates, path, subject.paths).map(|found| Cow::Borrowed(found.text()))
            }
            Source::Peer => subject.peer.map(|peer| Cow::Owned(peer.to_canonical().to_string())),
            Source::Client => subject.client.as_ref().map(|client| Cow::Owned(client.to_string())),
            Source::Method => subject.method.map(Cow::Borrowed),
            Source::Host => subject.host.clone().map(Host::into_name),
            Source::Credential => subject.identified()?.digest.map(|digest| Cow::Owned(digest.to_string())),
            Source::OfCaller(name) => {
                let caller = subject.identified()?.caller.as_ref();
                caller.and_then(|caller| caller.get(name)).map(|value| Cow::Owned(value.to_owned()))
            }
            Source::Bearer => bearer(subject.headers)?.map(digest),
            Source::Jwt { verifier, claim } => {
                bearer(subject.headers)?.and_then(|token| verifier.claim(token, claim)).map(Cow::Owned)
            }
            Source::Extension(FromExtensions(by)) => {
                subject.extensions.and_then(|extensions| by(extensions, subject.headers)).map(Cow::Owned)
            }
            Source::Fixed(value) => Some(Cow::Borrowed(value.as_str())),
            Source::Hashed(source) => {
                let secret = source.read(subject)?.filter(|value| !value.is_empty());
                if let Some(secret) = &secret {
                    one_spelling(|| source.location(), secret)?;
                }
                secret.map(|secret| digest(&secret))
            }
            Source::Attribute { source, .. } => return source.read(subject),
            Source::FirstOf(sources) => {
                let mut values = sources.iter().map(|source| source.read(subject));
                return values.find(|value| !matches!(value, Ok(None))).unwrap_or(Ok(None));
            }
        };
        Ok(found.filter(|value| !value.is_empty()))
    }
}

/// The first template that a path matches, as it is or else in its loose form.
fn template<'t>(templates: &'t [Template], path: &str, paths: PathMatch) -> Option<&'t Template> {
    let exact = templates.iter().find(|template| template.matches(path));
    exact.or_else(|| {
        let loose = match paths {
            PathMatch::Exact => return None,
            PathMatch::Loose => loose_path(path),
        };
        templates.iter().find(|template| !path.is_empty() && template.matches_loosely(&loose))
    })
}

/// The value of a header. A second one is refused, because servers disagree about which one counts.
pub(super) fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, Unreadable> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(Unreadable(format!("{name}: given more than once; send it once")));
    }
    first.map(|value| text(name.as_str(), value)).transpose()
}

pub(super) fn text<'h>(name: &str, value: &'h HeaderValue) -> Result<&'h str, Unreadable> {
    let text = std::str::from_utf8(value.as_bytes());
    text.map(bare).map_err(|_| Unreadable(format!("{name}: not text in UTF-8")))
}

/// A value without surrounding white space, as HTTP defines it. Other spaces are part of the value, as for every proxy.
fn bare(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

/// The digest of a secret.
fn digest(secret: &str) -> Cow<'static, str> {
    Cow::Owned(CredentialDigest::of(secret).to_string())
}
