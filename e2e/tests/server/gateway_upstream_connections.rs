//! Connections to upstreams: what a request meets that is sent on one that ends, that is left, or that is full.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use crate::gateway_upstream::{Gateway, OPEN, Upstream, until};
use crate::proxy::{Folder, Proxy, free_port};

fn gateway(folder: &Folder, routes: &str) -> Gateway {
    let config = folder.write("config.yaml", &format!("routes:\n{routes}"));
    Gateway::with(&["--config", &config.display().to_string()], OPEN)
}

/// The statuses of so many requests each by so many clients at once.
fn asked(gateway: &Gateway, clients: usize, each: usize, request: &str) -> Vec<u16> {
    std::thread::scope(|scope| {
        let ask = || (0..each).map(|_| gateway.exchange(request).status).collect::<Vec<_>>();
        let clients: Vec<_> = (0..clients).map(|_| scope.spawn(ask)).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
const CHUNKS: &str =
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";

/// A server that keeps its connections, answers `/` when all of `peers` are there, and hangs up on `/die`, which it counts.
fn mortal(peers: usize) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, count) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let (barrier, counted) = (Arc::new(Barrier::new(peers)), Arc::clone(&count));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (barrier, count) = (Arc::clone(&barrier), Arc::clone(&counted));
            std::thread::spawn(move || serve(stream, &barrier, &count));
        }
    });
    (port, count)
}

fn serve(mut stream: TcpStream, barrier: &Barrier, count: &AtomicUsize) {
    let mut head = [0; 4_096];
    while let Ok(length @ 1..) = stream.read(&mut head) {
        if head[..length].windows(5).any(|part| part == b" /die") {
            count.fetch_add(1, Ordering::SeqCst);
            return;
        }
        barrier.wait();
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    }
}

/// A server may be about to close a connection that rested, so a GET that meets the end of one is sent again: once, on a new one, and as
/// a repetition that is counted. Not on one after the other.
#[test]
fn a_request_is_not_sent_on_all_that_rest() {
    let (peers, folder) = (20, Folder::new("gateway-links"));
    let (port, count) = mortal(peers);
    let gateway = gateway(&folder, &format!("- {{upstreams: ['http://127.0.0.1:{port}']}}\n"));
    assert_eq!(asked(&gateway, peers, 1, GET), vec![200; peers]);
    gateway.get("/die", "").problem(502);
    assert_eq!(count.load(Ordering::SeqCst), 2, "it rested, and then it was new");
    assert_eq!(gateway.metric("tollgate_gateway_retries_total", &format!("http://127.0.0.1:{port}")), 1);
    // What must not be done twice is not.
    gateway.exchange("POST /die HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").problem(502);
    assert_eq!(count.load(Ordering::SeqCst), 3);
}

/// A frame of HTTP/2: its kind, its flags, its stream and what is in it.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// When a server of HTTP/2 leaves a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaving {
    /// With its settings, and it ends the connection.
    AtOnce,
    /// With the first request on it, unseen.
    Asked,
    /// With the first part of a request's body on it: it has not looked at the request.
    Sent,
    Never,
}

/// A server of HTTP/2 that leaves so many connections, and answers on the others. Counts connections.
fn leaving(left: usize, when: Leaving) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, count) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            std::thread::spawn(move || {
                leave_or_answer(stream, if number < left { when } else { Leaving::Never })
            });
        }
    });
    (port, count)
}

fn leave_or_answer(mut stream: TcpStream, leaves: Leaving) -> Option<()> {
    const DATA: u8 = 0;
    const SETTINGS: u8 = 4;
    const GOAWAY: u8 = 7;
    const HEADERS: u8 = 1;
    /// The end of the fields, and of the answer.
    const END: u8 = 5;
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).ok()?;
    // The last stream that it has seen is none, and nothing is wrong.
    let goodbye = frame(GOAWAY, 0, 0, &[0; 8]);
    if leaves == Leaving::AtOnce {
        return stream.write_all(&[frame(SETTINGS, 0, 0, &[]), goodbye].concat()).ok();
    }
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).ok()?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).ok()?;
        match head[3] {
            SETTINGS if head[4] == 0 => stream.write_all(&frame(SETTINGS, 1, 0, &[])).ok()?,
            HEADERS if leaves == Leaving::Asked => stream.write_all(&goodbye).ok()?,
            DATA if leaves == Leaving::Sent => stream.write_all(&goodbye).ok()?,
            HEADERS if leaves == Leaving::Sent => {}
            // `:status: 200`, by its number in the table, and no body.
            HEADERS => {
                let asked = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
                stream.write_all(&frame(HEADERS, END, asked, &[0x88])).ok()?;
            }
            _ => {}
        }
    }
}

