//! An independent parser of HTTP/1 reads back what was written.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use http::header::{HeaderName, TRAILER};
use http_body_util::{BodyExt, Full};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::body::Body;
use crate::cause::BodyError;

/// A body of these frames, which are not all ready at once.
struct Frames {
    frames: VecDeque<Frame<Bytes>>,
    is_late: bool,
}

impl hyper::body::Body for Frames {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.is_late = !self.is_late;
        if self.is_late {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.frames.pop_front().map(Ok))
    }
}

fn streamed(frames: impl IntoIterator<Item = Frame<Bytes>>) -> Limited {
    let frames = Frames { frames: frames.into_iter().collect(), is_late: false };
    Limited::from(Body::Boxed(frames.boxed_unsync()))
}

fn own(text: &[u8]) -> Limited {
    Limited::from(Body::Text(Full::new(Bytes::copy_from_slice(text))))
}

const NOW: Timestamp = Timestamp::from_unix_seconds(784_111_777);
const PLAIN: ResponseOptions =
    ResponseOptions { wants_head: false, is_10: false, takes_trailers: false, is_kept: true };

/// Writes an answer. Returns the bytes, whether the answer was complete, and whether another may follow.
fn written(response: Response<Limited>, asker: ResponseOptions) -> (Vec<u8>, bool, bool) {
    let mut answer = AnswerWriter::new(response, asker, b"", NOW);
    let mut context = Context::from_waker(Waker::noop());
    let mut wire = Vec::new();
    loop {
        let _ = answer.gather(&mut context);
        assert!(answer.outbox.poll_empty(&mut wire, &mut 0, &mut context).is_ready());
        if answer.body.is_none() {
            return (wire, !answer.is_cut, answer.is_kept);
        }
    }
}

fn text(response: Response<Limited>, asker: ResponseOptions) -> String {
    String::from_utf8(written(response, asker).0).unwrap()
}

fn status(code: u16, body: Limited) -> Response<Limited> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}

/// A body of known length, with its cost in trailers.
struct Priced {
    frames: VecDeque<Frame<Bytes>>,
    left: u64,
    is_over: Arc<AtomicBool>,
}

impl hyper::body::Body for Priced {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = self.frames.pop_front();
        let bytes = frame.as_ref().and_then(Frame::data_ref).map_or(0, Bytes::len);
        self.left -= u64::try_from(bytes).unwrap();
        self.is_over.store(frame.as_ref().is_none_or(Frame::is_trailers), Ordering::Relaxed);
        Poll::Ready(frame.map(Ok))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(self.left)
    }
}

/// Trailers after a body of known length are not sent, but the limits see them, because they may contain the cost.
#[test]
fn trailers_behind_a_length_are_seen() {
    for text in ["", "hello"] {
        let data = (!text.is_empty()).then(|| Frame::data(Bytes::from_static(text.as_bytes())));
        let frames = data.into_iter().chain([Frame::trailers(HeaderMap::new())]).collect();
        let is_over = Arc::new(AtomicBool::new(false));
        let left = u64::try_from(text.len()).unwrap();
        let body = Priced { frames, left, is_over: Arc::clone(&is_over) };
        let (bytes, is_whole, is_kept) =
            written(Response::new(Limited::from(Body::Boxed(body.boxed_unsync()))), PLAIN);
        let wanted = format!("content-length: {left}\r\n");
        let bytes = String::from_utf8(bytes).unwrap();
        assert!(bytes.contains(&wanted) && bytes.ends_with(&format!("\r\n\r\n{text}")), "{bytes}");
        assert!(is_whole && is_kept && is_over.load(Ordering::Relaxed));
    }
}

/// Each kind of answer, to each kind of client, byte for byte.
#[test]
fn answers_are_written() {
    const DATED: &str = "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    let data = |text: &'static str| Frame::data(Bytes::from_static(text.as_bytes()));
    let old = ResponseOptions { is_10: true, ..PLAIN };
    let last = ResponseOptions { is_kept: false, ..PLAIN };
    let head = ResponseOptions { wants_head: true, ..PLAIN };
    assert_eq!(
        text(status(200, own(b"hello")), PLAIN),
        format!("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n{DATED}\r\nhello")
    );
    assert_eq!(
        text(status(200, own(b"hello")), old),
        format!("HTTP/1.0 200 OK\r\ncontent-length: 5\r\nconnection: keep-alive\r\n{DATED}\r\nhello")
    );
    assert_eq!(
        text(status(404, own(b"")), last),
        format!("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n{DATED}\r\n")
    );
    assert_eq!(
        text(status(200, streamed([data("hello"), data(""), data("!")])), PLAIN),
        format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n{DATED}\r\n5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"
        )
    );
    // HTTP/1.0 has no chunks: the end of the connection ends the body.
    let (wire, is_whole, is_kept) = written(status(200, streamed([data("hello"), data("!")])), old);
    assert_eq!(
        String::from_utf8(wire).unwrap(),
        format!("HTTP/1.0 200 OK\r\nconnection: close\r\n{DATED}\r\nhello!")
    );
    assert!(is_whole && !is_kept);
    // An answer without a body has no length, or the one that its body would have had.
    for (code, asker, length) in
        [(204, PLAIN, ""), (304, PLAIN, "content-length: 9\r\n"), (200, head, "content-length: 9\r\n")]
    {
        let mut response = status(code, own(b"not sent!"));
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("9"));
        let text = text(response, asker);
        assert!(text.ends_with(&format!("\r\n{length}{DATED}\r\n")), "{text}");
    }
    // An existing date stays. A status without a standard reason phrase gets none.
    let mut response = status(599, own(b""));
    response.headers_mut().insert(DATE, HeaderValue::from_static("x"));
    assert_eq!(text(response, PLAIN), "HTTP/1.1 599 \r\ndate: x\r\ncontent-length: 0\r\n\r\n");
}

