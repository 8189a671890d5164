//! Clients that go away: whatever they had sent ahead, the gateway notices at once, and nothing of theirs stays.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::gateway_upstream::{Gateway, OPEN, Upstream, until};
use crate::raw_http::Response;

/// Ends a connection as a program does that was killed: with a reset.
pub(crate) fn reset(upstream: &Upstream, stream: TcpStream) {
    stream.set_nonblocking(true).unwrap();
    upstream.run(async move {
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        stream.set_zero_linger().unwrap();
    });
}

/// HTTP/1.0 knows no other protocols, so the stream once waited for an answer about one that never came: connections stayed for ever.
#[test]
fn an_upgrade_of_http_10_holds_nothing() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let head = "HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nUpgrade: x\r\n\r\n";
    for _ in 0..8 {
        let mut stream = gateway.connect();
        stream.write_all(format!("GET /x {head}").as_bytes()).unwrap();
        assert_eq!(Response::read(&mut BufReader::new(&stream)).status, 200);
        // The connection serves on.
        stream.write_all(format!("GET /y {head}").as_bytes()).unwrap();
        assert_eq!(Response::read(&mut BufReader::new(&stream)).status, 200);
    }
    until(|| gateway.metric("tollgate_connections_open", "gateway") == 0);
    assert_eq!(upstream.seen().len(), 16);
}

/// A waiting client that goes away leaves the queue at once, and never reaches the upstream: also if it had asked for another
/// protocol, or sent a byte of its next request.
#[test]
fn a_departed_client_leaves_the_queue() {
    let upstream = Upstream::start();
    let policy = "limits: [{name: shaped, by: [path], algorithm: leaky-bucket, rate: 1 every 25s, queue: 1}]";
    let gateway = Gateway::with(&["--upstream", &format!("http://{}", upstream.address)], policy);
    let waiting = || gateway.server.metric("tollgate_waiting_requests");
    let wait = |path: &str, rest: &str| {
        assert_eq!(gateway.get(path, "").status, 200);
        assert_eq!(upstream.only().line, format!("GET {path}"));
        let mut stream = gateway.connect();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{rest}").as_bytes()).unwrap();
        until(|| waiting() == 1);
        stream
    };
    let more = format!("Content-Length: 99999\r\n\r\n{}", "x".repeat(60_000));
    let cases = [
        ("/plain", "\r\n"),
        ("/asks", "Upgrade: x\r\n\r\n"),
        ("/early", "Connection: upgrade\r\nUpgrade: x\r\n\r\nearly"),
        ("/byte", "\r\nG"),
        ("/ahead", "\r\nGET /second HTTP/1.1\r\nHost: a\r\n\r\n"),
        // A body that is not read yet: none of it, some, and more than is read ahead.
        ("/none", "Content-Length: 100\r\n\r\n"),
        ("/some", "Content-Length: 100\r\n\r\nsome"),
        ("/more", more.as_str()),
    ];
    for (path, rest) in cases {
        reset(&upstream, wait(path, rest));
        until(|| waiting() == 0);
        assert_eq!(upstream.count(), 0, "{path}");
    }
    // A byte that comes later, and an end in good order, which leaves a moment for the answer.
    let mut stream = wait("/later", "\r\n");
    stream.write_all(b"GET").unwrap();
    drop(stream);
    until(|| waiting() == 0);
    until(|| gateway.metric("tollgate_connections_open", "gateway") == 0);
    assert_eq!(upstream.count(), 0);
}

/// Requests that were sent ahead are answered one after the other, also when the client has ended its side, and each has its moment.
#[test]
fn requests_sent_ahead_are_all_answered() {
    let upstream = Upstream::start();
    let policy = "limits: [{name: shaped, algorithm: leaky-bucket, rate: 5/s, queue: 9}]";
    let gateway = Gateway::with(&["--upstream", &format!("http://{}", upstream.address)], policy);
    let requests: String = (0..4).map(|n| format!("GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    assert_eq!(gateway.all(requests.as_bytes()).matches("HTTP/1.1 200 OK").count(), 4);
    let lines: Vec<String> = upstream.seen().into_iter().map(|seen| seen.line).collect();
    assert_eq!(lines, ["GET /0", "GET /1", "GET /2", "GET /3"]);
    // As many as fit, and more, at once; and byte by byte.
    let gateway = Gateway::with(&["--upstream", &format!("http://{}", upstream.address)], OPEN);
    let many: String = (0..2_000)
        .map(|n| format!("POST /{n} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"))
        .collect();
    assert_eq!(gateway.all(many.as_bytes()).matches("HTTP/1.1 200 OK").count(), 2_000);
    let mut stream = gateway.connect();
    for byte in requests.bytes() {
        stream.write_all(&[byte]).unwrap();
        tollgate_testkit::rest(Duration::from_millis(1));
    }
    let mut reader = BufReader::new(&stream);
    for _ in 0..4 {
        assert_eq!(Response::read(&mut reader).status, 200);
    }
}

/// A client that has ended its side has two seconds for the head of its answer, as docs/gateway-requests.md says. It once had half a second, so a
/// piped request whose answer took longer got nothing at all. One whose answer never comes is given up.
#[test]
fn a_half_closed_client_has_its_two_seconds() {
    let upstream = Upstream::start();
    let policy =
        "limits: [{name: shaped, by: [path], algorithm: leaky-bucket, rate: 1 every 1100ms, queue: 1}]";
    let gateway = Gateway::with(&["--upstream", &format!("http://{}", upstream.address)], policy);
    let ask = |path: &str| gateway.all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
    assert!(ask("/piped").starts_with("HTTP/1.1 200 OK"), "the first one does not wait");
    let waited = ask("/piped");
    assert!(waited.starts_with("HTTP/1.1 200 OK"), "{waited:?}");
    assert_eq!(ask("/hang"), "");
    until(|| gateway.metric("tollgate_connections_open", "gateway") == 0);
}

/// The timer of each connection of this machine that these ports belong to, as the system tells it: local and remote port, and the timer.
fn timers(is_meant: impl Fn(u16, u16) -> bool) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = |address: &str| u16::from_str_radix(address.rsplit(':').next().unwrap(), 16).unwrap();
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let meant = rows.filter(|row| row[3] == "01" && is_meant(port(row[1]), port(row[2])));
    meant.map(|row| row[5].to_owned()).collect()
}

/// The story: a client that lost its network held its tunnel, and a place of its upstream's, for an hour, since the gateway did not check whether it is
/// there. The system asks on both sides of a tunnel: its timer runs although neither side sends anything.
#[cfg(target_os = "linux")]
#[test]
fn both_ends_of_a_tunnel_are_asked_whether_they_are_there() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut stream = gateway.connect();
    let head = b"GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    stream.write_all(head).unwrap();
    assert_eq!(Response::read(&mut BufReader::new(&stream)).status, 101);
    let (client, near, far) =
        (stream.local_addr().unwrap().port(), gateway.address.port(), upstream.address.port());
    // "02:" is the keepalive timer, with what is left of it in hundredths of a second. A socket without it has "00:".
    let is_asked = |timers: Vec<String>| {
        let left = timers.first().and_then(|timer| timer.strip_prefix("02:"));
        left.is_some_and(|left| u32::from_str_radix(left, 16).unwrap() <= 30 * 100)
    };
    until(|| is_asked(timers(|local, remote| local == near && remote == client)));
    until(|| is_asked(timers(|_, remote| remote == far)));
    assert!(timers(|local, _| local == client)[0].starts_with("00:"), "the client itself asks nothing");
}
