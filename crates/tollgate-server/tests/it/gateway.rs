//! The gateway over HTTP/1.1: what an upstream sees of a request, what a client sees of an answer, and what is refused on the way.

use std::io::{BufRead, BufReader, Read, Write};
use std::time::Duration;

use hyper::Version;

use crate::gateway_upstream::{Gateway, OPEN, Upstream};
use crate::proxy::free_port;
use crate::raw_http::Response;

/// A request arrives as it was sent, but for what belongs to one hop; the answer goes back the same way.
#[test]
fn a_request_goes_there_and_back() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let fields = "X-Kept: 1\r\nConnection: keep-alive, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n";
    let response = gateway.get("/hop?q=%2F..&r", fields);
    assert_eq!((response.status, response.body.as_slice()), (200, b"hop".as_slice()));
    let mut shown: Vec<&str> = response.headers.iter().map(|(name, _)| name.as_str()).collect();
    shown.sort_unstable();
    assert_eq!(shown, ["content-length", "date", "x-kept"]);
    let seen = upstream.only();
    assert_eq!((seen.line.as_str(), seen.version), ("GET /hop?q=%2F..&r", Version::HTTP_11));
    assert_eq!((seen.header("x-kept"), seen.header("host")), ("1".to_owned(), "app.test".to_owned()));
    for gone in ["connection", "x-mine", "keep-alive", "upgrade", "http2-settings", "transfer-encoding"] {
        assert_eq!(seen.header(gone), "", "{gone}");
    }
    assert_eq!(seen.header("via"), "1.1 tollgate");
}

/// By default no client is trusted: its fields about itself are not sent on, even if `Connection` names them.
#[test]
fn the_peer_is_reported_correctly() {
    let upstream = Upstream::start();
    let address = format!("http://{}", upstream.address);
    let reported = "X-Forwarded-For: 203.0.113.7\r\nForwarded: for=192.0.2.66;host=evil.test\r\nX-Forwarded-Proto: https\r\nX-Real-IP: 1.2.3.4\r\n";
    let trusting = Gateway::with(&["--upstream", &address, "--trusted-proxy", "127.0.0.0/8"], OPEN);
    trusting.get("/", reported);
    let seen = upstream.only();
    assert_eq!(seen.header("x-forwarded-for"), "203.0.113.7, 127.0.0.1");
    assert_eq!(seen.header("forwarded"), "for=203.0.113.7;host=app.test;proto=https, for=127.0.0.1");
    assert_eq!(
        (seen.header("x-forwarded-proto"), seen.header("x-real-ip")),
        ("https".to_owned(), "203.0.113.7".to_owned())
    );
    let careful = Gateway::with(&["--upstream", &address], OPEN);
    careful.get("/", &format!("{reported}Connection: x-forwarded-for, x-real-ip, forwarded, authorization\r\nAuthorization: Bearer k\r\n"));
    let seen = upstream.only();
    assert_eq!(seen.header("x-forwarded-for"), "127.0.0.1");
    assert_eq!(seen.header("forwarded"), "for=127.0.0.1;host=app.test;proto=http");
    assert_eq!(
        (seen.header("x-forwarded-proto"), seen.header("x-real-ip")),
        ("http".to_owned(), "127.0.0.1".to_owned())
    );
    assert_eq!(
        (seen.header("x-forwarded-host"), seen.header("authorization")),
        ("app.test".to_owned(), "Bearer k".to_owned())
    );
}

/// Whatever the spelling of a path or a host, the upstream sees the one that limits are matched with; what servers disagree about is
/// not sent on.
#[test]
fn one_spelling_is_sent_on() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    for spelling in ["//a/./b/../%63", "/a/%63", "/x/%2e%2e/a/c", "http://APP.test:80/a//c"] {
        gateway.exchange(&format!("GET {spelling}?q HTTP/1.1\r\nHost: App.Test.\r\n\r\n"));
        let seen = upstream.only();
        assert_eq!(
            (seen.line.as_str(), seen.header("host").as_str()),
            ("GET /a/c?q", "app.test"),
            "{spelling}"
        );
    }
    let refused = [
        ("GET /a%2fb HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /a%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /a%5cb HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", 400),
        ("GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http://a/ HTTP/1.1\r\n\r\n", 400),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("DELETE * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        ("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: miracles\r\n\r\n", 417),
    ];
    for (request, status) in refused {
        gateway.exchange(request).problem(status);
    }
    assert_eq!(upstream.seen().len(), 0);
    assert_eq!(gateway.exchange("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").status, 204);
}

