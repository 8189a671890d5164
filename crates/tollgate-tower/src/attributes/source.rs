//! Where one attribute of a request comes from. Sources are values, so that a config file and a program compose the same ones.

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
use super::{BUILT_IN, CLIENT, HOST_PLACE, IDENTITY, METHOD_PLACE, Subject, Unreadable};
use crate::spelling::plain;

/// Who may set a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetBy {
    /// A trusted proxy, which must set or remove it: from anybody else it is not read.
    #[default]
    Proxy,
    /// Whoever sends the request.
    Client,
}

/// How the values of a source are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrecy {
    /// As they are.
    Plain,
    /// As digests of credentials.
    Digest,
    /// As digests or as they are, by where they were found.
    Mixed,
}

/// Where a value is found.
#[derive(Clone, Debug)]
pub enum Source {
    /// A header.
    Header {
        /// Which one.
        name: HeaderName,
        /// Who may set it.
        set_by: SetBy,
    },
    /// A parameter of the query.
    Query(String),
    /// A cookie.
    Cookie(String),
    /// The first template that the path matches, as it is written.
    Path(Vec<Template>),
    /// The address of the connection's other end, whoever it speaks for.
    Peer,
    /// The address of the client, as the built-in `ip` has it.
    Client,
    /// The method.
    Method,
    /// The host, in its one spelling.
    Host,
    /// The credential of the request, as its digest, where [`Reader::credentials`](super::Reader::credentials) says. With a callers file, only
    /// a known one.
    Credential,
    /// An attribute that the callers file gives to whoever sent the request.
    OfCaller(String),
    /// The bearer token, as its digest.
    Bearer,
    /// A claim of the bearer token, if that is a token that is believed.
    Jwt {
        /// Whose tokens are believed.
        verifier: Arc<Verifier>,
        /// Which claim.
        claim: String,
    },
    /// What the service itself knows of a request, such as the tenant that it has authenticated.
    Known(Known),
    /// The same value for every request.
    Fixed(String),
    /// The digest of a value, for what nobody should see.
    Hashed(Box<Source>),
    /// What another attribute is read from, by that attribute's name.
    Attribute {
        /// What policies call it.
        name: String,
        /// Where it is found.
        source: Box<Source>,
    },
    /// The first that has a value.
    FirstOf(Vec<Source>),
}

/// A function of a request's extensions and headers.
#[derive(Clone)]
pub struct Known(Arc<KnownBy>);

type KnownBy = dyn Fn(&Extensions, &HeaderMap) -> Option<String> + Send + Sync;

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Known")
    }
}

/// A header that a trusted proxy sets. From anybody else it is not read.
///
/// # Errors
/// When no header can have that name.
pub fn header(name: &str) -> Result<Source, InvalidHeaderName> {
    Ok(Source::Header { name: name.parse()?, set_by: SetBy::Proxy })
}

/// A header that whoever sends the request sets, and may forge.
///
/// # Errors
/// When no header can have that name.
pub fn header_of_client(name: &str) -> Result<Source, InvalidHeaderName> {
    Ok(Source::Header { name: name.parse()?, set_by: SetBy::Client })
}

/// What the service itself knows of a request, from what an outer layer put into its extensions.
pub fn known(by: impl Fn(&Extensions, &HeaderMap) -> Option<String> + Send + Sync + 'static) -> Source {
    Source::Known(Known(Arc::new(by)))
}

impl Source {
    /// Another one where this one has no value.
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

    /// The digest of the value; what is a digest stays as it is.
    #[must_use]
    pub fn hashed(self) -> Self {
        match self {
            Source::Credential | Source::Bearer | Source::Hashed(_) => self,
            plain => Source::Hashed(Box::new(plain)),
        }
    }

    /// The attributes that it is the first of, by their names, where every one of them has one.
    #[must_use]
    pub fn alternatives(&self) -> Option<Vec<&str>> {
        match self {
            Source::FirstOf(sources) => sources.iter().map(Source::attribute).collect(),
            Source::Hashed(inner) => inner.alternatives(),
            _ => None,
        }
    }

    /// The attribute that policies know its value by.
    fn attribute(&self) -> Option<&str> {
        match self {
            Source::Client => Some(CLIENT),
            Source::Credential => Some(IDENTITY),
            Source::Method => Some(BUILT_IN[METHOD_PLACE]),
            Source::Host => Some(BUILT_IN[HOST_PLACE]),
            Source::OfCaller(name) | Source::Attribute { name, .. } => Some(name),
            _ => None,
        }
    }

    /// How its values are kept.
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

    /// Whether it reads a header that servers may read a field as, and that is not the field itself.
    pub(super) fn reads(&self, meant: &str, field: &HeaderName) -> bool {
        match self {
            Source::Header { name, .. } => name != field && plain(name.as_str()) == meant,
            Source::Hashed(inner) | Source::Attribute { source: inner, .. } => inner.reads(meant, field),
            Source::FirstOf(all) => all.iter().any(|inner| inner.reads(meant, field)),
            _ => false,
        }
    }

    /// Where clients put its value, in the words of messages.
    fn place(&self) -> String {
        match self {
            Source::Header { name, .. } => name.to_string(),
            Source::Query(name) => format!("query parameter {name}"),
            Source::Cookie(name) => format!("cookie {name}"),
            _ => "a credential".to_owned(),
        }
    }

    /// The value, if the request has one. An empty value is none.
    ///
    /// # Errors
    /// When the request has several, or what it has is not text.
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
            Source::Known(Known(by)) => {
                subject.extensions.and_then(|extensions| by(extensions, subject.headers)).map(Cow::Owned)
            }
            Source::Fixed(value) => Some(Cow::Borrowed(value.as_str())),
            Source::Hashed(source) => {
                let secret = source.read(subject)?.filter(|value| !value.is_empty());
                if let Some(secret) = &secret {
                    one_spelling(|| source.place(), secret)?;
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

/// The first template that a path matches: as it is, else in its loose form.
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

/// The value of a header that may be there once. A second one is refused: proxies and servers disagree about which counts.
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

/// A value without what HTTP calls white space around it. Other spaces are part of it, as they are for every proxy.
fn bare(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

/// What stands for a secret.
fn digest(secret: &str) -> Cow<'static, str> {
    Cow::Owned(CredentialDigest::of(secret).to_string())
}
