//! A request as it arrived: whether the gateway accepts it, and the one spelling in which it is matched, counted and
//! sent on.

use std::net::IpAddr;

use http::header::{COOKIE, HOST, HeaderValue};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{Method, Uri, Version};
use tollgate::request::VALUE_BYTES_MAX;
use tollgate_tower::attributes::address::Trusted;
use tollgate_tower::attributes::{Needs, Reader};
use tollgate_tower::spelling::{self, MethodOverride, Unless};

use crate::field_rules::{FORWARDED_FOR, FieldRules, HeaderNames};
use crate::http1::framing::{FIELDS_MAX, Flaw};
use crate::listen::AddressLimit;
use crate::problem::{Kind, Problem};
use crate::websocket;

/// Longest path with its query.
const TARGET_BYTES_MAX: usize = 8 << 10;
/// Largest sum of the lengths of all field names and values.
const FIELDS_BYTES_MAX: usize = 16 << 10;
/// The methods that `Allow` lists. All others but two are sent on as well.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// The other end of a connection, and whether the connection is encrypted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    pub(crate) is_secure: bool,
}

/// Facts about a request that are not in its head. They travel in the request's extensions.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) peer: Peer,
    /// The client behind the peer.
    pub(crate) client: IpAddr,
    /// Whether the peer is a proxy whose forwarding fields are trusted.
    pub(crate) is_trusted: bool,
    /// The host name, with its port if that is not the default.
    pub(crate) host: String,
    /// Values of the attributes that routes choose an upstream by, so that one client always gets the same one; by
    /// attribute name.
    pub(crate) keys: Vec<(String, String)>,
    pub(crate) version: Version,
}

/// How the gateway reads requests, from the config.
#[derive(Clone, Debug)]
pub struct RequestSettings {
    /// Which attributes requests have, and which proxies are trusted.
    pub reader: Reader,
    /// Which header names pass.
    pub header_names: HeaderNames,
    /// Maximum connections from one address, if the config sets it.
    pub connections_per_address: Option<u32>,
}

impl RequestSettings {
    /// The limits on connections from one address.
    #[must_use]
    pub fn bound(&self) -> AddressLimit {
        AddressLimit {
            most: self.connections_per_address,
            trusted: self.reader.trusted.clone(),
            ipv6_prefix: self.reader.ipv6_prefix,
        }
    }
}

impl Default for RequestSettings {
    /// By default no proxy is trusted, because any client may reach a gateway.
    fn default() -> Self {
        let reader = Reader { trusted: Trusted::new(Vec::new()), ..Reader::default() };
        Self { reader, header_names: HeaderNames::default(), connections_per_address: None }
    }
}

/// How requests are read.
pub(crate) struct ReadSettings {
    pub(crate) reader: Reader,
    pub(crate) fields: FieldRules,
    /// The attributes by which routes choose an upstream.
    sticky: Vec<String>,
    /// Those attributes, and the ones that are sent on.
    needs: Needs,
}

impl ReadSettings {
    pub(crate) fn new(taking: RequestSettings, sticky: &[String]) -> Self {
        let RequestSettings { reader, header_names, .. } = taking;
        let is_needed = |name: &str| matches!(name, "host" | "path") || sticky.iter().any(|key| key == name);
        let fields = FieldRules::new(&reader, header_names);
        Self { needs: Needs::of(&reader, is_needed), sticky: sticky.to_vec(), reader, fields }
    }
}

/// Rewrites a request into its one spelling, and returns what is known about it.
///
/// # Errors
/// When the gateway does not accept the request. Nothing of it is sent on.
pub(crate) fn arrive(request: &mut Parts, peer: Peer, reading: &ReadSettings) -> Result<Arrival, Problem> {
    let ReadSettings { reader, sticky, needs, .. } = reading;
    websocket::turn(request)?;
    acceptable(request, reader.method_override)?;
    let attributes = reader.of_request_for(Some(peer.address), request, *needs);
    let attributes = attributes.map_err(|error| Problem::invalid(error.to_string()))?;
    let host = attributes.host_and_port().map(str::to_owned);
    let path = attributes.get("path");
    if let Some(path) = path.filter(|path| path.len() > VALUE_BYTES_MAX) {
        let detail = format!("the path has {} bytes; accepted: {VALUE_BYTES_MAX}", path.len());
        return Err(Problem::new(Kind::TargetTooLong, detail));
    }
    // Nearly all requests arrive in their one spelling, and stay as they are.
    let is_rewritten = path != Some(request.uri.path()) || request.uri.authority().is_some();
    let path = path.filter(|_| is_rewritten).map(str::to_owned);
    let keys = sticky.iter().filter_map(|name| Some((name.clone(), attributes.get(name)?.to_owned())));
    let keys = keys.collect();
    drop(attributes);
    // Limits and the upstream must see the same host, so each request names one. In HTTP/1.1 a host in the target does
    // not replace `Host`.
    let is_named = |_: &String| request.version != Version::HTTP_11 || request.headers.contains_key(HOST);
    let Some(host) = host.filter(is_named) else {
        return Err(Problem::invalid("host: missing; accepted: one, and only one"));
    };
    let forwarded = request.headers.get_all(FORWARDED_FOR).iter();
    let lines: Vec<&[u8]> = forwarded.map(HeaderValue::as_bytes).collect();
    let arrival = Arrival {
        peer,
        client: reader.trusted.client(peer.address, lines.into_iter()),
        is_trusted: reader.trusted.contains(peer.address),
        host,
        keys,
        version: request.version,
    };
    rewrite(request, &arrival.host, path.as_deref())?;
    Ok(arrival)
}

