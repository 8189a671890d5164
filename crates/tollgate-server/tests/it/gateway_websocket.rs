//! WebSocket over HTTP/2 (RFC 8441) through the gateway to upstreams of HTTP/1.1: a real client of HTTP/2 asks with an extended CONNECT, and a
//! WebSocket of HTTP/1.1 is what the upstream sees.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2;
use hyper::ext::Protocol;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::gateway_upstream::{Gateway, OPEN, Upstream};
use crate::proxy::Folder;

type Sender = http2::SendRequest<Empty<Bytes>>;

async fn client(gateway: &Gateway) -> Sender {
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    // The server's settings come with its first frame; an answer comes after it.
    let request = Request::get("http://a/settings").body(Empty::new()).unwrap();
    drop(sender.send_request(request).await);
    sender
}

fn connect(path: &str, protocol: &'static str) -> Request<Empty<Bytes>> {
    Request::builder()
        .method(Method::CONNECT)
        .uri(format!("http://App.Test{path}"))
        .extension(Protocol::from_static(protocol))
        .header("sec-websocket-version", "13")
        .header("sec-websocket-protocol", "chat")
        .header("origin", "http://app.test")
        .body(Empty::new())
        .unwrap()
}

/// An upstream that says what it was asked and answers the handshake; `/chat` is answered as it should be, and then echoes; `/wrong` with the
/// key of another, `/other` with another protocol, `/plain` with 200, `/no` with 403.
async fn server(listener: TcpListener, seen: tokio::sync::mpsc::UnboundedSender<String>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let seen = seen.clone();
        tokio::spawn(async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                    return;
                }
            }
            let head = String::from_utf8(head).unwrap();
            let field = |name: &str| {
                head.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).unwrap_or_default()
            };
            let text = format!("{}258EAFA5-E914-47DA-95CA-C5AB0DC85B11", field("sec-websocket-key"));
            let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
            let accept = BASE64_STANDARD.encode(digest);
            let switched = |upgrade: &str, accept: &str| {
                format!(
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: {upgrade}\r\nSec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: chat\r\n\r\n"
                )
            };
            let answer = match head.split(' ').nth(1).unwrap() {
                "/chat" => switched("websocket", &accept),
                "/wrong" => switched("websocket", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
                "/other" => switched("echo", &accept),
                "/plain" | "/settings" => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
                _ => "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno".to_owned(),
            };
            let _ = seen.send(head.clone());
            let _ = stream.write_all(answer.as_bytes()).await;
            if head.starts_with("GET /chat ") {
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.write_all(b"bye").await;
                let _ = write.shutdown().await;
            }
        });
    }
}

async fn problem(response: Response<hyper::body::Incoming>) -> (u16, String) {
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// The whole way: the upstream sees an upgrade of HTTP/1.1, bytes pass in both directions as they are, beside other requests of the same
/// connection, and each side ends by itself. What is no WebSocket is never taken for one.
#[test]
fn a_websocket_inside_of_h2() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let (send, mut seen) = tokio::sync::mpsc::unbounded_channel();
    runtime.spawn(server(listener, send));
    let gateway = Gateway::with(&["--upstream", &format!("http://{address}")], OPEN);
    let whole = async {
        let mut sender = client(&gateway).await;
        assert!(seen.recv().await.unwrap().starts_with("GET /settings "));
        let response = sender.send_request(connect("/x/../chat", "websocket")).await.unwrap();
        assert_eq!(response.status(), 200);
        let fields = response.headers();
        assert_eq!(fields["sec-websocket-protocol"], "chat");
        for gone in ["connection", "upgrade", "sec-websocket-accept", "content-length"] {
            assert!(!fields.contains_key(gone), "{gone}");
        }
        let head = seen.recv().await.unwrap();
        assert!(head.starts_with("GET /chat HTTP/1.1\r\n"), "{head}");
        for line in [
            "host: app.test",
            "connection: upgrade",
            "upgrade: websocket",
            "sec-websocket-version: 13",
            "origin: http://app.test",
            "via: 2 tollgate",
        ] {
            assert_eq!(head.lines().filter(|found| *found == line).count(), 1, "{line}\n{head}");
        }
        assert!(!head.contains("content-length") && !head.contains("transfer-encoding"), "{head}");
        let mut tunnel = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
        // More than any window holds, while another request passes on the same connection.
        let sent = vec![7_u8; 3 << 20];
        let (mut read, mut write) = tokio::io::split(&mut tunnel);
        let writing = async {
            write.write_all(&sent).await.unwrap();
            write.shutdown().await.unwrap();
        };
        let mut received = Vec::new();
        let reading = read.read_to_end(&mut received);
        let mut other = sender.clone();
        let asking = other.send_request(Request::get("http://a/plain").body(Empty::new()).unwrap());
        let ((), read, answered) = tokio::join!(writing, reading, asking);
        read.unwrap();
        assert_eq!(answered.unwrap().status(), 200);
        assert!(received.len() == sent.len() + 3 && received.ends_with(b"bye"), "{}", received.len());
        for (path, status, kind) in [
            ("/wrong", 502, "upstream-not-switched"),
            ("/other", 502, "upstream-not-switched"),
            ("/plain", 502, "upstream-not-switched"),
            ("/no", 403, "no"),
        ] {
            let answer = problem(sender.send_request(connect(path, "websocket")).await.unwrap()).await;
            assert!(answer.0 == status && answer.1.contains(kind), "{path}: {answer:?}");
        }
        // Other protocols, and a CONNECT that wants a whole connection, are no business of a gateway.
        while seen.try_recv().is_ok() {}
        for protocol in ["connect-udp", "webtransport", "WebSocket"] {
            let answer = problem(sender.send_request(connect("/chat", protocol)).await.unwrap()).await;
            assert!(
                answer.0 == 501
                    && answer.1.contains("unknown-protocol")
                    && answer.1.contains("accepted: websocket"),
                "{answer:?}"
            );
        }
        let plain = Request::builder().method(Method::CONNECT).uri("app.test:80").body(Empty::new()).unwrap();
        assert_eq!(sender.send_request(plain).await.unwrap().status(), 405);
        assert!(seen.try_recv().is_err(), "none of them reached the upstream");
    };
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), whole).await }).unwrap();
}

