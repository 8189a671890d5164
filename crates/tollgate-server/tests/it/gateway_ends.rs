//! How requests end at the gateway: which of them failed, and until when they hold a permit. Upstreams here do not notice that a
//! client has gone, as many services do not.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tollgate_testkit::rest;

use crate::gateway_gone::reset;
use crate::gateway_upstream::{Gateway, Upstream, until};
use crate::h2_conformance::talk::{self, Talk, block, frame, headers, line, open};
use crate::proxy::Folder;
use crate::raw_http::Response;

/// An upstream that works for each request until it is let go, and hears nothing meanwhile.
struct Deaf {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Heads that came.
    begun: AtomicUsize,
    is_released: Mutex<bool>,
    released: Condvar,
}

impl Deaf {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::<State>::default());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || state.work(stream));
            }
        });
        Self { address, state }
    }

    fn begun(&self) -> usize {
        self.state.begun.load(Ordering::SeqCst)
    }

    /// Lets all requests end.
    fn release(&self) {
        *self.state.is_released.lock().unwrap() = true;
        self.state.released.notify_all();
    }
}

impl State {
    fn work(&self, mut stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).is_ok_and(|read| read == 0) {
                return;
            }
        }
        self.begun.fetch_add(1, Ordering::SeqCst);
        if head.starts_with("GET /head ") {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").unwrap();
        } else if head.starts_with("GET /hint ") {
            stream.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n").unwrap();
        }
        let mut is_released = self.is_released.lock().unwrap();
        while !*is_released {
            is_released = self.released.wait(is_released).unwrap();
        }
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
    }
}

const ONE_AT_A_TIME: &str = "limits: [{name: in-flight, by: [ip], concurrency: 1, permit_ttl: 5s}]";

fn before(address: SocketAddr) -> Gateway {
    Gateway::with(&["--upstream", &format!("http://{address}")], ONE_AT_A_TIME)
}

/// Asserts that each request is refused, for a while.
fn is_full(gateway: &Gateway, about: &str) {
    for _ in 0..20 {
        assert_eq!(gateway.get("/other", "").status, 429, "{about}");
        rest(Duration::from_millis(10));
    }
}

/// The story: a client that went away with a reset had its permit back at once, though the upstream worked on: with `concurrency: 2`, ten
/// requests were under way there. The permit is held until the upstream stops, and is free then.
#[test]
fn a_departed_client_holds_its_permit_until_the_upstream_stops() {
    let aside = Upstream::start();
    let cases = [
        ("reset", "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("close", "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("reset", "GET /head HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("reset", "GET /hint HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("reset", "GET /slow HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"),
        ("reset", "POST /slow HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"),
    ];
    for (how, head) in cases {
        let about = format!("{how} {head:?}");
        let upstream = Deaf::start();
        let gateway = before(upstream.address);
        let mut stream = gateway.connect();
        stream.write_all(head.as_bytes()).unwrap();
        until(|| upstream.begun() == 1);
        if head.starts_with("GET /head ") {
            stream.read_exact(&mut [0; 12]).unwrap();
        }
        match how {
            "reset" => reset(&aside, stream),
            _ => drop(stream),
        }
        until(|| gateway.metric("tollgate_connections_open", "gateway") == 0);
        is_full(&gateway, &about);
        assert_eq!(upstream.begun(), 1, "{about}");
        upstream.release();
        until(|| gateway.get("/other", "").status == 200);
    }
}

/// The same over HTTP/2, where a client resets one request of many.
#[test]
fn a_reset_stream_holds_its_permit_until_the_upstream_stops() {
    let upstream = Deaf::start();
    let gateway = before(upstream.address);
    let mut talk = Talk::begin(&gateway, true);
    talk.send(&headers(1, &talk::get("/slow")));
    until(|| upstream.begun() == 1);
    talk.send(&talk::reset(1, 8));
    is_full(&gateway, "HTTP/2");
    assert_eq!(upstream.begun(), 1);
    upstream.release();
    until(|| gateway.get("/other", "").status == 200);
}

/// A permit that is not given back is free when the upstream's time for an answer is over.
#[test]
fn a_permit_is_held_no_longer_than_an_answer_may_take() {
    let (aside, upstream, folder) = (Upstream::start(), Deaf::start(), Folder::new("gateway-ends-late"));
    let text =
        format!("routes: [{{upstreams: ['http://{}'], timeouts: {{response: 1s}}}}]", upstream.address);
    let config = folder.write("config.yaml", &text).display().to_string();
    let gateway = Gateway::with(&["--config", &config], ONE_AT_A_TIME);
    let mut stream = gateway.connect();
    stream.write_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until(|| upstream.begun() == 1);
    reset(&aside, stream);
    until(|| gateway.get("/other", "").status == 504);
    assert_eq!(upstream.begun(), 2);
}

/// The story: an upstream that answered before it had read the request set its permit free, so that ten uploads were open there with
/// `concurrency: 2`. The permit is held until both the request and its answer are over, on HTTP/1 and HTTP/2.
#[test]
fn an_early_answer_does_not_free_the_permit_of_an_upload() {
    for scheme in ["http", "h2c"] {
        let upstream = Upstream::start();
        let address = format!("{scheme}://{}", upstream.address);
        let gateway = Gateway::with(&["--upstream", &address], ONE_AT_A_TIME);
        let mut stream = gateway.connect();
        stream
            .write_all(b"POST /early HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
            .unwrap();
        let answer = Response::read(&mut BufReader::new(&stream));
        assert_eq!((answer.status, &answer.body[..]), (200, &b"early"[..]), "{scheme}");
        is_full(&gateway, scheme);
        assert_eq!(upstream.count(), 1, "{scheme}");
        stream.write_all(b"3\r\ndef\r\n0\r\n\r\n").unwrap();
        until(|| gateway.get("/other", "").status == 200);
    }
}

/// The action of an upstream on a request by its path, once its head is there.
fn guessing(heads: Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let heads = Arc::clone(&heads);
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    if reader.read_line(&mut head).is_ok_and(|read| read == 0) {
                        return;
                    }
                }
                heads.fetch_add(1, Ordering::SeqCst);
                let answer = match head.split(' ').nth(1).unwrap() {
                    "/login" => "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                    "/bad" => "HTTP/1.1 401 Unauthorized\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
                    "/cut" => "HTTP/1.1 401 Unauth",
                    "/drop" => "",
                    _ => {
                        let _ = reader.read_to_end(&mut Vec::new()); // No answer, until the other side gives up.
                        return;
                    }
                };
                let _ = stream.write_all(answer.as_bytes());
            });
        }
    });
    address
}

