//! The gateway over HTTP/2, with TLS and without, on either side; and how it ends connections that abuse it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper::{Request, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tonic::Code;

use crate::gateway_upstream::{Gateway, OPEN, Upstream, until};
use crate::pki::{Pair, TestCa};
use crate::program::Server;
use crate::proxy::{Folder, free_port};
use crate::rls::{Client, question, shown};

type Sender = http2::SendRequest<Full<Bytes>>;

async fn over<S>(stream: S) -> Sender
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn h2c(gateway: &Gateway) -> Sender {
    over(tokio::net::TcpStream::connect(gateway.address).await.unwrap()).await
}

fn request(path: &str, body: &'static str) -> Request<Full<Bytes>> {
    let uri = format!("http://App.Test{path}");
    Request::post(uri)
        .header("te", "trailers")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(Full::from(body))
        .unwrap()
}

/// Sends one request, and tells status, body and trailers.
async fn ask(sender: &mut Sender, request: Request<Full<Bytes>>) -> (u16, Bytes, String) {
    let response = sender.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let collected = response.into_body().collect().await.unwrap();
    let trailers = collected.trailers().map(|trailers| format!("{trailers:?}")).unwrap_or_default();
    (status, collected.to_bytes(), trailers)
}

/// HTTP/2 in front, either behind: the upstream sees one request in its own language, and trailers come back as gRPC needs them.
#[test]
fn h2_in_front() {
    let upstream = Upstream::start();
    for (scheme, version) in [("http", Version::HTTP_11), ("h2c", Version::HTTP_2)] {
        let gateway = Gateway::with(&["--upstream", &format!("{scheme}://{}", upstream.address)], OPEN);
        upstream.run(async {
            let mut sender = h2c(&gateway).await;
            assert_eq!(
                ask(&mut sender, request("/echo//x", "hello")).await,
                (200, Bytes::from("hello"), String::new())
            );
            let seen = upstream.only();
            assert_eq!((seen.line.as_str(), seen.version), ("POST /echo/x", version));
            let host = if version == Version::HTTP_2 { "" } else { "app.test" };
            assert_eq!((seen.header("host").as_str(), seen.header("cookie").as_str()), (host, "a=1; b=2"));
            assert_eq!((seen.header("via").as_str(), seen.header("te").as_str()), ("2 tollgate", "trailers"));
            let connection = if version == Version::HTTP_2 { "" } else { "te" };
            assert_eq!(seen.header("connection"), connection);
            let (status, body, trailers) = ask(&mut sender, request("/trailers", "")).await;
            assert_eq!(
                (status, &body[..], trailers.contains("grpc-status")),
                (200, &b"hello"[..], true),
                "{version:?}"
            );
            // Many at once on one connection.
            let asked: Vec<_> = (0..300)
                .map(|_| {
                    tokio::spawn({
                        let mut sender = sender.clone();
                        async move { ask(&mut sender, request("/echo", "x")).await }
                    })
                })
                .collect();
            for asked in asked {
                assert_eq!(asked.await.unwrap().0, 200);
            }
            upstream.seen();
            assert_eq!(ask(&mut sender, request("/a%2fb", "")).await.0, 400);
            assert_eq!(upstream.seen().len(), 0);
        });
    }
}

/// HTTP/1.1 in front of HTTP/2.
#[test]
fn h2_behind() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&["--upstream", &format!("h2c://{}", upstream.address)], OPEN);
    let response = gateway.get("/x", "Connection: close\r\n");
    assert_eq!((response.status, response.body.as_slice()), (200, b"hello".as_slice()));
    let seen = upstream.only();
    assert_eq!((seen.version, seen.header("connection")), (Version::HTTP_2, String::new()));
    let upgrade = gateway.get("/upgrade", "Connection: upgrade\r\nUpgrade: websocket\r\n");
    assert!(upgrade.problem(502).contains("set protocol: auto"));
}

