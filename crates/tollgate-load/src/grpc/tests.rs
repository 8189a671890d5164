//! A connection against bytes that were laid out by hand, and against the server of the crate `h2`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{BufMut, Bytes};
use h2::server::SendResponse;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::calls::Calls;
use super::frame::{ACK, Broken, END_HEADERS, END_STREAM, HIGHEST, Kind, PADDED, put_head};
use super::*;

const ALLOWED: Reply = Reply { length: 0, allowed: 1, answered: true };
const DENIED: Reply = Reply { length: 0, allowed: 0, answered: true };
const FAILED: Reply = Reply { length: 0, allowed: 0, answered: false };

const HEAD: &[u8] = &[0x88];
/// `grpc-status: 0` with indexing; and as a reference to that entry.
const FINE: &[u8] = b"\x40\x88\x9a\xca\xc8\xb2\x12\x34\xda\x8f\x81\x07";
const FINE_AGAIN: &[u8] = &[0xbe];
/// Messages whose first field means yes, no, and nothing.
const YES: &[u8] = &[0, 0, 0, 0, 2, 0x08, 1];
const NO: &[u8] = &[0, 0, 0, 0, 2, 0x08, 2];
const NOTHING: &[u8] = &[0, 0, 0, 0, 0];

fn question() -> LoadRequest {
    LoadRequest::Rls { domain: "bench".to_owned(), attribute: "api_key".to_owned() }
}

fn put(out: &mut BytesMut, kind: Kind, flags: u8, stream: u32, payload: &[u8]) {
    put_head(out, payload.len(), kind, flags, stream);
    out.put_slice(payload);
}

fn put_answer(out: &mut BytesMut, stream: u32, message: &[u8], status: &[u8]) {
    put(out, Kind::Headers, END_HEADERS, stream, HEAD);
    put(out, Kind::Data, 0, stream, message);
    put(out, Kind::Headers, END_HEADERS | END_STREAM, stream, status);
}

/// Calls in flight, after the settings came.
fn asked(count: usize) -> Calls {
    let mut calls = Calls::new(question().verdict());
    let mut settings = BytesMut::new();
    put(&mut settings, Kind::Settings, 0, 0, &[]);
    calls.take(&mut settings, &mut BytesMut::new(), &mut Vec::new()).unwrap();
    for _ in 0..count {
        calls.begin(40).unwrap().unwrap();
    }
    calls
}

/// The replies to these bytes, and the output in return.
fn taken(calls: &mut Calls, bytes: &[u8]) -> Result<(Vec<Reply>, BytesMut), Broken> {
    let (mut output, mut replies) = (BytesMut::new(), Vec::new());
    calls.take(&mut BytesMut::from(bytes), &mut output, &mut replies)?;
    Ok((replies, output))
}

/// A connection's input with every frame that a server may send.
fn conversation() -> BytesMut {
    let mut out = BytesMut::new();
    put(&mut out, Kind::Settings, 0, 0, &[0, 3, 0, 0, 0, 9, 0, 4, 0, 0, 0x40, 0]);
    put(&mut out, Kind::Settings, ACK, 0, &[]);
    put_answer(&mut out, 1, YES, FINE);
    put(&mut out, Kind::Ping, 0, 0, b"are you?");
    put(&mut out, Kind::Headers, 0, 3, HEAD);
    put(&mut out, Kind::Continuation, END_HEADERS, 3, &[0x61, 1, b'x']);
    put(&mut out, Kind::Headers, END_HEADERS, 5, HEAD);
    put(&mut out, Kind::Data, PADDED, 3, &[2, 0, 0, 0, b'-', b'-']);
    put(&mut out, Kind::Other, 0xff, 3, b"invented later");
    put(&mut out, Kind::Data, 0, 3, &NO[3..]);
    put(&mut out, Kind::Reset, 0, 5, &[0, 0, 0, 8]);
    put(&mut out, Kind::Window, 0, 0, &[0, 0, 0, 1]);
    // The date was added since, so the status is one entry further back.
    put(&mut out, Kind::Headers, END_HEADERS | END_STREAM, 3, &[0xbf]);
    put(&mut out, Kind::Reset, 0, 3, &[0, 0, 0, 0]);
    out
}

