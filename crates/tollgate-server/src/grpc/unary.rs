//! Unary calls, framed by hand: gRPC puts five bytes before a message, and the general path through streams and codecs
//! costs more than a decision.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Either};
use hyper::body::{Body, Frame};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Response, StatusCode};
use prost::Message;
use tonic::Status;
use tonic::metadata::GRPC_CONTENT_TYPE;

/// Bytes before a message: the compression flag, and the length.
const PREFIX_BYTES: usize = 5;

/// The content type of a call. A suffix may name the encoding of messages.
const GRPC: &[u8] = b"application/grpc";

/// The response to a call: one message, or a response of tonic.
pub(crate) type GrpcReply = Response<Either<Unary, tonic::body::Body>>;

/// Why a message was not read.
#[derive(Debug)]
pub(super) enum Unread {
    /// It is larger than it may be.
    TooLarge,
    /// It is compressed, which the server does not support.
    Compressed,
    /// The call does not contain exactly one whole message.
    Malformed(&'static str),
}

/// Reads the message of a call, without its prefix. If the prefix announces more than `limit`, the rest is not awaited.
pub(super) async fn message<B>(mut body: B, limit: usize) -> Result<Bytes, Unread>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut read = Bytes::new();
    let mut parts = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Unread::Malformed("the call ended inside its message"))?;
        let Ok(chunk) = frame.into_data() else { continue }; // Trailers mean nothing here.
        if read.is_empty() && parts.is_empty() {
            read = chunk; // The usual message comes in one piece, which is then used as it is.
        } else {
            if parts.is_empty() {
                parts.extend_from_slice(&std::mem::take(&mut read));
            }
            parts.extend_from_slice(&chunk);
        }
        let so_far = if parts.is_empty() { &read[..] } else { &parts[..] };
        match length_of(so_far) {
            Some(length) if length > limit => return Err(Unread::TooLarge),
            Some(length) if so_far.len() > PREFIX_BYTES + length => {
                return Err(Unread::Malformed("the call has more than one message"));
            }
            _ => {}
        }
    }
    let mut whole = if parts.is_empty() { read } else { parts.freeze() };
    match length_of(&whole) {
        Some(length) if whole.len() == PREFIX_BYTES + length => {}
        _ => return Err(Unread::Malformed("the call has no whole message")),
    }
    if whole[0] != 0 {
        return Err(Unread::Compressed);
    }
    whole.advance(PREFIX_BYTES);
    Ok(whole)
}

fn length_of(bytes: &[u8]) -> Option<usize> {
    let prefix = bytes.get(1..PREFIX_BYTES)?;
    let length = u32::from_be_bytes(prefix.try_into().ok()?);
    usize::try_from(length).ok()
}

/// A complete response with this message.
pub(super) fn reply(message: &impl Message) -> GrpcReply {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + length);
    framed.put_u8(0); // Not compressed.
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut framed);
    let mut response = Response::new(Either::Left(Unary { message: Some(framed.freeze()), is_ended: false }));
    response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    response
}

/// A response with an error status.
pub(super) fn failure(status: Status) -> GrpcReply {
    status.into_http().map(Either::Right)
}

/// `UNIMPLEMENTED` for a compressed message, with the accepted encodings.
pub(super) fn compressed() -> GrpcReply {
    let mut reply = failure(Status::unimplemented(
        "the message is compressed; send it as it is, with grpc-encoding: identity",
    ));
    reply.headers_mut().insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
    reply
}

/// The answer to a request that is not a gRPC call, judged by its method and headers.
pub(super) fn no_call(method: &Method, headers: &HeaderMap) -> Option<GrpcReply> {
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let rest =
        kind.get(..GRPC.len()).filter(|start| start.eq_ignore_ascii_case(GRPC)).map(|_| &kind[GRPC.len()..]);
    if !rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';'))) {
        let mut reply = Response::new(Either::Right(tonic::body::Body::empty()));
        *reply.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Some(reply);
    }
    (method != Method::POST).then(|| failure(Status::unimplemented("no such method; a call is a POST")))
}

/// One message, followed by the status OK.
#[derive(Debug)]
pub(crate) struct Unary {
    message: Option<Bytes>,
    is_ended: bool,
}

impl Body for Unary {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(message) = self.message.take() {
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        if std::mem::replace(&mut self.is_ended, true) {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_ended
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use tollgate::fuzzing::poll_once;

    /// A body that comes in these pieces.
    struct Pieces(VecDeque<Bytes>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
        }
    }

    fn read(pieces: &[&[u8]]) -> Result<Bytes, Unread> {
        let pieces = pieces.iter().map(|piece| Bytes::copy_from_slice(piece)).collect();
        poll_once(message(Pieces(pieces), 100))
    }

    /// A message is the same however it is cut into pieces. A body that is not exactly one message is refused, and an
    /// oversized one is not awaited.
    #[test]
    fn messages_are_whole() {
        let whole = b"\0\0\0\0\x03abc";
        for cut in 0..=whole.len() {
            let (start, end) = whole.split_at(cut);
            assert_eq!(read(&[start, b"", end]).unwrap(), "abc", "{cut}");
        }
        assert_eq!(read(&[b"\0\0\0\0\0"]).unwrap(), "");
        let one_by_one: Vec<&[u8]> = whole.chunks(1).collect();
        assert_eq!(read(&one_by_one).unwrap(), "abc");
        for wrong in [&b""[..], b"\0", b"\0\0\0\0\x03ab", b"\0\0\0\0\x03abcd"] {
            assert!(matches!(read(&[wrong]), Err(Unread::Malformed(_))), "{wrong:?}");
        }
        assert!(matches!(read(&[b"\x01\0\0\0\x03abc"]), Err(Unread::Compressed)));
        for large in [&b"\0\0\0\0\x65"[..], b"\0\xff\xff\xff\xff"] {
            assert!(matches!(read(&[large]), Err(Unread::TooLarge)), "{large:?}");
        }
    }
    /// A call is a POST with a gRPC content type in any spelling. Any other request gets an HTTP or gRPC error that its
    /// client understands.
    #[test]
    fn other_requests_than_calls_are_refused() {
        let answered = |method: &Method, kind: &str| {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, kind.parse().unwrap())]);
            no_call(method, &headers).map(|reply| {
                let status = reply.headers().get(Status::GRPC_STATUS);
                (reply.status().as_u16(), status.map(|status| status.to_str().unwrap().to_owned()))
            })
        };
        for kind in ["application/grpc", "application/grpc+proto", "Application/GRPC; x=y"] {
            assert_eq!(answered(&Method::POST, kind), None, "{kind}");
            assert_eq!(answered(&Method::GET, kind), Some((200, Some("12".to_owned()))), "{kind}");
        }
        for kind in ["", "application/json", "application/grpc-web", "application/grp"] {
            assert_eq!(answered(&Method::POST, kind), Some((415, None)), "{kind}");
        }
        let reply = compressed();
        assert_eq!(reply.headers()["grpc-accept-encoding"], "identity");
        assert_eq!(reply.headers()[Status::GRPC_STATUS], "12");
    }
}
