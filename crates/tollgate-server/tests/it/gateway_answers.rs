//! Requests to upstreams and their answers: bodies of every method, answers of every shape, and what a client learns when there is none.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::gateway_upstream::{Gateway, OPEN, Upstream};
use crate::h2_conformance::talk::{Received, Talk, block, headers};
use crate::proxy::Folder;

/// A server that answers each request with the bytes that are meant for its path, and says nothing where there are none.
fn scripted(answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, answer) = (listener.local_addr().unwrap(), Arc::new(answer));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || serve(&stream, &*answer));
        }
    });
    format!("{address}")
}

fn serve(mut stream: &TcpStream, answer: &dyn Fn(&str) -> Option<String>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).is_ok_and(|read| read == 0) {
                return;
            }
        }
        let path = head.split(' ').nth(1).unwrap_or_default();
        let Some(bytes) = answer(path) else {
            let _ = reader.read(&mut [0]); // Until the other side gives up.
            return;
        };
        if stream.write_all(bytes.as_bytes()).is_err() {
            return;
        }
    }
}

fn before(address: &str) -> Gateway {
    Gateway::with(&["--upstream", &format!("http://{address}")], OPEN)
}

/// A body of unknown length.
struct Unmeasured(Full<Bytes>);

impl hyper::body::Body for Unmeasured {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.0).poll_frame(context)
    }
}

/// A body of unknown length reaches the upstream whatever the method: hyper takes it that GET has none, and dropped it.
#[test]
fn every_method_may_have_a_body() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    for method in ["GET", "DELETE", "OPTIONS", "POST"] {
        let head = format!("{method} /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n");
        let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
        assert!(gateway.all(chunked.as_bytes()).contains("hello"), "{method}");
        assert_eq!(upstream.only().header("transfer-encoding"), "chunked", "{method}");
        let measured = format!("{head}Content-Length: 5\r\n\r\nhello");
        assert!(gateway.all(measured.as_bytes()).contains("hello"), "{method}");
        let seen = upstream.only();
        assert_eq!(
            (seen.header("content-length").as_str(), seen.header("transfer-encoding").as_str()),
            ("5", "")
        );
        assert!(gateway.all(format!("{head}\r\n").as_bytes()).starts_with("HTTP/1.1 200"));
        assert_eq!(upstream.only().header("transfer-encoding"), "", "{method}");
    }
    let head = "HEAD /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    assert_eq!(gateway.exchange(head).status, 200);
    assert_eq!(upstream.only().header("transfer-encoding"), "chunked");
    upstream.run(async {
        let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::get("http://app.test/echo").body(Unmeasured(Full::from("hello"))).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), Bytes::from("hello"));
    });
}

/// An answer that no client may see.
const HIDDEN: &str = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nsmuggled";

/// Answers whose end two readers could find in different places: they are read by the rules and sent on in one way, or not at all; and what
/// they hide answers no request.
#[test]
fn answers_are_framed_once() {
    let chunks = "5\r\nhello\r\n0\r\n\r\n";
    let fine = [
        ("Content-Length: 3\r\nTransfer-Encoding: chunked", chunks),
        ("Transfer-Encoding: chunked\r\nContent-Length: 3", chunks),
        ("Transfer-Encoding: Chunked\r\nContent-Length: 500", chunks),
        ("Content-Length: 5\r\nContent-Length: 5", "hello"),
        ("Content-Length: 5, 5", "hello"),
    ];
    let broken = [
        ("Content-Length: 5\r\nContent-Length: 6", "hello"),
        ("Content-Length: 5, 6", "hello"),
        ("Content-Length: +5", "hello"),
        ("Content-Length: -1", "hello"),
        ("Content-Length: 5 5", "hello"),
        ("Content-Length: 0x5", "hello"),
        ("Content-Length : 5", "hello"),
        ("Transfer-Encoding: gzip, chunked", chunks),
        ("Transfer-Encoding: chunked, chunked", chunks),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", chunks),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", chunks),
        ("Transfer-Encoding: identity\r\nContent-Length: 5", "hello"),
        ("Transfer-Encoding: xchunked\r\nContent-Length: 5", "hello"),
        ("X: y\r\n Content-Length: 5\r\nContent-Length: 6", "hello"),
    ];
    let answers: Vec<String> = fine
        .iter()
        .chain(&broken)
        .map(|(fields, body)| format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n{body}{HIDDEN}"))
        .collect();
    let shapes = answers.clone();
    let upstream = scripted(move |path| {
        let plain = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnext";
        Some(path[1..].parse::<usize>().map_or_else(|_| plain.to_owned(), |place| shapes[place].clone()))
    });
    let gateway = before(&upstream);
    for (place, answer) in answers.iter().enumerate() {
        let requests =
            format!("GET /{place} HTTP/1.1\r\nHost: a\r\n\r\nGET /next HTTP/1.1\r\nHost: a\r\n\r\n");
        let all = gateway.all(requests.as_bytes());
        let (first, next) = all.split_once("HTTP/1.1 200 OK\r\ncontent-length: 4").unwrap_or((&all, ""));
        assert!(next.ends_with("next") && !all.contains("smuggled"), "{answer:?}: {all}");
        if place < fine.len() {
            assert!(first.starts_with("HTTP/1.1 200") && first.contains("hello"), "{answer:?}: {all}");
            let reported =
                first.matches("content-length").count() + first.matches("transfer-encoding").count();
            assert!(reported == 1 && !first.contains("content-length: 3"), "{answer:?}: {all}");
        } else {
            assert!(first.starts_with("HTTP/1.1 502") && !first.contains("hello"), "{answer:?}: {all}");
        }
    }
}

