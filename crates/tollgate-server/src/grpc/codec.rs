//! From bytes to a question, and from an answer to bytes. Bytes that are no message are a question, too: Envoy passes on what
//! its clients send, text that is not UTF-8 included, and lets a request pass that is answered with an error.

use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::rls::{Answer, Code, Question};

/// What came in.
#[derive(Debug)]
pub(super) enum Asked {
    /// A question.
    Readable(Question),
    /// Bytes that nobody can read.
    Unreadable,
}

/// Reads questions and writes answers.
#[derive(Debug, Default)]
pub(super) struct RateLimitCodec;

impl Codec for RateLimitCodec {
    type Encode = RateLimitResponse;
    type Decode = Asked;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Decoder for RateLimitCodec {
    type Item = Asked;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Asked>, Status> {
        use prost::bytes::Buf;
        let asked = read(&mut *bytes);
        bytes.advance(bytes.remaining()); // What a failed reading left behind is not the next message.
        Ok(Some(asked))
    }
}

impl Encoder for RateLimitCodec {
    type Item = RateLimitResponse;
    type Error = Status;

    fn encode(&mut self, answer: RateLimitResponse, bytes: &mut EncodeBuf<'_>) -> Result<(), Status> {
        answer.encode(bytes).map_err(|error| Status::internal(error.to_string()))
    }
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