/// The input means the same wherever the network splits it.
#[test]
fn messages_in_pieces_are_read_alike() {
    let whole = conversation();
    for piece in 1..=whole.len() {
        let mut calls = Calls::new(question().verdict());
        for _ in 0..3 {
            calls.begin(40).unwrap();
        }
        let (mut input, mut output, mut replies) = (BytesMut::new(), BytesMut::new(), Vec::new());
        for part in whole.chunks(piece) {
            input.extend_from_slice(part);
            calls.take(&mut input, &mut output, &mut replies).unwrap();
        }
        assert_eq!(replies, [ALLOWED, FAILED, DENIED], "{piece}");
        assert!(calls.is_idle() && calls.is_settled() && input.is_empty(), "{piece}");
        let mut expected = BytesMut::new();
        put(&mut expected, Kind::Settings, ACK, 0, &[]);
        put(&mut expected, Kind::Ping, ACK, 0, b"are you?");
        assert_eq!(output, expected, "{piece}");
    }
}

/// Only a complete answer with status OK that contains a decision counts.
#[test]
fn an_answer_must_be_whole_fine_and_a_decision() {
    let compressed = &[1, 0, 0, 0, 2, 0x08, 1][..];
    let long = &[0, 0, 0, 0, 2, 0x08, 1, 0][..];
    let garbage = &[0, 0, 0, 0, 2, 0x08, 0x80][..];
    let failed = &b"\x00\x0bgrpc-status\x018"[..];
    let cases = [
        (YES, FINE, ALLOWED),
        (NO, FINE, DENIED),
        (NOTHING, FINE, FAILED),
        (&[], FINE, FAILED),
        (&YES[..4], FINE, FAILED),
        (&YES[..6], FINE, FAILED),
        (long, FINE, FAILED),
        (compressed, FINE, FAILED),
        (garbage, FINE, FAILED),
        (YES, failed, FAILED),
        (YES, HEAD, FAILED),
    ];
    for (message, status, expected) in cases {
        let mut bytes = BytesMut::new();
        put_answer(&mut bytes, 1, message, status);
        let (replies, _) = taken(&mut asked(1), &bytes).unwrap();
        assert_eq!(replies, [expected], "{message:?} {status:?}");
    }
    // All in one block, as errors are sent; and without a status.
    for (kind, flags, payload) in
        [(Kind::Headers, END_HEADERS | END_STREAM, FINE), (Kind::Data, END_STREAM, YES)]
    {
        let mut bytes = BytesMut::new();
        put(&mut bytes, kind, flags, 1, payload);
        assert_eq!(taken(&mut asked(1), &bytes).unwrap().0, [FAILED]);
    }
    // For other services a flag that is not set is a denial.
    let other = LoadRequest::Grpc { path: String::new(), rest: bytes::Bytes::new() }.verdict();
    assert_eq!([0, 1, 2].map(other), [Some(false), Some(true), None]);
}

/// A server that closes the connection answers the calls that it took; the others failed, and the next call needs
/// another connection.
#[test]
fn calls_that_a_leaving_server_did_not_take_have_failed() {
    let mut calls = asked(3);
    let mut bytes = BytesMut::new();
    put(&mut bytes, Kind::GoAway, 0, 0, &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0, b'b', b'y', b'e']);
    assert_eq!(taken(&mut calls, &bytes).unwrap().0, []);
    assert!(calls.is_spent());
    bytes.clear();
    put(&mut bytes, Kind::GoAway, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(taken(&mut calls, &bytes).unwrap().0, [FAILED, FAILED]);
    assert_eq!(calls.begin(40), Ok(None));
    bytes.clear();
    put_answer(&mut bytes, 1, YES, FINE);
    assert_eq!(taken(&mut calls, &bytes).unwrap().0, [ALLOWED]);
    assert!(calls.is_idle());
    bytes.clear();
    put(&mut bytes, Kind::GoAway, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 11]);
    assert_eq!(taken(&mut asked(1), &bytes).map(|_| ()), Err(Broken::Left(11)));
}

