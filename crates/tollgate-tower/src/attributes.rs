//! Reads the attributes of an HTTP request: who sent it, what it asks for, and what the config maps. It uses `http` types
//! and no server. Only this module decides what a peer is trusted with.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::{HOST, HeaderName};
use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Uri};
use tollgate::CredentialDigest;
use tollgate::path::loose_path;

pub mod address;
pub mod callers;
mod cookie;
pub mod credential;
mod derived;
pub mod host;
pub mod jwt;
pub(crate) mod needs;
pub mod path;
pub(crate) mod query;
pub mod source;
mod spelled;
pub mod template;
mod text;
mod token;
pub(crate) mod values;

pub use needs::Needs;
pub use spelled::Spelled;
pub use values::Attributes;

use address::{Counted, IPV6_PREFIX_DEFAULT, Trusted};
use callers::{ActiveCallers, Caller};
use credential::Credentials;
use host::Host;
use path::{EscapedSlashes, PathMatch, normalise};
use source::{Source, single};
use text::{Short, Text};
use values::OtherSpelling;

use self::query::Query;
use crate::spelling::parameter::is_named;
use crate::spelling::{self, METHOD_PARAMETER, MethodOverride, Treatment, treatment};

/// Built-in attributes. The config maps others in addition.
pub const BUILT_IN: [&str; 5] = ["ip", "method", "host", "path", "api_key"];
const IP_INDEX: usize = 0;
/// The attribute of the client's address.
pub(crate) const CLIENT: &str = BUILT_IN[IP_INDEX];
const METHOD_INDEX: usize = 1;
const HOST_INDEX: usize = 2;
const PATH_INDEX: usize = 3;
const API_KEY_INDEX: usize = 4;
/// The attribute of a caller with an identity.
pub const IDENTITY: &str = BUILT_IN[API_KEY_INDEX];
/// Most attributes that a config may map. With the built-in ones, they are fewer than a check request may have.
pub const MAPPED_MAX: usize = 32;

/// The `ip` of all requests without a peer address, such as those over a Unix socket. They count as one client.
pub const NO_ADDRESS: &str = "none";

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Why the attributes of a request cannot be read. The text says what would be accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(pub(crate) String);

/// The headers with which a proxy describes the request that it asks about. The configuration selects the family, never the
/// request: a proxy that sets one family passes on what a client puts into the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// `X-Forwarded-Method`, `-Host` and `-Uri`, as Traefik and Caddy send them.
    #[default]
    Forwarded,
    /// `X-Original-Method`, `-Host` and `-URI`, as nginx is configured to send them.
    Original,
}

impl Family {
    const fn names(self) -> [HeaderName; 3] {
        match self {
            Family::Forwarded => [
                HeaderName::from_static("x-forwarded-method"),
                HeaderName::from_static("x-forwarded-host"),
                HeaderName::from_static("x-forwarded-uri"),
            ],
            Family::Original => [
                HeaderName::from_static("x-original-method"),
                HeaderName::from_static("x-original-host"),
                HeaderName::from_static("x-original-uri"),
            ],
        }
    }
}

/// One attribute that the config maps.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// Its name in policies.
    pub name: String,
    /// Where it is read from.
    pub source: Source,
}

/// How attributes are read.
#[derive(Clone, Debug)]
pub struct Reader {
    /// The trusted proxies.
    pub trusted: Trusted,
    /// Number of leading bits of an IPv6 address that the policy sees. By default it sees all of them, and limits count 64.
    pub ipv6_prefix: u8,
    /// How an escaped slash in a path is read.
    pub slashes: EscapedSlashes,
    /// How paths are compared with those of limits and templates.
    pub paths: PathMatch,
    /// The treatment of a request that overrides its own method.
    pub method_override: MethodOverride,
    /// Where the service looks for the credential of a request. Its digest is the attribute `api_key`.
    pub credentials: Credentials,
    /// The registered credentials. Without them every credential is an identity.
    pub callers: Option<ActiveCallers>,
    /// The attributes in addition to [`BUILT_IN`].
    pub mapped: Vec<Mapped>,
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            trusted: Trusted::default(),
            ipv6_prefix: IPV6_PREFIX_DEFAULT,
            slashes: EscapedSlashes::default(),
            paths: PathMatch::default(),
            method_override: MethodOverride::default(),
            credentials: Credentials::default(),
            callers: None,
            mapped: Vec::new(),
        }
    }
}

