//! Smuggling: requests written so that two servers would read them differently. Raw bytes go through the gateway to the real nginx, the
//! real Node and hyper, and each must see exactly the requests that were meant.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::gateway_upstream::{Gateway, OPEN, Upstream};
use crate::proxy::{Folder, Proxy, free_port};

/// The request that no server may see.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// Published shapes, each with the request that it hides: all of them are answered 400, and the connection ends.
fn refused() -> Vec<String> {
    let post = |fields: &str, body: &str| format!("POST /x HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n{body}");
    let chunks = format!("0\r\n\r\n{SMUGGLED}");
    let length = SMUGGLED.len();
    let mut shapes = vec![
        // CL.TE and TE.CL, in both orders.
        post("Content-Length: 6\r\nTransfer-Encoding: chunked", "0\r\n\r\nG"),
        post("Transfer-Encoding: chunked\r\nContent-Length: 6", "0\r\n\r\nG"),
        post(&format!("Content-Length: {}\r\nTransfer-Encoding: chunked", chunks.len()), &chunks),
        post(
            "Content-Length: 4\r\nTransfer-Encoding: chunked",
            &format!("{length:x}\r\n{SMUGGLED}\r\n0\r\n\r\n"),
        ),
        // TE.TE: an encoding that only some recognise.
        post("Transfer-Encoding: chunked\r\nTransfer-encoding: identity", &chunks),
        post("Transfer-Encoding: chunked\r\nTransfer-Encoding: x", &chunks),
        post("Transfer-Encoding: x\r\nTransfer-Encoding: chunked", &chunks),
        // Lengths that are stated twice, or in a way that some read.
        post(&format!("Content-Length: 0\r\nContent-Length: {length}"), SMUGGLED),
        post(&format!("Content-Length: {length}\r\nContent-Length: {length}"), SMUGGLED),
        post(&format!("Content-Length: 0, {length}"), SMUGGLED),
        post("Content-Length: +0", SMUGGLED),
        post("Content-Length: -0", SMUGGLED),
        post("Content-Length: 0x0", SMUGGLED),
        post("Content-Length: 0 0", SMUGGLED),
        post("Content-Length: 00000000000000000000000", SMUGGLED),
        post("Content-Length: \"0\"", SMUGGLED),
        post("Content-Length: 18446744073709551616", SMUGGLED),
        post("Content-Length:", SMUGGLED),
        // Names and lines that some read.
        post("Content-Length : 5\r\nX: y", "GET /"),
        post("Transfer-Encoding : chunked", &chunks),
        post("Transfer-Encoding\t: chunked", &chunks),
        post(" Transfer-Encoding: chunked", &chunks),
        post("X: y\r\n Transfer-Encoding: chunked", &chunks),
        post("X: y\r\n\tfolded", &chunks),
        post("X: y\nTransfer-Encoding: chunked", &chunks),
        post("X: y\rTransfer-Encoding: chunked", &chunks),
        post("\u{0}Transfer-Encoding: chunked", &chunks),
        post("Transfer-Encoding: \u{b}chunked", &chunks),
        post("Transfer-Encoding: chunked\u{0}", &chunks),
        post("Foo\r\nTransfer-Encoding: chunked", &chunks),
        post(": y", ""),
        format!("POST /x HTTP/1.1\nHost: a\nContent-Length: 0\n\n{SMUGGLED}"),
        format!("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\n{SMUGGLED}"),
        format!("GET /x HTTP/1.1\r\nHost: a\n\r\n{SMUGGLED}"),
        format!("POST /x HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"),
        format!("GET /x  HTTP/1.1\r\nHost: a\r\n\r\n{SMUGGLED}"),
        format!("GET /x HTTP/1.1 \r\nHost: a\r\n\r\n{SMUGGLED}"),
        format!("GET /x HTTP/1.9\r\nHost: a\r\n\r\n{SMUGGLED}"),
        format!("GET /x\r\nHost: a\r\n\r\n{SMUGGLED}"),
        format!("GET\t/x\tHTTP/1.1\r\nHost: a\r\n\r\n{SMUGGLED}"),
        format!("GE\u{0}T /x HTTP/1.1\r\nHost: a\r\n\r\n{SMUGGLED}"),
    ];
    for coding in [
        "xchunked",
        "chunked, identity",
        "identity, chunked",
        "gzip, chunked",
        "chunked, chunked",
        "chunked;q=1",
        "\"chunked\"",
        ",chunked",
        "chunked,",
        "identity",
        "cow",
        "",
    ] {
        shapes.push(post(&format!("Transfer-Encoding: {coding}"), &chunks));
    }
    shapes
}