/// The story: a client of HTTP/1.0 or HTTP/2 could leave the host out, and the upstream was asked by its own name, which limits on that
/// name did not see. A request without a host is refused, whatever its version, and charges nothing.
#[test]
fn a_request_names_its_host() {
    let upstream = Upstream::start();
    let policy = "limits: [{name: host, when: {host: localhost}, by: [ip], rate: 1/h}]";
    let address = format!("http://localhost:{}", upstream.address.port());
    let gateway = Gateway::with(&["--upstream", &address], policy);
    let named = || gateway.exchange("GET /named HTTP/1.1\r\nHost: localhost\r\n\r\n").status;
    for head in ["GET /x HTTP/1.0\r\n\r\n", "GET /x HTTP/1.0\r\nHost:\r\n\r\n"] {
        let all = gateway.all(head.as_bytes());
        assert!(all.starts_with("HTTP/1.0 400") && all.contains("host: missing"), "{all}");
    }
    let line = [(":method", "GET"), (":scheme", "http"), (":path", "/x")];
    let mut talk = Talk::begin(&gateway, true);
    talk.send(&headers(1, &block(&line)));
    talk.hear(|received| received.ended.contains(&1));
    assert_eq!(talk.received.statuses, [(1, 400)]);
    for empty in [":authority", "host"] {
        let mut talk = Talk::begin(&gateway, true);
        talk.send(&headers(1, &block(&[&line[..], &[(empty, "")]].concat())));
        talk.hear(Received::has_ended);
        assert!(
            talk.received.statuses.iter().all(|(_, status)| *status == 400),
            "{empty}: {:?}",
            talk.received.statuses
        );
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!((named(), named()), (200, 429));
    assert_eq!(upstream.only().header("host"), "localhost");
}

/// A server that takes requests and never answers is left alone as one that hangs up is; one that is slow now and then is not.
#[test]
fn a_server_that_never_answers_is_left_alone() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let hung = scripted(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        None
    });
    let (upstream, folder) = (Upstream::start(), Folder::new("gateway-hung"));
    let route = |urls: &str| {
        let text = format!("routes: [{{upstreams: [{urls}], retries: 0, timeouts: {{response: 100ms}}}}]");
        let config = folder.write("config.yaml", &text).display().to_string();
        Gateway::with(&["--config", &config], OPEN)
    };
    let gateway = route(&format!("'http://{hung}', 'http://{}'", upstream.address));
    let late = (0..100).filter(|_| gateway.get("/", "").status == 504).count();
    assert_eq!(late, asked.load(Ordering::SeqCst));
    assert!((5..=12).contains(&late), "{late} of 100 requests were late");
    // Its other answers show that it is well.
    let gateway =
        route(&format!("'http://{0}', 'http://localhost:{1}'", upstream.address, upstream.address.port()));
    for _ in 0..20 {
        assert_eq!((gateway.get("/hang", "").status, gateway.get("/", "").status), (504, 200));
        assert_eq!((gateway.get("/", "").status, gateway.get("/", "").status), (200, 200));
    }
}

/// A client learns of an upstream's failure in one of a few sentences with a cure; certificates, names and bytes are for the log.
#[test]
fn answers_contain_no_internals() {
    let garbage = scripted(|_| Some("SSH-2.0-OpenSSH_9.2 secret\r\n\r\n".to_owned()));
    let plain = Upstream::start();
    let cases = [
        (format!("https://{}", plain.address), "does not prove by TLS who it is"),
        (format!("http://{garbage}"), "not valid HTTP"),
    ];
    for (url, cause) in cases {
        let gateway = Gateway::with(&["--upstream", &url], OPEN);
        let detail = gateway.get("/", "").problem(502);
        assert!(detail.contains(cause), "{detail}");
        let is_internal = |word: &&str| detail.to_lowercase().contains(*word);
        let internals = ["corrupt", "invalidcontenttype", "parsed", "ssh", "127.0.0.1", "os error"];
        assert_eq!(internals.iter().find(|word| is_internal(word)), None, "{detail}");
    }
}

/// An answer may have more fields than a request; one with too many is reported as such, and not as a server that hung up.
#[test]
fn answers_with_many_fields() {
    let many = scripted(|path| {
        let fields: String =
            (0..path[1..].parse::<u32>().unwrap()).map(|n| format!("X-{n}: y\r\n")).collect();
        Some(format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{fields}\r\nok"))
    });
    let gateway = before(&many);
    let response = gateway.get("/200", "");
    assert_eq!((response.status, response.header("x-199")), (200, Some("y")));
    assert!(gateway.get("/300", "").problem(502).contains("too many header fields"));
    assert!(gateway.get("/20000", "").problem(502).contains("too many header fields"));
}