/// The story: with a list of `failures`, the gateway's own answer to a request that the upstream had seen was compared with the list. A
/// client that broke off its upload had its unit back, and could guess passwords without end. A request that an upstream may have acted
/// on, and that has no answer of it, is a failure, whatever the list says.
#[test]
fn a_request_without_an_answer_is_a_failure() {
    let (aside, folder, heads) =
        (Upstream::start(), Folder::new("gateway-ends"), Arc::<AtomicUsize>::default());
    let upstream = guessing(Arc::clone(&heads));
    let text =
        format!("routes: [{{upstreams: ['http://{upstream}'], timeouts: {{response: 300ms}}, retries: 0}}]");
    let config = folder.write("config.yaml", &text).display().to_string();
    let policy = "limits: [{name: login, by: [api_key], algorithm: sliding-log, rate: 3/h, count: failures, failures: [401]}]";
    let seen = || heads.load(Ordering::SeqCst);
    for way in ["/login", "/bad", "/cut", "/drop", "/late", "chunk", "close", "reset", "stream"] {
        let gateway = Gateway::with(&["--config", &config], policy);
        let before = seen();
        for count in 1..=3 {
            let part = "POST /hold HTTP/1.1\r\nHost: a\r\nX-API-Key: k\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
            let begun = || {
                let mut stream = gateway.connect();
                stream.write_all(part.as_bytes()).unwrap();
                until(|| seen() == before + count);
                stream
            };
            match way {
                "chunk" => {
                    let mut stream = begun();
                    stream.write_all(b"ZZ\r\n").unwrap();
                    assert_eq!(Response::read(&mut BufReader::new(&stream)).status, 400);
                }
                "close" => drop(begun()),
                "reset" => reset(&aside, begun()),
                "stream" => {
                    let mut talk = Talk::begin(&gateway, true);
                    let fields = [&line("POST", "/hold")[..], &[("x-api-key", "k")]].concat();
                    talk.send(&open(1, &block(&fields)));
                    talk.send(&frame(talk::DATA, 0, 1, b"abc"));
                    until(|| seen() == before + count);
                    talk.send(&talk::reset(1, 8));
                }
                path => {
                    let status = gateway.get(path, "X-API-Key: k\r\n").status;
                    assert!(matches!(status, 401 | 502 | 504), "{way}: {status}");
                }
            }
            until(|| gateway.metric("tollgate_connections_open", "gateway") == 0);
        }
        assert_eq!(seen(), before + 3, "{way}");
        assert_eq!(gateway.get("/login", "X-API-Key: k\r\n").status, 429, "{way}");
        assert_eq!(gateway.get("/login", "X-API-Key: other\r\n").status, 401, "{way}");
    }
}

/// A request that no upstream has seen is judged by the gateway's own status, as the list has it.
#[test]
fn a_request_that_reached_no_upstream_is_judged_by_its_status() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let statuses = |failures: &str| -> Vec<u16> {
        let policy =
            format!("limits: [{{name: login, by: [ip], rate: 2/h, count: failures, failures: {failures}}}]");
        let gateway = Gateway::with(&["--upstream", &format!("http://{closed}")], &policy);
        (0..4).map(|_| gateway.get("/login", "").status).collect()
    };
    assert_eq!(statuses("[401]"), [502; 4]);
    assert_eq!(statuses("[401, 5xx]"), [502, 502, 429, 429]);
}