/// A WebSocket inside of HTTP/2 is a tunnel of its client's share, however many of them one connection asks for. Requests on the same
/// connection are not concerned, and a tunnel that ends makes room.
#[test]
fn tunnels_are_of_the_clients_share() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let (address, folder) = (listener.local_addr().unwrap(), Folder::new("websocket-share"));
    let (send, _seen) = tokio::sync::mpsc::unbounded_channel();
    runtime.spawn(server(listener, send));
    let text = format!(
        "routes: [{{upstreams: ['http://{address}'], tunnels: 8, per_client: 50%, timeouts: {{connect: 200ms}}}}]\n"
    );
    let config = folder.write("config.yaml", &text).display().to_string();
    let gateway = Gateway::with(&["--config", &config], OPEN);
    let whole = async {
        let mut sender = client(&gateway).await;
        let mut tunnels = Vec::new();
        for _ in 0..4 {
            let granted = sender.send_request(connect("/chat", "websocket")).await.unwrap();
            assert_eq!(granted.status(), 200);
            tunnels.push(hyper::upgrade::on(granted).await.unwrap());
        }
        let refused = problem(sender.send_request(connect("/chat", "websocket")).await.unwrap()).await;
        assert!(refused.0 == 503 && refused.1.contains("client-share"), "{refused:?}");
        let plain = Request::get("http://a/plain").body(Empty::new()).unwrap();
        assert_eq!(sender.send_request(plain).await.unwrap().status(), 200);
        assert_eq!(gateway.metric("tollgate_gateway_tunnels", "route-0"), 4);
        drop(tunnels.pop());
        let mut granted = sender.send_request(connect("/chat", "websocket")).await.unwrap();
        while granted.status() == 503 {
            granted = sender.send_request(connect("/chat", "websocket")).await.unwrap();
        }
        assert_eq!(granted.status(), 200);
    };
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), whole).await }).unwrap();
}

/// Limits hold as for any request, by the method and path of a GET; a place in flight is taken until the tunnel ends, by whichever side.
#[test]
fn limits_hold() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let (send, _seen) = tokio::sync::mpsc::unbounded_channel();
    runtime.spawn(server(listener, send));
    let policy = "limits: [{name: in-flight, when: {method: GET, path: /chat}, by: [ip], concurrency: 1}]";
    let gateway = Gateway::with(&["--upstream", &format!("http://{address}")], policy);
    let whole = async {
        let mut sender = client(&gateway).await;
        for round in 0..3 {
            let mut granted = sender.send_request(connect("/chat", "websocket")).await.unwrap();
            while granted.status() == 429 {
                // The place of the last round is free as soon as its end was heard.
                tokio::time::sleep(Duration::from_millis(20)).await;
                granted = sender.send_request(connect("/chat", "websocket")).await.unwrap();
            }
            assert_eq!(granted.status(), 200, "{round}");
            let mut tunnel = TokioIo::new(hyper::upgrade::on(granted).await.unwrap());
            tunnel.write_all(b"ping").await.unwrap();
            let mut pong = [0; 4];
            tunnel.read_exact(&mut pong).await.unwrap();
            assert_eq!(&pong, b"ping");
            for _ in 0..3 {
                assert_eq!(sender.send_request(connect("/chat", "websocket")).await.unwrap().status(), 429);
            }
            assert_eq!(gateway.metric("tollgate_gateway_tunnels", "upstream"), 1);
            drop(tunnel);
        }
    };
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), whole).await }).unwrap();
    crate::gateway_upstream::until(|| gateway.metric("tollgate_gateway_tunnels", "upstream") == 0);
}

/// A server that stops lets a tunnel go on, and ends when that has.
#[test]
fn a_stop_lets_it_end() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let (send, _seen) = tokio::sync::mpsc::unbounded_channel();
    runtime.spawn(server(listener, send));
    let mut gateway = Gateway::with(&["--upstream", &format!("http://{address}")], OPEN);
    let opened = async {
        let mut sender = client(&gateway).await;
        let granted = sender.send_request(connect("/chat", "websocket")).await.unwrap();
        TokioIo::new(hyper::upgrade::on(granted).await.unwrap())
    };
    let mut tunnel = runtime.block_on(opened);
    gateway.server.signal("-TERM");
    gateway.server.await_log("stopping");
    // Longer than an idle connection may last.
    assert!(gateway.server.wait_at_most(Duration::from_millis(1_500)).is_none());
    runtime.block_on(async {
        tunnel.write_all(b"ping").await.unwrap();
        let mut pong = [0; 4];
        tunnel.read_exact(&mut pong).await.unwrap();
        assert_eq!(&pong, b"ping");
    });
    drop(tunnel);
    assert!(gateway.server.wait_at_most(Duration::from_secs(10)).unwrap().success());
}

/// An upstream that speaks only HTTP/2 cannot be asked, and that is said.
#[test]
fn an_upstream_of_h2_is_not_asked() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&["--upstream", &format!("h2c://{}", upstream.address)], OPEN);
    upstream.run(async {
        let mut sender = client(&gateway).await;
        let answer = problem(sender.send_request(connect("/chat", "websocket")).await.unwrap()).await;
        assert!(answer.0 == 502 && answer.1.contains("set protocol: auto"), "{answer:?}");
    });
}