/// Targets and fields that are too large are refused, small or gigantic.
#[test]
fn giants_are_refused() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let get = |path: usize, field: usize| {
        let (path, field) = ("a".repeat(path), "b".repeat(field));
        gateway.all(format!("GET /x?{path} HTTP/1.1\r\nHost: a\r\nX: {field}\r\n\r\n").as_bytes())
    };
    assert!(get(8_000, 8_000).starts_with("HTTP/1.1 200"));
    assert_eq!(upstream.seen().len(), 1);
    assert!(get(9_000, 0).starts_with("HTTP/1.1 414"));
    // A path is an attribute, which may not be as long as a query.
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(5_000));
    assert!(gateway.all(long.as_bytes()).starts_with("HTTP/1.1 414"));
    assert!(get(0, 17_000).starts_with("HTTP/1.1 431"));
    assert!(get(0, 500_000).starts_with("HTTP/1.1 431"));
    let many = "X: a\r\n".repeat(200);
    let many = gateway.all(format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n").as_bytes());
    assert!(many.starts_with("HTTP/1.1 431") && many.contains("accepted: 100 of them"), "{many}");
    assert!(get(100_000, 0).starts_with("HTTP/1.1 4"));
    assert_eq!(upstream.seen().len(), 0);
}

/// Parts of a body pass as they come, in both directions at once: nothing waits for its end.
#[test]
fn bodies_stream_both_ways() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut stream = gateway.connect();
    stream.write_all(b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    for round in 0..5 {
        stream.write_all(format!("4\r\nno {round}\r\n").as_bytes()).unwrap();
        while !line.contains(&format!("no {round}")) {
            assert_ne!(reader.read_line(&mut line).unwrap(), 0, "{line}");
        }
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    while !line.ends_with("\r\n0\r\n\r\n") {
        assert_ne!(reader.read_line(&mut line).unwrap(), 0, "{line}");
    }
    // The connection serves on.
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut head = String::new();
    reader.read_line(&mut head).unwrap();
    assert_eq!(head, "HTTP/1.1 200 OK\r\n");
}

/// A client that does not read stops the upstream, and the gateway keeps little: of 200 MiB only what fits into buffers is sent.
#[test]
fn back_pressure() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut stream = gateway.connect();
    stream.write_all(b"GET /big/200 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut head = [0; 15];
    stream.read_exact(&mut head).unwrap();
    #[allow(clippy::disallowed_methods, reason = "nothing happens, and takes its time")]
    std::thread::sleep(Duration::from_millis(700));
    let parts = upstream.seen().len();
    assert!(parts < 60, "{parts} MiB were sent to no reader");
    let memory = std::fs::read_to_string(format!("/proc/{}/statm", gateway.server.id())).unwrap();
    let pages: u64 = memory.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(pages * 4_096 < 100 << 20, "{pages} pages are resident");
    let mut rest = Vec::new();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.len() > 200 << 20);
}

/// A client that asks first gets its 100 from the gateway when the body is wanted, and not before.
#[test]
fn continue_is_sent_when_the_body_is_needed() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut stream = gateway.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    stream
        .write_all(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        .unwrap();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "HTTP/1.1 100 Continue\r\n");
    stream.write_all(b"hello").unwrap();
    while !line.ends_with("hello\r\n") {
        assert_ne!(reader.read_line(&mut line).unwrap(), 0, "{line}");
    }
    assert!(line.contains("HTTP/1.1 200 OK") && upstream.only().header("expect").is_empty());
    let refused = gateway
        .exchange("POST /a%2fb HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(refused.status, 400);
}

/// HEAD has a length and no body; answers without one have none; connections are used again, on both sides.
#[test]
fn answers_without_bodies() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let requests = "HEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET /status/204 HTTP/1.1\r\nHost: a\r\n\r\nGET /status/304 HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let all = gateway.all(requests.as_bytes());
    let lines: Vec<&str> =
        all.lines().filter(|line| line.starts_with("HTTP/") || line.starts_with("content-l")).collect();
    let expected = [
        "HTTP/1.1 200 OK",
        "content-length: 5",
        "HTTP/1.1 204 No Content",
        "HTTP/1.1 304 Not Modified",
        "HTTP/1.1 200 OK",
        "content-length: 5",
    ];
    assert_eq!(lines, expected, "{all}");
    assert!(all.ends_with("hello"));
    assert_eq!(upstream.seen().len(), 4);
}

/// A client of HTTP/1.0 is served as one.
#[test]
fn http_10() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let all = gateway.all(b"GET /big/1 HTTP/1.0\r\nHost: a\r\n\r\n");
    assert!(all.starts_with("HTTP/1.0 200 OK") && !all.contains("chunked"), "{}", &all[..200]);
    assert_eq!(all.split("\r\n\r\n").nth(1).unwrap().len(), 1 << 20);
    assert_eq!(upstream.seen()[0].version, Version::HTTP_11);
}