/// The request that attributes are read from.
#[derive(Debug)]
pub(super) struct Subject<'s> {
    /// The peer address; `None` for a Unix socket.
    peer: Option<IpAddr>,
    client: Option<Counted>,
    method: Option<&'s str>,
    host: Option<Host<'s>>,
    path: Option<Cow<'s, str>>,
    paths: PathMatch,
    query: Query<'s>,
    headers: &'s HeaderMap,
    credentials: &'s Credentials,
    callers: Option<&'s ActiveCallers>,
    /// The caller, after the first lookup.
    identified: OnceCell<Identified>,
    /// The extensions of other layers; `None` for a request that a proxy describes.
    extensions: Option<&'s Extensions>,
    /// Whether the headers come from a trusted proxy.
    is_vouched: bool,
}

/// The caller of a request, by its credential. Both are `None` for an anonymous one.
#[derive(Clone, Debug, Default)]
pub(super) struct Identified {
    pub(super) digest: Option<CredentialDigest>,
    pub(super) caller: Option<Arc<Caller>>,
}

impl Reader {
    /// The attributes of a request that a proxy holds and asks about. An untrusted peer cannot describe another request, so
    /// the attributes are those of its own request.
    ///
    /// # Errors
    /// A value is given twice, or servers may read it differently.
    pub fn of_held<'s>(
        &'s self,
        peer: IpAddr,
        (method, uri, headers): (&'s Method, &'s Uri, &'s HeaderMap),
        family: Family,
    ) -> Result<Attributes<'s>, Unreadable> {
        let (peer, rest) = (Some(peer), (headers, None));
        self.undisguised(headers)?;
        if !self.trusts(peer) {
            let target = uri.path_and_query().map_or("/", |target| target.as_str());
            let host = single(headers, &HOST)?;
            let line = (Some(method.as_str()), host, Some(target));
            return self.all(self.held(peer, rest, line)?);
        }
        let [method, host, target] = family.names().map(|name| single(headers, &name));
        let (method, host, target) = (method?, host?.filter(|host| !host.is_empty()), target?);
        // A proxy that sends on an absolute target lets the service choose between two hosts, as a client of a gateway would.
        let host = one_host(target.and_then(absolute).map(|(authority, _)| authority), host)?;
        self.all(self.held(peer, rest, (method, host, target))?)
    }

    /// The subject of a request that another program holds. A method override is refused, because this process cannot
    /// remove it from the request.
    fn held<'s>(
        &'s self,
        peer: Option<IpAddr>,
        rest: (&'s HeaderMap, Option<&'s Extensions>),
        line: (Option<&'s str>, Option<&'s str>, Option<&'s str>),
    ) -> Result<Subject<'s>, Unreadable> {
        let subject = self.subject(peer, rest, line, Needs::ALL)?;
        if self.method_override == MethodOverride::Drop
            && let Some(asks) = overriding(&subject)
        {
            let accepted = "the method itself, or `method_override: keep` in the config";
            return Err(Unreadable(format!("{asks}: it asks for another method; accepted: {accepted}")));
        }
        Ok(subject)
    }

    /// Refuses a field that the service may read as one that attributes are read from. Only the proxy could remove it.
    fn undisguised(&self, headers: &HeaderMap) -> Result<(), Unreadable> {
        let odd = headers.keys().filter(|name| !spelling::is_plain(name.as_str()));
        for name in odd {
            let meant = spelling::plain(name.as_str());
            let is_read = |mapped: &Mapped| mapped.source.reads(&meant, name);
            if self.credentials.reads(&meant, name) || self.mapped.iter().any(is_read) {
                return Err(Unreadable(format!(
                    "{name}: some servers read it as {meant}; accepted: {meant}, or none if the proxy drops it"
                )));
            }
        }
        Ok(())
    }

    fn all<'s>(&'s self, subject: Subject<'s>) -> Result<Attributes<'s>, Unreadable> {
        let mut attributes = Attributes::default();
        self.read(subject, Needs::ALL, &mut attributes)?;
        Ok(attributes)
    }

    /// Whether a peer is trusted to name the client of a request.
    #[must_use]
    pub fn trusts(&self, peer: Option<IpAddr>) -> bool {
        peer.is_some_and(|peer| self.trusted.contains(peer))
    }

    /// The attributes of a request that has arrived here. A trusted proxy names the client; the request line and the host
    /// are those of the request. All requests without a peer address count as one client.
    ///
    /// # Errors
    /// A value is given twice, or servers may read it differently.
    pub fn of_request<'s>(
        &'s self,
        peer: Option<IpAddr>,
        parts: &'s Parts,
    ) -> Result<Attributes<'s>, Unreadable> {
        self.of_request_for(peer, parts, Needs::ALL)
    }

    /// The needed attributes of a request that has arrived here.
    ///
    /// # Errors
    /// As for [`Reader::of_request`], but only for needed attributes.
    pub fn of_request_for<'s>(
        &'s self,
        peer: Option<IpAddr>,
        parts: &'s Parts,
        needs: Needs,
    ) -> Result<Attributes<'s>, Unreadable> {
        let mut attributes = Attributes::default();
        self.read_request(peer, parts, needs, &mut attributes)?;
        Ok(attributes)
    }

    /// Reads the needed attributes in place, because each move of the large struct would copy it.
    #[inline]
    pub(crate) fn read_request<'s>(
        &'s self,
        peer: Option<IpAddr>,
        parts: &'s Parts,
        needs: Needs,
        attributes: &mut Attributes<'s>,
    ) -> Result<(), Unreadable> {
        if needs.is_only(IP_INDEX) {
            attributes.ip(peer.map(|peer| self.client(peer, &parts.headers)).as_ref());
            return Ok(());
        }
        self.read_all(peer, parts, needs, attributes)
    }

    /// Whether a request has an identity: a credential that becomes [`IDENTITY`].
    #[must_use]
    pub fn identifies(&self, parts: &Parts) -> bool {
        let mut attributes = Attributes::default();
        let needs = Needs::of(self, |name| name == IDENTITY);
        let read = self.read_request(crate::peer::of(&parts.extensions), parts, needs, &mut attributes);
        read.is_ok() && attributes.get(IDENTITY).is_some()
    }

    fn read_all<'s>(
        &'s self,
        peer: Option<IpAddr>,
        parts: &'s Parts,
        needs: Needs,
        attributes: &mut Attributes<'s>,
    ) -> Result<(), Unreadable> {
        let Parts { method, uri, headers, extensions, .. } = parts;
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let host =
            if needs.built_in(HOST_INDEX) || needs.any_mapped() { own_host(uri, headers)? } else { None };
        let line = (Some(method.as_str()), host, Some(target));
        self.read(self.subject(peer, (headers, Some(extensions)), line, needs)?, needs, attributes)
    }

    /// The client of a request from this peer.
    #[inline]
    fn client(&self, peer: IpAddr, headers: &HeaderMap) -> Counted {
        let address = if self.trusted.contains(peer) {
            let lines = headers.get_all(FORWARDED_FOR).iter().map(|line| line.as_bytes());
            self.trusted.client(peer, lines)
        } else {
            peer
        };
        Counted { address, ipv6_prefix: self.ipv6_prefix }
    }

    /// The subject, with the request line in its normalised spelling.
    fn subject<'s>(
        &'s self,
        peer: Option<IpAddr>,
        (headers, extensions): (&'s HeaderMap, Option<&'s Extensions>),
        (method, host, target): (Option<&'s str>, Option<&'s str>, Option<&'s str>),
        needs: Needs,
    ) -> Result<Subject<'s>, Unreadable> {
        // A mapped attribute may use any part.
        let wants = |index| needs.built_in(index) || needs.any_mapped();
        let client = peer.filter(|_| wants(IP_INDEX)).map(|peer| self.client(peer, headers));
        let (path, query) = target.map_or((None, ""), split);
        let query = Query::of(path, query);
        let path = path.filter(|_| wants(PATH_INDEX));
        let normal = |path| normalise(path, self.slashes);
        let path = path.map(normal).transpose().map_err(|problem| Unreadable(format!("path: {problem}")))?;
        let method = method.filter(|method| wants(METHOD_INDEX) && !method.is_empty());
        if method.is_some_and(|method| !spelling::is_method(method)) {
            return Err(Unreadable(spelling::METHOD_ACCEPTED.to_owned()));
        }
        Ok(Subject {
            peer,
            client,
            method,
            host: host.filter(|host| !host.is_empty()).map(host_of).transpose()?,
            path,
            paths: self.paths,
            query,
            headers,
            credentials: &self.credentials,
            callers: self.callers.as_ref(),
            identified: OnceCell::new(),
            extensions,
            is_vouched: needs.any_mapped() && self.trusts(peer),
        })
    }

    fn read<'s>(
        &'s self,
        subject: Subject<'s>,
        needs: Needs,
        attributes: &mut Attributes<'s>,
    ) -> Result<(), Unreadable> {
        if needs.built_in(IP_INDEX) {
            attributes.ip(subject.client.as_ref());
        }
        if needs.any_mapped() {
            let wanted = self.mapped.iter().enumerate().filter(|(index, _)| needs.mapped(*index));
            // A request cannot set an attribute that the callers file gives.
            let is_given = |name: &str| self.callers.as_ref().is_some_and(|callers| callers.gives(name));
            for (_, mapped) in wanted.filter(|(_, mapped)| !is_given(&mapped.name)) {
                if let Some(value) = mapped.source.read(&subject)? {
                    attributes.push(mapped.name.as_str(), value.into());
                }
            }
        }
        if needs.built_in(API_KEY_INDEX)
            && !self.mapped.iter().any(|mapped| mapped.name == BUILT_IN[API_KEY_INDEX])
        {
            let Identified { digest, caller } = subject.identified()?;
            if let Some(digest) = digest {
                attributes.push(BUILT_IN[API_KEY_INDEX], Text::Short(Short::digest(digest)));
            }
            attributes.caller.clone_from(caller);
        }
        subject.write_line(needs, attributes);
        Ok(())
    }
}