pub(crate) fn acceptor(pair: &Pair, protocols: &[&str]) -> TlsAcceptor {
    let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let mut config = builder.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

fn connector(authority: &TestCa, protocols: &[&str]) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

/// TLS on both sides: either speaks what was agreed on, an upgrade finds HTTP/1.1, and who is not known is not asked.
#[test]
fn tls_on_both_sides() {
    let (authority, folder) = (TestCa::new("test"), Folder::new("gateway-tls"));
    let pair = authority.server();
    let ca = folder.write("ca.pem", &authority.pem);
    let (certificate, key) =
        (folder.write("cert.pem", &pair.certificate), folder.write("key.pem", &pair.key));
    let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
    for (behind, seen_version) in [("h2", Version::HTTP_2), ("http/1.1", Version::HTTP_11)] {
        let upstream = Upstream::start_with(Some(acceptor(&pair, &[behind, "http/1.1"])));
        let route =
            format!("routes: [{{upstreams: ['https://{}'], ca: {}}}]", upstream.address, ca.display());
        let config = folder.write("config.yaml", &route).display().to_string();
        let gateway =
            Gateway::with(&["--config", &config, "--tls-cert", &certificate, "--tls-key", &key], OPEN);
        upstream.run(async {
            let tcp = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
            let name = ServerName::try_from("localhost").unwrap();
            let stream = connector(&authority, &["h2", "http/1.1"]).connect(name, tcp).await.unwrap();
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            let mut sender = over(stream).await;
            assert_eq!(ask(&mut sender, request("/echo", "hello")).await.1, "hello");
        });
        let seen = upstream.only();
        assert_eq!((seen.version, seen.header("x-forwarded-proto").as_str()), (seen_version, "https"));
        // HTTP/1.1 and a tunnel, through TLS on both sides.
        upstream.run(async {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let tcp = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
            let name = ServerName::try_from("localhost").unwrap();
            let mut stream = connector(&authority, &["http/1.1"]).connect(name, tcp).await.unwrap();
            let head =
                b"GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nping";
            stream.write_all(head).await.unwrap();
            let mut all = Vec::new();
            while !all.ends_with(b"ping") {
                assert_ne!(stream.read_buf(&mut all).await.unwrap(), 0, "{}", String::from_utf8_lossy(&all));
            }
            assert!(all.starts_with(b"HTTP/1.1 101"));
        });
    }
    let strange = TestCa::new("strange").server();
    let upstream = Upstream::start_with(Some(acceptor(&strange, &["h2"])));
    let route = format!("routes: [{{upstreams: ['https://{}'], ca: {}}}]", upstream.address, ca.display());
    let config = folder.write("config.yaml", &route).display().to_string();
    let gateway = Gateway::with(&["--config", &config], OPEN);
    assert!(gateway.get("/", "").problem(502).contains("does not prove by TLS who it is"));
    assert_eq!(upstream.seen().len(), 0);
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), content].concat()
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// `GET http://a/` in HPACK: three fields of its table, and an authority of one letter.
const GET: &[u8] = &[0x82, 0x86, 0x84, 0x41, 0x01, b'a'];

/// A client that begins as it should.
fn raw(gateway: &Gateway) -> TcpStream {
    let mut stream = gateway.connect();
    stream.write_all(&[PREFACE, &frame(4, 0, 0, &[])].concat()).unwrap();
    stream
}

/// Sends until the other side has had enough; tells how many frames it took.
fn flood(gateway: &Gateway, most: u32, mut frames: impl FnMut(u32) -> Vec<u8>) -> Option<u32> {
    let mut stream = raw(gateway);
    let mut reader = stream.try_clone().unwrap();
    let (ended, has_ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut all = [0; 1 << 14];
        while reader.read(&mut all).is_ok_and(|read| read > 0) {}
        let _ = ended.send(());
    });
    let sent =
        (0..most).find(|number| stream.write_all(&frames(*number)).is_err() || has_ended.try_recv().is_ok());
    let _ = stream.shutdown(Shutdown::Write);
    // What was written may not have been read yet.
    sent.or_else(|| has_ended.recv_timeout(Duration::from_secs(5)).is_ok().then_some(most))
}

/// Resident memory of the server, in bytes.
fn memory(gateway: &Gateway) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/statm", gateway.server.id())).unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