/// Any frame that a server may not send ends the connection.
#[test]
fn nonsense_is_refused() {
    let cases: [(Kind, u8, u32, &[u8]); 10] = [
        (Kind::Data, 0, 3, YES),
        (Kind::Data, 0, 2, YES),
        (Kind::Data, PADDED, 1, &[9]),
        (Kind::Headers, END_HEADERS | END_STREAM, 3, FINE),
        (Kind::Headers, END_HEADERS, 1, FINE_AGAIN),
        (Kind::Continuation, END_HEADERS, 1, HEAD),
        (Kind::Push, END_HEADERS, 1, &[0, 0, 0, 2]),
        (Kind::Ping, 0, 0, b"short"),
        (Kind::Settings, 0, 0, &[0, 4, 0]),
        (Kind::GoAway, 0, 0, &[0, 0, 0, 1]),
    ];
    for (kind, flags, stream, payload) in cases {
        let mut bytes = BytesMut::new();
        put(&mut bytes, kind, flags, stream, payload);
        assert!(taken(&mut asked(1), &bytes).is_err(), "{kind:?} {payload:?}");
    }
    let mut endless = BytesMut::new();
    put(&mut endless, Kind::Headers, 0, 1, HEAD);
    for _ in 0..5 {
        put(&mut endless, Kind::Continuation, 0, 1, &[0x88; 16 << 10]);
    }
    assert!(taken(&mut asked(1), &endless).is_err());
    let mut bytes = BytesMut::new();
    put_answer(&mut bytes, 1, YES, FINE);
    assert!(taken(&mut Calls::new(question().verdict()), &bytes).is_err(), "no settings");
}

/// The client never exceeds what the server allows: neither in calls, nor in bytes, nor in the size of a call.
#[test]
fn settings_of_the_server_are_obeyed() {
    let mut calls = asked(0);
    let mut settings = BytesMut::new();
    put(&mut settings, Kind::Settings, 0, 0, &[0, 3, 0, 0, 0, 2, 0, 4, 0, 1, 0, 0]);
    taken(&mut calls, &settings).unwrap();
    assert_eq!(calls.begin(1), Ok(Some(1)));
    assert_eq!(calls.begin(1), Ok(Some(3)));
    assert_eq!(calls.begin(1), Ok(None));
    assert_eq!(calls.begin(16 << 10), Err(Broken::Large { bytes: (16 << 10) + 5, most: 16 << 10 }));

    let mut calls = asked(0);
    let begun = std::iter::from_fn(|| calls.begin(995).unwrap()).count();
    assert_eq!(begun, 65, "a window of 65,535 bytes");
    let mut bytes = BytesMut::new();
    put(&mut bytes, Kind::Window, 0, 0, &1_000_u32.to_be_bytes());
    taken(&mut calls, &bytes).unwrap();
    assert_eq!((calls.begin(995), calls.begin(995)), (Ok(Some(131)), Ok(None)));
}

/// The window for answers is widened again before it is used up.
#[test]
fn the_window_for_answers_does_not_run_out() {
    let mut calls = asked(1);
    let mut bytes = BytesMut::new();
    put_answer(&mut bytes, 1, YES, FINE);
    taken(&mut calls, &bytes).unwrap();
    // Data for a call that is over counts as well.
    let mut frame = BytesMut::new();
    put(&mut frame, Kind::Data, 0, 1, &[0; 16 << 10]);
    let mut widened = Vec::new();
    for count in 1..=HIGHEST >> 14 {
        let (_, output) = taken(&mut calls, &frame).unwrap();
        if let Some(window) = output.last_chunk::<4>() {
            widened.push((count, u32::from_be_bytes(*window)));
        }
    }
    assert_eq!(widened, [(1 << 16, (1 << 30) + 7)]);
}

/// A server on one port that answers this many connections. It allows [`ALLOWED_CALLS`] calls of Envoy's rate-limit
/// service and denies the rest; it knows no other method.
async fn served(connections: usize) -> (SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = watch::channel(false);
    let calls = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        for _ in 0..connections {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(answered(stream, Arc::clone(&calls), stopped.clone()));
        }
    });
    (address, stop)
}

/// How many calls the server allows, and how many it takes at once.
const ALLOWED_CALLS: usize = 10;
const CONCURRENT_CALLS: u32 = 100;

/// Answers the calls of one connection until it is stopped.
async fn answered(stream: TcpStream, calls: Arc<AtomicUsize>, mut stopped: watch::Receiver<bool>) {
    let mut settings = h2::server::Builder::new();
    let mut connection =
        settings.max_concurrent_streams(CONCURRENT_CALLS).handshake::<_, Bytes>(stream).await.unwrap();
    let mut is_stopped = false;
    loop {
        tokio::select! {
            _ = stopped.changed(), if !is_stopped => {
                is_stopped = true;
                connection.graceful_shutdown();
            }
            accepted = connection.accept() => {
                let Some(Ok((request, respond))) = accepted else { return };
                answer(&request, respond, &calls);
            }
        }
    }
}