impl<'s> Subject<'s> {
    /// The caller. With a callers file, only a registered credential is an identity.
    fn identified(&self) -> Result<&Identified, Unreadable> {
        if let Some(identified) = self.identified.get() {
            return Ok(identified);
        }
        let credential = self.credentials.read(self.headers, self.query)?;
        let digest = credential.map(|credential| CredentialDigest::of(&credential));
        let identified = match (digest, self.callers) {
            (Some(digest), Some(callers)) => {
                let caller = callers.find(&digest);
                Identified { digest: caller.is_some().then_some(digest), caller }
            }
            (digest, _) => Identified { digest, caller: None },
        };
        Ok(self.identified.get_or_init(|| identified))
    }

    /// Adds the method, the host and the path.
    fn write_line(self, needs: Needs, attributes: &mut Attributes<'s>) {
        if let Some(method) = self.method.filter(|_| needs.built_in(METHOD_INDEX)) {
            attributes.push(BUILT_IN[METHOD_INDEX], Text::Borrowed(method));
        }
        match self.host.filter(|_| needs.built_in(HOST_INDEX)) {
            Some(host) if host.has_port() => {
                let with_port = OtherSpelling::WithPort(host.as_text());
                attributes.push_spelled(BUILT_IN[HOST_INDEX], host.into_name().into(), with_port);
            }
            Some(host) => attributes.push(BUILT_IN[HOST_INDEX], host.into_name().into()),
            None => {}
        }
        let Some(path) = self.path.filter(|_| needs.built_in(PATH_INDEX)) else { return };
        match self.paths {
            PathMatch::Exact => {
                attributes.push_spelled(BUILT_IN[PATH_INDEX], path.into(), OtherSpelling::Itself);
            }
            PathMatch::Loose => {
                let other = match loose_path(&path) {
                    Cow::Borrowed(_) => OtherSpelling::LooseItself,
                    Cow::Owned(loose) => OtherSpelling::Loose(loose),
                };
                attributes.push_spelled(BUILT_IN[PATH_INDEX], path.into(), other);
            }
        }
    }
}

