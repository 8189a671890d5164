//! Decodes bytes into a request. Bytes that are not a message get an answer, too: Envoy passes on what its clients
//! send, including text that is not UTF-8, and lets a request pass if the answer is an error.

use prost::Message;

use crate::envoy_api::{RateLimitRequest, RateLimitResponse};
use crate::rls::{Answer, Code, RlsRequest};

/// The decoded request.
#[derive(Debug)]
pub(super) enum DecodedRequest {
    /// A valid request.
    Readable(RlsRequest),
    /// Bytes that cannot be decoded.
    Unreadable,
}

/// Decodes the bytes of a request.
pub(super) fn read(bytes: impl prost::bytes::Buf) -> DecodedRequest {
    match RateLimitRequest::decode(bytes) {
        Ok(request) => DecodedRequest::Readable(RlsRequest::from(request)),
        Err(_) => DecodedRequest::Unreadable,
    }
}

/// The answer to a request that cannot be decoded: over the limit, without any descriptor status.
pub(super) fn unreadable() -> RateLimitResponse {
    Answer::blank(Code::OverLimit, 0).into()
}
