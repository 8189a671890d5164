//! Clients that are slow on purpose: they lose their connection, hold little, and no other client waits for them. Times are real, so all of
//! them are slow at once.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::gateway_upstream::{Gateway, OPEN, Upstream, until};
use crate::raw_http::Response;

/// Drips bytes until the other side ends the connection; tells after how long, or nothing if it lasts.
#[allow(clippy::disallowed_methods, reason = "the test measures a real wait")]
fn drip(
    mut stream: TcpStream,
    mut next: impl FnMut() -> Option<&'static [u8]> + Send + 'static,
) -> std::thread::JoinHandle<Option<Duration>> {
    let start = Instant::now();
    std::thread::spawn(move || {
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let mut answer = [0; 4_096];
        while start.elapsed() < Duration::from_secs(45) {
            if next().is_some_and(|bytes| stream.write_all(bytes).is_err()) {
                return Some(start.elapsed());
            }
            match stream.read(&mut answer) {
                Ok(0) => return Some(start.elapsed()),
                Ok(_) => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) => {}
                Err(_) => return Some(start.elapsed()),
            }
        }
        None
    })
}

/// Reads 5,000 bytes a second for more than a minute and then all that is left; tells how many bytes came.
#[allow(clippy::disallowed_methods, reason = "the test measures a real wait")]
fn steady(mut stream: TcpStream) -> std::thread::JoinHandle<usize> {
    let start = Instant::now();
    std::thread::spawn(move || {
        let (mut part, mut read) = ([0; 500], 0);
        while start.elapsed() < Duration::from_secs(70) {
            match stream.read(&mut part) {
                Ok(length @ 1..) => read += length,
                Ok(0) | Err(_) => return read,
            }
            tollgate_testkit::rest(Duration::from_millis(100));
        }
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        read + rest.len()
    })
}

/// Slowloris, a body that drips, to an upstream or to be priced, one that never comes, a preface that drips, and answers that the client does not read, over HTTP/1 and HTTP/2: all
/// end, and a hundred honest requests are answered meanwhile.
#[test]
fn slow_clients_end() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let begun = |bytes: &[u8]| {
        let mut stream = gateway.connect();
        stream.write_all(bytes).unwrap();
        stream
    };
    let head = drip(begun(b"GET / HTTP/1.1\r\nHost: a\r\n"), || Some(b"X: y\r\n"));
    let silent = drip(begun(b""), || None);
    let preface = drip(begun(b"PRI * HTTP/2.0\r\n"), || None);
    let body =
        drip(begun(b"POST /hang HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"), || Some(b"x"));
    let nothing = drip(begun(b"POST /hang HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"), || None);
    // A body that is held to be priced is awaited no longer than any other.
    let folder = crate::proxy::Folder::new("gateway-slow");
    let to = format!("upstreams: ['http://{}']", upstream.address);
    let large = "graphql: {path: /large, body_bytes: 1048576}";
    let text = format!("routes: [{{{to}, graphql: }}, {{path: /large, {to}, {large}}}]");
    let config = folder.write("config.yaml", &text).display().to_string();
    let pricing = Gateway::with(&["--config", &config], OPEN);
    let asked = |path: &str, length: usize| {
        let mut stream = pricing.connect();
        let fields = format!("Content-Type: application/json\r\nContent-Length: {length}");
        stream.write_all(format!("POST {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n").as_bytes()).unwrap();
        stream
    };
    let graphql = drip(asked("/graphql", 60_000), || Some(b" "));
    // Bodies that are announced and do not come take no room from others.
    let held: Vec<TcpStream> = (0..256).map(|_| asked("/large", 1 << 20)).collect();
    let status = |mut stream: TcpStream| {
        stream.write_all(br#"{"query":"{ a }"}"#).unwrap();
        Response::read(&mut BufReader::new(&stream)).status
    };
    assert_eq!(status(asked("/large", 17)), 200);
    assert_eq!(status(asked("/graphql", 17)), 200);
    drop(held);
    // The story: one that reads ten times as fast as it must was cut, since what waited for it in the system's buffer hid its pace.
    let steady = steady(begun(b"GET /big/8 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
    // Readers that do not read.
    let unread = begun(b"GET /big/100 HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut h2 = begun(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    let big = [&[0x82, 0x86, 0x41, 0x01, b'a', 0x04, 0x08][..], b"/big/100"].concat();
    let length = u8::try_from(big.len()).unwrap();
    h2.write_all(&[&[0, 0, length, 1, 5, 0, 0, 0, 1], &big[..]].concat()).unwrap();
    for _ in 0..100 {
        assert_eq!(gateway.get("/", "").status, 200);
    }
    let seconds =
        |ended: std::thread::JoinHandle<Option<Duration>>| ended.join().unwrap().map(|ended| ended.as_secs());
    for (name, ended, most) in [
        ("head", head, 12),
        ("silent", silent, 12),
        ("preface", preface, 12),
        ("body", body, 30),
        ("nothing", nothing, 25),
        ("graphql", graphql, 30),
    ] {
        let after = seconds(ended);
        assert!(after.is_some_and(|after| after <= most), "{name}: {after:?}");
    }
    assert!(steady.join().unwrap() > 8 << 20, "all of it, and its head");
    // What they would have been sent is cut off.
    until(|| gateway.metric("tollgate_connections_open", "gateway") == 0);
    let left = |mut stream: TcpStream| {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        rest.len()
    };
    assert!(left(unread) < 100 << 20 && left(h2) < 100 << 20);
}