/// The header or parameter that overrides the method of the request, if there is one.
fn overriding<'s>(subject: &Subject<'s>) -> Option<&'s str> {
    let is_override = |name: &&str| treatment(&spelling::plain(name)) == Some(Treatment::MethodOverride);
    let field = subject.headers.keys().map(HeaderName::as_str).find(is_override);
    let is_posted = subject.method.is_some_and(|method| method == Method::POST.as_str());
    let parameter =
        || (is_posted && is_named(subject.query.text, METHOD_PARAMETER)).then_some(METHOD_PARAMETER);
    field.or_else(parameter)
}

/// The host of a request, from its target or its header. Two different ones are refused: limits would count one of them, and
/// the service might serve the other.
fn own_host<'s>(uri: &'s Uri, headers: &'s HeaderMap) -> Result<Option<&'s str>, Unreadable> {
    let header = single(headers, &HOST)?.filter(|host| !host.is_empty());
    one_host(uri.authority().map(http::uri::Authority::as_str), header)
}

fn one_host<'s>(authority: Option<&'s str>, header: Option<&'s str>) -> Result<Option<&'s str>, Unreadable> {
    let Some(authority) = authority else { return Ok(header) };
    match header {
        Some(header) if host_of(header)? != host_of(authority)? => {
            Err(Unreadable("host: the target and the header name different ones; send one".to_owned()))
        }
        _ => host_of(authority).map(|_| Some(authority)),
    }
}

