//! The fields after a body. A server may merge them with the fields before it, which the gateway has checked. So the
//! gateway drops each trailer that frames, routes, controls or authenticates a message, identifies the client, or
//! belongs to one hop (RFC 9110, 6.5.1).

use std::borrow::Cow;

use http::HeaderMap;
use http::header::{self, HeaderName};
use tollgate_tower::spelling::{plain, treatment};

use crate::field_rules::{FieldRules, HeaderNames};

/// Fields that frame a message or belong to one hop, in either direction.
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

/// Fields that say how a request is to be read, answered or trusted, and so must come before its body, in addition to
/// the fields of [`tollgate_tower::spelling::FIELDS`].
const BEFORE_THE_BODY: [HeaderName; 16] = [
    header::AGE,
    header::CACHE_CONTROL,
    header::CONTENT_ENCODING,
    header::CONTENT_RANGE,
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
    header::RANGE,
    header::SET_COOKIE,
];

/// The rules for trailers of requests.
pub(crate) struct Trailers {
    rules: FieldRules,
}

impl Trailers {
    pub(crate) const fn new(rules: FieldRules) -> Self {
        Self { rules }
    }

    /// Removes the trailers of a request that may not pass.
    pub(crate) fn clean(&self, trailers: &mut HeaderMap) {
        let is_dropped = |name: &HeaderName| {
            FRAMING.contains(name)
                || BEFORE_THE_BODY.contains(name)
                || treatment(name.as_str()).is_some()
                || self.rules.is_read(name.as_str())
        };
        retain(trailers, |name, meant| !is_dropped(meant) && (name == meant || self.may_pass(name)));
    }

    /// Whether a name with other characters than letters, digits and `-` may pass.
    fn may_pass(&self, name: &HeaderName) -> bool {
        self.rules.names == HeaderNames::Any && !self.rules.stands_for_another(name.as_str())
    }
}

/// Removes the trailers of an answer that would change its framing. All others pass.
pub(crate) fn clean_answer(trailers: &mut HeaderMap) {
    retain(trailers, |_, meant| !FRAMING.contains(meant));
}

/// Keeps the fields that may pass, by their names and by the plain names that servers may read instead.
fn retain(trailers: &mut HeaderMap, may_pass: impl Fn(&HeaderName, &HeaderName) -> bool) {
    let meant = |name: &HeaderName| match plain(name.as_str()) {
        Cow::Borrowed(_) => name.clone(),
        Cow::Owned(meant) => HeaderName::try_from(meant).unwrap_or_else(|_| name.clone()),
    };
    let refused: Vec<HeaderName> =
        trailers.keys().filter(|name| !may_pass(name, &meant(name))).cloned().collect();
    for name in refused {
        trailers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use tollgate_tower::attributes::source::{SetBy, Source};
    use tollgate_tower::attributes::{Mapped, Reader};

    use super::*;

    /// A trailer that a server could read as a field before the body is dropped, in every spelling. All others pass.
    #[test]
    fn allowed_trailers_pass() {
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
        let trailers = |names| Trailers::new(FieldRules::new(&reader, names));
        trailers(HeaderNames::Any).clean(&mut request);
        assert_eq!(left(request), all[..4]);
        let mut request = map();
        trailers(HeaderNames::Plain).clean(&mut request);
        assert_eq!(left(request), all[..3]);
        let mut answer = map();
        clean_answer(&mut answer);
        assert_eq!(answer.len(), all.len() - 8);
        assert!(answer.contains_key("set-cookie") && !answer.contains_key("content_length"));
    }
}
