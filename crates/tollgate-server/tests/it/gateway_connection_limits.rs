//! Clients who take all places that they can get at the gateway: one address leaves room for others, and those who ask nothing make room.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::gateway_upstream::{Gateway, OPEN, Upstream, until};
use crate::program::{Server, tollgate};
use crate::proxy::Folder;
use crate::raw_http::Response;

/// The metric of connections that were ended for the sake of others.
const ENDED: &str = "tollgate_gateway_connections_ended_total";

/// A connection from an address of this machine; none if it was ended before anybody could look at it.
pub(crate) fn try_from(address: &str, to: SocketAddr) -> Option<TcpStream> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(address.parse::<IpAddr>().unwrap(), 0)).unwrap();
        Some(socket.connect(to).await.ok()?.into_std().unwrap())
    })?;
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    Some(stream)
}

pub(crate) fn from(address: &str, gateway: &Gateway) -> TcpStream {
    try_from(address, gateway.address).unwrap()
}

/// Whether an address gets no further connection.
fn is_turned_away(address: &str, gateway: &Gateway) -> bool {
    try_from(address, gateway.address).is_none_or(|mut stream| is_over(&mut stream))
}

/// Slow heads from an address, without those that were turned away at once.
fn slow(address: &str, gateway: &Gateway, count: usize) -> Vec<TcpStream> {
    let begun = (0..count).filter_map(|_| {
        let mut stream = try_from(address, gateway.address)?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n").ok()?;
        Some(stream)
    });
    begun.collect()
}

/// Whether the other side has ended a connection.
fn is_over(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    match stream.read(&mut [0; 256]) {
        Ok(read) => read == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

/// Asks on a connection that stays open.
fn ask(stream: &mut TcpStream, path: &str) -> u16 {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
    Response::read(&mut BufReader::new(stream)).status
}

/// A gateway with so many descriptors.
pub(crate) fn confined(descriptors: usize, arguments: &[&str]) -> Gateway {
    let program = tollgate(&[]).get_program().to_str().unwrap().to_owned();
    let mut command = Command::new("sh");
    command.args(["-c", &format!(r#"ulimit -n {descriptors}; exec "$0" "$@""#), &program]);
    command.args(["serve", "--http", "127.0.0.1:0", "--gateway", "127.0.0.1:0", "--policy", "-"]);
    command.args(["--grpc", "off", "--resp", "off"]).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Gateway::of(Server::spawn(command, OPEN))
}

/// One address that holds many slow connections has no more than it may; another is served all the while. What is beyond is ended at once,
/// counted and logged, and when the slow ones have gone their address is served again.
#[test]
fn one_address_leaves_permits_for_others() {
    let (upstream, folder) = (Upstream::start(), Folder::new("gateway-crowds"));
    let config = folder.write("config.yaml", "connections_per_address: 40\n").display().to_string();
    let address = format!("http://{}", upstream.address);
    let mut gateway = Gateway::with(&["--config", &config, "--upstream", &address], OPEN);
    let mut held = slow("127.0.0.2", &gateway, 200);
    until(|| gateway.metric(ENDED, "address") == 160);
    for _ in 0..50 {
        assert_eq!(gateway.get("/", "").status, 200);
    }
    held.retain_mut(|stream| !is_over(stream));
    assert_eq!((held.len(), gateway.metric(ENDED, "room")), (40, 0));
    assert!(is_turned_away("127.0.0.2", &gateway));
    assert_eq!(ask(&mut from("127.0.0.3", &gateway), "/"), 200);
    gateway.server.await_log("an address has 40 connections");
    drop(held);
    until(|| gateway.metric("tollgate_connections_open", "gateway") == 0);
    assert_eq!(ask(&mut from("127.0.0.2", &gateway), "/"), 200);
}

/// A trusted proxy stands for many clients, so it has as many connections as there are places.
#[test]
fn a_trusted_proxy_has_no_bound() {
    let (upstream, folder) = (Upstream::start(), Folder::new("gateway-balancer"));
    let text = "connections_per_address: 2\ntrusted_proxies: [127.0.0.2]\n";
    let config = folder.write("config.yaml", text).display().to_string();
    let address = format!("http://{}", upstream.address);
    let gateway = Gateway::with(&["--config", &config, "--upstream", &address], OPEN);
    let mut kept: Vec<TcpStream> = (0..20).map(|_| from("127.0.0.2", &gateway)).collect();
    assert!(kept.iter_mut().all(|stream| ask(stream, "/") == 200));
    let _two = slow("127.0.0.1", &gateway, 2);
    until(|| gateway.metric("tollgate_connections_open", "gateway") == 22);
    assert!(is_turned_away("127.0.0.1", &gateway));
    assert_eq!(gateway.metric(ENDED, "address"), 1);
}

/// Slow heads from more addresses than the connection limit: a new client gets the place of one of them, without waiting for the ten
/// seconds that they have, and those who are being answered keep theirs. So do tunnels and connections of HTTP/2 with a request.
#[test]
fn connections_without_requests_are_evicted() {
    let (upstream, folder) = (Upstream::start(), Folder::new("gateway-full-house"));
    let address = format!("http://{}", upstream.address);
    let config = folder.write("config.yaml", "connections_per_address: 100000\n").display().to_string();
    let mut gateway = confined(200, &["--config", &config, "--upstream", &address]);
    let mut answered: Vec<TcpStream> = (0..5).map(|_| gateway.connect()).collect();
    for stream in &mut answered {
        stream.write_all(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    }
    let mut tunnel = gateway.connect();
    tunnel
        .write_all(b"GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
        .unwrap();
    let mut h2 = gateway.connect();
    let fields = [&[0x82, 0x86, 0x41, 0x01, b'a', 0x04, 0x05][..], b"/hang"].concat();
    let length = u8::try_from(fields.len()).unwrap();
    let head = [&[0, 0, length, 1, 5, 0, 0, 0, 1], &fields[..]].concat();
    h2.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    h2.write_all(&head).unwrap();
    until(|| upstream.count() == 7);
    let mut rested = gateway.connect();
    assert_eq!(ask(&mut rested, "/"), 200);

    // Two waves, so that slow heads that hold all places have been there for a while when more come.
    let mut waves = Vec::new();
    for wave in 0..2 {
        let hosts = 2..12;
        let wave: Vec<TcpStream> =
            hosts.flat_map(|host| slow(&format!("127.0.{wave}.{host}"), &gateway, 12)).collect();
        waves.push(wave);
        tollgate_testkit::rest(Duration::from_millis(1_100));
    }
    gateway.server.await_log("replaces an idle one");
    for _ in 0..20 {
        assert_eq!(gateway.get("/", "").status, 200);
    }
    assert!(gateway.metric(ENDED, "room") > 100, "there was room for everybody, so the test shows nothing");
    assert!(answered.iter_mut().all(|stream| !is_over(stream)), "an answered client has lost its connection");
    let mut talk = [0; 4_096];
    let read = tunnel.read(&mut talk).unwrap();
    assert!(talk[..read].starts_with(b"HTTP/1.1 101"));
    tunnel.write_all(b"still there").unwrap();
    let read = tunnel.read(&mut talk).unwrap();
    assert_eq!(&talk[..read], b"still there");
    h2.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let end = loop {
        match h2.read(&mut talk) {
            Ok(0) => break "over",
            Ok(_) => {}
            Err(_) => break "open",
        }
    };
    assert_eq!(end, "open");
}