/// Only clients that announced `TE: trailers` get trailers.
#[test]
fn trailers_are_written() {
    let frames = || {
        let trailers = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), "0".parse().unwrap())]);
        let mut response = status(200, streamed([Frame::data(Bytes::from("x")), Frame::trailers(trailers)]));
        response.headers_mut().insert(TRAILER, HeaderValue::from_static("grpc-status"));
        response
    };
    let takes = ResponseOptions { takes_trailers: true, ..PLAIN };
    assert!(text(frames(), takes).ends_with("1\r\nx\r\n0\r\ngrpc-status: 0\r\n\r\n"));
    assert!(text(frames(), PLAIN).ends_with("1\r\nx\r\n0\r\n\r\n"));
}

/// An answer whose body is shorter or longer than its length is cut off, not padded, and no answer follows it.
#[test]
fn a_wrong_length_is_no_end() {
    struct Says(Frames, u64);
    impl hyper::body::Body for Says {
        type Data = Bytes;
        type Error = BodyError;
        fn poll_frame(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
            Pin::new(&mut self.get_mut().0).poll_frame(context)
        }
        fn size_hint(&self) -> hyper::body::SizeHint {
            hyper::body::SizeHint::with_exact(self.1)
        }
    }
    for length in [4, 6] {
        let frames = VecDeque::from([Frame::data(Bytes::from("hello"))]);
        let body = Says(Frames { frames, is_late: false }, length);
        let (_, is_whole, _) = written(status(200, Limited::from(Body::Boxed(body.boxed_unsync()))), PLAIN);
        assert!(!is_whole, "{length}");
    }
}

/// Decodes a chunked body.
fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let Ok(httparse::Status::Complete((at, size))) = httparse::parse_chunk_size(rest) else {
            panic!("no chunk")
        };
        let size = usize::try_from(size).unwrap();
        let (data, behind) = rest[at..].split_at(size);
        body.extend_from_slice(data);
        rest = behind.strip_prefix(b"\r\n").unwrap();
        if size == 0 {
            assert!(rest.is_empty());
            return body;
        }
    }
}

proptest! {
    /// Any answer is read back with the same status, fields and body.
    #[test]
    fn written_requests_are_read_back(
        code in 200u16..600,
        fields in vec(("x-[a-z]{1,12}", "[!-~]([ -~]{0,30}[!-~])?"), 0..12),
        parts in vec(vec(any::<u8>(), 0..9_000), 0..5),
        is_streamed in any::<bool>(),
        is_10 in any::<bool>(),
    ) {
        let body = parts.concat();
        let limited = if is_streamed {
            streamed(parts.iter().map(|part| Frame::data(Bytes::copy_from_slice(part))))
        } else {
            own(&body)
        };
        let mut response = status(code, limited);
        for (name, value) in &fields {
            response.headers_mut().append(HeaderName::try_from(name).unwrap(), value.parse().unwrap());
        }
        let (wire, is_whole, _) = written(response, ResponseOptions { is_10, ..PLAIN });
        prop_assert!(is_whole);
        let mut found = [httparse::EMPTY_HEADER; 64];
        let mut read = httparse::Response::new(&mut found);
        let at = read.parse(&wire).unwrap().unwrap();
        prop_assert_eq!((read.code, read.version), (Some(code), Some(u8::from(!is_10))));
        let field = |name: &str| {
            let found = read.headers.iter().find(|field| field.name == name);
            found.map(|field| std::str::from_utf8(field.value).unwrap().to_owned())
        };
        let mut shown: Vec<(String, String)> = read.headers.iter().filter(|field| field.name.starts_with("x-"))
            .map(|field| (field.name.to_owned(), String::from_utf8(field.value.to_vec()).unwrap())).collect();
        let mut sent = fields.clone();
        shown.sort();
        sent.sort();
        prop_assert_eq!(shown, sent);
        let rest = &wire[at..];
        if matches!(code, 204 | 304) {
            prop_assert!(rest.is_empty() && field("content-length").is_none() && field("transfer-encoding").is_none());
        } else if let Some(length) = field("content-length") {
            prop_assert_eq!((length, rest), (body.len().to_string(), &body[..]));
        } else if is_10 {
            prop_assert_eq!((field("connection"), rest), (Some("close".to_owned()), &body[..]));
        } else {
            prop_assert_eq!(field("transfer-encoding"), Some("chunked".to_owned()));
            prop_assert_eq!(unchunked(rest), body);
        }
    }
}
