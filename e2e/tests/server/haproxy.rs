//! The real HAProxy with `deploy/haproxy/`.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use crate::nginx::assert_reasons_reach_clients;
use crate::program::Server;
use crate::proxy::{App, Folder, Proxy, file, free_port};

const POLICY: &str = "limits:
  - {name: per-key, by: [api_key], rate: 5/h}
  - {name: login, when: {path: /login}, by: [ip], rate: 3/h}
  - {name: posts, when: {method: POST}, by: [ip], rate: 2/h}
";
const POST: &str = "POST /x HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc";

/// HAProxy with the recipe, its three addresses changed.
pub(crate) fn haproxy(tollgate: &str, app: &App) -> (Proxy, Folder) {
    let (folder, port) = (Folder::new("haproxy"), free_port());
    let replacements = [
        ("127.0.0.1:3000", format!("127.0.0.1:{}", app.port)),
        ("127.0.0.1:8000", format!("127.0.0.1:{port}")),
        ("lua-load tollgate.lua", format!("lua-load {}", file("deploy/haproxy/tollgate.lua").display())),
    ];
    let config = folder.adapt("deploy/haproxy/haproxy.cfg", "haproxy.cfg", &replacements);
    let mut command = Command::new("haproxy");
    command
        .args(["-db", "-f", &config.display().to_string()])
        .env("TOLLGATE", tollgate)
        .stderr(Stdio::null());
    (Proxy::start(command, port), folder)
}

/// Exactly so many requests pass as the limit has, and the client gets Tollgate's own refusal.
#[test]
fn exactly_the_limit_passes() {
    let (server, app) = (Server::start(POLICY), App::start());
    let (haproxy, _folder) = haproxy(&server.address.to_string(), &app);
    let answers: Vec<_> = (0..8).map(|_| haproxy.get("/x", "X-API-Key: k1\r\n")).collect();
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 429]);
    assert_eq!(app.seen(), 5);
    assert_eq!(answers[0].body, b"hello");
    assert_eq!(answers[0].header("ratelimit-policy"), Some("\"per-key\";q=5;w=3600"));
    assert_eq!(answers[0].header("x-ratelimit-remaining"), Some("4"));
    let denied = &answers[5];
    assert!(denied.header("retry-after").unwrap().parse::<u64>().unwrap() >= 720);
    assert!(denied.header("ratelimit").unwrap().starts_with("\"per-key\";r=0;t="));
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.json()["violated-policies"][0], "per-key");
    let uncounted = haproxy.get("/x", "");
    assert_eq!((uncounted.status, uncounted.header("ratelimit")), (200, None));
    let statuses: Vec<u16> = (0..3).map(|_| haproxy.send(POST).status).collect();
    assert_eq!(statuses, [200, 200, 429]);
}

/// A client behind HAProxy once got 400 without a word where the policy says `deny`. It gets the status and the reason that
/// Tollgate means.
#[test]
fn denied_and_blocked_clients_get_the_reason() {
    assert_reasons_reach_clients(haproxy);
}

/// Nothing that a client adds is believed.
#[test]
fn clients_cannot_forge_through_haproxy() {
    let (server, app) = (Server::start(POLICY), App::start());
    let (haproxy, _folder) = haproxy(&server.address.to_string(), &app);
    let forged = |n: u32| {
        format!("X-Forwarded-For: 203.0.113.{n}\r\nX-Forwarded-Uri: /other\r\nX-Forwarded-Method: PUT\r\n")
    };
    let spellings = ["/login", "//login", "/%6cogin", "/login?x=1"];
    let statuses: Vec<u16> =
        (0..).zip(spellings).map(|(n, path)| haproxy.get(path, &forged(n)).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
    assert_eq!(haproxy.get("/a%2fb", "").status, 400);
    assert_eq!(app.seen(), 3);
}

/// Without Tollgate, `/` is open and `/login` is closed, as the recipe says. After a failure no request waits for it: it is
/// not even asked.
#[test]
fn tollgate_is_down() {
    let app = App::start();
    let address = format!("127.0.0.1:{}", free_port());
    let (haproxy, _folder) = haproxy(&address, &app);
    let open = haproxy.get("/x", "X-API-Key: k1\r\n");
    assert_eq!((open.status, open.header("ratelimit")), (200, None));
    let back = TcpListener::bind(&address).unwrap();
    assert_eq!(haproxy.get("/login", "").status, 503);
    assert_eq!(haproxy.get("/x", "").status, 200);
    back.set_nonblocking(true).unwrap();
    assert!(back.accept().is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "it was asked");
    assert_eq!(app.seen(), 2);
}
