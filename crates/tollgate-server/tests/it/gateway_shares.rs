//! One client that takes all it can get of an upstream: the attacks themselves, from one address of this machine, while another address is
//! served all the while. What is refused says why.

use std::convert::Infallible;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::Request;
use hyper::body::{Body, Frame};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::gateway_connection_limits::{confined, from};
use crate::gateway_upstream::{Gateway, OPEN, Upstream, until};
use crate::proxy::Folder;
use crate::raw_http::Response;

/// Where the attacks come from. Other clients are at 127.0.0.1.
const ATTACKER: &str = "127.0.0.2";
/// A client's share of the 512 requests, and of the 512 tunnels, that an upstream has by default.
const SHARE: usize = 128;
const FAILURES: &str = "tollgate_gateway_failures_total";
const SLOW: &str = "tollgate_gateway_slow_bodies_total";
const TUNNELS: &str = "tollgate_gateway_tunnels";

/// A gateway before one upstream, with the defaults but for a short wait for a slot.
fn gateway(upstream: &str, more: &str) -> (Gateway, Folder) {
    let folder = Folder::new("gateway-shares");
    let text =
        format!("routes: [{{upstreams: ['http://{upstream}'], timeouts: {{connect: 500ms}}{more}}}]\n");
    let config = folder.write("config.yaml", &text).display().to_string();
    (Gateway::with(&["--config", &config], OPEN), folder)
}

/// Connections of the attacker, each with these bytes.
fn attack(gateway: &Gateway, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let begun = (0..count).map(|_| {
        let mut stream = from(ATTACKER, gateway);
        stream.write_all(bytes).unwrap();
        stream
    });
    begun.collect()
}

/// Another address is answered, whatever it sends.
fn others_are_served(gateway: &Gateway) {
    for _ in 0..20 {
        assert_eq!(gateway.get("/", "").status, 200);
        let post = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(gateway.exchange(post).status, 200);
    }
}

/// How many were refused because their client has its share. All others must still wait.
fn share_denial(streams: &mut [TcpStream]) -> usize {
    let mut reported = 0;
    for stream in streams {
        stream.set_nonblocking(true).unwrap();
        let is_answered = stream.peek(&mut [0]).is_ok_and(|read| read > 0);
        stream.set_nonblocking(false).unwrap();
        if is_answered {
            let answer = Response::read(&mut BufReader::new(stream));
            answer.lack_of_capacity("client-share");
            assert!(answer.json()["detail"].as_str().unwrap().contains("your address has reached"));
            reported += 1;
        }
    }
    reported
}

/// 515 uploads from one address once held all 512 slots of an upstream, which was 503 for everybody.
#[test]
fn slow_uploads_leave_slots_to_others() {
    let upstream = Upstream::start();
    let (gateway, _folder) = gateway(&upstream.address.to_string(), "");
    let begun = b"POST /hang HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nsome of it";
    let mut held = attack(&gateway, 515, begun);
    until(|| upstream.count() == SHARE);
    others_are_served(&gateway);
    until(|| gateway.metric(FAILURES, "share") == 515 - 128);
    others_are_served(&gateway);
    assert_eq!(share_denial(&mut held), 515 - SHARE);
    assert_eq!(gateway.metric(FAILURES, "busy"), 0);
    // Its own slots are free again when it has gone.
    drop(held);
    until(|| gateway.metric("tollgate_connections_open", "gateway") == 0);
    let mut again = from(ATTACKER, &gateway);
    again.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(Response::read(&mut BufReader::new(&again)).status, 200);
}

