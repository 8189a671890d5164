//! A request on its way to an upstream.

use http::header::{HOST, HeaderValue};
use http::uri::{Authority, Parts as UriParts, Scheme};
use http::{Request, Uri, Version, request};
use tollgate_tower::HeldPermits;

use crate::shares::ShareOwner;
use crate::upload::{Upload, UploadBody};

/// A request that can be sent more than once.
pub(crate) struct Outgoing {
    pub(crate) parts: request::Parts,
    pub(crate) upload: Upload,
    pub(crate) is_upgrade: bool,
    /// The client whose share of the upstream it uses.
    pub(crate) client: ShareOwner,
    /// Its concurrency permits.
    pub(crate) held: Option<HeldPermits>,
}

impl Outgoing {
    /// Whether the request may be repeated after an upstream may have seen it.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.parts.method.is_idempotent() && self.upload.is_whole()
    }

    /// The request as hyper expects it: HTTP/1 names its host in a field, HTTP/2 in the target. A health check names
    /// none and gets the name of the upstream, because every request must name a host.
    pub(crate) fn request(&self, version: Version, scheme: Scheme, authority: &str) -> Request<UploadBody> {
        let mut parts = self.parts.clone();
        parts.version = version;
        if !parts.headers.contains_key(HOST)
            && let Ok(host) = HeaderValue::from_str(authority)
        {
            parts.headers.insert(HOST, host);
        }
        if version == Version::HTTP_2 {
            let host = parts.headers.remove(HOST);
            let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
            let mut uri = UriParts::default();
            uri.path_and_query = parts.uri.path_and_query().cloned();
            uri.authority = Some(host.unwrap_or_else(|| Authority::from_static("localhost")));
            uri.scheme = Some(scheme);
            if let Ok(uri) = Uri::from_parts(uri) {
                parts.uri = uri;
            }
        }
        Request::from_parts(parts, self.upload.attempt_body().holding(self.held.clone()))
    }
}