/// Floods of frames end their own connection, take little memory, and leave others alone.
#[test]
fn floods_end_their_connection() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    assert_eq!(gateway.get("/", "").status, 200);
    let before = memory(&gateway);
    // Rapid reset: each stream is opened and reset at once.
    let resets = flood(&gateway, 20_000, |number| {
        let stream = number * 2 + 1;
        [frame(1, 5, stream, GET), frame(3, 0, stream, &8_u32.to_be_bytes())].concat()
    });
    assert!(resets.is_some_and(|sent| sent < 20_000), "{resets:?}");
    let reached = upstream.seen().len();
    assert!(reached < 2_000, "{reached} of them reached the upstream");
    let settings = flood(&gateway, 200_000, |_| frame(4, 0, 0, &[]));
    assert!(settings.is_some_and(|sent| sent < 200_000), "{settings:?}");
    let pings = flood(&gateway, 2_000_000, |_| frame(6, 0, 0, &[0; 8]));
    assert!(pings.is_some_and(|sent| sent < 2_000_000), "{pings:?}");
    let updates = flood(&gateway, 2_000_000, |_| frame(8, 0, 0, &1_u32.to_be_bytes()));
    assert!(updates.is_some_and(|sent| sent < 2_000_000), "{updates:?}");
    let empty = flood(&gateway, 200_000, |number| {
        if number == 0 { frame(1, 4, 1, &[0x83, 0x86, 0x84, 0x41, 0x01, b'a']) } else { frame(0, 0, 1, &[]) }
    });
    assert!(empty.is_some_and(|sent| sent < 200_000), "{empty:?}");
    // A head that never ends.
    let continuation = flood(&gateway, 100_000, |number| {
        if number == 0 {
            frame(1, 0, 1, GET)
        } else {
            frame(9, 0, 1, &[0x00, 0x01, b'x', 0x01, b'y'].repeat(100))
        }
    });
    assert!(continuation.is_some_and(|sent| sent < 100_000), "{continuation:?}");
    let grown = memory(&gateway).saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
    assert_eq!(gateway.get("/", "").status, 200);
    upstream.run(async { assert_eq!(ask(&mut h2c(&gateway).await, request("/echo", "x")).await.0, 200) });
}

/// A client that gives back two windows for each part of an answer, however small, gets all of it; thousands of updates in a moment are
/// no flood when they follow from what was sent.
#[test]
fn updates_for_each_part_are_no_flood() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut stream = raw(&gateway);
    let megabytes = 64;
    let path = format!("/big/{megabytes}");
    let length = u8::try_from(path.len()).unwrap();
    let big = [&[0x82, 0x86, 0x41, 0x01, b'a', 0x04, length][..], path.as_bytes()].concat();
    stream.write_all(&frame(1, 5, 1, &big)).unwrap();
    let mut reader = std::io::BufReader::new(stream.try_clone().unwrap());
    let (mut got, mut updates) = (0, 0);
    loop {
        let mut head = [0; 9];
        reader.read_exact(&mut head).unwrap();
        let mut content = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        reader.read_exact(&mut content).unwrap();
        if head[3] != 0 {
            continue;
        }
        got += content.len();
        if head[4] & 1 == 1 {
            break;
        }
        if let Ok(size @ 1..) = u32::try_from(content.len()) {
            let both = [frame(8, 0, 0, &size.to_be_bytes()), frame(8, 0, 1, &size.to_be_bytes())].concat();
            stream.write_all(&both).unwrap();
            updates += 2;
        }
    }
    assert_eq!(got, megabytes << 20);
    assert!(updates > 4_000, "only {updates}, which would be no flood in any case");
}

