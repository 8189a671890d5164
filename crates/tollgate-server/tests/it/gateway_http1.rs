//! Connections of HTTP/1 to an upstream, byte by byte: when one is used again, when not, and what goes on in both directions at once. Here the
//! test is the upstream.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use tollgate_testkit::rest;

use crate::gateway_upstream::{Gateway, OPEN, Upstream};
use crate::raw_http::Response;

/// Longer than a connection does nothing before it is taken for one that rests.
const REST: Duration = Duration::from_millis(250);
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A gateway, and what its upstream listens with.
fn gateway() -> (Gateway, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    (Gateway::with(&["--upstream", &address], OPEN), listener)
}

fn accepted(listener: &TcpListener) -> TcpStream {
    let stream = listener.accept().unwrap().0;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn say(mut stream: &TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
}

fn get(client: &TcpStream, path: &str) {
    say(client, &format!("GET {path} HTTP/1.1\r\nHost: app.test\r\n\r\n"));
}

/// The bytes up to and with this text.
fn received(mut stream: &TcpStream, end: &str) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(end.as_bytes()) {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "the end after {}", String::from_utf8_lossy(&bytes));
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).unwrap()
}

/// The head of the request that comes next, which must be for this path.
fn asked(stream: &TcpStream, path: &str) -> String {
    let head = received(stream, "\r\n\r\n");
    assert!(head.split(' ').nth(1) == Some(path), "{path}: {head}");
    head
}

fn answered(client: &TcpStream) -> Response {
    Response::read(&mut BufReader::new(client))
}