/// A client that sends nothing of its body, or not all of a small one, holds no slot: the upstream hears of none of them. All of them are
/// refused with the reason, one that trickles as well, and the slot that it held is free then.
#[test]
fn a_body_that_does_not_come_holds_no_slot() {
    let upstream = Upstream::start();
    let (gateway, _folder) = gateway(&upstream.address.to_string(), ", pace: {bytes: 3000, over: 3s}");
    let silent = attack(&gateway, 400, b"POST /hang HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
    let small =
        attack(&gateway, 115, b"POST /hang HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf of it");
    others_are_served(&gateway);
    assert_eq!(upstream.seen().iter().filter(|seen| seen.line == "POST /hang").count(), 0);
    for stream in silent.iter().chain(&small) {
        let answer = Response::read(&mut BufReader::new(stream));
        assert_eq!(answer.json()["type"], "urn:tollgate:problem:body-too-slow");
        answer.problem(408);
    }
    assert_eq!(gateway.metric(SLOW, "upload"), 515);
    // First bytes of a large one take a slot, and give it back.
    let trickle = attack(&gateway, 515, b"POST /hang HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nx");
    until(|| upstream.count() >= SHARE);
    others_are_served(&gateway);
    for stream in &trickle {
        let answer = Response::read(&mut BufReader::new(stream));
        assert!([408, 503].contains(&answer.status), "{answer:?}");
    }
    assert!(gateway.metric(SLOW, "upload") >= 515 + 128);
    let mut again = from(ATTACKER, &gateway);
    again.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(Response::read(&mut BufReader::new(&again)).status, 200);
}

/// The pace is an average: a burst earns a pause, a steady client may take its time, and a stream whose upstream has answered may rest.
#[test]
fn the_pace_does_not_punish_honest_clients() {
    let upstream = Upstream::start();
    let (gateway, _folder) = gateway(&upstream.address.to_string(), ", pace: {bytes: 3000, over: 3s}");
    let rest = |millis| tollgate_testkit::rest(Duration::from_millis(millis));
    let head = |path: &str, length: usize| {
        format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n")
    };
    let mut burst = gateway.connect();
    let mut steady = gateway.connect();
    let mut resting = gateway.connect();
    burst.write_all(head("/whole", 100_001).as_bytes()).unwrap();
    burst.write_all(&[b'x'; 100_000]).unwrap();
    steady.write_all(head("/whole", 10 * 1_000).as_bytes()).unwrap();
    resting
        .write_all(b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        .unwrap();
    let mut echoed = BufReader::new(resting.try_clone().unwrap());
    let mut line = String::new();
    while !line.ends_with("\r\na\r\n") {
        assert_ne!(echoed.read_line(&mut line).unwrap(), 0, "{line}");
    }
    for _ in 0..10 {
        steady.write_all(&[b'x'; 1_000]).unwrap();
        rest(200);
    }
    burst.write_all(b"x").unwrap();
    for stream in [&burst, &steady] {
        assert_eq!(Response::read(&mut BufReader::new(stream)).status, 200);
    }
    rest(1_500);
    resting.write_all(b"1\r\nb\r\n0\r\n\r\n").unwrap();
    let mut rest_of_it = String::new();
    while !rest_of_it.ends_with("0\r\n\r\n") {
        assert_ne!(echoed.read_line(&mut rest_of_it).unwrap(), 0, "{rest_of_it}");
    }
    assert_eq!(gateway.metric(SLOW, "upload"), 0);
}

/// Requests that a client of HTTP/2 opens on four connections, 128 on each, and whose bodies never come.
async fn open_posts(gateway: &Gateway, content_type: &str) -> Vec<tokio::task::JoinHandle<(u16, String)>> {
    let mut asked = Vec::new();
    for _ in 0..4 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(ATTACKER.parse().unwrap(), 0)).unwrap();
        let stream = TokioIo::new(socket.connect(gateway.address).await.unwrap());
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        for _ in 0..128 {
            let request = Request::post("http://a/hang").header("content-type", content_type);
            let request = request.body(Never).unwrap();
            let mut sender: http2::SendRequest<Never> = sender.clone();
            asked.push(tokio::spawn(async move {
                let response = sender.send_request(request).await.unwrap();
                let status = response.status().as_u16();
                let reported = response.headers().get("grpc-status");
                let reported = reported.map_or(String::new(), |status| status.to_str().unwrap().to_owned());
                (status, reported)
            }));
        }
    }
    asked
}

/// A body of which nothing comes, and which does not end.
struct Never;

