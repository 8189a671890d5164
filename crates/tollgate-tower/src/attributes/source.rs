//! Where one attribute of a request comes from. Sources are values, so that a config file and a program compose the same ones.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::header::{AUTHORIZATION, COOKIE, HeaderName, HeaderValue, InvalidHeaderName};
use http::{Extensions, HeaderMap};
use tollgate::loose_path;

use super::host::Host;
use super::jwt::Verifier;
use super::path::PathMatch;
use super::query;
use super::template::Template;
use super::{Subject, Unreadable};
use crate::spelling::plain;

/// Hexadecimal digits that are kept of a hash: 128 bits.
const HASH_DIGITS: usize = 32;

/// Who may set a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetBy {
    /// A trusted proxy, which must set or remove it: from anybody else it is not read.
    #[default]
    Proxy,
    /// Whoever sends the request.
    Client,
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
    /// The credential, always as its hash: `X-API-Key`, else the bearer token.
    Credential,
    /// The bearer token, always as its hash.
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
    /// The hash of a value, for what nobody should see.
    Hashed(Box<Source>),
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

    /// The hash of the value.
    #[must_use]
    pub fn hashed(self) -> Self {
        Source::Hashed(Box::new(self))
    }

    /// Whether it reads a header that servers may read a field as, and that is not the field itself.
    pub(super) fn reads(&self, meant: &str, field: &HeaderName) -> bool {
        match self {
            Source::Header { name, .. } => name != field && plain(name.as_str()) == meant,
            Source::Hashed(inner) => inner.reads(meant, field),
            Source::FirstOf(all) => all.iter().any(|inner| inner.reads(meant, field)),
            _ => false,
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
            Source::Cookie(name) => cookie(subject.headers, name)?.map(Cow::Borrowed),
            Source::Path(templates) => {
                let path = subject.path.as_deref().unwrap_or_default();
                template(templates, path, subject.paths).map(|found| Cow::Borrowed(found.text()))
            }
            Source::Peer => subject.peer.map(|peer| Cow::Owned(peer.to_canonical().to_string())),
            Source::Client => subject.client.as_ref().map(|client| Cow::Owned(client.to_string())),
            Source::Method => subject.method.map(Cow::Borrowed),
            Source::Host => subject.host.clone().map(Host::into_name),
            Source::Credential => credential(subject.headers)?.map(|secret| Cow::Owned(hashed(secret))),
            Source::Bearer => bearer(subject.headers)?.map(|secret| Cow::Owned(hashed(secret))),
            Source::Jwt { verifier, claim } => {
                bearer(subject.headers)?.and_then(|token| verifier.claim(token, claim)).map(Cow::Owned)
            }
            Source::Known(Known(by)) => {
                subject.extensions.and_then(|extensions| by(extensions, subject.headers)).map(Cow::Owned)
            }
            Source::Fixed(value) => Some(Cow::Borrowed(value.as_str())),
            Source::Hashed(source) => source.read(subject)?.map(|value| Cow::Owned(hashed(&value))),
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

fn text<'h>(name: &str, value: &'h HeaderValue) -> Result<&'h str, Unreadable> {
    let text = std::str::from_utf8(value.as_bytes());
    text.map(bare).map_err(|_| Unreadable(format!("{name}: not text in UTF-8")))
}

/// A value without what HTTP calls white space around it. Other spaces are part of it, as they are for every proxy.
fn bare(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

pub(super) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The credential of a request: `X-API-Key`, else the bearer token.
pub(super) fn credential(headers: &HeaderMap) -> Result<Option<&str>, Unreadable> {
    let key = single(headers, &API_KEY)?.filter(|key| !key.is_empty());
    if key.is_some() {
        return Ok(key);
    }
    bearer(headers)
}

/// The bearer token.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Unreadable> {
    let token = single(headers, &AUTHORIZATION)?.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| bare(token))
    });
    Ok(token.filter(|token| !token.is_empty()))
}

/// What stands for a secret: the first half of its SHA-256, in hexadecimal digits. The same on every node and after every
/// restart, so that a policy can name it.
pub(super) fn hashed(secret: &str) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digest = ring::digest::digest(&ring::digest::SHA256, secret.as_bytes());
    let bytes = digest.as_ref().iter().take(HASH_DIGITS / 2);
    let digits = bytes.flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// The cookie of a name. Some servers take the first of several and some the last, so several that differ are nobody's identity.
fn cookie<'h>(headers: &'h HeaderMap, wanted: &str) -> Result<Option<&'h str>, Unreadable> {
    let mut found = None;
    for line in headers.get_all(COOKIE) {
        let pairs = text("cookie", line)?.split(';').filter_map(|pair| pair.split_once('='));
        for (_, value) in pairs.filter(|(name, _)| name.trim() == wanted) {
            let value = value.trim();
            if found.replace(value).is_some_and(|before| before != value) {
                let what = "given more than once, and not the same; send it once";
                return Err(Unreadable(format!("cookie {wanted}: {what}")));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash is the one that `sha256sum` prints, so an operator can name a key in a policy.
    #[test]
    fn hashes() {
        assert_eq!(hashed("abc"), "ba7816bf8f01cfea414140de5dae2223");
        assert_eq!(hashed(""), "e3b0c44298fc1c149afbf4c8996fb924");
    }

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        lines.iter().map(line).collect()
    }

    /// The key, else the token; never two.
    #[test]
    fn credentials() {
        let read = |lines: &[(&'static str, &'static str)]| {
            credential(&headers(lines)).map(|found| found.map(str::to_owned))
        };
        assert_eq!(read(&[("x-api-key", " k1 "), ("authorization", "Bearer t1")]), Ok(Some("k1".into())));
        assert_eq!(read(&[("x-api-key", ""), ("authorization", "bearer  t1")]), Ok(Some("t1".into())));
        assert_eq!(read(&[("authorization", "bEaReR \tt1")]), Ok(Some("t1".into())));
        assert_eq!(read(&[("authorization", "Bearer\tt1")]), Ok(None));
        assert_eq!(read(&[("authorization", "Basic abc")]), Ok(None));
        assert_eq!(read(&[("authorization", "Bearer ")]), Ok(None));
        assert_eq!(read(&[]), Ok(None));
        assert!(read(&[("x-api-key", "a"), ("x-api-key", "b")]).is_err());
    }

    /// The cookie of the name, whichever line it is on and whatever spaces are around it; not one of several that differ.
    #[test]
    fn cookies() {
        let read = |lines: &[&'static str]| {
            let lines: Vec<_> = lines.iter().map(|line| ("cookie", *line)).collect();
            cookie(&headers(&lines), "session").map(|found| found.map(str::to_owned))
        };
        assert_eq!(read(&["a=1; session=x=y"]), Ok(Some("x=y".to_owned())));
        assert_eq!(read(&["a=1", "session = x ; b=2"]), Ok(Some("x".to_owned())));
        assert_eq!(read(&["session=x; session=x", "session=x"]), Ok(Some("x".to_owned())));
        assert_eq!(read(&["sess=1; SESSION=2; session"]), Ok(None));
        for several in [&["session=random; session=real"][..], &["session=1", "session =2"]] {
            assert!(read(several).is_err(), "{several:?}");
        }
    }
}
