//! An invalid request gets a problem that names the cause and the cure, and changes no counter.

use std::io::{BufReader, Read, Write};
use std::time::{Duration, Instant};

use crate::program::{SLOW_POLICY, Server};
use crate::raw_http::{Response, request};

const JSON: &str = "Content-Type: application/json\r\n";

/// Bodies that are not questions.
#[test]
fn wrong_bodies_are_refused_and_change_nothing() {
    let server = Server::start(SLOW_POLICY);
    let deep = format!(r#"{{"attributes":{{"api_key":{}"#, "[".repeat(60_000));
    let many: Vec<String> = (0..65).map(|i| format!(r#""a{i}":"x""#)).collect();
    let many = format!(r#"{{"attributes":{{{}}}}}"#, many.join(","));
    let cases: [(&[u8], &str); 20] = [
        (b"", "the body is empty; accepted: an object with attributes and cost"),
        (b"{", "not valid JSON: it ends too early"),
        (b"null", "null is not accepted; accepted: an object with attributes and cost"),
        (br#"{"attributes":{"api_key":"k"}}{}"#, "there is more text behind its end"),
        (br#"{"cost":1}"#, "attributes: missing"),
        (
            br#"{"attributes":{"api_key":"k"},"price":1}"#,
            "unknown field \"price\"; accepted: attributes and cost",
        ),
        (br#"{"attributes":{"api_key":"k"},"cost":1,"cost":2}"#, "cost: given twice"),
        (br#"{"attributes":{"api_key":"k","api_key":"k"}}"#, "attributes.\"api_key\": given twice"),
        (
            br#"{"attributes":{"api_key":"k"},"cost":1.5}"#,
            "cost: 1.5 is not accepted; accepted: a whole number from 0",
        ),
        (br#"{"attributes":{"api_key":"k"},"cost":-1}"#, "cost: -1"),
        (br#"{"attributes":{"api_key":"k"},"cost":9007199254740992}"#, "from 0 to 9007199254740991"),
        (br#"{"attributes":{"api_key":"k"},"cost":99999999999999999999999}"#, "cost: 1e23"),
        (br#"{"attributes":{"api_key":"k"},"cost":1e999}"#, "number out of range"),
        (br#"{"attributes":{"api_key":"k"},"cost":NaN}"#, "a value is expected here"),
        (br#"{"attributes":{"api_key":"k"},"cost":"1"}"#, "cost: text is not accepted"),
        (
            br#"{"attributes":{"api_key":true}}"#,
            "attributes.\"api_key\": true is not accepted; accepted: text",
        ),
        (br#"{"attributes":{"api_key":1.5}}"#, "attributes.\"api_key\": 1.5 is not accepted"),
        (b"{\"attributes\":{\"api_key\":\"\xc3\x28\"}}", "not UTF-8 at byte 26"),
        (deep.as_bytes(), "an array is not accepted"),
        (many.as_bytes(), "more than 64"),
    ];
    for (body, expected) in cases {
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        let detail = server.exchange(&request("POST", "/v1/check", JSON, body)).problem(400);
        assert!(detail.contains(expected), "{shown}: {detail}");
        assert_eq!(server.remaining("k"), 5, "{shown}");
    }
}

/// Paths, methods and media types.
#[test]
fn wrong_requests_are_refused_and_change_nothing() {
    let server = Server::start(SLOW_POLICY);
    let body = br#"{"attributes":{"api_key":"k"}}"#;
    for path in ["/v1", "/v1/check/", "//v1/check", "/v1/check/other", "/v1/permits/", "/v1/permits/xyz"] {
        let detail = server.exchange(&request("POST", path, JSON, body)).problem(404);
        assert!(
            detail.contains("POST /v1/check") || detail.contains("32 hexadecimal digits"),
            "{path}: {detail}"
        );
    }
    let cases = [
        ("GET", "/v1/check", "POST"),
        ("OPTIONS", "/v1/check/batch", "POST"),
        ("POST", "/healthz", "GET, HEAD"),
    ];
    for (method, path, allow) in cases {
        let response = server.exchange(&request(method, path, JSON, body));
        assert!(response.problem(405).contains(allow));
        assert_eq!(response.header("allow"), Some(allow));
    }
    for header in ["Content-Type: text/plain\r\n", "Content-Type: application/x-www-form-urlencoded\r\n"] {
        let detail = server.exchange(&request("POST", "/v1/check", header, body)).problem(415);
        assert!(detail.contains("application/json"), "{detail}");
    }
    let packed = request("POST", "/v1/check", "Content-Encoding: gzip\r\n", body);
    assert!(server.exchange(&packed).problem(415).contains("Content-Encoding"));
    assert_eq!(server.remaining("k"), 5);
    let untyped = server.exchange(&request("POST", "/v1/check", "", body));
    let parametrised = server.exchange(&request(
        "POST",
        "/v1/check",
        "Content-Type: application/json; charset=utf-8\r\n",
        body,
    ));
    assert_eq!((untyped.status, parametrised.status), (200, 200));
}

fn padded(length: usize) -> Vec<u8> {
    let mut body = br#"{"attributes":{"api_key":"k"}}"#.to_vec();
    body.resize(length, b' ');
    body
}

/// A body of the largest size passes, one byte more does not, however it is sent.
#[test]
fn bodies_are_bounded() {
    let server = Server::start(SLOW_POLICY);
    let check = |body: &[u8]| server.exchange(&request("POST", "/v1/check", JSON, body));
    assert!(check(&padded(65_537)).problem(413).contains("at most 65536 bytes"));
    let batch = [b"[".as_slice(), &padded((1 << 20) - 1), b"]"].concat();
    assert!(
        server.exchange(&request("POST", "/v1/check/batch", JSON, &batch)).problem(413).contains("1048576")
    );
    let chunk = [b"1ffff\r\n".as_slice(), &padded(0x1_ffff), b"\r\n0\r\n\r\n"].concat();
    let head = b"POST /v1/check HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n";
    server.exchange(&[head.as_slice(), &chunk].concat()).problem(413);
    // What is announced as far too large is refused before it is sent.
    let announced = b"POST /v1/check HTTP/1.1\r\nHost: test\r\nContent-Length: 9999999999\r\n\r\n";
    server.exchange(announced).problem(413);
    assert_eq!(server.remaining("k"), 5);
    assert_eq!(check(&padded(65_536)).status, 200);
    assert_eq!(server.remaining("k"), 4);
}

/// The head of a request is bounded, in bytes and in fields.
#[test]
fn heads_are_bounded() {
    let server = Server::start(SLOW_POLICY);
    let body = br#"{"attributes":{"api_key":"k"}}"#;
    let long = format!("X-Long: {}\r\n", "x".repeat(20_000));
    assert_eq!(server.exchange(&request("POST", "/v1/check", &long, body)).status, 431);
    let many: String = (0..200).map(|i| format!("X-{i}: x\r\n")).collect();
    assert_eq!(server.exchange(&request("POST", "/v1/check", &many, body)).status, 431);
    assert_eq!(server.remaining("k"), 5);
}

/// A client that sends nothing, half a head, or half a body is cut off, while others are served.
#[test]
fn slow_clients_are_cut_off() {
    let server = Server::start(SLOW_POLICY);
    #[allow(clippy::disallowed_methods, reason = "the test measures real time")]
    let start = Instant::now();
    let half_body = b"POST /v1/check HTTP/1.1\r\nHost: test\r\nContent-Length: 30\r\n\r\n{\"attributes\":";
    let sent: [&[u8]; 3] = [b"", b"POST /v1/check HTTP/1.1\r\nHost: te", half_body];
    let streams = sent.map(|bytes| {
        let mut stream = server.connect();
        stream.write_all(bytes).unwrap();
        stream
    });
    assert_eq!(server.remaining("k"), 5);
    let [silent, half_head, half_body] = streams;
    for mut stream in [silent, half_head] {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"");
    }
    let response = Response::read(&mut BufReader::new(&half_body));
    assert!(response.problem(408).contains("within 10 seconds"));
    assert_eq!(response.header("connection"), Some("close"));
    let waited = start.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_secs(20)).contains(&waited), "{waited:?}");
    assert_eq!(server.remaining("k"), 5);
}

/// Half a request whose sender goes away is no request.
#[test]
fn half_a_body_changes_nothing() {
    let server = Server::start(SLOW_POLICY);
    let mut stream = server.connect();
    stream.write_all(b"POST /v1/check HTTP/1.1\r\nHost: test\r\nContent-Length: 31\r\n\r\n").unwrap();
    stream.write_all(br#"{"attributes":{"api_key":"k"}}"#).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(!String::from_utf8_lossy(&rest).starts_with("HTTP/1.1 200"));
    assert_eq!(server.remaining("k"), 5);
}