/// Checks what is refused on every route.
fn acceptable(request: &Parts, method_override: MethodOverride) -> Result<(), Problem> {
    let is_let = |unless| match unless {
        Unless::MethodOverrideKept => method_override == MethodOverride::Keep,
    };
    if let Some((_, status, reason)) = spelling::refused(request, is_let) {
        return Err(match status {
            417 => Problem::new(Kind::ExpectationFailed, reason),
            508 => Problem::new(Kind::Loop, reason),
            _ => Problem::invalid(reason),
        });
    }
    if matches!(request.method, Method::CONNECT | Method::TRACE) {
        let detail = format!("{} is not forwarded; ask the server itself", request.method);
        return Err(Problem::new(Kind::MethodNotAllowed(METHODS), detail));
    }
    let Some(target) = request.uri.path_and_query() else {
        return Err(Problem::invalid(
            "the target is a host and a port, which is for CONNECT alone; send a path",
        ));
    };
    if target.as_str() == "*" && request.method != Method::OPTIONS {
        return Err(Problem::invalid("the target is *, which is for OPTIONS alone; send a path"));
    }
    let target = target.as_str().len();
    if target > TARGET_BYTES_MAX {
        let detail = format!("the path and its query have {target} bytes; accepted: {TARGET_BYTES_MAX}");
        return Err(Problem::new(Kind::TargetTooLong, detail));
    }
    let fields = request.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    let bytes: usize = fields.sum();
    if bytes > FIELDS_BYTES_MAX {
        let detail = format!("the header fields have {bytes} bytes; accepted: {FIELDS_BYTES_MAX}");
        return Err(Problem::new(Kind::FieldsTooLarge, detail));
    }
    if field_count(request) > FIELDS_MAX {
        return Err(Problem::new(Kind::FieldsTooLarge, Flaw::TooLarge.text()));
    }
    Ok(())
}

/// How many fields a request has in HTTP/1. HTTP/2 names its host beside the fields, and may split its cookies into
/// several.
fn field_count(request: &Parts) -> usize {
    let host = usize::from(request.uri.authority().is_some() && !request.headers.contains_key(HOST));
    let cookies = request.headers.get_all(COOKIE).iter().count();
    request.headers.len() + host - cookies.saturating_sub(1)
}

