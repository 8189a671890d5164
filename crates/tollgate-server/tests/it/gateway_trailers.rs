//! Trailers of requests and of answers, between HTTP/1.1 and HTTP/2 in every pair: what may follow a body does, and what could be taken for
//! a field that the gateway has looked at does not.

use std::convert::Infallible;
use std::io::Read;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Frame};
use hyper::client::conn::http2;
use hyper::{HeaderMap, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::gateway_upstream::{Gateway, OPEN, Upstream};

/// Fields that no client may send after its body.
const FORBIDDEN: [&str; 9] = [
    "authorization",
    "content-length",
    "content_length",
    "cookie",
    "host",
    "transfer-encoding",
    "x-api-key",
    "x-forwarded-for",
    "x-tenant",
];

/// A body of these frames, the last first.
struct Frames(Vec<Frame<Bytes>>);

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop().map(Ok))
    }
}

fn gateways(upstream: &Upstream) -> [(&'static str, Gateway); 2] {
    let folder = crate::proxy::Folder::new("gateway-trailers");
    ["http", "h2c"].map(|scheme| {
        let text = format!(
            "routes: [{{upstreams: ['{scheme}://{}']}}]\nattributes: {{tenant: {{header: X-Tenant}}}}",
            upstream.address
        );
        let config = folder.write("config.yaml", &text).display().to_string();
        (scheme, Gateway::with(&["--config", &config], OPEN))
    })
}

/// Requests of HTTP/1.1 in chunks, to HTTP/1.1 and to HTTP/2.
#[test]
fn from_http1() {
    let upstream = Upstream::start();
    for (scheme, gateway) in gateways(&upstream) {
        let forbidden: String = FORBIDDEN.iter().map(|name| format!("{name}: 1\r\n")).collect();
        let announced = format!("x-checksum, grpc-status, {}", FORBIDDEN.join(", "));
        let ask = |method: &str, announced: &str| {
            let request = format!(
                "{method} /trail HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: {announced}\r\n\r\n5\r\nhello\r\n0\r\nX-Checksum: abc\r\n{forbidden}Grpc-Status: 0\r\n\r\n"
            );
            String::from_utf8(gateway.exchange(&request).body).unwrap()
        };
        assert_eq!(ask("POST", &announced), "hello|x-checksum=abc;grpc-status=0", "{scheme}");
        assert_eq!(ask("GET", &announced), "hello|x-checksum=abc;grpc-status=0", "{scheme}");
        assert!(upstream.seen().iter().all(|seen| seen.header("trailer") == announced), "{scheme}");
        // Two requests on one connection: the second begins where the first has ended.
        let pair = "POST /trail HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: a\r\n\r\n0\r\nA: 1\r\n\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n";
        let all = gateway.all(pair.as_bytes());
        assert!(all.contains("|a=1") && all.ends_with("hello"), "{scheme}: {all}");
        upstream.seen();
    }
}

/// Requests of HTTP/2, with a length and without, to HTTP/2 and to HTTP/1.1, which has trailers behind chunks alone.
#[test]
fn from_h2() {
    let upstream = Upstream::start();
    for (scheme, gateway) in gateways(&upstream) {
        upstream.run(async {
            let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
            let (mut sender, connection) =
                http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            let mut ask = async |fields: &[(&str, &str)]| {
                let mut trailers = HeaderMap::new();
                trailers.insert("x-checksum", "abc".parse().unwrap());
                // Those that HTTP/2 itself forbids end the stream before anybody is asked.
                for name in FORBIDDEN.iter().filter(|name| **name != "transfer-encoding") {
                    trailers.insert(*name, "1".parse().unwrap());
                }
                let frames = vec![Frame::trailers(trailers), Frame::data(Bytes::from("hello"))];
                let mut request = Request::post("http://a/trail");
                for (name, value) in fields {
                    request = request.header(*name, *value);
                }
                let response = sender.send_request(request.body(Frames(frames)).unwrap()).await.unwrap();
                response.into_body().collect().await.unwrap().to_bytes()
            };
            let announced = ("trailer", "x-checksum, authorization, host");
            assert_eq!(ask(&[announced]).await, "hello|x-checksum=abc", "{scheme}");
            assert_eq!(ask(&[announced, ("content-length", "5")]).await, "hello|x-checksum=abc", "{scheme}");
            assert_eq!(ask(&[]).await, "hello|x-checksum=abc", "{scheme}");
            let measured = if scheme == "h2c" { "hello|x-checksum=abc" } else { "hello|" };
            assert_eq!(ask(&[("content-length", "5")]).await, measured, "{scheme}");
        });
    }
}

/// Trailers of answers, to clients of either kind.
#[test]
fn of_answers() {
    let upstream = Upstream::start();
    for (scheme, gateway) in gateways(&upstream) {
        let mut stream = gateway.connect();
        let asks = b"GET /trailers HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: te, close\r\n\r\n";
        std::io::Write::write_all(&mut stream, asks).unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        assert!(all.ends_with("5\r\nhello\r\n0\r\ngrpc-status: 0\r\n\r\n"), "{scheme}: {all}");
        upstream.run(async {
            let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
            let (mut sender, connection) =
                http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            let request = Request::get("http://a/trailers").header("te", "trailers");
            let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
            let collected = response.into_body().collect().await.unwrap();
            assert_eq!(collected.trailers().unwrap()["grpc-status"], "0", "{scheme}");
        });
    }
}