/// Chunks that some read: the head is right, so it may be sent on; but no whole request is, and none that it hides. Requests to this path
/// are reported by the servers when all of their body is there.
fn cut() -> Vec<String> {
    let chunked = |body: &str| {
        format!("POST /whole HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}{SMUGGLED}")
    };
    let bodies = [
        "5\nhello\r\n0\r\n\r\n",
        "5\rhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "5_\r\nhello\r\n0\r\n\r\n",
        "-1\r\n\r\n",
        "\r\n\r\n",
        "g\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhelloXX0\r\n\r\n",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
        "5;a\rb\r\nhello\r\n0\r\n\r\n",
        "fffffffffffffffff\r\n",
        "10000000000000000\r\n",
        "0\n\r\n",
        "0\r\n\n",
        "0\r\nX\r\n\r\n",
        "0\r\nX : y\r\n\r\n",
        "0\r\nX: y\n\r\n",
        "0\r\n X: y\r\n\r\n",
    ];
    bodies.iter().map(|body| chunked(body)).collect()
}

/// Requests that everybody reads alike, and how many they are.
fn fine() -> Vec<(String, usize)> {
    vec![
        ("GET /1 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 1),
        ("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 2),
        (format!("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{SMUGGLED}", SMUGGLED.len()), 1),
        (format!("POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{SMUGGLED}\r\n0\r\n\r\n", SMUGGLED.len()), 1),
        ("POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nX-Sum: 1\r\nContent-Length: 9\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 2),
        ("POST /1 HTTP/1.1\r\nHost: a\r\nContent_Length: 99\r\nTransfer_Encoding: chunked\r\nContent-Length: 0\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 2),
    ]
}

/// A server that tells what it sees.
trait Counted {
    /// The request lines since the last look.
    fn look(&self) -> Vec<String>;
    fn port(&self) -> u16;

    /// Waits until there are so many: another process writes them down when it likes.
    fn wait(&self, count: usize) -> Vec<String> {
        let mut lines = self.look();
        for _ in 0..400 {
            if lines.len() >= count {
                break;
            }
            #[allow(clippy::disallowed_methods, reason = "another process has another clock")]
            std::thread::sleep(Duration::from_millis(5));
            lines.extend(self.look());
        }
        lines
    }
}

fn is_smuggled(lines: &[String]) -> bool {
    lines.iter().any(|line| line.contains("smuggled"))
}

impl Counted for Upstream {
    fn look(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.line).collect()
    }

    fn port(&self) -> u16 {
        self.address.port()
    }
}

/// The real nginx, which writes each request to its log.
struct Nginx {
    proxy: Proxy,
    folder: Folder,
}

impl Nginx {
    fn start() -> Self {
        let (folder, port, behind) = (Folder::new("gateway-nginx"), free_port(), free_port());
        let servers = format!(
            "server {{
                 listen 127.0.0.1:{port};
                 location / {{ return 200 'hello'; }}
                 location /whole {{ access_log off; proxy_pass http://127.0.0.1:{behind}; }}
             }}
             server {{ listen 127.0.0.1:{behind}; location / {{ return 200 'hello'; }} }}"
        );
        Self { proxy: Proxy::nginx(&folder, port, &servers), folder }
    }
}

impl Counted for Nginx {
    fn look(&self) -> Vec<String> {
        let log = self.folder.0.join("access.log");
        let text = std::fs::read_to_string(&log).unwrap();
        std::fs::OpenOptions::new().write(true).open(&log).unwrap().set_len(0).unwrap();
        // A connection that ended within a request is a line, too, without one.
        let lines = text.lines().map(|line| line.trim_matches('\0')).filter(|line| line.contains(" HTTP/"));
        lines.map(str::to_owned).collect()
    }

    fn port(&self) -> u16 {
        self.proxy.address.port()
    }
}

/// The real Node, which writes each whole request to its output.
struct Node {
    child: Child,
    port: u16,
    seen: std::sync::mpsc::Receiver<String>,
}

impl Node {
    fn start() -> Self {
        let program = "const s = require('http').createServer((q, r) => { q.on('data', () => {}); \
            q.on('end', () => { console.log(q.method + ' ' + q.url); r.end('hello'); }); }); \
            s.listen(0, '127.0.0.1', () => console.log(s.address().port));";
        let mut child = Command::new("node")
            .args(["-e", program])
            .stdout(Stdio::piped())
            .spawn()
            .expect("node cannot be started");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = lines.next().unwrap().unwrap().parse().unwrap();
        let (send, seen) = std::sync::mpsc::channel();
        std::thread::spawn(move || lines.map_while(Result::ok).all(|line| send.send(line).is_ok()));
        Self { child, port, seen }
    }
}

impl Counted for Node {
    fn look(&self) -> Vec<String> {
        self.seen.try_iter().collect()
    }

    fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn corpus(upstream: &dyn Counted) {
    let gateway = Gateway::with(&["--upstream", &format!("http://127.0.0.1:{}", upstream.port())], OPEN);
    let _ = upstream.look();
    for (bytes, count) in fine() {
        let answers = gateway.all(bytes.as_bytes());
        assert_eq!(answers.matches("HTTP/1.1 200").count(), count, "{bytes:?}: {answers}");
        let lines = upstream.wait(count);
        assert!(lines.len() == count && !is_smuggled(&lines), "{bytes:?}: {lines:?}");
    }
    for bytes in refused() {
        let answers = gateway.all(bytes.as_bytes());
        assert!(answers.starts_with("HTTP/1.1 400 Bad Request"), "{bytes:?}: {answers}");
        assert!(answers.contains("\r\nconnection: close\r\n"), "{bytes:?}: {answers}");
        // It is the only one: what is no part of the problem's text would be no JSON.
        let (_, body) = answers.split_once("\r\n\r\n").unwrap();
        let problem: serde_json::Value = serde_json::from_str(body).expect(body);
        assert_eq!(problem["type"], "urn:tollgate:problem:invalid-request", "{bytes:?}: {answers}");
        assert_eq!(upstream.look(), Vec::<String>::new(), "{bytes:?}");
    }
    // A whole one is reported, so that silence about the others means something.
    let whole =
        "POST /whole HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    assert!(gateway.all(whole.as_bytes()).starts_with("HTTP/1.1 200"));
    assert_eq!(upstream.wait(1).len(), 1);
    let mut lines = Vec::new();
    for bytes in cut() {
        let answers = gateway.all(bytes.as_bytes());
        assert!(answers.starts_with("HTTP/1.1 400"), "{bytes:?}: {answers}");
        assert_eq!(answers.matches("HTTP/1.").count(), 1, "{bytes:?}: {answers}");
    }
    // Neither connections nor upstream are confused after all of it.
    assert_eq!(gateway.get("/after", "").status, 200);
    while !lines.iter().any(|line: &String| line.contains("/after")) {
        lines.extend(upstream.wait(1));
    }
    assert!(lines.len() == 1 && lines[0].contains("/after"), "{lines:?}");
}

#[test]
fn nothing_is_smuggled_to_hyper() {
    corpus(&Upstream::start());
}

#[test]
fn nothing_is_smuggled_to_nginx() {
    corpus(&Nginx::start());
}

#[test]
fn nothing_is_smuggled_to_node() {
    corpus(&Node::start());
}

/// A body that a client does not finish is not finished for the upstream either, and the connection behind is not used again.
#[test]
fn a_body_that_is_cut_off_completes_nothing() {
    let upstream = Node::start();
    let gateway = Gateway::with(&["--upstream", &format!("http://127.0.0.1:{}", upstream.port())], OPEN);
    for head in ["Content-Length: 100", "Transfer-Encoding: chunked"] {
        let answers =
            gateway.all(format!("POST /x HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n5\r\nhello\r\n").as_bytes());
        assert!(answers.is_empty() || answers.starts_with("HTTP/1.1 400"), "{answers}");
        assert_eq!(gateway.get("/after", "").status, 200);
        assert_eq!(upstream.wait(1), ["GET /after"]);
    }
}