/// More streams than one connection may have are refused; a head that is too large is, too.
#[test]
fn bounds_of_a_connection() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    upstream.run(async {
        let mut sender = h2c(&gateway).await;
        let large = Request::get("http://a/").header("x", "y".repeat(20_000)).body(Full::default()).unwrap();
        let answer = sender.send_request(large).await;
        assert!(answer.map_or(true, |answer| answer.status() == 431));
        assert_eq!(upstream.seen().len(), 0);
        assert_eq!(ask(&mut h2c(&gateway).await, request("/echo", "x")).await.0, 200);
    });
    upstream.seen();
    let mut stream = raw(&gateway);
    // A few more than there may be; a client that goes on like that is taken for one that never stops.
    for number in 0..170_u32 {
        let hang = [&[0x82, 0x86, 0x41, 0x01, b'a', 0x04, 0x05][..], b"/hang"].concat();
        stream.write_all(&frame(1, 5, number * 2 + 1, &hang)).unwrap();
    }
    until(|| upstream.count() >= 128);
    #[allow(clippy::disallowed_methods, reason = "what does not come cannot be awaited otherwise")]
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(upstream.seen().len(), 128);
}

/// A field in HPACK, as a literal without indexing.
fn field(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).unwrap();
    [&[0, length(name)], name.as_bytes(), &[length(value)], value.as_bytes()].concat()
}

/// The head of a request of HTTP/2, pseudo fields first.
fn head(fields: &[(&str, &str)]) -> Vec<u8> {
    fields.iter().flat_map(|(name, value)| field(name, value)).collect()
}

/// Reads until these streams have ended, or the connection has.
fn ended(stream: &mut TcpStream, wanted: &[u32]) {
    let mut left = wanted.to_vec();
    let mut head = [0; 9];
    while !left.is_empty() && stream.read_exact(&mut head).is_ok() {
        let [highest, high, low, kind, flags, number @ ..] = head;
        let length = usize::from(highest) << 16 | usize::from(high) << 8 | usize::from(low);
        if stream.read_exact(&mut vec![0; length]).is_err() {
            return;
        }
        let is_end = kind == 3 || matches!(kind, 0 | 1) && flags & 1 == 1;
        left.retain(|stream| !is_end || *stream != u32::from_be_bytes(number));
    }
}

/// A request that HTTP/1 would read as another one cannot be hidden in HTTP/2: not behind a length, nor in a coding, nor in any text.
#[test]
fn nothing_is_smuggled_from_h2() {
    const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let line = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/x")];
    let with = |more: &[(&str, &str)]| head(&[&line[..], more].concat());
    let instead = |place: usize, value: &'static str| {
        let mut line = line;
        line[place].1 = value;
        head(&line)
    };
    let heads = [
        with(&[("content-length", "0")]),
        with(&[("content-length", "1")]),
        with(&[("content-length", "0"), ("content-length", "35")]),
        with(&[("content-length", "+35")]),
        with(&[("transfer-encoding", "chunked")]),
        with(&[("Transfer-Encoding", "chunked")]),
        with(&[("connection", "transfer-encoding")]),
        with(&[("x", "y\r\ntransfer-encoding: chunked")]),
        with(&[("x\r\ntransfer-encoding", "chunked")]),
        with(&[("x: y\r\ntransfer-encoding", "chunked")]),
        with(&[("x", "y\nz: w")]),
        with(&[("x", "y\0")]),
        with(&[("host", "b")]),
        with(&[("host", "a\r\nx: y")]),
        with(&[(":path", "/smuggled")]),
        instead(0, "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\nPOST"),
        instead(0, "GET "),
        instead(2, "a\r\nHost: b"),
        instead(2, "a@b"),
        instead(3, "/x HTTP/1.1\r\nHost: a\r\n\r\nGET /smuggled"),
        instead(3, "/x /smuggled"),
        instead(3, "*x"),
        instead(3, ""),
    ];
    let ask = |head: &[u8]| -> Vec<String> {
        let mut stream = raw(&gateway);
        let body = format!("0\r\n\r\n{SMUGGLED}");
        let _ = stream.write_all(&[frame(1, 4, 1, head), frame(0, 1, 1, body.as_bytes())].concat());
        let _ = stream.write_all(&frame(1, 5, 3, GET));
        ended(&mut stream, &[1, 3]);
        upstream.seen().into_iter().map(|seen| seen.line).collect()
    };
    let mut honest = ask(&with(&[("content-length", "40")]));
    honest.sort();
    assert_eq!(honest, ["GET /", "POST /x"], "what is right passes");
    for head in heads {
        let lines = ask(&head);
        let is_meant = |line: &String| line == "GET /" || line == "POST /x";
        assert!(lines.len() <= 2 && lines.iter().all(is_meant), "{}: {lines:?}", head.escape_ascii());
    }
    assert_eq!(gateway.get("/after", "").status, 200);
    assert_eq!(upstream.only().line, "GET /after");
}