fn answer(request: &Request<h2::RecvStream>, mut respond: SendResponse<Bytes>, calls: &AtomicUsize) {
    let head = Response::new(());
    if request.uri().path() != question().grpc_path() {
        let mut head = head;
        head.headers_mut().insert("grpc-status", HeaderValue::from_static("12"));
        respond.send_response(head, true).unwrap();
        return;
    }
    let is_allowed = calls.fetch_add(1, Ordering::Relaxed) < ALLOWED_CALLS;
    let mut send = respond.send_response(head, false).unwrap();
    send.send_data(Bytes::from_static(if is_allowed { YES } else { NO }), false).unwrap();
    let status = [(HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))];
    send.send_trailers(HeaderMap::from_iter(status)).unwrap();
}

async fn exchanged(connection: &mut Connection, requests: usize) -> Vec<Reply> {
    let question = question();
    connection.exchange(requests, &question, |out| question.write(out, || 1)).await.unwrap()
}

fn count(replies: &[Reply], wanted: Reply) -> usize {
    replies.iter().filter(|&&reply| reply == wanted).count()
}

/// Any number of concurrent calls is answered, even more than the server takes at once.
#[tokio::test]
async fn calls_are_answered_by_another_implementation() {
    let (address, _stop) = served(1).await;
    let mut connection = Connection::open(address, &question()).await.unwrap();
    assert_eq!(exchanged(&mut connection, 1).await, [ALLOWED]);
    let replies = exchanged(&mut connection, 5_000).await;
    assert_eq!((count(&replies, ALLOWED), count(&replies, DENIED)), (9, 4_991));
}

/// When the streams are used up, another connection takes over, in the middle of a turn if necessary.
#[tokio::test]
async fn a_connection_without_streams_is_replaced() {
    let (address, _stop) = served(2).await;
    let mut connection = Connection::open(address, &question()).await.unwrap();
    connection.calls.skip_to(HIGHEST - 2);
    let replies = exchanged(&mut connection, 5).await;
    assert_eq!(count(&replies, ALLOWED), 5);
    let before = connection.stream.local_addr().unwrap();
    assert_eq!(exchanged(&mut connection, 1).await, [ALLOWED]);
    assert_eq!(connection.stream.local_addr().unwrap(), before);
}

/// After a GOAWAY between calls, the next call uses another connection.
#[tokio::test]
async fn a_goodbye_between_calls_is_no_error() {
    let (address, stop) = served(1).await;
    let mut connection = Connection::open(address, &question()).await.unwrap();
    assert_eq!(exchanged(&mut connection, 1).await, [ALLOWED]);
    stop.send(true).unwrap();
    connection.rest(Instant::now() + std::time::Duration::from_millis(200)).await.unwrap();
    assert!(connection.calls.is_spent());
    let (another, _stop) = served(1).await;
    connection.target = another;
    assert_eq!(exchanged(&mut connection, 1).await, [ALLOWED]);
}

/// A gRPC error is counted as an error, and so is an unknown method.
#[tokio::test]
async fn errors_are_counted_apart_from_denials() {
    let (address, _stop) = served(1).await;
    let question = LoadRequest::Grpc { path: "/no.Service/Method".to_owned(), rest: bytes::Bytes::new() };
    let mut connection = Connection::open(address, &question).await.unwrap();
    let replies = connection.exchange(3, &question, |out| question.write(out, || 1)).await.unwrap();
    assert_eq!(replies, [FAILED; 3]);
}

/// The client answers a ping between calls, so a slow load keeps its connections.
#[tokio::test]
async fn a_resting_connection_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut said = BytesMut::new();
        put(&mut said, Kind::Settings, 0, 0, &[]);
        put(&mut said, Kind::Ping, 0, 0, b"are you?");
        stream.write_all(&said).await.unwrap();
        let (mut heard, mut expected) = (Vec::new(), BytesMut::new());
        put_hello(&mut expected);
        put(&mut expected, Kind::Settings, ACK, 0, &[]);
        put(&mut expected, Kind::Ping, ACK, 0, b"are you?");
        while heard.len() < expected.len() && stream.read_buf(&mut heard).await.unwrap() > 0 {}
        assert_eq!(heard, expected);
        said.clear();
        put(&mut said, Kind::GoAway, 0, 0, &[0; 8]);
        stream.write_all(&said).await.unwrap();
    });
    let mut connection = Connection::open(address, &question()).await.unwrap();
    connection.rest(Instant::now() + std::time::Duration::from_millis(500)).await.unwrap();
    server.await.unwrap();
    assert!(connection.calls.is_spent());
}
