//! From bytes to a question. Bytes that are no message are a question, too: Envoy passes on what
//! its clients send, text that is not UTF-8 included, and lets a request pass that is answered with an error.

use prost::Message;

use crate::envoy_api::{RateLimitRequest, RateLimitResponse};
use crate::rls::{Answer, Code, Question};

/// What came in.
#[derive(Debug)]
pub(super) enum Asked {
    /// A question.
    Readable(Question),
    /// Bytes that nobody can read.
    Unreadable,
}

/// The question that these bytes are.
pub(super) fn read(bytes: impl prost::bytes::Buf) -> Asked {
    match RateLimitRequest::decode(bytes) {
        Ok(request) => Asked::Readable(Question::from(request)),
        Err(_) => Asked::Unreadable,
    }
}

/// What a question is answered that nobody can read: it is over the limit, and there is no descriptor to tell about.
pub(super) fn unreadable() -> RateLimitResponse {
    Answer::blank(Code::OverLimit, 0).into()
}
