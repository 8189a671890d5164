//! What upstreams are sent and what they say: bodies of every method, answers of every shape, and what a client learns when there is none.

use std::net::TcpStream;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::gateway_upstream::{Gateway, Upstream};

/// A body whose length nobody knows.
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