impl Body for Never {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

/// Four connections of HTTP/2 with 512 open POSTs once held all slots. They hold none until their bodies begin; calls of gRPC, which may wait
/// for their server, hold the share of one client. Others are served all the while, and all of the attacker's are refused with the reason.
#[test]
fn open_posts_over_h2_leave_slots_to_others() {
    let upstream = Upstream::start();
    let more = ", pace: {bytes: 3000, over: 6s}";
    let (gateway, _folder) = gateway(&upstream.address.to_string(), more);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let asked = runtime.block_on(open_posts(&gateway, "text/plain"));
    others_are_served(&gateway);
    assert_eq!(upstream.seen().iter().filter(|seen| seen.line == "POST /hang").count(), 0);
    for asked in asked {
        assert_eq!(runtime.block_on(asked).unwrap().0, 408);
    }
    others_are_served(&gateway);
    upstream.seen();
    let mut calls = runtime.block_on(open_posts(&gateway, "application/grpc"));
    until(|| gateway.metric(FAILURES, "share") == 512 - 128);
    others_are_served(&gateway);
    assert_eq!(upstream.seen().iter().filter(|seen| seen.line == "POST /hang").count(), SHARE);
    until(|| calls.iter().filter(|call| call.is_finished()).count() == 512 - SHARE);
    calls.retain(|call| call.is_finished());
    for call in calls {
        assert_eq!(runtime.block_on(call).unwrap(), (200, "14".to_owned()), "UNAVAILABLE");
    }
}

/// 512 idle WebSockets from one address once held all slots. Tunnels have slots of their own, and each client a share of them.
#[test]
fn idle_tunnels_leave_slots_to_others() {
    let upstream = Upstream::start();
    let (gateway, _folder) = gateway(&upstream.address.to_string(), "");
    let upgrade = b"GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let mut held = attack(&gateway, 512, upgrade);
    until(|| gateway.metric(FAILURES, "share") == 512 - 128);
    assert_eq!(gateway.metric(TUNNELS, "route-0"), 128);
    others_are_served(&gateway);
    // The attacker has tunnels, and may still ask: a request is no tunnel.
    assert_eq!(attack(&gateway, 1, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").len(), 1);
    let mut tunnel = gateway.connect();
    tunnel.write_all(upgrade).unwrap();
    assert_eq!(Response::read(&mut BufReader::new(&tunnel)).status, 101);
    tunnel.write_all(b"ping").unwrap();
    let mut pong = [0; 4];
    tunnel.read_exact(&mut pong).unwrap();
    assert_eq!(&pong, b"ping");
    let (mut granted, mut refused) = (0, 0);
    for stream in &mut held {
        let answer = Response::read(&mut BufReader::new(stream));
        if answer.status == 101 {
            granted += 1;
        } else {
            answer.lack_of_capacity("client-share");
            assert!(answer.json()["detail"].as_str().unwrap().contains("limit of tunnels"));
            refused += 1;
        }
    }
    assert_eq!((granted, refused), (SHARE, 512 - SHARE));
    drop((held, tunnel));
    until(|| gateway.metric(TUNNELS, "route-0") == 0);
}

/// Requests that an upstream takes its time for, and answers that their client does not read, hold slots as well: no more of one client than its share.
#[test]
fn slow_answers_leave_slots_to_others() {
    let upstream = Upstream::start();
    let (gateway, _folder) = gateway(&upstream.address.to_string(), ", connections: 64, per_client: 50%");
    let waiting = attack(&gateway, 40, b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n");
    until(|| gateway.metric(FAILURES, "share") == 8);
    others_are_served(&gateway);
    drop(waiting);
    until(|| gateway.metric("tollgate_connections_open", "gateway") == 0);
    upstream.seen();
    // Each answer is larger than what the system takes of it ahead of a reader.
    let unread = attack(&gateway, 40, b"GET /big/64 HTTP/1.1\r\nHost: a\r\n\r\n");
    until(|| gateway.metric(FAILURES, "share") == 16);
    others_are_served(&gateway);
    drop(unread);
}

/// A tunnel whose client had ended its side stayed for an hour where the upstream did not end its own. It ends after five seconds without a
/// byte, for both.
#[test]
fn a_tunnel_ends_soon_after_one_side() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (gateway, _folder) = gateway(&listener.local_addr().unwrap().to_string(), "");
    let upstream = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 4_096];
        assert!(stream.read(&mut head).unwrap() > 0);
        let switched = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
        stream.write_all(switched).unwrap();
        // It hears that the client has ended its side, and says nothing.
        assert_eq!(stream.read(&mut head).unwrap(), 0);
        stream
    });
    let mut client = gateway.connect();
    client.write_all(b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n").unwrap();
    assert_eq!(Response::read(&mut BufReader::new(&client)).status, 101);
    assert_eq!(gateway.metric(TUNNELS, "route-0"), 1);
    client.shutdown(Shutdown::Write).unwrap();
    let _silent = upstream.join().unwrap();
    assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
    until(|| gateway.metric(TUNNELS, "route-0") == 0);
}

/// Connections to upstreams take descriptors, which are few by default. One client with many requests at one upstream, on a few connections of
/// HTTP/2, once took all of them, and other upstreams were 503 for everybody.
#[test]
fn connections_to_other_upstreams_are_left_to_others() {
    let (busy, calm, folder) = (Upstream::start(), Upstream::start(), Folder::new("gateway-links-share"));
    let text = format!(
        "routes:\n- {{path: /hang, upstreams: ['http://{}'], timeouts: {{connect: 2s}}}}\n- {{upstreams: ['http://{}']}}\n",
        busy.address, calm.address
    );
    let config = folder.write("config.yaml", &text).display().to_string();
    let gateway = confined(200, &["--config", &config]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let calls = runtime.block_on(open_posts(&gateway, "application/grpc"));
    until(|| gateway.metric(FAILURES, "share") >= 100);
    others_are_served(&gateway);
    // Half of the 78 that connections to upstreams can have of 200 descriptors.
    assert_eq!(busy.count(), 39);
    drop(calls);
}

/// An upstream that holds all requests until the test lets it answer them, and counts them and the connections that ended.
#[derive(Default)]
struct Holding {
    asked: AtomicUsize,
    ended: AtomicUsize,
    is_reported: AtomicBool,
}

fn holding() -> (String, Arc<Holding>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, state) = (listener.local_addr().unwrap().to_string(), Arc::new(Holding::default()));
    let shared = Arc::clone(&state);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let state = Arc::clone(&shared);
            std::thread::spawn(move || {
                while stream.read(&mut [0; 4_096]).is_ok_and(|read| read > 0) {
                    state.asked.fetch_add(1, Ordering::SeqCst);
                    until(|| state.is_reported.load(Ordering::SeqCst));
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
                }
                state.ended.fetch_add(1, Ordering::SeqCst);
            });
        }
    });
    (address, state)
}