fn host_of(text: &str) -> Result<Host<'_>, Unreadable> {
    Host::parse(text).map_err(|problem| Unreadable(format!("host: {problem}")))
}

/// The path and the query of a target. The target `*` of OPTIONS has no path.
fn split(target: &str) -> (Option<&str>, &str) {
    if target == "*" || target.is_empty() {
        return (None, "");
    }
    let target = target.split('#').next().unwrap_or_default();
    // An absolute target begins with its server.
    let target = absolute(target).map_or(target, |(_, path)| path);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    (Some(if path.is_empty() { "/" } else { path }), query)
}

/// The server that an absolute target begins with, and the rest of it.
fn absolute(target: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = target.split_once("://")?;
    let is_known = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    is_known.then(|| rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len())))
}

/// Entry points for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    use super::path::{EscapedSlashes, normalise};
    use super::{Family, HeaderMap, HeaderName, Method, Reader, Uri};

    /// The normalised spelling of a path, with one of three settings for escaped slashes.
    #[must_use]
    pub fn path(text: &str, slashes: u8) -> Option<String> {
        let slashes = match slashes {
            0 => EscapedSlashes::Reject,
            1 => EscapedSlashes::Keep,
            _ => EscapedSlashes::Decode,
        };
        normalise(text, slashes).ok().map(std::borrow::Cow::into_owned)
    }

    /// The attributes of a request that a peer describes, with these values of the headers that proxies set.
    #[must_use]
    pub fn held(peer: &str, values: &[&[u8]]) -> Option<Vec<(String, String)>> {
        const NAMES: [&str; 7] = [
            "x-forwarded-for",
            "x-forwarded-uri",
            "x-forwarded-host",
            "x-forwarded-method",
            "x-api-key",
            "authorization",
            "cookie",
        ];
        let mut headers = HeaderMap::new();
        for (name, value) in NAMES.iter().zip(values) {
            headers.insert(HeaderName::from_static(name), http::HeaderValue::from_bytes(value).ok()?);
        }
        let (reader, uri) = (Reader::default(), Uri::from_static("/v1/authz"));
        let request = (&Method::GET, &uri, &headers);
        let attributes = reader.of_held(peer.parse().ok()?, request, Family::Forwarded).ok()?;
        Some(attributes.pairs().collect())
    }
}

#[cfg(test)]
mod tests;
