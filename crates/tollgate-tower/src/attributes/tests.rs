//! Which peer is trusted with which attributes.

use std::collections::BTreeMap;

use http::HeaderValue;

use super::address::Network;
use super::source::SetBy;
use super::template::Template;
use super::*;

const PROXY: &str = "127.0.0.1";
const STRANGER: &str = "198.51.100.9";

fn read(
    reader: &Reader,
    peer: &str,
    lines: &[(&'static str, &str)],
    family: Family,
) -> Result<BTreeMap<String, String>, Unreadable> {
    let lines = lines.iter().map(|(name, value)| {
        (HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap())
    });
    let headers: HeaderMap = lines.collect();
    let (method, uri) = (Method::PUT, Uri::from_static("/v1/authz?v=9"));
    let attributes = reader.of_held(peer.parse().unwrap(), (&method, &uri, &headers), family)?;
    Ok(attributes.pairs().collect())
}

fn expected(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

const FORWARDED: [(&str, &str); 5] = [
    ("x-forwarded-for", "203.0.113.7"),
    ("x-forwarded-method", "POST"),
    ("x-forwarded-host", "API.Example.com:443"),
    ("x-forwarded-uri", "/a//b?x=1"),
    ("x-api-key", "abc"),
];

/// The attributes are normalised, and the key is hashed.
#[test]
fn a_trusted_proxy_describes_its_request() {
    let read = read(&Reader::default(), PROXY, &FORWARDED, Family::Forwarded);
    let pairs = [
        ("ip", "203.0.113.7"),
        ("method", "POST"),
        ("host", "api.example.com"),
        ("path", "/a/b"),
        ("api_key", "sha256:ba7816bf8f01cfea414140de5dae2223"),
    ];
    assert_eq!(read, Ok(expected(&pairs)));
}

/// `X-Forwarded-Uri: http://other.test/login` was the path `/login` of the host that the proxy named: the service may read the other one.
/// An absolute target is for the host beside it, or the request is refused.
#[test]
fn absolute_targets_are_for_the_host_beside_them() {
    let families = [
        (Family::Forwarded, ["x-forwarded-host", "x-forwarded-uri"]),
        (Family::Original, ["x-original-host", "x-original-uri"]),
    ];
    for (family, [host, target]) in families {
        let line_of = |lines: &[(&'static str, &str)]| -> Result<(String, String), Unreadable> {
            let found = read(&Reader::default(), PROXY, lines, family)?;
            Ok((
                found.get("host").cloned().unwrap_or_default(),
                found.get("path").cloned().unwrap_or_default(),
            ))
        };
        let login = Ok(("app.test".to_owned(), "/login".to_owned()));
        for same in ["http://app.test/login", "HTTPS://APP.test:443//login?x", "http://app.test/login#x"] {
            assert_eq!(line_of(&[(host, "app.test"), (target, same)]), login, "{same}");
            assert_eq!(line_of(&[(target, same)]), login, "{same}");
        }
        for other in [
            "http://other.test/login",
            "http://other.test",
            "http://user@app.test/login",
            "http://app.test@other.test/login",
            "http://app.test:8443/login",
            "http:///login",
            "http://app.test\\@other.test/login",
            "ftp://app.test/login",
        ] {
            assert!(line_of(&[(host, "app.test"), (target, other)]).is_err(), "{other}");
        }
        for wrong in ["http://user@app.test/login", "http:///login", "http://app..test/"] {
            assert!(line_of(&[(target, wrong)]).is_err(), "{wrong}");
        }
    }
}

/// The headers of an untrusted peer describe no other request.
#[test]
fn an_untrusted_peer_has_the_attributes_of_its_own_request() {
    let mut lines = FORWARDED.to_vec();
    lines.push(("host", "tollgate.example"));
    let pairs = [
        ("ip", STRANGER),
        ("method", "PUT"),
        ("host", "tollgate.example"),
        ("path", "/v1/authz"),
        ("api_key", "sha256:ba7816bf8f01cfea414140de5dae2223"),
    ];
    for family in [Family::Forwarded, Family::Original] {
        assert_eq!(read(&Reader::default(), STRANGER, &lines, family), Ok(expected(&pairs)));
    }
}

/// The story: a client sends the headers that its proxy does not set. They are of the other family, so they are not read.
#[test]
fn only_one_family_is_read() {
    let mut lines = FORWARDED.to_vec();
    lines.extend([
        ("x-original-uri", "/forged"),
        ("x-original-method", "GET"),
        ("x-original-host", "forged"),
    ]);
    let forwarded = read(&Reader::default(), PROXY, &lines, Family::Forwarded).unwrap();
    assert_eq!((forwarded["path"].as_str(), forwarded["method"].as_str()), ("/a/b", "POST"));
    let original = read(&Reader::default(), PROXY, &lines, Family::Original).unwrap();
    assert_eq!((original["path"].as_str(), original["host"].as_str()), ("/forged", "forged"));
}

/// An attribute that the proxy leaves out is absent. It is not taken from the request of the proxy.
#[test]
fn attributes_that_a_proxy_leaves_out_are_absent() {
    assert_eq!(read(&Reader::default(), PROXY, &[], Family::Original), Ok(expected(&[("ip", PROXY)])));
}

/// Two values of one attribute, or a path that servers read differently, are refused.
#[test]
fn ambiguous_attributes_are_refused() {
    let cases: [&[(&str, &str)]; 7] = [
        &[("x-forwarded-uri", "/a"), ("x-forwarded-uri", "/b")],
        &[("x-api-key", "a"), ("x-api-key", "b")],
        &[("x-forwarded-uri", "/a%2fb")],
        &[("x-forwarded-uri", "a")],
        &[("x-forwarded-uri", "/%zz")],
        &[("x-forwarded-host", "user@example.com")],
        &[("x-forwarded-host", "a, b")],
    ];
    for lines in cases {
        assert!(read(&Reader::default(), PROXY, lines, Family::Forwarded).is_err(), "{lines:?}");
    }
}

#[test]
fn targets_are_split_into_path_and_query() {
    let cases = [
        ("/a?b=c", (Some("/a"), "b=c")),
        ("/a#b?c", (Some("/a"), "")),
        ("http://example.com/a?b", (Some("/a"), "b")),
        ("HTTPS://example.com", (Some("/"), "")),
        ("http://example.com?x", (Some("/"), "x")),
        ("/a://b", (Some("/a://b"), "")),
        ("*", (None, "")),
        ("?x", (Some("/"), "x")),
    ];
    for (target, expected) in cases {
        assert_eq!(split(target), expected, "{target}");
    }
}

fn mapped(name: &str, source: Source) -> Mapped {
    Mapped { name: name.to_owned(), source }
}

/// A header with `set_by: proxy` is read only from a trusted proxy.
#[test]
fn mapped_attributes_are_read_from_their_source() {
    let header = |set_by| Source::Header { name: HeaderName::from_static("x-tenant"), set_by };
    let routes = ["/health", "/users/{id}"].map(|text| Template::parse(text).unwrap());
    let reader = Reader {
        mapped: vec![
            mapped("tenant", header(SetBy::Proxy)),
            mapped("claimed", header(SetBy::Client)),
            mapped("version", Source::Query("v".to_owned())),
            mapped("route", Source::Path(routes.to_vec())),
            mapped("session", Source::Cookie("s".to_owned()).hashed()),
        ],
        trusted: Trusted::new(vec!["10.0.0.0/8".parse::<Network>().unwrap()]),
        ..Reader::default()
    };
    let lines = [("x-tenant", "acme"), ("x-forwarded-uri", "/users/7?v=2"), ("cookie", "s=abc")];
    let pairs = [
        ("ip", "10.1.1.1"),
        ("path", "/users/7"),
        ("tenant", "acme"),
        ("claimed", "acme"),
        ("version", "2"),
        ("route", "/users/{id}"),
        ("session", "sha256:ba7816bf8f01cfea414140de5dae2223"),
    ];
    assert_eq!(read(&reader, "10.1.1.1", &lines, Family::Forwarded), Ok(expected(&pairs)));
    let stranger = read(&reader, STRANGER, &lines, Family::Forwarded).unwrap();
    assert_eq!(stranger.get("tenant"), None);
    assert_eq!((stranger["claimed"].as_str(), stranger["version"].as_str()), ("acme", "9"));
    assert_eq!(stranger.get("route"), None);
}

/// A trusted proxy names the client of a request that arrives here, but not its method, host or path.
#[test]
fn a_request_has_the_attributes_of_its_own_request_line() {
    let read = |peer: &str, uri: &'static str, lines: &[(&'static str, &'static str)]| {
        let lines = lines
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let mut request = http::Request::post(uri).body(()).unwrap();
        request.headers_mut().extend(lines);
        let reader = Reader::default();
        let (parts, ()) = request.into_parts();
        let read = reader.of_request(peer.parse().ok(), &parts)?;
        let value = |name| read.get(name).unwrap_or("-").to_owned();
        Ok::<_, Unreadable>(["ip", "method", "host", "path"].map(value).join(" "))
    };
    let forged = [("x-forwarded-for", "203.0.113.7"), ("x-forwarded-uri", "/b"), ("host", "A.example:80")];
    assert_eq!(read(PROXY, "/a/./b?x", &forged).unwrap(), "203.0.113.7 POST a.example /a/b");
    assert_eq!(read(STRANGER, "/a", &forged).unwrap(), "198.51.100.9 POST a.example /a");
    assert_eq!(read(STRANGER, "http://A.example./a", &forged).unwrap(), "198.51.100.9 POST a.example /a");
    assert!(read(STRANGER, "http://b.example/a", &forged).is_err());
    assert!(read(STRANGER, "/a%2fb", &[]).is_err());
}