/// Writes the one spelling into the request, so that all later readers see exactly what is sent on.
fn rewrite(request: &mut Parts, host: &str, path: Option<&str>) -> Result<(), Problem> {
    let unsendable = |_| Problem::invalid("the target cannot be sent on in its one spelling");
    if let Some(path) = path {
        let query = request.uri.query();
        let target = query.map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
        let target = PathAndQuery::try_from(target).map_err(unsendable)?;
        request.uri = Uri::from(target);
    }
    // The host must also be valid in a request target.
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    if host.is_empty() || !host.bytes().all(is_name) {
        Authority::try_from(host).map_err(unsendable)?;
    }
    if request.headers.get(HOST).is_none_or(|named| named != host) {
        let value = HeaderValue::from_str(host);
        let value = value.map_err(|_| Problem::invalid("host: not a name and a port"))?;
        request.headers.insert(HOST, value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn arrived(request: http::request::Builder) -> Result<(String, String), u16> {
        let (mut request, ()) = request.body(()).unwrap().into_parts();
        let peer = Peer { address: "203.0.113.9".parse().unwrap(), is_secure: false };
        arrive(&mut request, peer, &ReadSettings::new(RequestSettings::default(), &[]))
            .map_err(|problem| problem.kind.problem_type().status)?;
        let host = request.headers.get(HOST).map(|host| host.to_str().unwrap().to_owned());
        Ok((request.uri.to_string(), host.unwrap_or_default()))
    }

    /// All spellings of a request are sent on as one.
    #[test]
    fn one_spelling() {
        let get = |target: &str, host: &str| arrived(Request::get(target).header("host", host));
        let arrives_as = |target: &str, host: &str| Ok((target.to_owned(), host.to_owned()));
        assert_eq!(
            get("/a/./b/../%63?q=%2F..", "Example.COM.:443"),
            arrives_as("/a/c?q=%2F..", "example.com")
        );
        assert_eq!(get("http://example.com/x", "EXAMPLE.com"), arrives_as("/x", "example.com"));
        assert_eq!(get("http://example.com", "example.com"), arrives_as("/", "example.com"));
        assert_eq!(get("http://other.test/x", "example.com"), Err(400));
        assert_eq!(get("/", "Example.com.:08443"), arrives_as("/", "example.com:8443"));
        assert_eq!(get("/", "example.com:"), arrives_as("/", "example.com"));
        assert_eq!(get("/", "[0:0::1]:080"), arrives_as("/", "[::1]"));
        assert_eq!(get("http://example.com:8443/", "example.com"), Err(400));
        for host in ["user@example.com", "example.com..", "a;b", "a:abc", "a:99999", "a:0", "[::1]x", "."] {
            assert_eq!(get("/", host), Err(400), "{host}");
        }
        for path in ["/a%2fb", "/x/..;/login", "/%2e;x"] {
            assert_eq!(get(path, "example.com"), Err(400), "{path}");
        }
        assert_eq!(arrived(Request::get("/")), Err(400));
        for version in [Version::HTTP_10, Version::HTTP_2] {
            assert_eq!(arrived(Request::get("/").version(version)), Err(400), "{version:?}");
            assert_eq!(
                arrived(Request::get("/").version(version).header("host", "")),
                Err(400),
                "{version:?}"
            );
            let named = Request::get("/").version(version).header("host", "a");
            assert_eq!(arrived(named), arrives_as("/", "a"), "{version:?}");
        }
        assert_eq!(arrived(Request::get("http://a/x")), Err(400));
        assert_eq!(arrived(Request::get("http://a/x").version(Version::HTTP_2)), arrives_as("/x", "a"));
        let twice = Request::get("/").header("host", "a").header("host", "a");
        assert_eq!(arrived(twice), Err(400));
    }

    /// The gateway is no open proxy, reflects nothing, and refuses oversized requests.
    #[test]
    fn refusals() {
        let with = |method: &str, target: &str| {
            arrived(Request::builder().method(method).uri(target).header("host", "a.test"))
        };
        assert_eq!(with("CONNECT", "169.254.169.254:80"), Err(405));
        assert_eq!(with("TRACE", "/"), Err(405));
        assert_eq!(with("get", "/"), Err(400));
        assert_eq!(with("PURGE", "/"), Ok(("/".to_owned(), "a.test".to_owned())));
        assert_eq!(with("GET", "*"), Err(400));
        assert_eq!(with("GET", "a.test:80"), Err(400));
        assert_eq!(with("OPTIONS", "*"), Ok(("*".to_owned(), "a.test".to_owned())));
        let over_h2 =
            |method| Request::builder().method(method).uri("*").version(Version::HTTP_2).header("host", "a");
        assert_eq!(arrived(over_h2("DELETE")), Err(400));
        assert_eq!(with("GET", &format!("/{}", "a".repeat(8 << 10))), Err(414));
        let large = Request::get("/").header("host", "a.test").header("x", "a".repeat(17 << 10));
        assert_eq!(arrived(large), Err(431));
        // HTTP/2 once accepted any number of fields. Its host counts as one field, and all of its cookies together as
        // one.
        let many = |names: usize, cookies: usize| {
            let request = Request::get("http://a.test/").version(Version::HTTP_2);
            let named =
                (0..names).fold(request, |request, number| request.header(format!("x-{number}"), "y"));
            arrived(
                (0..cookies).fold(named, |request, number| request.header("cookie", format!("c{number}=1"))),
            )
        };
        assert!(many(99, 0).is_ok() && many(98, 200).is_ok());
        assert_eq!((many(100, 0), many(99, 1)), (Err(431), Err(431)));
        let expects = Request::get("/").header("host", "a.test").header("expect", "miracles");
        assert_eq!(arrived(expects), Err(417));
        let via = |via: &[u8]| arrived(Request::get("/").header("host", "a.test").header("via", via));
        for hop in ["1.1 tollgate, ", "1.1 tollgate (x, y), ", "1.1 Tollgate(, ", "2 tollgate;"] {
            assert_eq!(via(hop.repeat(5).as_bytes()), Err(508), "{hop}");
            assert!(via(hop.repeat(4).as_bytes()).is_ok(), "{hop}");
        }
        // An entry that is not text does not hide the others, and a name that only contains ours does not count.
        assert_eq!(via(&[b"\xff, 1.1 x (", "1.1 tollgate, ".repeat(5).as_bytes()].concat()), Err(508));
        assert!(via("1.1 nottollgate, 1.1 tollgate2, ".repeat(5).as_bytes()).is_ok());
    }
}
