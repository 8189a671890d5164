//! The header fields of what is sent on. Fields of one hop are removed, and fields that identify the client are
//! written. A client's own values for those are dropped, unless the peer is a trusted proxy.

use std::fmt::Write;
use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, HeaderName, HeaderValue, TE,
    TRANSFER_ENCODING, VIA,
};
use http::{HeaderMap, Version};
use tollgate_tower::attributes::Reader;
use tollgate_tower::spelling::{Treatment, treatment};

use crate::arrival::{Arrival, ReadSettings};
use crate::field_rules::{FORWARDED_FOR, RequestSender};

const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// How many fields the gateway adds to a request.
const FIELDS_WRITTEN: usize = 6;
/// The gateway's entry in `Via`, by the HTTP version of the client. The name is
/// [`tollgate_tower::spelling::PSEUDONYM`].
const VIA_10: &str = "1.0 tollgate";
const VIA_11: &str = "1.1 tollgate";
const VIA_2: &str = "2 tollgate";

/// Initial capacity for `Forwarded`, enough for most clients.
const FORWARDED_BYTES: usize = 96;

/// Turns the fields of a request into those for the next hop.
pub(crate) fn of_request(headers: &mut HeaderMap, arrival: &Arrival, reading: &ReadSettings) {
    let takes_trailers = headers.get_all(TE).iter().any(|te| names(te).any(|name| name == "trailers"));
    let rules = &reading.fields;
    let sender = if arrival.is_trusted { RequestSender::TrustedProxy } else { RequestSender::Stranger };
    let named = named(headers, |name| rules.is_kept(name));
    drop_all(headers, |name| {
        name == EXPECT // The gateway answers it: it reads the body once the request is let through.
            || named.iter().any(|named| named == name)
            || rules.ends(name, sender)
    });
    join_cookies(headers);
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    identify_client(headers, arrival, &reading.reader);
}

/// Removes the fields whose names the predicate accepts.
fn drop_all(headers: &mut HeaderMap, is_dropped: impl Fn(&str) -> bool) {
    let dropped: Vec<HeaderName> = headers.keys().filter(|name| is_dropped(name.as_str())).cloned().collect();
    for name in dropped {
        headers.remove(name);
    }
}

/// Turns the fields of a response into those for the next hop. Returns `None` if the body has a transfer coding other
/// than `chunked`, because the gateway cannot decode it.
pub(crate) fn of_response(headers: &mut HeaderMap) -> Option<()> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => one_length(headers)?,
        // The body was read as chunks, and a length beside them does not count.
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            headers.remove(CONTENT_LENGTH);
        }
        _ => return None,
    }
    drop_hops(headers);
    Some(())
}

/// Removes the fields that belong to one connection.
pub(crate) fn drop_hops(headers: &mut HeaderMap) {
    let named = named(headers, |name| treatment(name) == Some(Treatment::Keep));
    let is_hop = |name: &str| treatment(name) == Some(Treatment::Hop);
    drop_all(headers, |name| is_hop(name) || named.iter().any(|named| named == name));
}

/// Reduces a length that is given several times to one. Returns `None` if the numbers differ.
fn one_length(headers: &mut HeaderMap) -> Option<()> {
    let lines = headers.get_all(CONTENT_LENGTH).iter();
    let mut lengths =
        lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b',')).map(<[u8]>::trim_ascii);
    let Some(first) = lengths.next() else { return Some(()) };
    let rest: Vec<&[u8]> = lengths.collect();
    if rest.is_empty() {
        return Some(());
    }
    let one = HeaderValue::from_bytes(first).ok().filter(|_| rest.iter().all(|other| *other == first))?;
    headers.insert(CONTENT_LENGTH, one);
    Some(())
}