/// After a crowd at one upstream its connections rest, and once held all descriptors: other upstreams were 503 until they had rested for
/// long enough. They are closed when others are needed.
#[test]
fn idle_connections_are_evicted() {
    let ((crowded, state), calm, folder) = (holding(), Upstream::start(), Folder::new("gateway-rest"));
    let text = format!(
        "routes:\n- {{path: /crowd, upstreams: ['http://{crowded}']}}\n- {{upstreams: ['http://{}']}}\n",
        calm.address
    );
    let config = folder.write("config.yaml", &text).display().to_string();
    let gateway = confined(160, &["--config", &config]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    // Two clients take their halves of the 52 that connections to upstreams can have of 160 descriptors.
    let asked = runtime.block_on(async {
        let mut asked = Vec::new();
        for client in ["127.0.0.2", "127.0.0.3"] {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::new(client.parse().unwrap(), 0)).unwrap();
            let stream = TokioIo::new(socket.connect(gateway.address).await.unwrap());
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            tokio::spawn(connection);
            for _ in 0..26 {
                let request = Request::get("http://a/crowd").body(Empty::<Bytes>::new()).unwrap();
                let mut sender = sender.clone();
                asked.push(tokio::spawn(async move { sender.send_request(request).await.unwrap().status() }));
            }
        }
        asked
    });
    until(|| state.asked.load(Ordering::SeqCst) == 52);
    state.is_reported.store(true, Ordering::SeqCst);
    for asked in asked {
        assert_eq!(runtime.block_on(asked).unwrap(), 200);
    }
    assert_eq!(state.ended.load(Ordering::SeqCst), 0, "all of them rest");
    assert_eq!(gateway.get("/", "").status, 200);
    until(|| state.ended.load(Ordering::SeqCst) == 52);
}
