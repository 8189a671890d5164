//! More clients than there are descriptors for: those who are served stay served, the others wait, and files can still be opened.

use std::io::{BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::program::{SLOW_POLICY, Server, tollgate};
use crate::raw_http::{Response, request};
use crate::restart::{Scratch, await_until};

/// A question that charges nothing, on a connection that stays open; tells whether it was answered in time.
fn is_answered(stream: &TcpStream) -> bool {
    let question = request("POST", "/v1/check", "", br#"{"attributes":{"api_key":"k"},"cost":0}"#);
    let mut writer = stream;
    writer.write_all(&question).is_ok()
        && stream.peek(&mut [0]).is_ok_and(|read| read > 0)
        && Response::read(&mut BufReader::new(stream)).status == 200
}

/// A server with 128 descriptors.
fn confined(arguments: &[&str]) -> Server {
    let program = tollgate(&[]).get_program().to_str().unwrap().to_owned();
    let mut command = Command::new("sh");
    command.args(["-c", r#"ulimit -n 128; exec "$0" "$@""#, &program]);
    command.args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
    command.args(["--policy", "-"]).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    Server::spawn(command, SLOW_POLICY)
}

/// 300 connections, or as many of them as the system lets in.
fn peers(address: SocketAddr) -> Vec<TcpStream> {
    let connections =
        (0..300).map_while(|_| TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok());
    let peers: Vec<TcpStream> = connections.collect();
    assert!(peers.len() > 100, "only {} came", peers.len());
    peers
}

/// With 128 descriptors, 300 connections at once: the system's queue takes those that the server has no room for. Who was
/// connected before is answered all the while, counters are written to disk all the while, and when the crowd leaves, a new client
/// is served before the first silent one times out.
#[test]
fn excess_connections_do_not_disturb_served_ones() {
    let scratch = Scratch::new("crowd");
    let server = confined(&["--state-dir", scratch.path(), "--snapshot-every", "100ms"]);
    let served: Vec<TcpStream> = (0..10).map(|_| server.connect()).collect();
    assert!(served.iter().all(is_answered));

    let mut peers = peers(server.address);
    let late = peers.last().unwrap();
    late.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(!is_answered(late), "there was room for everybody, so the test shows nothing");
    for _ in 0..3 {
        assert!(served.iter().all(is_answered), "a served client has lost its connection");
        scratch.await_snapshot();
    }

    let first = peers.remove(0);
    drop(peers);
    // A queue that is still full drops the first packet of a connection, so a client that waits for it waits for a second.
    let is_served = || {
        let stream = TcpStream::connect_timeout(&server.address, Duration::from_millis(100));
        stream.is_ok_and(|stream| {
            stream.set_read_timeout(Some(Duration::from_secs(1))).is_ok() && is_answered(&stream)
        })
    };
    await_until(is_served);
    // A server that did not see the crowd leave has room only after its silent connections timed out, this one first.
    assert!(is_open(&first), "the new client was served only after the crowd had timed out");
}

/// Whether the server has neither closed a connection nor sent anything on it.
pub(crate) fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// Many idle Redis clients fill only their own connection limit: HTTP and gRPC still answer. The log says which limit is reached.
#[test]
fn load_at_one_listener_leaves_the_others_open() {
    let mut server = confined(&[]);
    let resting = peers(server.resp());
    let address = format!("\"address\":\"{}\"", server.resp());
    server.await_log(&address);
    let mut late = resting.last().unwrap();
    late.write_all(b"PING\r\n").unwrap();
    late.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(late.peek(&mut [0]).is_err(), "there was room for everybody, so the test shows nothing");

    let several: Vec<TcpStream> = (0..3).map(|_| server.connect()).collect();
    assert!(several.iter().all(is_answered));
    assert_eq!(server.send("GET", "/healthz", "").status, 200);
    let mut calls = TcpStream::connect(server.grpc.unwrap()).unwrap();
    calls.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    calls.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    assert!(calls.peek(&mut [0]).is_ok_and(|read| read > 0), "gRPC says hello");
}