/// Without an answer a client gets a problem with cause and cure, and never the address of an upstream.
#[test]
fn no_answer_is_a_problem() {
    let unused = free_port();
    let gateway = Gateway::with(&["--upstream", &format!("http://127.0.0.1:{unused}")], OPEN);
    let detail = gateway.get("/", "").problem(502);
    assert!(
        detail.contains("refused")
            && detail.contains("does not run")
            && !detail.contains(&unused.to_string()),
        "{detail}"
    );
    let upstream = Upstream::start();
    let folder = crate::proxy::Folder::new("gateway");
    let config = folder.write(
        "config.yaml",
        &format!(
            "routes: [{{name: app, upstreams: ['http://{}'], timeouts: {{response: 200ms}}}}]",
            upstream.address
        ),
    );
    let gateway = Gateway::with(&["--config", &config.display().to_string()], OPEN);
    let detail = gateway.get("/hang", "").problem(504);
    assert!(detail.contains("no answer in 200ms") && detail.contains("timeouts.response"), "{detail}");
    // An upstream that hangs up in the middle of a head.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 64];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-");
        }
    });
    let gateway = Gateway::with(&["--upstream", &format!("http://127.0.0.1:{port}")], OPEN);
    assert!(gateway.get("/", "").problem(502).contains("may have acted"));
}

/// A WebSocket's way: bytes pass only after 101, each side ends by itself, and what a client sends ahead of time is not lost.
#[test]
fn upgrades_are_tunnelled() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut stream = gateway.connect();
    let head = "GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo\r\nSec-WebSocket-Key: k\r\n\r\n";
    stream.write_all(format!("{head}early\0").as_bytes()).unwrap();
    let mut reader = BufReader::new(&stream);
    let response = Response::read(&mut reader);
    assert_eq!(
        (response.status, response.header("upgrade"), response.header("connection")),
        (101, Some("echo"), Some("upgrade"))
    );
    let seen = upstream.only();
    assert_eq!(
        (seen.header("upgrade"), seen.header("connection")),
        ("echo".to_owned(), "upgrade".to_owned())
    );
    assert_eq!(seen.header("sec-websocket-key"), "k");
    let mut early = [0; 6];
    reader.read_exact(&mut early).unwrap();
    assert_eq!(&early, b"early\0");
    // Many bytes, then the end of one direction: the other one still says goodbye.
    let mut writer = stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        writer.write_all(&vec![7; 8 << 20]).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    writing.join().unwrap();
    assert!(rest.len() == (8 << 20) + 3 && rest.ends_with(b"bye"), "{}", rest.len());
}

/// An upgrade that is refused leaves a connection of HTTP, and what follows is read as strictly as ever.
#[test]
fn a_refused_upgrade_is_a_request() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let refused = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let next = "GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
    let all = gateway.all(format!("{refused}{next}").as_bytes());
    assert_eq!(all.matches("HTTP/1.1 200 OK").count(), 2, "{all}");
    assert_eq!(upstream.seen().len(), 2);
    let smuggled = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx";
    let all = gateway.all(format!("{refused}{smuggled}{next}").as_bytes());
    assert_eq!((all.matches(" 200 OK").count(), all.matches(" 400 Bad").count()), (1, 1), "{all}");
    assert_eq!(upstream.seen().len(), 1);
    // HTTP/2 inside of HTTP/1 would pass every limit but the first: it is not asked for.
    let h2c = "GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n";
    let answer = gateway.exchange(h2c);
    assert_ne!(answer.header("upgrade"), Some("h2c"));
    assert_eq!(upstream.only().header("upgrade"), "");
}

/// A server that stops lets a tunnel go on for a while, and cuts it then; requests under way are answered.
#[test]
fn a_stop_answers_requests_in_flight() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::before(&upstream);
    let mut stream = gateway.connect();
    stream
        .write_all(b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        .unwrap();
    let mut reader = BufReader::new(&stream);
    let mut line = String::new();
    while !line.contains("one") {
        assert_ne!(reader.read_line(&mut line).unwrap(), 0, "{line}");
    }
    gateway.server.signal("-TERM");
    gateway.server.await_log("stopping");
    (&stream).write_all(b"3\r\ntwo\r\n0\r\n\r\n").unwrap();
    while !line.ends_with("\r\n0\r\n\r\n") {
        assert_ne!(reader.read_line(&mut line).unwrap(), 0, "{line}");
    }
    assert!(line.contains("two"));
    assert!(gateway.server.wait_at_most(Duration::from_secs(10)).unwrap().success());
}

/// Each hop has a version of its own: an upstream that speaks HTTP/1.0 and hangs up leaves the client's connection as it is.
#[test]
fn an_old_upstream_does_not_end_the_connection() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let upstream = std::thread::spawn(move || {
        for _ in 0..2 {
            let (stream, _) = listener.accept().unwrap();
            let head =
                BufReader::new(&stream).lines().map(Result::unwrap).take_while(|line| !line.is_empty());
            assert!(head.count() > 1);
            (&stream).write_all(b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\nold").unwrap();
        }
    });
    let gateway = Gateway::with(&["--upstream", &format!("http://{address}")], OPEN);
    let mut client = std::net::TcpStream::connect(gateway.address).unwrap();
    for _ in 0..2 {
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"0\r\n\r\n") {
            let mut part = [0; 512];
            let length = client.read(&mut part).unwrap();
            assert!(length > 0, "the connection ended: {}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&part[..length]);
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("3\r\nold\r\n"), "{answer}");
    }
    upstream.join().unwrap();
}