/// The story: where an upstream ends its connections after a few requests, a request that it left twice lined up on the next shared
/// connection, behind others, was left a third time, and given up. It gets a connection of its own, which no other request fills.
#[test]
fn a_request_that_was_left_twice_gets_a_connection_of_its_own() {
    let (folder, (port, connections)) = (Folder::new("gateway-left"), leaving(2, Leaving::Asked));
    let gateway = gateway(&folder, &format!("- {{upstreams: ['h2c://127.0.0.1:{port}'], retries: 0}}\n"));
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(gateway.exchange(post).status, 200);
    assert_eq!(connections.load(Ordering::SeqCst), 3);
    // It is not shared: the next request needs another, which the one after it finds.
    assert_eq!(gateway.get("/", "").status, 200);
    assert_eq!(gateway.get("/", "").status, 200);
    assert_eq!(connections.load(Ordering::SeqCst), 4);
}

/// The story: a request was lost that met the end of a connection which another request had just made, because only connections that had
/// rested were expected to end; and one whose body the gateway had begun to send, though all of it was at hand.
#[test]
fn a_request_that_was_not_looked_at_is_sent_again() {
    for (when, request) in [
        (Leaving::AtOnce, GET),
        (Leaving::AtOnce, POST),
        (Leaving::Asked, POST),
        (Leaving::Sent, POST),
        (Leaving::Sent, CHUNKS),
    ] {
        let (folder, (port, connections)) = (Folder::new("gateway-unseen"), leaving(2, when));
        let gateway = gateway(&folder, &format!("- {{upstreams: ['h2c://127.0.0.1:{port}'], retries: 0}}\n"));
        assert_eq!(gateway.exchange(request).status, 200, "{request}");
        assert_eq!(connections.load(Ordering::SeqCst), 3);
    }
}

/// An upstream that leaves every connection is away, and is left alone for a while; a request has three connections of it, and no more.
#[test]
fn an_upstream_that_leaves_all_connections_is_left_alone() {
    let (folder, (port, connections)) = (Folder::new("gateway-gone"), leaving(usize::MAX, Leaving::AtOnce));
    let well = Upstream::start();
    let both = format!("['h2c://127.0.0.1:{port}', 'h2c://{}']", well.address);
    let gateway = gateway(&folder, &format!("- {{upstreams: {both}, retries: 0}}\n"));
    let lost = asked(&gateway, 1, 100, POST).into_iter().filter(|status| *status == 502).count();
    // Five in a row, and one after each rest, which are longer and longer.
    assert!((5..=12).contains(&lost), "{lost}");
    assert_eq!(connections.load(Ordering::SeqCst), 3 * lost);
}

/// nginx ends a connection after so many requests, while others are on their way to it. None of them is lost, whatever its method, and
/// whether it has a body.
#[test]
fn an_upstream_that_leaves_loses_nothing() {
    let (folder, [h2, http1]) = (Folder::new("gateway-leaves"), [free_port(), free_port()]);
    let server = |listen: String| {
        format!(
            "server {{ listen 127.0.0.1:{listen}; keepalive_requests 20; location / {{ return 200 'hello'; }} }}"
        )
    };
    let servers = server(format!("{h2} http2")) + &server(http1.to_string());
    let _nginx = Proxy::nginx(&folder, h2, &servers);
    let routes = format!(
        "- {{path: /1, upstreams: ['http://127.0.0.1:{http1}'], retries: 0}}\n- {{upstreams: ['h2c://127.0.0.1:{h2}'], retries: 0}}\n"
    );
    let gateway = gateway(&folder, &routes);
    for request in [GET, POST, CHUNKS] {
        assert_eq!(asked(&gateway, 16, 60, request), vec![200; 16 * 60], "{request}");
        let request = request.replacen(" / ", " /1 ", 1);
        assert_eq!(asked(&gateway, 16, 60, &request), vec![200; 16 * 60], "{request}");
    }
}

/// An upstream that takes few requests at once on a connection gets further connections, not a crowd that waits on one.
#[test]
fn a_full_connection_is_not_waited_for() {
    let (folder, upstream, port) = (Folder::new("gateway-full"), Upstream::start(), free_port());
    let server = format!(
        "server {{
            listen 127.0.0.1:{port} http2; http2_max_concurrent_streams 4;
            location / {{ proxy_pass http://{}; proxy_http_version 1.1; }}
         }}",
        upstream.address
    );
    let _nginx = Proxy::nginx(&folder, port, &server);
    let gateway = gateway(&folder, &format!("- {{upstreams: ['h2c://127.0.0.1:{port}']}}\n"));
    let clients: Vec<TcpStream> = (0..12)
        .map(|_| {
            let mut client = gateway.connect();
            client.write_all(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            client
        })
        .collect();
    until(|| upstream.count() == clients.len());
    assert_eq!(gateway.get("/", "").status, 200);
}
