//! The real Caddy with `deploy/caddy/Caddyfile`.

use std::process::{Command, Stdio};

use crate::program::Server;
use crate::proxy::{App, Folder, Proxy, free_port};

const POLICY: &str = "limits:
  - {name: per-key, by: [api_key], rate: 5/h}
  - {name: login, when: {path: /login}, by: [ip], rate: 3/h}
  - {name: posts, when: {method: POST}, by: [ip], rate: 2/h}
";
const POST: &str = "POST /x HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc";

/// Caddy with the recipe, its three addresses changed.
pub(crate) fn caddy(tollgate: &str, app_port: u16) -> (Proxy, Folder) {
    let (folder, port) = (Folder::new("caddy"), free_port());
    let replacements = [
        ("127.0.0.1:8080", tollgate.to_owned()),
        ("127.0.0.1:3000", format!("127.0.0.1:{app_port}")),
        ("http://:8000", format!("http://:{port}")),
    ];
    let recipe = folder.adapt("deploy/caddy/Caddyfile", "recipe", &replacements);
    // No second port, and nothing in the user's home.
    let text = format!("{{\n\tadmin off\n}}\n{}", std::fs::read_to_string(recipe).unwrap());
    let main = folder.write("Caddyfile", &text);
    let mut command = Command::new("caddy");
    command.args(["run", "--adapter", "caddyfile", "--config", &main.display().to_string()]);
    command.env("XDG_DATA_HOME", &folder.0).env("XDG_CONFIG_HOME", &folder.0).stderr(Stdio::null());
    (Proxy::start(command, port), folder)
}

/// Exactly so many requests pass as the limit has, and the client gets Tollgate's own refusal.
#[test]
fn exactly_the_limit_passes() {
    let (server, app) = (Server::start(POLICY), App::start());
    let (caddy, _folder) = caddy(&server.address.to_string(), app.port);
    let answers: Vec<_> = (0..8).map(|_| caddy.get("/x", "X-API-Key: k1\r\n")).collect();
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 429]);
    assert_eq!(app.seen(), 5);
    assert_eq!(answers[0].body, b"hello");
    assert_eq!(answers[0].header("ratelimit-policy"), Some("\"per-key\";q=5;w=3600"));
    assert!(answers[0].header("ratelimit").unwrap().starts_with("\"per-key\";r=4;t="));
    let denied = &answers[5];
    assert!(denied.header("retry-after").unwrap().parse::<u64>().unwrap() >= 720);
    assert!(denied.header("ratelimit").unwrap().starts_with("\"per-key\";r=0;t="));
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.json()["violated-policies"][0], "per-key");
    let uncounted = caddy.get("/x", "");
    assert_eq!((uncounted.status, uncounted.header("ratelimit")), (200, None));
    let statuses: Vec<u16> = (0..3).map(|_| caddy.send(POST).status).collect();
    assert_eq!(statuses, [200, 200, 429]);
}

/// Nothing that a client adds is believed.
#[test]
fn clients_cannot_forge_through_caddy() {
    let (server, app) = (Server::start(POLICY), App::start());
    let (caddy, _folder) = caddy(&server.address.to_string(), app.port);
    let forged = |n: u32| {
        format!(
            "X-Forwarded-For: 203.0.113.{n}\r\nX-Original-URI: /other\r\nX-Forwarded-Uri: /other\r\nX-Forwarded-Method: PUT\r\n"
        )
    };
    let spellings = ["/login", "//login", "/%6cogin", "/login?x=1"];
    let statuses: Vec<u16> =
        (0..).zip(spellings).map(|(n, path)| caddy.get(path, &forged(n)).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
    assert_eq!(caddy.get("/a%2fb", "").status, 400);
    assert_eq!(app.seen(), 3);
}

/// Without Tollgate, `/` is open and `/login` is closed. Without the application a request is not sent to it twice.
#[test]
fn tollgate_or_the_application_is_down() {
    let app = App::start();
    let (without, _folder) = caddy(&format!("127.0.0.1:{}", free_port()), app.port);
    assert_eq!(without.get("/x", "").status, 200);
    assert_eq!(without.send(POST).status, 200);
    assert_eq!(without.get("/login", "").status, 502);
    assert_eq!(app.seen(), 2);
    let server = Server::start(POLICY);
    let (alone, _folder) = caddy(&server.address.to_string(), free_port());
    assert_eq!(alone.get("/x", "X-API-Key: k1\r\n").status, 502);
    assert_eq!(server.send("GET", "/healthz", "").status, 200);
}