/// An upstream of HTTP/2 that refuses the first stream of each connection unseen, and serves the others.
fn refusing() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = |mut stream: TcpStream| -> std::io::Result<()> {
        stream.read_exact(&mut [0; 24])?;
        stream.write_all(&frame(4, 0, 0, &[]))?;
        let mut refused = None;
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head)?;
            let [_, high, low, kind, flags, number @ ..] = head;
            let mut content = vec![0; usize::from(high) << 8 | usize::from(low)];
            stream.read_exact(&mut content)?;
            let number = u32::from_be_bytes(number);
            match kind {
                4 if flags == 0 => stream.write_all(&frame(4, 1, 0, &[]))?,
                6 if flags == 0 => stream.write_all(&frame(6, 1, 0, &content))?,
                // 7 is REFUSED_STREAM, and 0x88 the status 200.
                1 if *refused.get_or_insert(number) == number => {
                    stream.write_all(&frame(3, 0, number, &7_u32.to_be_bytes()))?
                }
                1 => stream.write_all(&frame(1, 5, number, &[0x88]))?,
                _ => {}
            }
        }
    };
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    port
}

/// A request that an upstream refused unseen is sent again, whatever its method: no server has acted on it.
#[test]
fn refused_streams() {
    for request in ["GET", "DELETE", "POST"] {
        let gateway = Gateway::with(&["--upstream", &format!("h2c://127.0.0.1:{}", refusing())], OPEN);
        let answer = gateway.exchange(&format!("{request} / HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(answer.status, 200, "{request}");
        assert_eq!(gateway.metric("tollgate_gateway_failures_total", "refused"), 1);
        assert_eq!(gateway.metric("tollgate_gateway_retries_total", "upstream"), 1);
    }
}

/// gRPC passes as it is, errors included: a real client asks Envoy's service behind the gateway, and gets gRPC's own words when
/// it has asked too often.
#[test]
fn grpc_passes() {
    let behind = Server::start("domain: api\nlimits: [{name: per-key, by: [api_key], rate: 3/h}]");
    let upstream = format!("h2c://{}", behind.grpc.unwrap());
    let gateway = Gateway::with(&["--upstream", &upstream], "limits: [{name: calls, by: [path], rate: 5/h}]");
    let client = Client::new(gateway.address);
    let ask = || client.ask(question("api", 0, "api_key=a"));
    let verdicts: Vec<String> = (0..4).map(|_| shown(&ask().unwrap())).collect();
    let over = verdicts.iter().filter(|verdict| verdict.starts_with("OVER: ")).count();
    assert_eq!(over, 1, "{verdicts:?}");
    assert_eq!(client.ask(question("", 0, "api_key=a")).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(ask().unwrap_err().code(), Code::ResourceExhausted);
}

/// A gRPC call gets the gateway's own failures as gRPC statuses, with the cause in words.
#[test]
fn grpc_clients_get_grpc_errors() {
    let (folder, unused) = (Folder::new("gateway-grpc"), free_port());
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let away = format!("upstreams: ['h2c://127.0.0.1:{unused}']");
    let late =
        format!("upstreams: ['h2c://{}'], timeouts: {{response: 200ms}}", silent.local_addr().unwrap());
    let cases = [
        (away.clone(), Code::Unavailable, "refused"),
        (late, Code::DeadlineExceeded, "no answer in 200ms"),
        (format!("host: other.test, {away}"), Code::Unimplemented, "no route"),
    ];
    for (route, code, words) in cases {
        let config = folder.write("config.yaml", &format!("routes: [{{{route}}}]")).display().to_string();
        let gateway = Gateway::with(&["--config", &config], OPEN);
        let status = Client::new(gateway.address).ask(question("api", 0, "api_key=a")).unwrap_err();
        assert_eq!((status.code(), status.message().contains(words)), (code, true), "{status:?}");
    }
}
