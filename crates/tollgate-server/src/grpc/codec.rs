//! Decodes bytes into a request. Bytes that are not a message get an answer, too: Envoy passes on what its clients
//! send, including text that is not UTF-8, and lets a request pass if the answer is an error.

use prost::Message;

use crate::envoy_api::{RateLimitRequest, RateLimitResponse};
use crate::rls::{Answer, Code, Question};

/// The decoded request.
#[derive(Debug)]
pub(super) enum Asked {
    /// A valid request.
    Readable(Question),
    /// Bytes that cannot be decoded.
    Unreadable,
}

/// Decodes the bytes of a request.
pub(super) fn read(bytes: impl prost::bytes::Buf) -> Asked {
    match RateLimitRequest::decode(bytes) {
        Ok(request) => Asked::Readable(Question::from(request)),
        Err(_) => Asked::Unreadable,
    }
}

/// The answer to a request that cannot be decoded: over the limit, without any descriptor status.
pub(super) fn unreadable() -> RateLimitResponse {
    Answer::blank(Code::OverLimit, 0).into()
}
