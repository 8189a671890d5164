//! The fields after a body. Whoever reads them may join them with those before it, which the gateway has looked at: so none passes that
//! frames, routes, controls or authenticates a message, tells who asked, or belongs to one hop (RFC 9110, 6.5.1).

use http::HeaderMap;
use http::header::{self, HeaderName};
use tollgate_tower::attributes::Reader;

use super::fields;

/// What frames a message or belongs to one hop, in either direction.
const FRAMING: [HeaderName; 10] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::HOST,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// What says how a request is to be read, answered or believed, and so must be known before its body.
const BEFORE_THE_BODY: [HeaderName; 27] = [
    header::AGE,
    header::AUTHORIZATION,
    header::CACHE_CONTROL,
    header::CONTENT_ENCODING,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::COOKIE,
    header::DATE,
    header::EXPECT,
    header::EXPIRES,
    header::IF_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_NONE_MATCH,
    header::IF_RANGE,
    header::IF_UNMODIFIED_SINCE,
    header::LOCATION,
    header::MAX_FORWARDS,
    header::PRAGMA,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::RANGE,
    header::SET_COOKIE,
    header::VIA,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-method-override"),
];

/// The trailers of requests.
pub(super) struct Trailers {
    /// The fields that attributes are read from.
    identity: Vec<HeaderName>,
}

impl Trailers {
    pub(super) fn new(reader: &Reader) -> Self {
        Self { identity: fields::mapped(reader).map(|(name, _)| name.clone()).collect() }
    }

    /// Leaves what may pass of a request's trailers.
    pub(super) fn clean(&self, trailers: &mut HeaderMap) {
        retain(trailers, |name| {
            !FRAMING.contains(name)
                && !BEFORE_THE_BODY.contains(name)
                && !fields::is_told_by_proxies(name.as_str())
                && !self.identity.contains(name)
        });
    }
}

/// Leaves what may pass of an answer's trailers: all but what would frame it anew.
pub(super) fn clean_answer(trailers: &mut HeaderMap) {
    retain(trailers, |name| !FRAMING.contains(name));
}

fn retain(trailers: &mut HeaderMap, may_pass: impl Fn(&HeaderName) -> bool) {
    // Many servers read `_` as `-`.
    let meant = |name: &HeaderName| match name.as_str().contains('_') {
        true => HeaderName::try_from(name.as_str().replace('_', "-")).unwrap_or_else(|_| name.clone()),
        false => name.clone(),
    };
    let refused: Vec<HeaderName> = trailers.keys().filter(|name| !may_pass(&meant(name))).cloned().collect();
    for name in refused {
        trailers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use tollgate_tower::attributes::Mapped;
    use tollgate_tower::attributes::source::{SetBy, Source};

    use super::*;

    /// What could be taken for a field before the body does not pass, however it is spelled; all else does.
    #[test]
    fn what_passes() {
        let source = Source::Header { name: HeaderName::from_static("x-tenant"), set_by: SetBy::Proxy };
        let reader = Reader {
            mapped: vec![Mapped { name: "tenant".to_owned(), source: source.hashed() }],
            ..Reader::default()
        };
        let all = [
            "grpc-status",
            "x-checksum",
            "digest",
            "x_checksum",
            "content-length",
            "content_length",
            "transfer-encoding",
            "host",
            "trailer",
            "te",
            "connection",
            "keep-alive",
            "authorization",
            "cookie",
            "set-cookie",
            "x-api-key",
            "x-forwarded-for",
            "x_forwarded_for",
            "forwarded",
            "x-real-ip",
            "via",
            "x-tenant",
            "x_tenant",
            "content-type",
            "expect",
            "range",
            "x-http-method-override",
            "x_http_method",
            "cf-connecting-ip",
            "x-forwarded-user",
        ];
        let map = || -> HeaderMap {
            let line = |name: &&str| (name.parse::<HeaderName>().unwrap(), "1".parse().unwrap());
            all.iter().map(line).collect()
        };
        let left = |trailers: HeaderMap| trailers.keys().map(ToString::to_string).collect::<Vec<_>>();
        let mut request = map();
        Trailers::new(&reader).clean(&mut request);
        assert_eq!(left(request), all[..4]);
        let mut answer = map();
        clean_answer(&mut answer);
        assert_eq!(answer.len(), all.len() - 8);
        assert!(answer.contains_key("set-cookie") && !answer.contains_key("content_length"));
    }
}