/// Joins cookies, which HTTP/2 may split into several fields, into one field for other servers.
fn join_cookies(headers: &mut HeaderMap) {
    if !headers.contains_key(COOKIE) {
        return;
    }
    let lines: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if lines.len() > 1
        && let Ok(cookie) = HeaderValue::from_bytes(&lines.join(&b"; "[..]))
    {
        headers.insert(COOKIE, cookie);
    }
}

/// The seconds for which an upstream says that it keeps an idle connection.
pub(crate) fn kept_for(headers: &HeaderMap) -> Option<u64> {
    let value = headers.get(KEEP_ALIVE)?.to_str().ok()?;
    value.split(',').find_map(|part| part.trim().strip_prefix("timeout=")?.parse().ok())
}

/// The names in a comma-separated list, in lower case.
fn names(value: &HeaderValue) -> impl Iterator<Item = String> {
    let text = value.to_str().unwrap_or_default();
    text.split(',').map(|name| name.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

/// The fields that `Connection` names, except those that are kept.
fn named(headers: &HeaderMap, is_kept: impl Fn(&str) -> bool) -> Vec<String> {
    let lines = headers.get_all(CONNECTION).iter();
    lines.flat_map(names).filter(|name| !is_kept(name)).collect()
}

/// Writes the fields that identify the client and its request. Values of trusted proxies stay in front.
fn identify_client(headers: &mut HeaderMap, arrival: &Arrival, reader: &Reader) {
    headers.reserve(FIELDS_WRITTEN);
    let peer = arrival.peer.address.to_canonical();
    let text = peer.to_string();
    let address = sendable(&text);
    let lines: Vec<&[u8]> = headers.get_all(FORWARDED_FOR).iter().map(HeaderValue::as_bytes).collect();
    let chain = reader.trusted.chain(arrival.peer.address, lines.into_iter());
    append(headers, &FORWARDED_FOR, address.clone());
    let client = arrival.client.to_canonical();
    set(headers, REAL_IP, if client == peer { address } else { sendable(&client.to_string()) });
    let is_known =
        headers.get(FORWARDED_PROTO).is_some_and(|proto| matches!(proto.as_bytes(), b"http" | b"https"));
    if !is_known {
        set(headers, FORWARDED_PROTO, Some(HeaderValue::from_static(proto(arrival))));
    }
    if !headers.contains_key(FORWARDED_HOST) {
        let same = headers.get(HOST).filter(|named| *named == arrival.host.as_str()).cloned();
        set(headers, FORWARDED_HOST, same.or_else(|| sendable(&arrival.host)));
    }
    let forwarded = forwarded(&chain, headers);
    set(headers, FORWARDED, sendable(&forwarded));
    let via = match arrival.version {
        Version::HTTP_2 => VIA_2,
        Version::HTTP_10 => VIA_10,
        _ => VIA_11,
    };
    append(headers, &VIA, Some(HeaderValue::from_static(via)));
}

const fn proto(arrival: &Arrival) -> &'static str {
    if arrival.peer.is_secure { "https" } else { "http" }
}

/// The same facts in the syntax of RFC 7239. It is written anew, because a proxy that sets the other fields may pass on
/// a client's own `Forwarded`. It contains the trusted part of the chain, and the client's host and scheme at its first
/// address.
fn forwarded(chain: &[IpAddr], headers: &HeaderMap) -> String {
    let mut list = String::with_capacity(FORWARDED_BYTES);
    for (place, address) in chain.iter().map(IpAddr::to_canonical).enumerate() {
        let separator = if place == 0 { "" } else { ", " };
        // A value that is not a token is quoted, and an IPv6 address is in brackets inside the quotes.
        let _ = match address {
            IpAddr::V4(address) => write!(list, "{separator}for={address}"),
            IpAddr::V6(address) => write!(list, "{separator}for=\"[{address}]\""),
        };
        if place > 0 {
            continue;
        }
        if let Some(host) = forwarded_host(headers) {
            let is_token = !host.contains([':', '[', ']']);
            let quote = if is_token { "" } else { "\"" };
            let _ = write!(list, ";host={quote}{host}{quote}");
        }
        if let Some(Ok(proto)) = headers.get(FORWARDED_PROTO).map(HeaderValue::to_str) {
            let _ = write!(list, ";proto={proto}");
        }
    }
    list
}

/// The host that the client asked for: the first entry of the proxies' list. `None` if it has characters that need more
/// than quotes.
fn forwarded_host(headers: &HeaderMap) -> Option<&str> {
    let first = headers.get(FORWARDED_HOST)?.to_str().ok()?.split(',').next()?.trim();
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    Some(first).filter(|host| !host.is_empty() && host.bytes().all(is_fine))
}

/// Appends to a list, and joins it into one line.
fn append(headers: &mut HeaderMap, name: &HeaderName, last: Option<HeaderValue>) {
    let Some(last) = last else { return };
    if !headers.contains_key(name) {
        headers.insert(name, last);
        return;
    }
    let lines = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let list = lines.filter(|line| !line.is_empty()).chain([last.as_bytes()]);
    let list = list.collect::<Vec<&[u8]>>().join(&b", "[..]);
    if let Ok(value) = HeaderValue::from_bytes(&list) {
        headers.insert(name, value);
    }
}

/// Makes a field value. Addresses and hosts in their one spelling are always valid.
fn sendable(text: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(text).ok()
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) {
    if let Some(value) = value {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use tollgate_tower::attributes::Mapped;
    use tollgate_tower::attributes::source::{SetBy, Source};

    use super::*;
    use crate::arrival::{Peer, RequestSettings};
    use crate::field_rules::HeaderNames;

    fn reading(header_names: HeaderNames) -> ReadSettings {
        let header = |name, set_by| Source::Header { name: HeaderName::from_static(name), set_by };
        let mapped = [
            ("tenant", header("x-tenant", SetBy::Proxy).hashed()),
            ("plan", header("x_plan", SetBy::Client)),
        ];
        let reader = Reader {
            mapped: mapped.map(|(name, source)| Mapped { name: name.to_owned(), source }).to_vec(),
            ..Reader::default()
        };
        ReadSettings::new(RequestSettings { reader, header_names, ..RequestSettings::default() }, &[])
    }

    /// The fields that an upstream gets for a request from this peer with these fields, one line each.
    fn sent(peer: &str, fields: &[(&str, &str)]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        let (address, reading): (IpAddr, _) = (peer.parse().unwrap(), reading(HeaderNames::Plain));
        let arrival = Arrival {
            peer: Peer { address, is_secure: true },
            client: address,
            is_trusted: reading.reader.trusted.contains(address),
            host: "example.com:8443".to_owned(),
            keys: Vec::new(),
            version: Version::HTTP_2,
        };
        of_request(&mut headers, &arrival, &reading);
        let line =
            |(name, value): (&HeaderName, &HeaderValue)| format!("{name}: {}", value.to_str().unwrap());
        let mut lines: Vec<String> = headers.iter().map(line).collect();
        lines.sort();
        lines
    }

    const OWN: [&str; 6] = [
        "forwarded: for=203.0.113.9;host=\"example.com:8443\";proto=https",
        "via: 2 tollgate",
        "x-forwarded-for: 203.0.113.9",
        "x-forwarded-host: example.com:8443",
        "x-forwarded-proto: https",
        "x-real-ip: 203.0.113.9",
    ];

    /// A stranger's identity fields are dropped, in every spelling.
    #[test]
    fn forgeries_are_dropped() {
        let forged = [
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-for", "5.6.7.8"),
            ("x_forwarded_for", "1.2.3.4"),
            ("x-real-ip", "1.2.3.4"),
            ("forwarded", "for=1.2.3.4"),
            ("x-forwarded-proto", "ftp"),
            ("x-forwarded-host", "evil.test"),
            ("x-original-url", "/admin"),
            ("x-rewrite-url", "/admin"),
            ("true-client-ip", "1.2.3.4"),
            ("x-tenant", "victim"),
            ("x_tenant", "victim"),
            ("content_length", "5"),
            ("transfer_encoding", "chunked"),
            ("x_http-method_override", "DELETE"),
            ("client-ip", "1.2.3.4"),
            ("client_ip", "1.2.3.4"),
            ("proxy", "1.2.3.4"),
            ("script_name", "/x"),
            ("x.forwarded.for", "1.2.3.4"),
            ("x-plan", "free"),
            ("anything_else", "1"),
        ];
        assert_eq!(sent("203.0.113.9", &forged), OWN);
    }

    /// A field that the config maps is sent on under that exact name, and in no other spelling. Where all names are
    /// sent on, names that stand for another are still dropped.
    #[test]
    fn names_that_the_config_maps() {
        assert!(sent("203.0.113.9", &[("x_plan", "free")]).contains(&"x_plan: free".to_owned()));
        let (strict, any) = (reading(HeaderNames::Plain).fields, reading(HeaderNames::Any).fields);
        for (name, ends_plain, ends_any) in [
            ("x_checksum", true, false),
            ("x.checksum", true, false),
            ("x_tenant", true, true),
            ("x-plan", true, true),
            ("x_plan", false, false),
            ("client_ip", true, true),
            ("authorization_", true, false),
            ("content_type", true, true),
            ("accept", false, false),
        ] {
            assert_eq!(
                (strict.ends(name, RequestSender::Stranger), any.ends(name, RequestSender::Stranger)),
                (ends_plain, ends_any),
                "{name}"
            );
        }
    }

    /// A trusted proxy's values stay, and the gateway's own follow them.
    #[test]
    fn trusted_proxies_are_believed() {
        let given = [
            ("x-forwarded-for", "192.0.2.66, 198.51.100.7"),
            ("forwarded", "for=192.0.2.66;host=evil.test"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "shop.test"),
            ("x-tenant", "acme"),
        ];
        let lines = sent("::1", &given);
        let expected = [
            "forwarded: for=198.51.100.7;host=shop.test;proto=http, for=\"[::1]\"",
            "via: 2 tollgate",
            "x-forwarded-for: 192.0.2.66, 198.51.100.7, ::1",
            "x-forwarded-host: shop.test",
            "x-forwarded-proto: http",
            "x-real-ip: ::1",
            "x-tenant: acme",
        ];
        assert_eq!(lines, expected);
    }

    /// Fields of one hop are dropped, including those that `Connection` names, but `Connection` cannot remove an
    /// identity.
    #[test]
    fn one_hop_only() {
        let fields = [
            (
                "connection",
                "close, X-Mine, x-forwarded-for, X-Real-IP, authorization, x-tenant, cookie, host",
            ),
            ("connection", "X-Other"),
            ("x-mine", "1"),
            ("x-other", "1"),
            ("x-kept", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "close"),
            ("proxy-authorization", "basic x"),
            ("te", "gzip, trailers;q=1"),
            ("upgrade", "h2c"),
            ("http2-settings", "x"),
            ("transfer-encoding", "chunked"),
            ("authorization", "bearer k"),
            ("cookie", "a=b"),
            ("cookie", "c=d"),
            ("expect", "100-continue"),
        ];
        let mut expected: Vec<&str> = OWN.to_vec();
        expected.extend(["authorization: bearer k", "cookie: a=b; c=d", "te: trailers", "x-kept: 1"]);
        expected.sort_unstable();
        assert_eq!(sent("203.0.113.9", &fields), expected);
    }

    /// The keep-alive time of an upstream is read.
    #[test]
    fn keep_alive() {
        let given = |value: &'static str| {
            kept_for(&HeaderMap::from_iter([(KEEP_ALIVE, HeaderValue::from_static(value))]))
        };
        assert_eq!(given("timeout=5, max=100"), Some(5));
        assert_eq!(given("max=100"), None);
    }
}