/// Whether the other side has ended the connection, and nothing came before that.
fn has_ended(mut stream: &TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

/// One connection serves one request after the other, whichever way the answers tell their lengths; when the upstream has closed it,
/// there is another.
#[test]
fn connections_are_used_again() {
    let (gateway, listener) = gateway();
    let client = gateway.connect();
    get(&client, "/1");
    let first = accepted(&listener);
    asked(&first, "/1");
    say(&first, OK);
    assert_eq!(answered(&client).body, b"ok");
    get(&client, "/2");
    asked(&first, "/2");
    say(
        &first,
        "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok",
    );
    let head = received(&client, "ok\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && !head.contains("link"), "{head}");
    say(&first, "\r\n0\r\n\r\n");
    received(&client, "0\r\n\r\n");
    get(&client, "/3");
    asked(&first, "/3");
    say(&first, "HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(answered(&client).status, 204);
    drop(first);
    get(&client, "/4");
    let second = accepted(&listener);
    asked(&second, "/4");
    say(&second, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
    assert_eq!(answered(&client).body, b"ok");
    assert!(has_ended(&second), "it said so");
}

/// An upstream's unsolicited bytes answer no request, neither behind an answer nor later: the connection is not used again.
#[test]
fn unrequested_answers_reach_no_client() {
    let (gateway, listener) = gateway();
    let client = gateway.connect();
    for _ in 0..3 {
        get(&client, "/mine");
        let upstream = accepted(&listener);
        asked(&upstream, "/mine");
        say(&upstream, &format!("{OK}HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"));
        assert_eq!(answered(&client).body, b"ok");
        drop(upstream);
    }
    for broken in ["HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok", "hello\r\n\r\n"] {
        get(&client, "/broken");
        let upstream = accepted(&listener);
        asked(&upstream, "/broken");
        say(&upstream, broken);
        answered(&client).problem(502);
        assert!(has_ended(&upstream));
    }
}

/// An upstream that answers before it has read the whole request gets the rest of it nevertheless, and its connection is used again.
#[test]
fn an_answer_before_the_end_of_the_request() {
    let (gateway, listener) = gateway();
    let client = gateway.connect();
    let (body, part) = ("x".repeat(300_000), "y".repeat(100));
    say(
        &client,
        &format!("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{part}", part.len() + body.len()),
    );
    let upstream = accepted(&listener);
    let head = asked(&upstream, "/1");
    assert!(head.contains(&format!("content-length: {}\r\n", part.len() + body.len())), "{head}");
    received(&upstream, &part);
    say(&upstream, OK);
    assert_eq!(answered(&client).body, b"ok");
    say(&client, &body);
    received(&upstream, &body);
    get(&client, "/2");
    asked(&upstream, "/2");
    say(&upstream, OK);
    assert_eq!(answered(&client).body, b"ok");
}

/// The rest of a request that has its answer is not waited for without end, and takes no place of others.
#[test]
fn a_rest_of_a_request_that_does_not_come() {
    let (gateway, listener) = gateway();
    let client = gateway.connect();
    say(&client, "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n1");
    let upstream = accepted(&listener);
    asked(&upstream, "/1");
    say(&upstream, OK);
    assert_eq!(answered(&client).body, b"ok");
    // The client stays and sends nothing; the upstream is let go long before the client is.
    received(&upstream, "1");
    assert!(has_ended(&upstream));
}

/// A client that is refused while it still sends can read why, however much it sends.
#[test]
fn a_refused_upload_gets_its_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let policy = "limits: [{name: few, rate: 1/day, when: {method: POST}}]";
    let gateway = Gateway::with(&["--upstream", &address], policy);
    let client = gateway.connect();
    say(&client, "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    let upstream = accepted(&listener);
    asked(&upstream, "/1");
    say(&upstream, OK);
    assert_eq!(answered(&client).body, b"ok");
    let client = gateway.connect();
    let length = 8 << 20;
    say(&client, &format!("POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"));
    (&client).write_all(&vec![b'x'; length]).unwrap();
    assert_eq!(answered(&client).status, 429);
}

/// A client that has ended its side and reads on gets its whole answer, however long that takes.
#[test]
fn an_answer_to_a_client_that_left() {
    let (gateway, listener) = gateway();
    let client = gateway.connect();
    get(&client, "/1");
    let upstream = accepted(&listener);
    asked(&upstream, "/1");
    client.shutdown(Shutdown::Write).unwrap();
    say(&upstream, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
    for part in ["1", "2", "3", "4", "5"] {
        say(&upstream, part);
        rest(Duration::from_millis(800));
    }
    assert_eq!(answered(&client).body, b"12345");
}

/// An answer that ends with its connection, and is cut off, does not look whole.
#[test]
fn a_cut_answer_of_http_10() {
    let (gateway, listener) = gateway();
    let client = gateway.connect();
    say(&client, "GET /1 HTTP/1.0\r\nHost: a\r\n\r\n");
    let upstream = accepted(&listener);
    asked(&upstream, "/1");
    say(&upstream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    received(&client, "hello");
    drop(upstream);
    let end = (&client).read(&mut [0]);
    assert!(end.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset), "{end:?}");
}

/// While an answer is under way the request goes on, also when the client does not read the answer; chunks are chunks again.
#[test]
fn both_directions_at_once() {
    let (gateway, listener) = gateway();
    let client = gateway.connect();
    say(&client, "POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n");
    let upstream = accepted(&listener);
    let head = asked(&upstream, "/1");
    assert!(head.contains("transfer-encoding: chunked\r\n") && !head.contains("content-length"), "{head}");
    received(&upstream, "3\r\none\r\n");
    // More than fits in between, which the client does not read yet.
    let length = 32 << 20;
    let mut writer = upstream.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        say(&writer, &format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"));
        writer.write_all(&vec![b'z'; length]).unwrap();
    });
    received(&client, "\r\n\r\n");
    for _ in 0..3 {
        say(&client, "3\r\ntwo\r\n");
        received(&upstream, "3\r\ntwo\r\n");
    }
    say(&client, "0\r\n\r\n");
    received(&upstream, "0\r\n\r\n");
    let mut answer = vec![0; length];
    (&client).read_exact(&mut answer).unwrap();
    writing.join().unwrap();
    get(&client, "/2");
    asked(&upstream, "/2");
}

/// A large request is sent whole before its small answer.
#[test]
fn a_large_request() {
    let (gateway, listener) = gateway();
    let client = gateway.connect();
    let length = 16 << 20;
    let mut writer = client.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        say(&writer, &format!("PUT /1 HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"));
        writer.write_all(&vec![b'z'; length]).unwrap();
    });
    let upstream = accepted(&listener);
    asked(&upstream, "/1");
    (&upstream).read_exact(&mut vec![0; length]).unwrap();
    writing.join().unwrap();
    say(&upstream, OK);
    assert_eq!(answered(&client).body, b"ok");
}

/// A client that goes away in the middle of its answer, or of its request, takes the connection to the upstream with it.
#[test]
fn a_departed_client_leaves_no_state() {
    let (gateway, listener) = gateway();
    let client = gateway.connect();
    get(&client, "/answer");
    let upstream = accepted(&listener);
    asked(&upstream, "/answer");
    say(&upstream, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nbegun");
    received(&client, "begun");
    drop(client);
    assert!(has_ended(&upstream));

    let client = gateway.connect();
    say(&client, "POST /request HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nbegun");
    let upstream = accepted(&listener);
    asked(&upstream, "/request");
    received(&upstream, "begun");
    drop(client);
    assert!(has_ended(&upstream));

    // Also where the answer has begun before.
    let client = gateway.connect();
    say(&client, "POST /both HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nbegun");
    let upstream = accepted(&listener);
    asked(&upstream, "/both");
    received(&upstream, "begun");
    say(&upstream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n");
    received(&client, "ok\r\n");
    drop(client);
    assert!(has_ended(&upstream));
}

/// An answer that is cut off is not sent on as a whole one.
#[test]
fn cut_off_answers() {
    let (gateway, listener) = gateway();
    for begun in [
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbegun",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n",
    ] {
        // The request is whole, and then it is not.
        for request in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nbegun",
        ] {
            let client = gateway.connect();
            say(&client, request);
            let upstream = accepted(&listener);
            received(&upstream, if request.starts_with("GET") { "\r\n\r\n" } else { "begun" });
            say(&upstream, begun);
            received(&client, "begun");
            drop(upstream);
            let mut rest = String::new();
            let _ = (&client).read_to_string(&mut rest);
            assert!(!rest.contains("0\r\n\r\n"), "{begun:?}, {request:?}: {rest:?}");
        }
    }
}

/// A client's connection that has rested is served as before, however the next request comes, and as strictly.
#[test]
fn after_a_rest() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let client = gateway.connect();
    let whole = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let requests: [&[&str]; 4] =
        [&[whole], &["G", "ET / HTTP/1.1\r\nHost: a\r\n", "\r\n"], &["\r\n", whole], &[whole]];
    for parts in requests {
        for part in parts {
            say(&client, part);
            rest(REST);
        }
        assert_eq!(answered(&client).body, b"hello", "{parts:?}");
        rest(REST);
    }
    assert_eq!(upstream.seen().len(), requests.len());
    say(&client, "GET / HTTP/1.1\nHost: a\n\n");
    assert_eq!(answered(&client).status, 400);
    assert!(has_ended(&client));
    assert_eq!(upstream.seen().len(), 0);
}

/// Connections that rest take little memory, and are there when they are needed.
#[test]
fn rest_is_cheap() {
    const CONNECTIONS: u64 = 400;
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let resident = || {
        let memory = std::fs::read_to_string(format!("/proc/{}/statm", gateway.server.id())).unwrap();
        memory.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
    };
    let open = || {
        let client = gateway.connect();
        get(&client, "/");
        assert_eq!(answered(&client).body, b"hello");
        client
    };
    // What the first ones need is not theirs alone.
    drop((0..20).map(|_| open()).collect::<Vec<_>>());
    rest(REST);
    let before = resident();
    let clients: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|number| {
            if number % 20 == 0 {
                rest(REST); // Not all are awake at once.
            }
            open()
        })
        .collect();
    let each = resident().saturating_sub(before) / CONNECTIONS;
    assert!(each < 12 << 10, "{each} bytes for each");
    for client in clients.iter().step_by(7) {
        get(client, "/");
        assert_eq!(answered(client).body, b"hello");
    }
}
